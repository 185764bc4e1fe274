//! Drives one attempt: receives what the miner sends, lets [`crate::attempt_state`] decide, begins the steps that it
//! asks for, and reports to the miner.

mod adoption;
mod attempt_stages;
mod conclusion;
mod program_run;
mod runner;
mod session_steps;

use std::sync::Arc;
use std::time::Duration;

use muster_checkpoint_transfer::LastLook;
use muster_protocol::job::Fault;
use muster_protocol::wire::WireError;
use muster_protocol::wire::executor::{ExecutorUp, SessionClosed};
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::miner::{
    AttemptNotice, ExecutorReady, InitialJobRequest, JobRequest, StreamingJobReady,
};
use muster_protocol::{AttemptId, ExecutorToken, HordeFailureReason, JobStage, Timestamp, TraceParent};
use tokio_util::sync::CancellationToken;

pub(crate) use self::adoption::{find_jobs, take_over};
use self::attempt_stages::{AttemptStage, PlacedStage, SessionStage};
use self::runner::{StepResult, StepRunner};
use crate::attempt_report::specs_message;
use crate::attempt_state::{
    Abandonment, AttemptFailure, AttemptMachine, AttemptState, Conclusion, Effect, Event, OfferTerms,
};
use crate::context::{AttemptContext, ProcessContext};
use crate::error::Error;
use crate::job_sandbox::JobFolders;
use crate::journal::JobOrigin;
use crate::lease_connection::{LeaseConnection, Received};
use crate::live_updates::LiveUpdates;
use crate::machine::specs::read_machine_size;
use crate::metrics::StageClock;
use crate::miner_link::{MinerLink, ReturnPath};
use crate::output_capture::OutputCapture;
use crate::steps::read_specs;

/// Before the time for a job's outputs is over, its result goes without the rest of what it printed.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// One attempt in progress.
pub(crate) struct Driver {
    context: AttemptContext,
    link: MinerLink,
    machine: AttemptMachine,
    stage_clock: StageClock,
    stage: AttemptStage,
    steps: StepRunner,
    /// The request, until its image is there.
    request: Option<Box<JobRequest>>,
    /// The registry that the image comes from, if it is not on this machine.
    registry: Option<String>,
    /// The signed close of the session, until it was sent to the miner.
    unsent_close: Option<String>,
    /// The context of the attempt's trace, if the miner wants its stages.
    traceparent: Option<TraceParent>,
}

impl Driver {
    pub(crate) fn new(
        process: ProcessContext,
        token: ExecutorToken,
        connection: LeaseConnection,
        path: ReturnPath,
        started: Timestamp,
    ) -> Self {
        let orphan = Duration::from_secs(process.config.orphan_s);
        let link = MinerLink::new(
            token.attempt(),
            connection,
            path,
            orphan,
            Arc::clone(&process.clock),
        );
        let machine = AttemptMachine::new(started, process.config.wait_limits());
        let stage_clock = StageClock::new(machine.state(), started);
        let context = AttemptContext {
            process,
            token,
            live: LiveUpdates::default(),
            called_off: CancellationToken::new(),
        };
        // Only a Muster miner understands live updates.
        let muster = link.is_muster().then(|| link.outlet());
        let capture = OutputCapture::new(muster.is_some().then(|| context.live.clone()));
        Self {
            steps: StepRunner::new(context.clone(), capture, muster),
            context,
            link,
            machine,
            stage_clock,
            stage: AttemptStage::default(),
            request: None,
            registry: None,
            unsent_close: None,
            traceparent: None,
        }
    }

    /// Runs the attempt to its end.
    pub(crate) async fn drive(mut self) -> Result<(), Error> {
        self.steps.send_live_updates();
        let clock = Arc::clone(self.context.clock());
        let shutdown = self.context.process.shutdown.clone();
        loop {
            let event = tokio::select! {
                biased;
                () = shutdown.cancelled(), if self.may_leave() => return self.leave(),
                () = shutdown.cancelled() => Some(Event::Abandoned(Abandonment::ShutDown)),
                received = self.link.recv() => self.handle_received(received),
                Some(result) = self.steps.next() => self.handle_result(result),
                () = clock.sleep_until(self.machine.deadline()) => Some(Event::Tick),
            };
            let Some(event) = event else { continue };
            self.send_close().await;
            let mut conclusion = self.apply(event).await;
            let waiting = matches!(self.machine.state(), AttemptState::AwaitingJob(_));
            if waiting && self.request.is_some() {
                // The request came before the executor was ready.
                let event = self.complete_request();
                conclusion = self.apply(event).await;
            }
            if let Some(conclusion) = conclusion {
                return self.conclude(conclusion).await;
            }
        }
    }

