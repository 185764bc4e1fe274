//! The pieces of work that an attempt consists of. Each ends soon after it is called off.

use std::sync::Arc;
use std::time::Duration;

use muster_kit::error::Causes;
use muster_protocol::wire::miner::JobRequest;
use muster_protocol::{ErrorCode, ExecutorToken, HordeFailureReason, JobFailureReason, JobStage, Volume};
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::engine::{Engine, LocalImage};
use crate::outputs::Artifacts;
use crate::sandbox::{JobFolders, artifacts_dir, artifacts_folder};
use crate::stages::{Exit, Failure};
use crate::volumes::{self, UnpackLimits, VolumeError};
use crate::workspace::Workspace;
use crate::{home, images, reap, specs};

/// How long a job waits for what dead executors left to be removed.
const REAP_LIMIT: Duration = Duration::from_secs(30);

/// What a piece of work came to.
#[derive(Debug)]
pub(crate) enum Done {
    /// The engine answers; the image is there, if the offer names one.
    Image(Engine, Option<LocalImage>),
    /// Inputs are in place, and the image that the request names is there.
    Placed(Placed),
    /// The program has ended.
    Exited(Exit),
    /// The job wrote more than this many bytes.
    DiskFull(u64),
    /// Called off, or nothing to tell.
    Stopped,
    /// Outputs are read.
    Collected(Artifacts, Value),
    /// It cannot be done.
    Failed(Failure),
}

/// What a job needs to run.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) workspace: Workspace,
    pub(crate) image: LocalImage,
    /// The home folder of the image's user, if the image keeps nothing there.
    pub(crate) bare_home: Option<String>,
}

/// What [`place_volumes`] needs.
pub(crate) struct Inputs {
    pub(crate) config: Arc<Config>,
    pub(crate) engine: Engine,
    pub(crate) token: ExecutorToken,
    pub(crate) job: Arc<JobRequest>,
    /// The volume that came with the offer.
    pub(crate) offered_volume: Option<Volume>,
    /// The image that was prepared for the offer, by name.
    pub(crate) prepared: Option<(String, LocalImage)>,
    pub(crate) called_off: CancellationToken,
}

/// Connects to the engine and gets the image of the offer ready.
pub(crate) async fn prepare_image(config: Arc<Config>, image: Option<String>) -> Done {
    let engine = match Engine::connect(&config.engine).await {
        Ok(engine) => engine,
        Err(error) => return Done::Failed(images::engine_failed(&error)),
    };
    // Before the job's own container: a dead one may hold the memory or the GPU that it needs.
    match timeout(REAP_LIMIT, reap::with(&engine, &config.work_dir)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(error = %Causes(&error), "dead executors are passed over"),
        Err(_) => tracing::warn!("removing what dead executors left takes long; the job does not wait"),
    }
    let Some(name) = image else {
        return Done::Image(engine, None);
    };
    match images::prepare(&engine, &name, &config.preload).await {
        Ok(image) => Done::Image(engine, Some(image)),
        Err(failure) => Done::Failed(failure),
    }
}

/// Makes the job's folders and puts its inputs there. Refuses here what this executor would fail at later.
pub(crate) async fn place_volumes(inputs: Inputs) -> Done {
    match placed(inputs).await {
        Ok(placed) => Done::Placed(placed),
        Err(failure) => Done::Failed(failure),
    }
}

async fn placed(inputs: Inputs) -> Result<Placed, Failure> {
    let Inputs {
        config,
        engine,
        token,
        job,
        offered_volume,
        prepared,
        called_off,
    } = inputs;
    if job.output_upload.is_some() {
        let message = "this executor does not upload outputs; return them as artifacts";
        return Err(Failure::job(
            JobFailureReason::UploadFailed,
            JobStage::ResultUpload,
            message,
        ));
    }
    let image = match prepared {
        Some((name, image)) if name == job.docker_image => image,
        Some(_) | None => images::prepare(&engine, &job.docker_image, &config.preload).await?,
    };
    let work = move || {
        let parts =
            volumes::only_one(offered_volume, job.volume.clone()).map_err(|error| volume_failed(&error))?;
        let workspace = Workspace::new(&config.work_dir, job.job_uuid).map_err(|error| unfit(&error))?;
        if let Some(script) = &job.raw_script {
            workspace.write_script(script).map_err(|error| unfit(&error))?;
        }
        let limits = UnpackLimits {
            bytes: config.volumes.max_mib.saturating_mul(1 << 20),
            entries: config.volumes.max_entries,
        };
        volumes::place(&parts, &workspace.folders().volume, limits, &called_off)
            .map_err(|error| volume_failed(&error))?;
        Ok(workspace)
    };
    let workspace = spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(unfit(&error)))?;
    let bare_home = home::bare_home(&engine, &image, &token, &workspace.folders().root)
        .await
        .map_err(|error| images::engine_failed(&error))?;
    Ok(Placed {
        workspace,
        image,
        bare_home,
    })
}

/// Reads the job's artifacts and this machine's specs.
pub(crate) async fn collect(job: Arc<JobRequest>, folders: JobFolders, max_total: u64) -> Done {
    let work = move || {
        let artifacts = match artifacts_dir(&job) {
            Ok(Some(dir)) => Artifacts::collect(artifacts_folder(&folders, &dir), &dir, max_total),
            // A path that cannot be one was refused before the job ran.
            Ok(None) | Err(_) => Ok(Artifacts::default()),
        };
        let artifacts = artifacts.map_err(|error| {
            let message = format!("the job's artifacts cannot be read: {error}");
            Failure::horde(HordeFailureReason::GenericError, JobStage::ResultUpload, message)
        })?;
        Ok((artifacts, specs::gather(&folders.root)))
    };
    match spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(unfit(&error)))
    {
        Ok((artifacts, specs)) => Done::Collected(artifacts, specs),
        Err(failure) => Done::Failed(failure),
    }
}

fn volume_failed(error: &VolumeError) -> Failure {
    let message = Causes(error).to_string();
    if error.is_users_fault() {
        Failure::job(
            JobFailureReason::DownloadFailed,
            JobStage::VolumeDownload,
            message,
        )
        .coded(ErrorCode::VolumeRefused)
    } else {
        Failure::horde(
            HordeFailureReason::GenericError,
            JobStage::VolumeDownload,
            message,
        )
    }
}

/// This machine cannot do it, for no fault of the job.
fn unfit(error: &(dyn std::error::Error + 'static)) -> Failure {
    let message = Causes(error).to_string();
    Failure::horde(
        HordeFailureReason::GenericError,
        JobStage::VolumeDownload,
        message,
    )
}
