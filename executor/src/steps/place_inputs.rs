//! The step that makes the job's folders, claims its GPUs, and places its inputs.

use std::sync::Arc;

use muster_containers::disk::lacks_reserve;
use muster_containers::docker_engine::LocalImage;
use muster_containers::image_flaw::find_flaw;
use muster_containers::image_folders::ImageFolders;
use muster_job_data::volumes::{UnpackLimits, merge_volumes};
use muster_job_data::{Fetcher, Uploader};
use muster_process::error::Causes;
use muster_protocol::volume::VolumePart;
use muster_protocol::wire::executor::ProgressOf;
use muster_protocol::wire::miner::JobRequest;
use muster_protocol::{ErrorCode, JobFailureReason, JobStage};
use tokio::task::spawn_blocking;

use super::failures::{image_files_failed, reserve_lacking, unfit, upload_failed, volume_failed};
use super::job::{PlacedJob, RequestedJob};
use super::restore_checkpoint::restore_checkpoint;
use crate::attempt_state::AttemptFailure;
use crate::config::Config;
use crate::context::AttemptContext;
use crate::image_files::ImageUse;
use crate::images;
use crate::job_sandbox::{checkpoint_order, command, container_name, is_mountable};
use crate::machine::gpu::{self, ClaimedGpus};
use crate::program_input::ProgramInput;
use crate::warm_containers::{WarmContainer, WarmTemplate};
use crate::workspace::Workspace;

/// Makes the job's folders and puts its inputs there. Rejects here a job that could only fail later.
pub(crate) async fn place_inputs(
    request: Arc<RequestedJob>,
    context: AttemptContext,
) -> Result<PlacedJob, AttemptFailure> {
    check_image(&request)?;
    check_upload(&request.job, context.config())?;
    let inputs = open_inputs(&request, &context)?;
    let (folders, warm) = take_warm(&request, &context)
        .map(WarmContainer::into_parts)
        .unzip();
    match place(&request, &context, inputs, folders).await {
        Ok((workspace, gpus, image_folders, resumed)) => Ok(PlacedJob {
            input: open_program_input(&request, &workspace)?,
            container: match &warm {
                Some(warm) => warm.name.clone(),
                None => container_name(&context.token),
            },
            template: warm_template(&request, &context, Arc::clone(&image_folders)),
            request,
            workspace,
            image_folders,
            warm,
            gpus,
            resumed,
        }),
        Err(failure) => {
            // The folders of the warm container are gone: the next executor would not find it.
            if let Some(warm) = warm
                && let Err(error) = request.engine.remove(&warm.name).await
            {
                tracing::error!(error = %Causes(&error), container = warm.name, "a warm container was not removed");
            }
            Err(failure)
        }
    }
}

/// Checks that a container can be started of the image, as far as its configuration shows it.
fn check_image(request: &RequestedJob) -> Result<(), AttemptFailure> {
    let command = command(&request.job);
    let own = &request.image.resolved.image;
    let replaced = request.start().and_then(|start| start.entrypoint.as_ref());
    // The image's arguments belong to its own entry point.
    let replaced = replaced.map(|program| LocalImage {
        entrypoint: vec![program.clone()],
        command: Vec::new(),
        ..own.clone()
    });
    let image = replaced.as_ref().unwrap_or(own);
    let flaw = find_flaw(image, command.as_deref(), request.layout.policy.run_as);
    flaw.map_or(Ok(()), |flaw| Err(AttemptFailure::broken_image(&flaw.message)))
}

/// Checks where the outputs go before anything is fetched.
fn check_upload(job: &JobRequest, config: &Config) -> Result<(), AttemptFailure> {
    let Some(upload) = &job.output_upload else {
        return Ok(());
    };
    let uploader = Uploader::new(&config.transfer).map_err(|error| unfit(&error))?;
    uploader.check(upload).map_err(|error| upload_failed(&error))
}

/// A fetcher, and the parts of the one volume that offer and request may have between them.
fn open_inputs(
    request: &RequestedJob,
    context: &AttemptContext,
) -> Result<(Fetcher, Vec<VolumePart>), AttemptFailure> {
    let transfer = context.config().transfer.clone();
    let fetcher = Fetcher::new(transfer, Arc::clone(context.clock()))
        .map_err(|error| unfit(&error))?
        .with_progress(context.live.progress_sink(ProgressOf::Download));
    let parts = merge_volumes(request.offer.volume.clone(), request.job.volume.clone())
        .map_err(|error| volume_failed(&error))?;
    Ok((fetcher, parts))
}

/// Opens what the program is to read from standard input. Without a file at its path the job cannot be run anywhere.
fn open_program_input(
    request: &RequestedJob,
    workspace: &Workspace,
) -> Result<Option<ProgramInput>, AttemptFailure> {
    let Some(path) = request.start().and_then(|start| start.stdin.as_deref()) else {
        return Ok(None);
    };
    let folders = workspace.folders();
    let opened = ProgramInput::open(&folders.volume, path, &folders.logs);
    opened.map(Some).map_err(|error| {
        let message =
            format!("the input {path:?}, which the program is to read, is no file in /volume: {error}");
        let (reason, stage) = (JobFailureReason::DownloadFailed, JobStage::VolumeDownload);
        AttemptFailure::job(reason, stage, message).with_code(ErrorCode::VolumeRefused)
    })
}

