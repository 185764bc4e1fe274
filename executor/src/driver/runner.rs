//! Runs the steps of an attempt side by side and returns what each came to.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use muster_checkpoint_transfer::{KeeperHandle, LastLook};
use muster_containers::disk::{DiskEnd, watch, watch_root};
use muster_containers::sandbox::Root;
use muster_job_data::Uploaded;
use muster_job_metrics::{MetricRules, ProgramFollower, ProgramWatch};
use muster_process::error::Causes;
use muster_protocol::wire::executor::ProgressOf;
use muster_protocol::wire::miner::{GraderTerms, StreamingDetails};
use muster_protocol::wire::muster::OfferExtension;
use muster_protocol::{HordeFailureReason, JobFailureReason, JobStage, Timestamp};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::stage_data::{PlacedStage, SessionStage};
use crate::attempt_state::{AttemptFailure, ProgramExit, StageLimits};
use crate::co_grader::{CoGrader, CoGraderSpec};
use crate::container::{self, EnginePresence};
use crate::context::AttemptContext;
use crate::engine::ContainerEngine;
use crate::job_sandbox::{JobContainer, PROGRESS_FILE, checkpoint_order, image_label};
use crate::journal::JournaledJob;
use crate::machine::gpu::ClaimedGpus;
use crate::miner_link::MinerOutlet;
use crate::output_capture::{CapturedBefore, OutputCapture};
use crate::program_usage::UsageRecord;
use crate::session::{self, OpenSession, SessionSetup};
use crate::steps::checkpoints::keep_checkpoints;
use crate::steps::{self, CollectedOutputs, PlacedJob, PreparedImage, RequestedJob, SoughtImage};
use crate::warm_containers::encode_program;

/// How often the miner is told how long the program has run.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// How often the miner is told how far the image is, whether it has moved or not.
const IMAGE_PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// The result of a step.
#[derive(Debug)]
pub(super) enum StepResult {
    /// The engine answers; the image is there, if one was named.
    ImageReady(ContainerEngine, Option<Box<PreparedImage>>),
    /// The engine answers; the image has to be fetched from this registry.
    ImageMissing(ContainerEngine, String),
    /// Inputs are in place.
    Placed(Box<PlacedJob>),
    /// The program has ended.
    Exited(ProgramExit),
    /// The job wrote more than this many bytes.
    DiskFull(u64),
    /// The program made no progress for so many seconds.
    Stalled(u32),
    /// The program answers, and its session is open.
    SessionOpened(Box<OpenSession>),
    /// The session is over; its signed close.
    SessionClosed(String),
    /// No more checkpoints are taken.
    CheckpointsKept,
    /// The step was called off, or its end changes nothing.
    Nothing,
    /// Artifacts are collected.
    Collected(Box<CollectedOutputs>),
    /// The uploads have ended: those that succeeded, and the failure of the first that did not.
    Uploaded(Uploaded, Option<AttemptFailure>),
    /// The step failed.
    Failed(AttemptFailure),
}

/// The steps of one attempt that are under way.
pub(super) struct StepRunner {
    pub(super) context: AttemptContext,
    pub(super) capture: OutputCapture,
    /// The use of the machine by the program.
    pub(super) usage: UsageRecord,
    /// Cancelled when the session must close.
    pub(super) end_session: CancellationToken,
    /// Cancelled when the progress of the image matters no longer.
    image_over: CancellationToken,
    /// Cancelled when the program has ended.
    program_over: CancellationToken,
    /// Cancelled when everything is read that the program reported of its progress.
    report_read_out: CancellationToken,
    /// Sends to a Muster miner; `None` for another miner, which understands none of Muster's own messages.
    muster: Option<MinerOutlet>,
    steps: FuturesUnordered<BoxFuture<'static, StepResult>>,
}

impl StepRunner {
    pub(super) fn new(context: AttemptContext, capture: OutputCapture, muster: Option<MinerOutlet>) -> Self {
        Self {
            context,
            capture,
            usage: UsageRecord::default(),
            end_session: CancellationToken::new(),
            image_over: CancellationToken::new(),
            program_over: CancellationToken::new(),
            report_read_out: CancellationToken::new(),
            muster,
            steps: FuturesUnordered::new(),
        }
    }

