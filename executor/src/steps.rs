//! The pieces of work that an attempt consists of. Each ends soon after it is called off.

use std::sync::Arc;
use std::time::Duration;

use muster_containers::home::bare_home;
use muster_containers::images::Resolved;
use muster_containers::sandbox::RunAs;
use muster_job_data::volumes::{UnpackLimits, only_one};
use muster_job_data::{Fetcher, UploadError, Uploaded, Uploader, VolumeError};
use muster_process::error::Causes;
use muster_process::{Coded, SharedClock};
use muster_protocol::job::Fault;
use muster_protocol::wire::executor::ProgressOf;
use muster_protocol::wire::miner::{JobImage, JobRequest};
use muster_protocol::{ExecutorClass, ExecutorToken, HordeFailureReason, JobFailureReason, JobStage, Volume};
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::attempt_state::{Exit, Failure, Streaming};
use crate::config::{Config, Policy};
use crate::engine::{Engine, LocalImage};
use crate::engine_cache::Memory;
use crate::gpu::Claimed;
use crate::live_updates::Live;
use crate::outputs::{Artifacts, STDERR_FILE, STDOUT_FILE};
use crate::sandbox::{JobFolders, artifacts_dir, artifacts_folder, container_name, labels, wants_gpu};
use crate::session::Open;
use crate::warm::{Held, Plan, Waiting, Warm};
use crate::workspace::Workspace;
use crate::{gpu, images, specs};

/// How long a job waits for what dead executors left to be removed.
const REAP_LIMIT: Duration = Duration::from_secs(30);

/// What a piece of work came to.
#[derive(Debug)]
pub(crate) enum Done {
    /// The engine answers; the image is there, if one was named.
    Image(Engine, Option<Box<Ready>>),
    /// Inputs are in place.
    Placed(Box<Placed>),
    /// The program has ended.
    Exited(Exit),
    /// The job wrote more than this many bytes.
    DiskFull(u64),
    /// A streaming job answers.
    Answers(Box<Open>),
    /// Its session is over; its last word.
    SessionOver(String),
    /// Called off, or nothing to tell.
    Stopped,
    /// Outputs are read and handed over.
    Collected(Box<Results>),
    /// It cannot be done.
    Failed(Failure),
}

/// An image that is there for as long as this is.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The name it was asked for by.
    pub(crate) name: String,
    pub(crate) resolved: Resolved,
}

impl Ready {
    /// What its name stood for.
    pub(crate) fn named(&self) -> JobImage {
        JobImage {
            name: self.name.clone(),
            id: self.resolved.image.id,
            manifest: self.resolved.manifest,
        }
    }
}

/// What a job that ended well leaves behind.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) artifacts: Artifacts,
    pub(crate) uploaded: Uploaded,
    /// The machine.
    pub(crate) specs: Value,
}

/// What a job needs to run.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) workspace: Workspace,
    /// The home folder of the image's user, if the image keeps nothing there.
    pub(crate) bare_home: Option<String>,
    /// What it may do.
    pub(crate) policy: Policy,
    /// A container that was started ahead for a job like this.
    pub(crate) held: Option<Waiting>,
    /// How one for the next is made.
    pub(crate) plan: Option<Plan>,
    /// The GPUs that are its own.
    pub(crate) gpus: Option<Claimed>,
}

/// What [`place_volumes`] needs.
pub(crate) struct Inputs {
    pub(crate) config: Arc<Config>,
    pub(crate) engine: Engine,
    pub(crate) token: ExecutorToken,
    pub(crate) class: ExecutorClass,
    pub(crate) job: Arc<JobRequest>,
    /// The volume that came with the offer.
    pub(crate) offered_volume: Option<Volume>,
    pub(crate) image: LocalImage,
    pub(crate) streaming: Option<Streaming>,
    pub(crate) clock: SharedClock,
    pub(crate) memory: Memory,
    pub(crate) warm: Option<Warm>,
    pub(crate) live: Live,
    pub(crate) called_off: CancellationToken,
}