    /// Whether the job may be left to the next process of this executor. A process that serves a single lease has no
    /// successor when it is asked to stop.
    fn may_leave(&self) -> bool {
        let returns = match self.link.origin() {
            JobOrigin::Enrolled { .. } => true,
            JobOrigin::Started { .. } => false,
        };
        returns && self.link.is_journaled()
    }

    /// Ends this process's part of the job; its container runs on.
    fn leave(self) -> Result<(), Error> {
        let AttemptStage::Placed(placed) = self.stage else {
            return Err(Error::ShutDown);
        };
        tracing::info!("the job is left to the next process of this executor");
        placed.job.workspace.abandon();
        Ok(())
    }

    // === events ===

    fn handle_received(&mut self, received: Received) -> Option<Event> {
        match received {
            Received::Message(message) => self.handle_message(message),
            Received::Lost(reason) => Some(Event::Abandoned(Abandonment::MinerLost(reason))),
            Received::Malformed(error) => self.handle_malformed(&error),
            Received::Ignorable(what) => {
                tracing::warn!(what, "ignored a frame of the miner");
                None
            }
        }
    }

    fn handle_message(&mut self, message: MinerToExecutor) -> Option<Event> {
        match message {
            MinerToExecutor::V0InitialJobRequest(offer) => self.accept_offer(offer),
            MinerToExecutor::V0JobRequest(job)
                if job.job_uuid == self.attempt() && self.request.is_none() && !self.stage.has_request() =>
            {
                self.link.note_job();
                self.request = Some(job);
                Some(self.complete_request())
            }
            MinerToExecutor::MusterFetchImage(fetch) if fetch.job_uuid == self.attempt() => {
                Some(Event::FetchGranted)
            }
            MinerToExecutor::MusterCancelJob(cancel) if cancel.job_uuid == self.attempt() => {
                Some(Event::Abandoned(Abandonment::Cancelled(cancel.reason)))
            }
            MinerToExecutor::MusterSessionSealed(sealed) if sealed.job_uuid == self.attempt() => {
                if let AttemptStage::Placed(placed) = &mut self.stage {
                    placed.session.pass_attestation(sealed);
                }
                None
            }
            MinerToExecutor::MusterCheckpointKept(kept) if kept.job_uuid == self.attempt() => {
                if let Some(keeper) = self.stage.keeper() {
                    keeper.note_kept(kept.number);
                }
                None
            }
            MinerToExecutor::MusterDrain(drain) if drain.job_uuid == self.attempt() => {
                if let AttemptStage::Placed(placed) = &self.stage {
                    self.steps.ask_to_save(&placed.job, drain.lead_s);
                }
                None
            }
            MinerToExecutor::GenericError(error) => {
                let details = error.details.unwrap_or_default();
                // Before the offer it can only be about the lease; ComputeHorde's miner then leaves the socket open.
                if self.machine.state() == AttemptState::AwaitingOffer {
                    return Some(Event::Abandoned(Abandonment::Refused(details)));
                }
                tracing::warn!(details, "the miner reports an error");
                None
            }
            MinerToExecutor::V0JobRequest(_)
            | MinerToExecutor::MusterCancelJob(_)
            | MinerToExecutor::MusterSessionSealed(_)
            | MinerToExecutor::MusterExecutorEnrolled(_)
            | MinerToExecutor::MusterWhitelist(_)
            | MinerToExecutor::MusterFetchImage(_)
            | MinerToExecutor::MusterLeaseHeld(_)
            | MinerToExecutor::MusterEndStored(_)
            | MinerToExecutor::MusterCheckpointKept(_)
            | MinerToExecutor::MusterDrain(_) => {
                tracing::warn!("ignored a message that is not for this attempt");
                None
            }
        }
    }

