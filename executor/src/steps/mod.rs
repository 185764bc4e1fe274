//! The steps that an attempt consists of: preparing the image, placing the inputs, collecting the outputs. Each step
//! ends soon after it is called off.

pub(crate) mod checkpoints;
mod collect;

use std::sync::Arc;
use std::time::Duration;

use muster_containers::disk::lacks_reserve;
use muster_containers::home_folder;
use muster_containers::image_reference::ImageName;
use muster_containers::images::{FoundImage, LeasedImage};
use muster_containers::private_pull::pull_private;
use muster_containers::sandbox::RunAs;
use muster_job_data::volumes::{UnpackLimits, merge_volumes};
use muster_job_data::{Fetcher, UploadError, Uploader, VolumeError};
use muster_process::Coded;
use muster_process::error::Causes;
use muster_protocol::job::Fault;
use muster_protocol::volume::VolumePart;
use muster_protocol::wire::executor::ProgressOf;
use muster_protocol::wire::miner::{InitialJobRequest, JobImage, JobRequest};
use muster_protocol::wire::muster::OfferExtension;
use muster_protocol::{HordeFailureReason, JobFailureReason, JobStage};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

pub(crate) use self::collect::{
    CollectedOutputs, collect_outputs, find_left_outputs, upload_all, upload_outputs,
};
use crate::attempt_state::{AttemptFailure, StreamingMode};
use crate::config::{Config, Policy};
use crate::context::AttemptContext;
use crate::engine::ContainerEngine;
use crate::job_sandbox::{checkpoint_order, container_name, is_mountable, labels, wants_gpu};
use crate::journal::JournaledJob;
use crate::machine::gpu::ClaimedGpus;
use crate::machine::{gpu, specs};
use crate::warm_containers::{AttachedContainer, WarmContainer, WarmTemplate};
use crate::workspace::Workspace;
use crate::{images, user_archives};

/// How long a job waits until the containers of dead executors are removed.
const REAP_LIMIT: Duration = Duration::from_secs(30);

/// An image that stays on this machine for as long as this value lives.
#[derive(Debug)]
pub(crate) struct PreparedImage {
    /// The name that the job gave it.
    pub(crate) name: String,
    pub(crate) resolved: LeasedImage,
}

/// A job's image before anything is fetched.
#[derive(Debug)]
pub(crate) enum SoughtImage {
    /// The job names none yet.
    None,
    Here(Box<PreparedImage>),
    /// It has to be fetched from this registry.
    AtRegistry(String),
}

/// A job whose request is complete and whose image is there.
#[derive(Debug)]
pub(crate) struct RequestedJob {
    pub(crate) offer: Box<InitialJobRequest>,
    pub(crate) job: JobRequest,
    pub(crate) engine: ContainerEngine,
    pub(crate) image: Box<PreparedImage>,
}

/// A job that can run: its folders, inputs and GPUs are there.
#[derive(Debug)]
pub(crate) struct PlacedJob {
    pub(crate) request: Arc<RequestedJob>,
    /// The name of its container, which exists already if there is a warm one.
    pub(crate) container: String,
    pub(crate) workspace: Workspace,
    /// The home folder of the image's user, if the image keeps nothing there.
    pub(crate) bare_home: Option<String>,
    pub(crate) policy: Policy,
    /// A container that was started ahead for a job like this one.
    pub(crate) warm: Option<AttachedContainer>,
    /// From which a container for the next job like this one is made.
    template: Option<WarmTemplate>,
    /// `None` for a job without GPUs.
    pub(crate) gpus: Option<ClaimedGpus>,
    /// The name of the checkpoint that it begins from, if it does.
    pub(crate) resumed: Option<String>,
}

// === impl PreparedImage ===

impl PreparedImage {
    /// The name of the image and the content that the name stood for, as the result reports them.
    pub(crate) fn to_job_image(&self) -> JobImage {
        JobImage {
            name: self.name.clone(),
            id: self.resolved.image.id,
            manifest: self.resolved.manifest,
        }
    }
}