/// Connects to the engine and has the image at hand, if one is named.
pub(crate) async fn prepare_image(
    config: Arc<Config>,
    image: Option<String>,
    memory: Memory,
    live: Live,
    clock: SharedClock,
) -> Done {
    let engine = match memory.engine(&config.engine, &clock).await {
        Ok(engine) => engine,
        Err(error) => return Done::Failed(images::engine_failed(&error)),
    };
    // Before the job's own container: a dead one may hold the memory or the GPU that it needs.
    match timeout(REAP_LIMIT, muster_containers::reap(&engine, &config.work_dir)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(error = %Causes(&error), "dead executors are passed over"),
        Err(_) => tracing::warn!("removing what dead executors left takes long; the job does not wait"),
    }
    let Some(name) = image else {
        return Done::Image(engine, None);
    };
    let progress = live.sink(ProgressOf::ImagePull);
    match images::prepare(&engine, &config.images, &name, &progress, &clock).await {
        Ok(resolved) => Done::Image(engine, Some(Box::new(Ready { name, resolved }))),
        Err(failure) => Done::Failed(failure),
    }
}

/// Makes the job's folders and puts its inputs there. Refuses here what this executor would fail at later.
pub(crate) async fn place_volumes(inputs: Inputs) -> Done {
    match placed(inputs).await {
        Ok(placed) => Done::Placed(Box::new(placed)),
        Err(failure) => Done::Failed(failure),
    }
}

async fn placed(inputs: Inputs) -> Result<Placed, Failure> {
    let Inputs {
        config,
        engine,
        token,
        class,
        job,
        offered_volume,
        image,
        streaming,
        clock,
        memory,
        warm,
        live,
        called_off,
    } = inputs;
    let fetcher = Fetcher::new(config.transfer.clone(), clock)
        .map_err(|error| unfit(&error))?
        .telling(live.sink(ProgressOf::Download));
    if let Some(upload) = &job.output_upload {
        // Before anything is fetched for a job whose outputs have nowhere to go.
        let uploader = Uploader::new(&config.transfer).map_err(|error| unfit(&error))?;
        uploader.check(upload).map_err(|error| upload_failed(&error))?;
    }
    let parts = only_one(offered_volume, job.volume.clone()).map_err(|error| volume_failed(&error))?;
    let limits = UnpackLimits {
        bytes: config.volumes.max_mib.saturating_mul(1 << 20),
        entries: config.volumes.max_entries,
    };
    let mut policy = config.policy(class, image.id, specs::machine());
    if streaming == Some(Streaming::Sealed) {
        // Whoever the image says: a session is of a whitelisted image.
        policy.run_as = RunAs::Nobody;
    }
    let with_gpu = wants_gpu(&job, class);
    let plan = |home: Option<String>| {
        let plan = || Plan::of(&job, &image, home, policy, &config.runtime);
        // A GPU belongs to one job at a time: nothing waits for the next one with it.
        // Nor with the folder of a socket.
        if with_gpu || streaming.is_some() || warm.is_none() {
            None
        } else {
            plan()
        }
    };
    let held = memory.home(image.id).and_then(plan).and_then(|plan| {
        let warm = warm.as_ref()?;
        warm.take(plan.shape())
    });
    let (ahead, held) = held.map(Held::parts).unzip();
    let work = {
        let (config, job) = (Arc::clone(&config), Arc::clone(&job));
        move || made(&config, &job, with_gpu, streaming.is_some(), ahead)
    };
    let placing = async {
        let (workspace, gpus) = spawn_blocking(work)
            .await
            .unwrap_or_else(|error| Err(unfit(&error)))?;
        fetcher
            .place(parts, &workspace.folders().volume, limits, &called_off)
            .await
            .map_err(|error| volume_failed(&error))?;
        let bare_home = match memory.home(image.id) {
            Some(known) => known,
            None => {
                let name = format!("{}-look", container_name(&token));
                let labels = labels(token.attempt(), &workspace.folders().root);
                let found = bare_home(&engine, &image, &name, labels)
                    .await
                    .map_err(|error| images::engine_failed(&error))?;
                memory.learn_home(image.id, found.clone());
                found
            }
        };
        Ok((workspace, gpus, bare_home))
    };
    match placing.await {
        Ok((workspace, gpus, bare_home)) => Ok(Placed {
            workspace,
            plan: plan(bare_home.clone()),
            bare_home,
            policy,
            held,
            gpus,
        }),
        Err(failure) => {
            // Its folders have gone: nobody would find it.
            if let Some(held) = held
                && let Err(error) = engine.remove(&held.name).await
            {
                tracing::error!(error = %Causes(&error), container = held.name, "a warm container stays");
            }
            Err(failure)
        }
    }
}