    /// Takes the first offer up; the token must be for the attempt that it offers.
    fn accept_offer(&mut self, offer: Box<InitialJobRequest>) -> Option<Event> {
        if offer.job_uuid != self.attempt() {
            let reason = format!(
                "it offers attempt {}, the token is for {}",
                offer.job_uuid,
                self.attempt()
            );
            return Some(Event::Abandoned(Abandonment::Refused(reason)));
        }
        if !matches!(self.stage, AttemptStage::AwaitingOffer) {
            return None;
        }
        let terms = OfferTerms::of(&offer);
        self.traceparent = offer.muster.as_ref().and_then(|terms| terms.traceparent);
        self.stage = AttemptStage::Offered(offer);
        Some(Event::Offered(terms))
    }

    /// A frame that cannot be read while the job is still being described would leave a gap in it.
    fn handle_malformed(&self, error: &WireError) -> Option<Event> {
        let stage = match self.machine.state() {
            AttemptState::AwaitingOffer => JobStage::ExecutorStartup,
            AttemptState::AwaitingJob(_) => JobStage::VolumeDownload,
            AttemptState::PreparingImage(_)
            | AttemptState::AwaitingFetch(_)
            | AttemptState::PullingImage(_)
            | AttemptState::FetchingImage(_, _)
            | AttemptState::PlacingVolumes(_)
            | AttemptState::Running(_)
            | AttemptState::Starting(_)
            | AttemptState::Serving(_)
            | AttemptState::Closing(_)
            | AttemptState::Stopping(_)
            | AttemptState::Collecting
            | AttemptState::Salvaging
            | AttemptState::Over => {
                tracing::warn!(%error, "ignored a frame of the miner");
                return None;
            }
        };
        let message = format!("the executor cannot read the job: {error}");
        Some(Event::Failed(
            AttemptFailure::horde(HordeFailureReason::GenericError, stage, message).blame(Fault::Validator),
        ))
    }

    fn handle_result(&mut self, result: StepResult) -> Option<Event> {
        match result {
            StepResult::ImageReady(engine, image) => {
                self.stage = std::mem::take(&mut self.stage).with_image(engine, image);
                if matches!(self.machine.state(), AttemptState::FetchingImage(_, _)) {
                    // This was the image of the request.
                    self.complete_request();
                }
                Some(Event::ImageReady)
            }
            StepResult::ImageMissing(engine, registry) => {
                self.stage = std::mem::take(&mut self.stage).with_image(engine, None);
                self.registry = Some(registry);
                Some(Event::ImageMissing)
            }
            StepResult::Placed(job) => {
                self.stage = AttemptStage::of_placed(*job);
                Some(Event::VolumesReady)
            }
            StepResult::Exited(exit) => {
                self.steps.end_program();
                if let Some(keeper) = self.stage.keeper() {
                    self.steps
                        .end_keeper(keeper.clone(), LastLook::after_exit(exit.code));
                }
                if let Some(output) = self.stage.output() {
                    output.end_program();
                }
                Some(Event::Exited(exit))
            }
            StepResult::CheckpointsKept => self.release(|placed| placed.keeper = None),
            StepResult::OutputSent(printed) => self.release(|placed| {
                placed.output = None;
                placed.printed = Some(*printed);
            }),
            StepResult::DiskFull(limit) => Some(Event::DiskFull(limit)),
            StepResult::Stalled(seconds) => Some(Event::Stalled(seconds)),
            StepResult::SessionOpened(open) => {
                if let AttemptStage::Placed(placed) = &mut self.stage {
                    placed.session = SessionStage::Open(open);
                }
                Some(Event::SessionOpened)
            }
            StepResult::SessionClosed(close) => {
                self.unsent_close = Some(close);
                Some(Event::SessionClosed)
            }
            StepResult::Nothing => None,
            StepResult::Collected(outputs) => {
                let ended_well = self.machine.state() == AttemptState::Collecting;
                let AttemptStage::Placed(placed) = &mut self.stage else {
                    return Some(Event::Collected);
                };
                placed.outputs = Some(outputs);
                if ended_well {
                    self.steps.upload(&placed.job);
                    return None;
                }
                if !self.steps.upload_left(&placed.job) {
                    return self.hold_back(Event::Collected);
                }
                // The time of the uploads counts from then on.
                let job_uuid = self.attempt();
                self.link
                    .queue_report(ExecutorToMiner::V0ExecutionDoneRequest(AttemptNotice {
                        job_uuid,
                    }));
                None
            }
            StepResult::Uploaded(uploaded, failure) => {
                if let AttemptStage::Placed(placed) = &mut self.stage
                    && let Some(outputs) = &mut placed.outputs
                {
                    outputs.uploaded = uploaded;
                }
                self.hold_back(failure.map_or(Event::Collected, Event::Failed))
            }
            StepResult::Failed(failure) => Some(Event::Failed(failure)),
        }
    }

