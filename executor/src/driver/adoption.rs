//! A running job passes from a process that has ended to this one: what is written down for that, and how it is taken
//! up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_containers::images::FoundImage;
use muster_containers::owned_folders::find_orphans;
use muster_process::error::Causes;
use muster_protocol::wire::miner::InitialJobRequest;
use muster_protocol::{ErrorCode, ExecutorToken};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::Driver;
use super::attempt_stages::AttemptStage;
use crate::attempt_state::{AttemptFailure, AttemptMachine};
use crate::collector;
use crate::context::{AttemptContext, ProcessContext};
use crate::driver::runner::StepRunner;
use crate::error::Error;
use crate::images;
use crate::journal::{JobOrigin, Journal, JournaledJob, JournaledState, boot_id};
use crate::live_updates::LiveUpdates;
use crate::machine::gpu::{ClaimedGpus, claim_again};
use crate::machine::specs::read_machine_size;
use crate::metrics::StageClock;
use crate::miner_link::{MinerLink, ReturnPath};
use crate::output_capture::OutputCapture;
use crate::steps::{PlacedJob, PreparedImage, RequestedJob};
use crate::workspace::Workspace;

/// A job whose process has ended, with its folders, which are locked.
pub(crate) struct FoundJob {
    workspace: Workspace,
    journal: Journal,
    job: JournaledJob,
    state: JournaledState,
}

// === impl FoundJob ===

impl FoundJob {
    /// The token of the job's lease.
    pub(crate) fn token(&self) -> &ExecutorToken {
        &self.job.token
    }
}

/// Finds and locks the jobs in `work_dir` whose processes have ended and which `is_ours`. Blocks.
pub(crate) fn find_jobs(
    work_dir: &Path,
    is_ours: impl Fn(&JobOrigin, &ExecutorToken) -> bool,
) -> Vec<FoundJob> {
    let ours = |folder: &Path| match Journal::read(folder) {
        Ok(read) => read.filter(|(_, job, _)| is_ours(&job.origin, &job.token)),
        Err(error) => {
            tracing::warn!(%error, folder = %folder.display(), "the journal of a job cannot be read");
            None
        }
    };
    let found = find_orphans(work_dir, ours).unwrap_or_else(|error| {
        tracing::warn!(error = %Causes(&error), "jobs of ended processes cannot be looked for");
        Vec::new()
    });
    let found = found.into_iter().map(|(folder, (journal, job, state))| FoundJob {
        workspace: Workspace::take_over(folder),
        journal,
        job,
        state,
    });
    found.collect()
}

/// Goes on with a job of a process that has ended, to the job's end.
///
/// # Errors
/// As for a job of this process's own. If this machine cannot go on with it, the folders stay for the next process.
pub(crate) async fn take_over(
    process: ProcessContext,
    found: FoundJob,
    path: ReturnPath,
) -> Result<(), Error> {
    let attempt = found.job.token.attempt();
    tracing::info!(%attempt, over = found.state.over, "taking over a job whose executor has ended");
    if found.state.over {
        return deliver_end(process, found, path).await;
    }
    Driver::adopt(process, found, path).await?.drive().await
}

/// The program has ended and everything is collected: only the report to the miner is missing.
async fn deliver_end(process: ProcessContext, found: FoundJob, path: ReturnPath) -> Result<(), Error> {
    let engine = process.cache.engine(&process.config.engine, &process.clock).await;
    let removed = match engine {
        Ok(engine) => engine.remove(&found.job.container).await,
        Err(error) => Err(error),
    };
    let orphan = Duration::from_secs(process.config.orphan_s);
    let clock = Arc::clone(&process.clock);
    let link = MinerLink::returning(&found.job, found.journal, found.state, path, orphan, clock);
    let delivered = link.finish().await;
    if let Err(error) = removed {
        tracing::warn!(error = %Causes(&error), "the container could not be removed; the next executor tries again");
        found.workspace.give_up();
    } else if let Err(error) = found.workspace.remove() {
        tracing::warn!(error = %Causes(&error), "files of the job are left behind");
    }
    delivered.map_err(Error::MinerLost)
}

impl Driver {
    /// Writes down what another process needs to go on with the job, before its container is created. A job with a
    /// session ends with its process, because the session's key does.
    pub(super) async fn begin_journal(&mut self) {
        let AttemptStage::Placed(placed) = &self.stage else {
            return;
        };
        let request = &placed.job.request;
        let (true, Some(job_since), None) = (
            self.link.is_held(),
            self.link.job_since(),
            request.layout.streaming,
        ) else {
            return;
        };
        let job = JournaledJob {
            origin: self.link.origin(),
            token: self.context.token.clone(),
            offer: without_secrets(&request.offer),
            job: request.job.clone(),
            image: request.image.to_job_image(),
            container: placed.job.container.clone(),
            gpus: placed.job.gpu_uuids().to_vec(),
            job_since,
            started: self.context.clock().now(),
            boot: boot_id(),
        };
        let marked = placed.job.workspace.mark_adoptable(self.link.orphan());
        let folder = placed.job.workspace.folders().root.clone();
        let begun = spawn_blocking(move || Journal::begin(&folder, &job)).await;
        match (marked, begun) {
            (Ok(()), Ok(Ok(journal))) => self.link.keep_journal(journal),
            (Err(error), _) => warn_unjournaled(&error),
            (_, Ok(Err(error))) => warn_unjournaled(&error),
            (_, Err(error)) => warn_unjournaled(&error),
        }
    }