/// The job's folders, those that were made ahead if there are any, and its GPUs.
fn made(
    config: &Config,
    job: &JobRequest,
    with_gpu: bool,
    streaming: bool,
    ahead: Option<Workspace>,
) -> Result<(Workspace, Option<Claimed>), Failure> {
    let gpus = if with_gpu {
        Some(gpu::claim_watched(&config.gpus).map_err(|error| unfit(&error))?)
    } else {
        None
    };
    let workspace = match ahead {
        Some(workspace) => workspace,
        None => Workspace::new(&config.work_dir, job.job_uuid).map_err(|error| unfit(&error))?,
    };
    if streaming {
        workspace.make_sockets().map_err(|error| unfit(&error))?;
    }
    if let Some(script) = &job.raw_script {
        workspace.write_script(script).map_err(|error| unfit(&error))?;
    }
    Ok((workspace, gpus))
}

/// Hands the job's outputs over if it ended well, reads its artifacts and this machine's specs.
pub(crate) async fn collect(
    config: Arc<Config>,
    job: Arc<JobRequest>,
    folders: JobFolders,
    ended_well: bool,
    live: Live,
    called_off: CancellationToken,
) -> Done {
    match collected(&config, job, folders, ended_well, &live, &called_off).await {
        Ok(results) => Done::Collected(Box::new(results)),
        Err(failure) => Done::Failed(failure),
    }
}

async fn collected(
    config: &Config,
    job: Arc<JobRequest>,
    folders: JobFolders,
    ended_well: bool,
    live: &Live,
    called_off: &CancellationToken,
) -> Result<Results, Failure> {
    let uploaded = match job.output_upload.as_ref().filter(|_| ended_well) {
        Some(upload) => {
            put_printed(&folders);
            let uploader = Uploader::new(&config.transfer)
                .map_err(|error| unfit(&error))?
                .telling(live.sink(ProgressOf::Upload));
            let uploading = uploader.upload(upload, &folders.output, called_off);
            uploading.await.map_err(|error| upload_failed(&error))?
        }
        None => Uploaded::default(),
    };
    let max_total = config.artifacts.max_total_mib.saturating_mul(1 << 20);
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
        Ok(Results {
            artifacts,
            uploaded,
            specs: specs::gather(&folders.root),
        })
    };
    spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(unfit(&error)))
}

/// What the job printed goes where ComputeHorde's jobs find it among their outputs. A file of the job's own by that name
/// stays what it is.
fn put_printed(folders: &JobFolders) {
    for name in [STDOUT_FILE, STDERR_FILE] {
        let (kept, output) = (folders.logs.join(name), folders.output.join(name));
        // A link to the same file: no copy, and no link of the job's is followed.
        if let Err(error) = std::fs::hard_link(&kept, &output) {
            tracing::debug!(%error, name, "what the job printed is not among its outputs");
        }
    }
}

fn volume_failed(error: &VolumeError) -> Failure {
    let (reason, stage) = (JobFailureReason::DownloadFailed, JobStage::VolumeDownload);
    transfer_failed(error, error.fault(), reason, stage)
}

fn upload_failed(error: &UploadError) -> Failure {
    let (reason, stage) = (JobFailureReason::UploadFailed, JobStage::ResultUpload);
    transfer_failed(error, error.fault(), reason, stage)
}

/// The job's own failure where its user is at fault; else the subnet's, which another executor may not have.
fn transfer_failed(
    error: &(impl Coded + 'static),
    fault: Fault,
    reason: JobFailureReason,
    stage: JobStage,
) -> Failure {
    let message = Causes(error).to_string();
    let failure = match fault {
        Fault::User => Failure::job(reason, stage, message),
        Fault::Nobody
        | Fault::Executor
        | Fault::Miner
        | Fault::Validator
        | Fault::Facilitator
        | Fault::Network => Failure::horde(HordeFailureReason::GenericError, stage, message).blame(fault),
    };
    match error.code() {
        Some(code) => failure.coded(code),
        None => failure,
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