    /// Something is over that the last event may wait for. Returns the event if it waits for nothing any more.
    fn release(&mut self, end: impl FnOnce(&mut PlacedStage)) -> Option<Event> {
        let AttemptStage::Placed(placed) = &mut self.stage else {
            return None;
        };
        end(placed);
        match placed.is_awaited() {
            true => None,
            false => placed.held_back.take(),
        }
    }

    /// The last event of a job, which waits until the last checkpoint of its program is kept and its output is sent.
    /// The machine's own clock bounds the wait.
    fn hold_back(&mut self, event: Event) -> Option<Event> {
        let deadline = self.machine.deadline().minus(LAST_MOMENT);
        match &mut self.stage {
            AttemptStage::Placed(placed) if placed.is_awaited() => {
                if let Some(output) = &placed.output {
                    output.await_until(deadline);
                }
                placed.held_back = Some(event);
                None
            }
            AttemptStage::Placed(_)
            | AttemptStage::AwaitingOffer
            | AttemptStage::Offered(_)
            | AttemptStage::Prepared(_)
            | AttemptStage::Requested(_) => Some(event),
        }
    }

    /// Takes the request up if its image is there. The event states whether it is.
    fn complete_request(&mut self) -> Event {
        let config = self.context.config();
        self.stage =
            std::mem::take(&mut self.stage).with_request(&mut self.request, config, read_machine_size);
        Event::Requested {
            image_ready: self.stage.has_request(),
        }
    }

    // === effects ===

    /// Lets the machine decide and carries out its effects.
    async fn apply(&mut self, event: Event) -> Option<Conclusion> {
        let now = self.context.clock().now();
        let effects = self.machine.apply(event, now);
        self.stage_clock.note(self.machine.state(), now);
        for effect in effects {
            if let Some(conclusion) = self.perform(effect).await {
                return Some(conclusion);
            }
        }
        None
    }

    async fn perform(&mut self, effect: Effect) -> Option<Conclusion> {
        let notice = AttemptNotice {
            job_uuid: self.attempt(),
        };
        match effect {
            Effect::PrepareImage => self
                .steps
                .prepare_image(self.image_name(), self.stage.private_image()),
            Effect::ReportUp => self.report_up().await,
            Effect::FetchImage => match (self.stage.engine(), self.image_name()) {
                (Some(engine), Some(name)) => {
                    let private = self.stage.private_image();
                    self.steps.fetch_image(engine.clone(), name, private);
                }
                (None, _) | (_, None) => self.steps.report_defect("fetch"),
            },
            Effect::ReportReady => {
                let ready = ExecutorReady {
                    job_uuid: notice.job_uuid,
                    executor_token: None,
                };
                self.report(ExecutorToMiner::V0ExecutorReadyRequest(ready)).await;
            }
            Effect::PlaceVolumes => match &self.stage {
                AttemptStage::Requested(request) => self.steps.place_inputs(request),
                AttemptStage::AwaitingOffer
                | AttemptStage::Offered(_)
                | AttemptStage::Prepared(_)
                | AttemptStage::Placed(_) => self.steps.report_defect("place inputs of"),
            },
            Effect::ReportVolumesReady => self.report(ExecutorToMiner::V0VolumesReadyRequest(notice)).await,
            Effect::Run => {
                self.begin_journal().await;
                self.with_placed("run", |steps, placed| steps.run(placed));
            }
            Effect::OpenSession => self.with_placed("open a session of", |steps, placed| {
                if !steps.open_session(placed) {
                    steps.report_defect("serve a client of");
                }
            }),
            Effect::ReportSession => self.report_session().await,
            Effect::CloseSession => self.steps.end_session.cancel(),
            Effect::Stop => self.with_placed("stop", |steps, placed| steps.stop(&placed.job)),
            Effect::ReportExecutionDone => self.report(ExecutorToMiner::V0ExecutionDoneRequest(notice)).await,
            Effect::Collect => self.with_placed("collect", |steps, placed| steps.collect(&placed.job)),
            Effect::Conclude(conclusion) => return Some(conclusion),
        }
        None
    }