    /// The driver of a job that another process began.
    async fn adopt(process: ProcessContext, found: FoundJob, path: ReturnPath) -> Result<Self, Error> {
        let FoundJob {
            workspace,
            journal,
            job,
            state,
        } = found;
        let (request, gpus) = match retake(&process, &job, &workspace).await {
            Ok(retaken) => retaken,
            Err(failure) => {
                workspace.abandon();
                return Err(Error::Unfit {
                    message: failure.message,
                    code: failure.code.unwrap_or(ErrorCode::EngineUnreachable),
                });
            }
        };
        let config = Arc::clone(&process.config);
        let clock = Arc::clone(&process.clock);
        let orphan = Duration::from_secs(config.orphan_s);
        let machine = AttemptMachine::resumed(request.layout.limits, job.started, config.wait_limits());
        let context = AttemptContext {
            process,
            token: job.token.clone(),
            live: LiveUpdates::default(),
            called_off: CancellationToken::new(),
        };
        let link = MinerLink::returning(&job, journal, state, path, orphan, clock);
        if let Err(error) = workspace.mark_adoptable(link.orphan()) {
            tracing::warn!(error = %Causes(&error), "the job cannot be taken over again");
        }
        let capture = OutputCapture::new(Some(context.live.clone()));
        let limit = request.layout.policy.output;
        let logs = workspace.folders().logs.clone();
        let resuming = capture.clone();
        let resume = move || {
            // Which process collects the output does not change any more, but it may end meanwhile.
            let is_collected = collector::is_collected(&logs) || collector::read_end(&logs).is_some();
            resuming.resume(&logs, limit, is_collected)
        };
        let before = spawn_blocking(resume).await.unwrap_or_default();
        let steps = StepRunner::new(context.clone(), capture, Some(link.outlet()));
        let placed = PlacedJob::taken_over(request, workspace, &job, gpus);
        let mut stage = AttemptStage::of_placed(placed);
        if let AttemptStage::Placed(placed) = &mut stage {
            steps.take_over(placed, &job, before);
        }
        let stage_clock = StageClock::resumed(machine.state(), job.job_since, job.started);
        Ok(Self {
            stage_clock,
            context,
            link,
            machine,
            stage,
            steps,
            request: None,
            registry: None,
            unsent_close: None,
            traceparent: job.offer.muster.as_ref().and_then(|terms| terms.traceparent),
        })
    }
}

/// The engine, the image and the GPUs of a job that another process began.
async fn retake(
    process: &ProcessContext,
    job: &JournaledJob,
    workspace: &Workspace,
) -> Result<(Arc<RequestedJob>, Option<ClaimedGpus>), AttemptFailure> {
    let (config, clock) = (&process.config, &process.clock);
    let engine = process
        .cache
        .engine(&config.engine, clock)
        .await
        .map_err(|error| images::engine_failed(&error))?;
    let id = job.image.id.to_string();
    let resolved = match images::look(&engine, &config.images, &id, None, clock).await? {
        FoundImage::Here(leased) => *leased,
        FoundImage::AtRegistry(_) => return Err(images::image_gone(&id)),
    };
    let image = PreparedImage {
        name: job.image.name.clone(),
        resolved: muster_containers::images::LeasedImage {
            manifest: job.image.manifest,
            ..resolved
        },
    };
    let gpus = (!job.gpus.is_empty())
        .then(|| claim_again(&config.gpus, &job.gpus, &workspace.folders().root))
        .transpose();
    let gpus = gpus.unwrap_or_else(|error| {
        // The container has them whether or not they are claimed.
        tracing::error!(error = %Causes(&error), "the GPUs of a job that is taken over cannot be claimed");
        None
    });
    let offer = Box::new(job.offer.clone());
    let machine = read_machine_size();
    let request = RequestedJob::new(offer, job.job.clone(), engine, Box::new(image), config, machine);
    Ok((Arc::new(request), gpus))
}

/// The offer without the login at the image's registry and without the image's archive: the image is there.
fn without_secrets(offer: &InitialJobRequest) -> InitialJobRequest {
    let mut offer = offer.clone();
    if let Some(terms) = &mut offer.muster {
        terms.credentials = None;
        terms.registry = None;
        terms.image_archive = None;
    }
    offer
}

fn warn_unjournaled(error: &(dyn std::error::Error + 'static)) {
    tracing::warn!(error = %Causes(error), "no journal of the job: it ends with this process");
}