/// A warm container that fits the job, if one waits. None fits before the folders of its image are known.
fn take_warm(request: &RequestedJob, context: &AttemptContext) -> Option<WarmContainer> {
    let image_folders = context.process.cache.folders(request.image.resolved.image.id)?;
    let template = warm_template(request, context, image_folders)?;
    context.process.warm.as_ref()?.take(template.shape())
}

/// The template of warm containers for jobs like this one. A job with a GPU has none, because a GPU belongs to one
/// job at a time; neither has a streaming job, because of its folder for a socket, nor one that says how its program is
/// started.
fn warm_template(
    request: &RequestedJob,
    context: &AttemptContext,
    image_folders: Arc<ImageFolders>,
) -> Option<WarmTemplate> {
    let layout = &request.layout;
    if layout.has_gpus
        || layout.streaming.is_some()
        || checkpoint_order(&request.job).is_some()
        || request.start().is_some()
        || context.process.warm.is_none()
    {
        return None;
    }
    let image = &request.image.resolved.image;
    WarmTemplate::of(
        &request.job,
        image,
        image_folders,
        layout.policy,
        &context.config().runtime,
    )
}

/// Claims the GPUs, makes the folders unless a warm container brought them, lays out files of the image, and fetches
/// the inputs.
async fn place(
    request: &Arc<RequestedJob>,
    context: &AttemptContext,
    (fetcher, parts): (Fetcher, Vec<VolumePart>),
    folders: Option<Workspace>,
) -> Result<(Workspace, Option<ClaimedGpus>, Arc<ImageFolders>, Option<String>), AttemptFailure> {
    let config = context.config();
    let limits = UnpackLimits {
        bytes: config.volumes.max_mib.saturating_mul(1 << 20),
        entries: config.volumes.max_entries,
    };
    let is_warm = folders.is_some();
    let work = {
        let (config, request) = (Arc::clone(config), Arc::clone(request));
        move || make_folders(&config, &request, folders)
    };
    let (workspace, gpus) = spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(unfit(&error)))?;
    let cache = &context.process.cache;
    let container = container_name(&context.token);
    let image_use = ImageUse {
        engine: &request.engine,
        image: &request.image.resolved.image,
        policy: request.layout.policy,
        folders: workspace.folders(),
        attempt: context.attempt(),
        container: &container,
    };
    let found = image_use.find_folders(cache, context.clock()).await;
    let mut found = found.map_err(|error| images::engine_failed(&error))?;
    if !is_warm {
        // A warm container has them.
        let began = context.clock().now();
        let laid = image_use.lay_files(found, cache).await;
        found = laid.map_err(|error| image_files_failed(&error))?;
        let ms = context.clock().now().since(began).as_millis();
        tracing::info!(ms, "the files that the image keeps where jobs write are laid out");
    }
    fetcher
        .place(parts, &workspace.folders().volume, limits, &context.called_off)
        .await
        .map_err(|error| volume_failed(&error))?;
    let resumed = restore_checkpoint(request, context, &workspace).await?;
    let given = image_use.give_folders(&found).await;
    given.map_err(|error| image_files_failed(&error))?;
    Ok((workspace, gpus, found, resumed))
}

/// Makes the job's folders, unless `folders` were made ahead, and claims its GPUs. Blocks.
fn make_folders(
    config: &Config,
    request: &RequestedJob,
    folders: Option<Workspace>,
) -> Result<(Workspace, Option<ClaimedGpus>), AttemptFailure> {
    let workspace = match folders {
        Some(workspace) => workspace,
        None => {
            let size = config.job_disk(&request.layout.policy);
            Workspace::new(&config.work_dir, request.job.job_uuid, size).map_err(|error| unfit(&error))?
        }
    };
    if lacks_reserve(&workspace.folders().root, config.disk_reserve()) {
        return Err(reserve_lacking(config));
    }
    let gpus = if request.layout.has_gpus {
        let owner = &workspace.folders().root;
        Some(gpu::claim_watched(&config.gpus, owner).map_err(|error| unfit(&error))?)
    } else {
        None
    };
    if request.layout.streaming.is_some() {
        workspace.make_sockets().map_err(|error| unfit(&error))?;
    } else if let Some(order) = checkpoint_order(&request.job) {
        if !is_mountable(&request.job, order) {
            let message = format!("the folder of checkpoints {} cannot be mounted", order.folder);
            let (reason, stage) = (JobFailureReason::Unknown, JobStage::VolumeDownload);
            return Err(AttemptFailure::job(reason, stage, message));
        }
        workspace
            .make_checkpoint_folder()
            .map_err(|error| unfit(&error))?;
    }
    if let Some(script) = &request.job.raw_script {
        workspace.write_script(script).map_err(|error| unfit(&error))?;
    }
    Ok((workspace, gpus))
}