    /// Reports to the miner that the image has to be fetched, and then its progress until the job is there.
    async fn report_up(&mut self) {
        let up = ExecutorUp {
            job_uuid: self.attempt(),
            registry: self.registry.clone().unwrap_or_default(),
            image_s: self.context.config().pull_s,
        };
        self.report(ExecutorToMiner::MusterExecutorUp(up)).await;
        self.steps.repeat_image_progress();
    }

    /// Begins work of a job whose inputs are in place.
    fn with_placed(&mut self, effect: &'static str, begin: impl FnOnce(&StepRunner, &mut PlacedStage)) {
        match &mut self.stage {
            AttemptStage::Placed(placed) => begin(&self.steps, placed),
            AttemptStage::AwaitingOffer
            | AttemptStage::Offered(_)
            | AttemptStage::Prepared(_)
            | AttemptStage::Requested(_) => self.steps.report_defect(effect),
        }
    }

    /// Serves the session and reports its address to the miner.
    async fn report_session(&mut self) {
        let open = match &mut self.stage {
            AttemptStage::Placed(placed) => {
                let folders = placed.job.workspace.folders().clone();
                placed.session.take_open().map(|open| (open, folders))
            }
            AttemptStage::AwaitingOffer
            | AttemptStage::Offered(_)
            | AttemptStage::Prepared(_)
            | AttemptStage::Requested(_) => None,
        };
        let Some((open, folders)) = open else {
            self.steps.report_defect("serve");
            return;
        };
        let ready = StreamingJobReady {
            job_uuid: self.attempt(),
            executor_token: None,
            public_key: open.certificate.clone(),
            ip: None,
            port: open.port(),
            miner_signature: None,
        };
        self.steps.serve(*open);
        self.report(ExecutorToMiner::V0StreamingJobReadyRequest(ready))
            .await;
        self.report_specs(folders).await;
    }

    /// Reports this machine's specs while a session runs, since the validator ends it without a result. Another miner
    /// than Muster's expects them before a result only.
    async fn report_specs(&mut self, folders: JobFolders) {
        if !self.link.is_muster() {
            return;
        }
        if let Some(specs) = read_specs(folders).await {
            let job_uuid = self.attempt();
            self.report(ExecutorToMiner::V0MachineSpecsRequest(specs_message(
                job_uuid, specs,
            )))
            .await;
        }
    }

    /// Sends the close of the session if there is one. Only a Muster miner understands it.
    async fn send_close(&mut self) {
        let Some(close) = self.unsent_close.take() else {
            return;
        };
        if !self.link.is_muster() {
            return;
        }
        let closed = SessionClosed {
            job_uuid: self.attempt(),
            close,
        };
        self.report(ExecutorToMiner::MusterSessionClosed(closed)).await;
    }

    async fn report(&mut self, message: ExecutorToMiner) {
        self.link.report(message).await;
    }

    fn attempt(&self) -> AttemptId {
        self.context.attempt()
    }

    /// The image that the job runs, by its name; the offer's until the request is there.
    fn image_name(&self) -> Option<String> {
        let requested = self.request.as_ref().map(|job| job.docker_image.as_str());
        requested.or_else(|| self.stage.image_name()).map(str::to_owned)
    }
}