// === impl RequestedJob ===

impl RequestedJob {
    pub(crate) fn streaming(&self) -> Option<StreamingMode> {
        streaming_mode(&self.offer)
    }

    fn wants_gpu(&self) -> bool {
        wants_gpu(&self.job, self.offer.executor_class)
    }

    fn policy(&self, config: &Config) -> Policy {
        let class = self.offer.executor_class;
        let policy = config.policy(class, self.image.resolved.image.id, specs::read_machine_size());
        match self.streaming() {
            // A sealed session runs a whitelisted image, which never chooses its own user.
            Some(StreamingMode::Sealed) => Policy {
                run_as: RunAs::Nobody,
                ..policy
            },
            Some(StreamingMode::Direct) | None => policy,
        }
    }
}

// === impl PlacedJob ===

impl PlacedJob {
    /// Gives back what the job took from this machine, and has a warm container made for the next job like it. Returns
    /// the folders, which hold the job's journal. They stay if the container may still be there: the next executor
    /// finds it by them.
    pub(crate) async fn give_back(self, context: &AttemptContext, container_gone: bool) -> Option<Workspace> {
        if let Some(gpus) = self.gpus {
            gpus.give_back(context.clock()).await;
        }
        if !container_gone {
            self.workspace.give_up();
            return None;
        }
        if let (Some(warm), Some(template)) = (&context.process.warm, self.template) {
            warm.replenish(&self.request.engine, template);
        }
        Some(self.workspace)
    }

    /// A job that another process began, with its container.
    pub(crate) fn taken_over(
        request: Arc<RequestedJob>,
        workspace: Workspace,
        journaled: &JournaledJob,
        gpus: Option<ClaimedGpus>,
        config: &Config,
    ) -> Self {
        Self {
            policy: request.policy(config),
            request,
            container: journaled.container.clone(),
            workspace,
            bare_home: journaled.bare_home.clone(),
            warm: None,
            template: None,
            gpus,
            resumed: None,
        }
    }
}

// === steps ===

/// How a job that answers requests ends; `None` for another job.
pub(crate) fn streaming_mode(offer: &InitialJobRequest) -> Option<StreamingMode> {
    let details = offer.streaming_details.as_ref()?;
    Some(match details.muster {
        Some(_) => StreamingMode::Sealed,
        None => StreamingMode::Direct,
    })
}

/// Connects to the engine and looks for the image, if one is named.
pub(crate) async fn prepare_image(
    context: AttemptContext,
    image: Option<String>,
    private: Option<OfferExtension>,
) -> Result<(ContainerEngine, SoughtImage), AttemptFailure> {
    let (config, clock) = (context.config(), context.clock());
    let engine = context
        .process
        .cache
        .engine(&config.engine, clock)
        .await
        .map_err(|error| images::engine_failed(&error))?;
    // Before the job's own container: a dead one may hold the memory or the GPU that it needs.
    match timeout(
        REAP_LIMIT,
        muster_containers::reap(&engine, &config.work_dir, clock.now()),
    )
    .await
    {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = %Causes(&error), "containers of dead executors were not removed");
        }
        Err(_) => tracing::warn!("removing containers of dead executors takes long; the job does not wait"),
    }
    let Some(name) = image else {
        return Ok((engine, SoughtImage::None));
    };
    let OfferExtension {
        image_archive,
        credentials,
        ..
    } = private.unwrap_or_default();
    if credentials.is_some()
        && let Ok(ImageName::Registry(reference)) = name.parse()
    {
        // The registry decides anew whether the login suffices, although the image may be here.
        return Ok((engine, SoughtImage::AtRegistry(reference.registry)));
    }
    let sought = match images::look(&engine, &config.images, &name, image_archive.as_ref(), clock).await? {
        FoundImage::Here(resolved) => SoughtImage::Here(Box::new(PreparedImage {
            name,
            resolved: *resolved,
        })),
        FoundImage::AtRegistry(registry) => SoughtImage::AtRegistry(registry),
    };
    Ok((engine, sought))
}