    /// The result of the step that ends next; `None` while no step is under way. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<StepResult> {
        self.steps.next().await
    }

    /// Sends progress and output to a Muster miner for as long as the attempt lives.
    pub(super) fn send_live_updates(&self) {
        let Some(miner) = self.muster.clone() else { return };
        let (live, clock) = (self.context.live.clone(), Arc::clone(self.context.clock()));
        let attempt = self.context.attempt();
        self.begin_until_called_off(async move {
            live.send_all(attempt, miner, clock).await;
            StepResult::Nothing
        });
    }

    pub(super) fn prepare_image(&self, name: Option<String>, private: Option<OfferExtension>) {
        let preparing = steps::prepare_image(self.context.clone(), name, private);
        self.begin_until_called_off(async move {
            match preparing.await {
                Ok((engine, SoughtImage::None)) => StepResult::ImageReady(engine, None),
                Ok((engine, SoughtImage::Here(image))) => StepResult::ImageReady(engine, Some(image)),
                Ok((engine, SoughtImage::AtRegistry(registry))) => StepResult::ImageMissing(engine, registry),
                Err(failure) => StepResult::Failed(failure),
            }
        });
    }

    pub(super) fn fetch_image(&self, engine: ContainerEngine, name: String, private: Option<OfferExtension>) {
        let context = self.context.clone();
        self.begin_until_called_off(async move {
            match steps::fetch_image(context, &engine, name, private).await {
                Ok(image) => StepResult::ImageReady(engine, Some(image)),
                Err(failure) => StepResult::Failed(failure),
            }
        });
    }

    /// Repeats the progress of the image until the inputs are placed, so that a miner that waits for a slow registry
    /// can tell it from an executor that is lost.
    pub(super) fn repeat_image_progress(&self) {
        let (live, clock) = (self.context.live.clone(), Arc::clone(self.context.clock()));
        let over = self.image_over.clone();
        self.begin_until_called_off(async move {
            let repeating = async {
                loop {
                    live.repeat_progress(ProgressOf::ImagePull);
                    clock.sleep(IMAGE_PROGRESS_EVERY).await;
                }
            };
            over.run_until_cancelled(repeating).await;
            StepResult::Nothing
        });
    }

    pub(super) fn place_inputs(&self, request: &Arc<RequestedJob>) {
        self.image_over.cancel();
        let placing = steps::place_inputs(Arc::clone(request), self.context.clone());
        self.begin(async move {
            match placing.await {
                Ok(placed) => StepResult::Placed(Box::new(placed)),
                Err(failure) => StepResult::Failed(failure),
            }
        });
    }

    /// Starts the job's program, watches its use of the disk, and reports how long it has run.
    pub(super) fn run(&self, placed: &mut PlacedStage) {
        match self.start_container(&mut placed.job) {
            Ok(()) => {
                self.watch_disk(&placed.job);
                self.report_running_time(&placed.job, self.context.clock().now());
                self.follow_program(placed, self.context.clock().now());
                self.measure_program(&placed.job, self.context.clock().now());
            }
            Err(failure) => self.begin(async move { StepResult::Failed(failure) }),
        }
    }

    fn start_container(&self, job: &mut PlacedJob) -> Result<(), AttemptFailure> {
        let refused =
            |message: String| AttemptFailure::job(JobFailureReason::Unknown, JobStage::Execution, message);
        let request = Arc::clone(&job.request);
        let image = &request.image.resolved.image;
        let spec = JobContainer {
            job: &request.job,
            image,
            bare_home: job.bare_home.as_deref(),
            policy: job.policy,
            gpus: job.gpus.as_ref().map_or(&[][..], ClaimedGpus::uuids),
            folders: job.workspace.folders(),
            runtime: &self.context.config().runtime,
            streaming: request.streaming().is_some(),
            resumed: job.resumed.as_deref(),
        };
        let body = spec.body().map_err(|error| refused(error.to_string()))?;
        let container = job.container.clone();
        tracing::info!(
            image = image_label(&request.image.name, image.id),
            container,
            "running"
        );
        let (engine, capture) = (request.engine.clone(), self.capture.clone());
        let clock = Arc::clone(self.context.clock());
        if let Some(warm) = job.warm.take() {
            let mark = Uuid::new_v4().to_string();
            let program = encode_program(image, &body, &mark)
                .ok_or_else(|| refused("neither the job nor its image names a program".to_owned()))?;
            let running = container::run_in_warm(engine, warm, program, mark, capture, clock);
            self.begin(async move { running.await.map_or_else(StepResult::Failed, StepResult::Exited) });
        } else {
            let called_off = self.context.called_off.clone();
            let running = container::run(engine, container, body, capture, clock, called_off);
            self.begin(async move { running.await.map_or_else(StepResult::Failed, StepResult::Exited) });
        }
        Ok(())
    }

    /// Goes on with a program that another process started.
    pub(super) fn take_over(
        &self,
        placed: &mut PlacedStage,
        journaled: &JournaledJob,
        before: CapturedBefore,
    ) {
        let since_start = match journaled.is_of_an_earlier_boot() {
            true => EnginePresence::MachineRestarted,
            false => EnginePresence::Unbroken,
        };
        let job = &placed.job;
        let (engine, container) = (job.request.engine.clone(), job.container.clone());
        let clock = Arc::clone(self.context.clock());
        let running = container::take_over(
            engine,
            container,
            since_start,
            before,
            self.capture.clone(),
            clock,
        );
        self.begin(async move { running.await.map_or_else(StepResult::Failed, StepResult::Exited) });
        self.watch_disk(job);
        self.report_running_time(job, journaled.started);
        self.follow_program(placed, journaled.started);
        self.measure_program(&placed.job, journaled.started);
    }

    fn watch_disk(&self, job: &PlacedJob) {
        let limit = job.policy.allowance.disk;
        let folder = job.workspace.folders().root.clone();
        let config = Arc::clone(self.context.config());
        let watching = watch(
            folder,
            limit,
            config.disk_reserve(),
            Arc::clone(self.context.clock()),
        );
        self.begin_until_called_off(async move {
            match watching.await {
                DiskEnd::Limit => StepResult::DiskFull(limit),
                DiskEnd::Reserve => StepResult::Failed(steps::reserve_lacking(&config)),
            }
        });
        if job.policy.root == Root::Writable {
            let (engine, container) = (job.request.engine.clone(), job.container.clone());
            let watching = watch_root(engine, container, limit, Arc::clone(self.context.clock()));
            self.begin_until_called_off(async move {
                watching.await;
                StepResult::DiskFull(limit)
            });
        }
    }

    fn report_running_time(&self, job: &PlacedJob, since: Timestamp) {
        if self.muster.is_none() {
            return;
        }
        let (live, clock) = (self.context.live.clone(), Arc::clone(self.context.clock()));
        let limit = StageLimits::of(&job.request.offer).execution.as_secs();
        self.begin_until_called_off(async move {
            loop {
                let run = clock.now().since(since).as_secs();
                live.set_progress(ProgressOf::Execution, run, Some(limit));
                clock.sleep(PROGRESS_EVERY).await;
            }
        });
    }

    /// Follows what the program of a batch job reports of its progress, until the program is over, and takes the
    /// checkpoints that it leaves.
    fn follow_program(&self, placed: &mut PlacedStage, since: Timestamp) {
        let job = &placed.job;
        let Some(miner) = self.muster.clone().filter(|_| job.request.streaming().is_none()) else {
            return;
        };
        let extension = job.request.offer.muster.as_deref();
        let rules = extension.map_or(&[][..], |extension| &extension.metrics);
        let rules = MetricRules::compile(rules).unwrap_or_else(|error| {
            // A facilitator refuses such a rule.
            tracing::warn!(error = %Causes(&error), "the job's output is not searched for metrics");
            MetricRules::default()
        });
        let follower =
            ProgramFollower::new(ProgramWatch::new(rules, since), Arc::clone(self.context.clock()));
        self.capture.feed(follower.clone());
        let file = job.workspace.folders().report.join(PROGRESS_FILE);
        let (live, over) = (self.context.live.clone(), self.program_over.clone());
        let (capture, usage) = (self.capture.clone(), self.usage.clone());
        let keeping = keep_checkpoints(job, &self.context, follower.clone(), capture, miner);
        if let Some((handle, keeping)) = keeping {
            placed.keeper = Some(handle);
            self.begin_until_called_off(async move {
                keeping.await;
                StepResult::CheckpointsKept
            });
        }
        if let Some(seconds) = checkpoint_order(&job.request.job).and_then(|order| order.stall_s) {
            let stalling = follower
                .clone()
                .wait_for_stall(Duration::from_secs(u64::from(seconds)));
            let over = self.program_over.clone();
            self.begin_until_called_off(async move {
                match over.run_until_cancelled(stalling).await {
                    Some(()) => StepResult::Stalled(seconds),
                    None => StepResult::Nothing,
                }
            });
        }
        // It ends with the program, after its last look.
        let read_out = self.report_read_out.clone();
        self.begin(async move {
            let report_to = |at, report| {
                live.set_report(at, usage.note_report(at, report));
            };
            follower.follow(file, over, report_to).await;
            read_out.cancel();
            StepResult::Nothing
        });
    }

    /// The program is over: once everything that it reported is read, the keeper of its checkpoints takes what is left.
    /// The report's last lines may name a checkpoint.
    pub(super) fn end_keeper(&self, keeper: KeeperHandle, last: LastLook) {
        let read_out = self.report_read_out.clone();
        self.begin_until_called_off(async move {
            read_out.cancelled().await;
            keeper.end(last);
            StepResult::Nothing
        });
    }

    /// Samples what the program uses until it is over, for a Muster miner, which alone is told.
    fn measure_program(&self, job: &PlacedJob, since: Timestamp) {
        let gpus = job.gpus.as_ref().map_or(&[][..], ClaimedGpus::uuids).to_vec();
        self.usage.begin(since, gpus.len());
        if self.muster.is_none() {
            return;
        }
        let (engine, container) = (job.request.engine.clone(), job.container.clone());
        let (usage, clock) = (self.usage.clone(), Arc::clone(self.context.clock()));
        let over = self.program_over.clone();
        let (live, is_batch) = (self.context.live.clone(), job.request.streaming().is_none());
        let tell = is_batch.then_some(move |at, report| live.set_report(at, report));
        self.begin_until_called_off(async move {
            let watching = usage.watch(engine, container, gpus, clock, tell);
            over.run_until_cancelled(watching).await;
            StepResult::Nothing
        });
    }

    /// The program is over: the step that follows it looks a last time, and ends.
    pub(super) fn end_program(&self) {
        self.usage.end(self.context.clock().now());
        self.program_over.cancel();
    }

    /// Sends the program's last report, if it was not sent and there is a connection.
    pub(super) async fn send_last_report(&mut self) {
        if let Some(miner) = &self.muster
            && let Some(report) = self.context.live.take_report(self.context.attempt())
        {
            miner.try_send(&report).await;
        }
    }

    /// Asks the program to save its state and to end within `lead_s` seconds, and tells its user why.
    pub(super) fn ask_to_save(&self, job: &PlacedJob, lead_s: u64) {
        let Some(order) = checkpoint_order(&job.request.job) else {
            return;
        };
        let (engine, name, signal) = (job.request.engine.clone(), job.container.clone(), order.signal);
        tracing::info!(container = name, %signal, lead_s, "the program is asked to save its state");
        self.capture.note(&format!(
            "this machine leaves in {lead_s} s: the program was asked to save its state and to end ({signal})"
        ));
        self.begin_until_called_off(async move {
            if let Err(error) = engine.signal(&name, signal.name()).await {
                tracing::warn!(error = %Causes(&error), "the program could not be asked to save its state");
            }
            StepResult::Nothing
        });
    }

    /// Opens the session of a streaming job. Returns whether the job has one that is not open yet.
    #[must_use]
    pub(super) fn open_session(&self, placed: &mut PlacedStage) -> bool {
        let SessionStage::Unopened(details) = &placed.session else {
            return false;
        };
        let (attested, answer) = oneshot::channel();
        let attester = self.muster.clone().map(|miner| (miner, answer));
        let setup = self.session_setup(&placed.job, StreamingDetails::clone(details), attester);
        placed.session = SessionStage::Opening(Some(attested));
        let end = self.end_session.clone();
        self.begin_until_called_off(async move {
            tokio::select! {
                () = end.cancelled() => StepResult::Nothing,
                opened = session::open(setup) => match opened {
                    Ok(open) => StepResult::SessionOpened(Box::new(open)),
                    Err(failure) => StepResult::Failed(failure),
                },
            }
        });
        true
    }

    fn session_setup(
        &self,
        job: &PlacedJob,
        details: StreamingDetails,
        attester: Option<session::Attester>,
    ) -> SessionSetup {
        let offer = &job.request.offer;
        let grader = details.muster.as_ref().and_then(|terms| terms.grader.clone());
        SessionSetup {
            engine: job.request.engine.clone(),
            container: job.container.clone(),
            folder: job.workspace.folders().sockets.clone(),
            attempt: self.context.attempt(),
            details,
            image: job.request.image.resolved.image.id,
            miner: offer.job_started_receipt_payload.miner_hotkey,
            validator: offer.job_started_receipt_payload.validator_hotkey,
            lifetime: StageLimits::of(offer).execution,
            settings: self.context.config().streaming.clone(),
            attester,
            co_grader: grader.map(|terms| self.co_grader(job, terms)),
            clock: Arc::clone(self.context.clock()),
            tasks: self.context.process.tasks.clone(),
        }
    }

    fn co_grader(&self, job: &PlacedJob, terms: GraderTerms) -> CoGrader {
        CoGrader::new(CoGraderSpec {
            engine: job.request.engine.clone(),
            config: Arc::clone(self.context.config()),
            terms,
            attempt: self.context.attempt(),
            class: job.request.offer.executor_class,
            container: job.container.clone(),
            folders: job.workspace.folders().clone(),
            policy: job.policy,
            gpus: job.gpus.as_ref().map_or(&[][..], ClaimedGpus::uuids).to_vec(),
            clock: Arc::clone(self.context.clock()),
            tasks: self.context.process.tasks.clone(),
        })
    }

    /// Serves a session until it is over.
    pub(super) fn serve(&self, open: OpenSession) {
        let (end, called_off) = (self.end_session.clone(), self.context.called_off.clone());
        let (miner, clock) = (self.muster.clone(), Arc::clone(self.context.clock()));
        let serving = session::serve(open, end, called_off, miner, clock);
        self.begin(async move { StepResult::SessionClosed(serving.await) });
    }

    pub(super) fn stop(&self, job: &PlacedJob) {
        let (engine, name) = (job.request.engine.clone(), job.container.clone());
        let grace = self.context.config().stop_grace();
        self.begin(async move {
            if let Err(error) = engine.stop(&name, grace).await {
                // It is removed by force when the attempt ends.
                tracing::warn!(error = %Causes(&error), "the container could not be asked to stop");
            }
            StepResult::Nothing
        });
    }

    /// Collects the artifacts of a job.
    pub(super) fn collect(&self, job: &PlacedJob) {
        let folders = job.workspace.folders().clone();
        let lists_outputs = self.muster.is_some();
        let request = Arc::clone(&job.request);
        let collecting = steps::collect_outputs(request, folders, self.context.clone(), lists_outputs);
        self.begin(async move {
            match collecting.await {
                Ok(outputs) => StepResult::Collected(Box::new(outputs)),
                Err(failure) => StepResult::Failed(failure),
            }
        });
    }

    /// Uploads the outputs of a job whose program ended well.
    pub(super) fn upload(&self, job: &PlacedJob) {
        let folders = job.workspace.folders().clone();
        let uploading = steps::upload_outputs(Arc::clone(&job.request), folders, self.context.clone());
        self.begin(async move {
            let (uploaded, failure) = uploading.await;
            StepResult::Uploaded(uploaded, failure)
        });
    }

    /// Uploads the outputs that a failed job has left and that its user asks for. Returns whether there are any.
    #[must_use]
    pub(super) fn upload_left(&self, job: &PlacedJob) -> bool {
        if self.muster.is_none() || job.request.streaming().is_some() {
            return false;
        }
        let folders = job.workspace.folders().clone();
        let Some(left) = steps::find_left_outputs(&job.request.job, &folders) else {
            return false;
        };
        let context = self.context.clone();
        self.begin(async move {
            let (uploaded, failure) = steps::upload_all(&left, &folders, &context).await;
            if let Some(failure) = failure {
                tracing::info!(
                    message = failure.message,
                    "an output of the failed job was not delivered"
                );
            }
            StepResult::Uploaded(uploaded, None)
        });
        true
    }

    /// Ends the attempt: the state machine asked for work that the attempt's data does not allow.
    pub(super) fn report_defect(&self, effect: &'static str) {
        let message = format!("the executor has nothing to {effect} at this stage");
        let failure =
            AttemptFailure::horde(HordeFailureReason::UnhandledException, JobStage::Unknown, message);
        self.begin(async move { StepResult::Failed(failure) });
    }

    fn begin(&self, step: impl Future<Output = StepResult> + Send + 'static) {
        self.steps.push(Box::pin(step));
    }

    /// Begins a step that may be dropped in the middle.
    fn begin_until_called_off(&self, step: impl Future<Output = StepResult> + Send + 'static) {
        let called_off = self.context.called_off.clone();
        self.begin(async move {
            tokio::select! {
                () = called_off.cancelled() => StepResult::Nothing,
                result = step => result,
            }
        });
    }
}