/// Fetches an image that is not on this machine, or that its registry must allow anew: from its user's archive, with
/// its user's login, or as anyone may.
pub(crate) async fn fetch_image(
    context: AttemptContext,
    engine: &ContainerEngine,
    name: String,
    private: Option<OfferExtension>,
) -> Result<Box<PreparedImage>, AttemptFailure> {
    let (progress, clock) = (context.live.image_progress_sink(), context.clock());
    let settings = &context.config().images;
    let OfferExtension {
        image_archive,
        credentials,
        ..
    } = private.unwrap_or_default();
    let resolved = match (image_archive, credentials) {
        (Some(source), _) => user_archives::prepare(&context, engine, &name, &source).await?,
        (None, Some(login)) => pull_private(engine, settings, &name, &login, &progress, clock)
            .await
            .map_err(|error| images::image_failed(&error))?,
        (None, None) => images::prepare(engine, settings, &name, &progress, clock).await?,
    };
    Ok(Box::new(PreparedImage { name, resolved }))
}

/// Makes the job's folders and puts its inputs there. Rejects here a job that could only fail later.
pub(crate) async fn place_inputs(
    request: Arc<RequestedJob>,
    context: AttemptContext,
) -> Result<PlacedJob, AttemptFailure> {
    check_upload(&request.job, context.config())?;
    let inputs = open_inputs(&request, &context)?;
    let policy = request.policy(context.config());
    let (folders, warm) = take_warm(&request, &context, policy)
        .map(WarmContainer::into_parts)
        .unzip();
    match place(&request, &context, inputs, folders).await {
        Ok((workspace, gpus, bare_home, resumed)) => Ok(PlacedJob {
            container: match &warm {
                Some(warm) => warm.name.clone(),
                None => container_name(&context.token),
            },
            template: warm_template(&request, &context, policy, bare_home.clone()),
            request,
            workspace,
            bare_home,
            policy,
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

/// A warm container that fits the job, if one waits. None fits before the home of the image's user is known.
fn take_warm(request: &RequestedJob, context: &AttemptContext, policy: Policy) -> Option<WarmContainer> {
    let bare_home = context.process.cache.home(request.image.resolved.image.id)?;
    let template = warm_template(request, context, policy, bare_home)?;
    context.process.warm.as_ref()?.take(template.shape())
}

/// The template of warm containers for jobs like this one. A job with a GPU has none, because a GPU belongs to one
/// job at a time; neither has a streaming job, because of its folder for a socket.
fn warm_template(
    request: &RequestedJob,
    context: &AttemptContext,
    policy: Policy,
    bare_home: Option<String>,
) -> Option<WarmTemplate> {
    let leaves_checkpoints = checkpoint_order(&request.job).is_some();
    if request.wants_gpu()
        || request.streaming().is_some()
        || leaves_checkpoints
        || context.process.warm.is_none()
    {
        return None;
    }
    let image = &request.image.resolved.image;
    WarmTemplate::of(&request.job, image, bare_home, policy, &context.config().runtime)
}

/// Claims the GPUs, makes the folders unless a warm container brought them, fetches the inputs, and finds out whether
/// the image's user has a bare home.
async fn place(
    request: &Arc<RequestedJob>,
    context: &AttemptContext,
    (fetcher, parts): (Fetcher, Vec<VolumePart>),
    folders: Option<Workspace>,
) -> Result<(Workspace, Option<ClaimedGpus>, Option<String>, Option<String>), AttemptFailure> {
    let config = context.config();
    let limits = UnpackLimits {
        bytes: config.volumes.max_mib.saturating_mul(1 << 20),
        entries: config.volumes.max_entries,
    };
    let work = {
        let (config, request) = (Arc::clone(config), Arc::clone(request));
        move || make_folders(&config, &request, folders)
    };
    let (workspace, gpus) = spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(unfit(&error)))?;
    fetcher
        .place(parts, &workspace.folders().volume, limits, &context.called_off)
        .await
        .map_err(|error| volume_failed(&error))?;
    let resumed = checkpoints::place_resume_data(request, context, &workspace).await?;
    let bare_home = find_bare_home(request, context, &workspace).await?;
    Ok((workspace, gpus, bare_home, resumed))
}

/// The home of the image's user if the image keeps nothing there: from the cache, or by a look into the image.
async fn find_bare_home(
    request: &RequestedJob,
    context: &AttemptContext,
    workspace: &Workspace,
) -> Result<Option<String>, AttemptFailure> {
    let image = &request.image.resolved.image;
    if let Some(known) = context.process.cache.home(image.id) {
        return Ok(known);
    }
    let name = format!("{}-look", container_name(&context.token));
    let labels = labels(context.attempt(), &workspace.folders().root);
    let found = home_folder::find_bare_home(&request.engine, image, &name, labels)
        .await
        .map_err(|error| images::engine_failed(&error))?;
    context.process.cache.keep_home(image.id, found.clone());
    Ok(found)
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
            let size = config.job_disk(request.policy(config).allowance.disk);
            Workspace::new(&config.work_dir, request.job.job_uuid, size).map_err(|error| unfit(&error))?
        }
    };
    if lacks_reserve(&workspace.folders().root, config.disk_reserve()) {
        return Err(reserve_lacking(config));
    }
    let gpus = if request.wants_gpu() {
        let owner = &workspace.folders().root;
        Some(gpu::claim_watched(&config.gpus, owner).map_err(|error| unfit(&error))?)
    } else {
        None
    };
    if request.streaming().is_some() {
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

fn volume_failed(error: &VolumeError) -> AttemptFailure {
    let (reason, stage) = (JobFailureReason::DownloadFailed, JobStage::VolumeDownload);
    transfer_failed(error, error.fault(), reason, stage)
}

fn upload_failed(error: &UploadError) -> AttemptFailure {
    let (reason, stage) = (JobFailureReason::UploadFailed, JobStage::ResultUpload);
    transfer_failed(error, error.fault(), reason, stage)
}

/// The job's own failure if its user is at fault; otherwise the subnet's, because another executor may not have it.
fn transfer_failed(
    error: &(impl Coded + 'static),
    fault: Fault,
    reason: JobFailureReason,
    stage: JobStage,
) -> AttemptFailure {
    let message = Causes(error).to_string();
    let failure = match fault {
        Fault::User => AttemptFailure::job(reason, stage, message),
        Fault::Nobody
        | Fault::Executor
        | Fault::Miner
        | Fault::Validator
        | Fault::Facilitator
        | Fault::Network => {
            AttemptFailure::horde(HordeFailureReason::GenericError, stage, message).blame(fault)
        }
    };
    match error.code() {
        Some(code) => failure.with_code(code),
        None => failure,
    }
}

/// The failure of a machine whose disk has less left than its operator keeps free.
pub(crate) fn reserve_lacking(config: &Config) -> AttemptFailure {
    let message = format!(
        "the executor's disk at {} has less than its reserve of {} MiB left",
        config.work_dir.display(),
        config.disk_reserve_mib
    );
    AttemptFailure::horde(HordeFailureReason::GenericError, JobStage::Execution, message)
        .blame(Fault::Executor)
}

/// The failure of a machine that cannot do the work, with no fault of the job.
fn unfit(error: &(dyn std::error::Error + 'static)) -> AttemptFailure {
    let message = Causes(error).to_string();
    AttemptFailure::horde(
        HordeFailureReason::GenericError,
        JobStage::VolumeDownload,
        message,
    )
}
