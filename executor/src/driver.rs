//! The shell around the machine of [`crate::attempt_state`]: listens to the miner, does what the machine says, tells the miner.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use muster_containers::disk::{watch, watch_root};
use muster_containers::sandbox::Root;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::job::Fault;
use muster_protocol::wire::WireError;
use muster_protocol::wire::executor::{ProgressOf, SessionClosed, SessionSealed};
use muster_protocol::wire::miner::{
    AttemptNotice, ExecutorReady, FromMiner, InitialJobRequest, JobRequest, StreamingJobReady, ToMiner,
};
use muster_protocol::{AttemptId, ExecutorToken, HordeFailureReason, JobFailureReason, JobStage, Timestamp};
use muster_websocket::SocketError;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::attempt_state::{
    Attempt, Conclusion, Effect, Event, Failure, Parting, State, Streaming, Terms, Timing,
};
use crate::co_grader::{self, Grader};
use crate::config::Config;
use crate::container;
use crate::engine::Engine;
use crate::engine_cache::Memory;
use crate::error::Error;
use crate::gpu::Claimed;
use crate::lease_connection::{Heard, Line};
use crate::live_updates::Live;
use crate::outputs::Capture;
use crate::report::Report;
use crate::sandbox::{Sealed, container_name, image_label};
use crate::session;
use crate::steps::{self, Done, Placed, Ready, Results};
use crate::warm::{Warm, orders};

/// How a job that answers requests ends; `None` for one that does not.
fn streaming(offer: &InitialJobRequest) -> Option<Streaming> {
    let details = offer.streaming_details.as_ref()?;
    Some(match details.muster {
        Some(_) => Streaming::Sealed,
        None => Streaming::Direct,
    })
}

/// How long tidying up may take before the miner is told all the same.
const TIDY_LIMIT: Duration = Duration::from_secs(30);
/// How often it is told for how long the program has run.
const TELL_EVERY: Duration = Duration::from_secs(5);

type Work = BoxFuture<'static, Done>;

/// What the attempts of one process share.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) config: Arc<Config>,
    pub(crate) memory: Memory,
    /// Containers that wait for jobs.
    pub(crate) warm: Option<Warm>,
    /// This process is told to stop.
    pub(crate) shutdown: CancellationToken,
    pub(crate) clock: SharedClock,
    /// For what a session does in the background.
    pub(crate) tasks: Tasks,
}

/// One attempt in progress.
pub(crate) struct Driver {
    config: Arc<Config>,
    memory: Memory,
    warm: Option<Warm>,
    token: ExecutorToken,
    line: Line,
    /// This process is told to stop.
    shutdown: CancellationToken,
    clock: SharedClock,
    attempt: Attempt,
    /// Work of this attempt is to stop.
    called_off: CancellationToken,
    work: FuturesUnordered<Work>,
    live: Live,
    capture: Capture,
    offer: Option<Box<InitialJobRequest>>,
    job: Option<Arc<JobRequest>>,
    engine: Option<Engine>,
    /// The image that is ready.
    image: Option<Box<Ready>>,
    /// Where the job's files are, and what else is its own.
    placed: Option<Box<Placed>>,
    /// The name of its container.
    container: String,
    results: Option<Box<Results>>,
    tasks: Tasks,
    /// Where the miner's word on the session goes.
    attested: Option<oneshot::Sender<SessionSealed>>,
    /// The session, until it is served.
    session: Option<Box<session::Open>>,
    /// The session is to close.
    end_session: CancellationToken,
    /// The session's last word, until the miner has it.
    close: Option<String>,
}

impl Driver {
    pub(crate) fn new(process: Process, token: ExecutorToken, line: Line, started: Timestamp) -> Self {
        let Process {
            config,
            memory,
            warm,
            shutdown,
            clock,
            tasks,
        } = process;
        // What is live is for Muster only.
        let live = Live::default();
        let capture = Capture::new(line.is_muster().then(|| live.clone()));
        Self {
            attempt: Attempt::new(started, config.patience()),
            config,
            memory,
            warm,
            container: container_name(&token),
            token,
            line,
            shutdown,
            clock,
            called_off: CancellationToken::new(),
            work: FuturesUnordered::new(),
            live,
            capture,
            offer: None,
            job: None,
            engine: None,
            image: None,
            placed: None,
            results: None,
            tasks,
            attested: None,
            session: None,
            end_session: CancellationToken::new(),
            close: None,
        }
    }

    /// Until the end of the attempt.
    pub(crate) async fn drive(mut self) -> Result<(), Error> {
        if self.line.is_muster() {
            let (live, miner) = (self.live.clone(), self.line.mouth());
            let (attempt, clock) = (self.attempt_id(), Arc::clone(&self.clock));
            self.begin_until_called_off(async move {
                live.tell(attempt, miner, clock).await;
                Done::Stopped
            });
        }
        loop {
            let event = tokio::select! {
                biased;
                () = self.shutdown.cancelled() => Some(Event::Parted(Parting::ShutDown)),
                heard = self.line.recv() => self.heard(heard),
                Some(done) = self.work.next() => self.done(done),
                () = self.clock.sleep_until(self.attempt.deadline()) => Some(Event::Tick),
            };
            let Some(event) = event else { continue };
            if let Err(error) = self.say_closed().await {
                tracing::debug!(error = %Causes(&error), "the session's last word was not heard");
            }
            let mut conclusion = self.apply(event).await;
            let waiting = matches!(self.attempt.state(), State::AwaitingJob(_));
            if waiting && self.job.is_some() {
                // A request that came before the executor was ready.
                conclusion = self.apply(self.requested()).await;
            }
            if let Some(conclusion) = conclusion {
                return self.conclude(conclusion).await;
            }
        }
    }

    // === what happens ===

    fn heard(&mut self, heard: Heard) -> Option<Event> {
        match heard {
            Heard::Message(message) => self.message(message),
            Heard::Lost(reason) => Some(Event::Parted(Parting::MinerLost(reason))),
            Heard::Unreadable(error) => self.malformed(&error),
            Heard::Noise(what) => {
                tracing::warn!(what, "a frame of the miner is passed over");
                None
            }
        }
    }

    fn message(&mut self, message: ToMiner) -> Option<Event> {
        match message {
            ToMiner::V0InitialJobRequest(offer) if offer.job_uuid == self.attempt_id() => {
                if self.offer.is_some() {
                    return None;
                }
                let terms = Terms {
                    timing: Timing::of(&offer),
                    streaming: streaming(&offer),
                };
                self.offer = Some(offer);
                Some(Event::Offered(terms))
            }
            ToMiner::V0InitialJobRequest(offer) => {
                let reason = format!(
                    "it offers attempt {}, the token is for {}",
                    offer.job_uuid,
                    self.attempt_id()
                );
                Some(Event::Parted(Parting::Refused(reason)))
            }
            ToMiner::V0JobRequest(job) if job.job_uuid == self.attempt_id() && self.job.is_none() => {
                self.job = Some(Arc::new(*job));
                Some(self.requested())
            }
            ToMiner::MusterCancelJob(cancel) if cancel.job_uuid == self.attempt_id() => {
                Some(Event::Parted(Parting::Cancelled(cancel.reason)))
            }
            ToMiner::MusterSessionSealed(sealed) if sealed.job_uuid == self.attempt_id() => {
                if let Some(waiting) = self.attested.take() {
                    // Who waited may have been called off.
                    let _ = waiting.send(sealed);
                }
                None
            }
            ToMiner::GenericError(error) => {
                let details = error.details.unwrap_or_default();
                // Before the offer it can only be about the lease; ComputeHorde's miner then leaves the socket open.
                if self.attempt.state() == State::AwaitingOffer {
                    return Some(Event::Parted(Parting::Refused(details)));
                }
                tracing::warn!(details, "the miner reports an error");
                None
            }
            ToMiner::V0JobRequest(_)
            | ToMiner::MusterCancelJob(_)
            | ToMiner::MusterSessionSealed(_)
            | ToMiner::ValidatorAuthForMiner(_)
            | ToMiner::V0MainHotkeyMessage(_)
            | ToMiner::V0JobAcceptedReceiptRequest(_)
            | ToMiner::V0JobFinishedReceiptRequest(_)
            | ToMiner::MusterExecutorEnrolled(_)
            | ToMiner::MusterWhitelist(_) => {
                tracing::warn!("a message that is not for this attempt is passed over");
                None
            }
        }
    }

    /// A frame that cannot be read while the job is still being described would leave a gap in it.
    fn malformed(&self, error: &WireError) -> Option<Event> {
        let stage = match self.attempt.state() {
            State::AwaitingOffer => JobStage::ExecutorStartup,
            State::AwaitingJob(_) => JobStage::VolumeDownload,
            State::PreparingImage(_)
            | State::FetchingImage(_, _)
            | State::PlacingVolumes(_)
            | State::Running(_)
            | State::Starting(_)
            | State::Serving(_)
            | State::Closing(_)
            | State::Stopping(_)
            | State::Collecting
            | State::Salvaging
            | State::Over => {
                tracing::warn!(%error, "a frame of the miner is passed over");
                return None;
            }
        };
        let message = format!("the executor cannot read the job: {error}");
        Some(Event::Failed(
            Failure::horde(HordeFailureReason::GenericError, stage, message).blame(Fault::Validator),
        ))
    }

    fn done(&mut self, done: Done) -> Option<Event> {
        match done {
            Done::Image(engine, image) => {
                self.engine = Some(engine);
                self.image = image;
                Some(Event::ImageReady)
            }
            Done::Placed(placed) => {
                let log_limit = self.config.log_mib.saturating_mul(1 << 20);
                self.capture.keep_in(&placed.workspace.folders().logs, log_limit);
                self.own(placed);
                Some(Event::VolumesReady)
            }
            Done::Exited(exit) => Some(Event::Exited(exit)),
            Done::DiskFull(limit) => Some(Event::DiskFull(limit)),
            Done::Answers(open) => {
                self.session = Some(open);
                Some(Event::Answers)
            }
            Done::SessionOver(close) => {
                self.close = Some(close);
                Some(Event::SessionOver)
            }
            Done::Stopped => None,
            Done::Collected(results) => {
                self.results = Some(results);
                Some(Event::Collected)
            }
            Done::Failed(failure) => Some(Event::Failed(failure)),
        }
    }

    // === what is done about it ===

    /// Lets the machine decide and does what it says. A miner that cannot be told is lost.
    async fn apply(&mut self, event: Event) -> Option<Conclusion> {
        let mut effects = self.attempt.apply(event, self.clock.now());
        loop {
            let mut lost = None;
            for effect in effects {
                match self.effect(effect).await {
                    Ok(None) => {}
                    Ok(Some(conclusion)) => return Some(conclusion),
                    Err(error) => {
                        lost = Some(Event::Parted(Parting::MinerLost(Causes(&error).to_string())));
                        break;
                    }
                }
            }
            effects = self.attempt.apply(lost?, self.clock.now());
        }
    }

    async fn effect(&mut self, effect: Effect) -> Result<Option<Conclusion>, SocketError> {
        let notice = AttemptNotice {
            job_uuid: self.attempt_id(),
        };
        match effect {
            Effect::PrepareImage => self.prepare_image(),
            Effect::SayReady => {
                let ready = ExecutorReady {
                    job_uuid: notice.job_uuid,
                    executor_token: None,
                };
                self.line.send(&FromMiner::V0ExecutorReadyRequest(ready)).await?;
            }
            Effect::PlaceVolumes => self.place_volumes(),
            Effect::SayVolumesReady => self.line.send(&FromMiner::V0VolumesReadyRequest(notice)).await?,
            Effect::Run => self.run(),
            Effect::OpenSession => self.open_session(),
            Effect::SayAnswers => self.say_answers().await?,
            Effect::CloseSession => self.end_session.cancel(),
            Effect::Stop => self.stop(),
            Effect::SayExecutionDone => self.line.send(&FromMiner::V0ExecutionDoneRequest(notice)).await?,
            Effect::Collect => self.collect(),
            Effect::Conclude(conclusion) => return Ok(Some(conclusion)),
        }
        Ok(None)
    }

    fn prepare_image(&self) {
        self.begin_until_called_off(steps::prepare_image(
            Arc::clone(&self.config),
            self.wanted_image(),
            self.memory.clone(),
            self.live.clone(),
            Arc::clone(&self.clock),
        ));
    }

    fn place_volumes(&mut self) {
        let offered_volume = self.offer.as_mut().and_then(|offer| offer.volume.take());
        let (Some(offer), Some(job), Some(engine), Some(image)) =
            (&self.offer, &self.job, &self.engine, &self.image)
        else {
            return self.defect("no job to prepare");
        };
        let inputs = steps::Inputs {
            config: Arc::clone(&self.config),
            engine: engine.clone(),
            token: self.token.clone(),
            class: offer.executor_class,
            job: Arc::clone(job),
            offered_volume,
            image: image.resolved.image.clone(),
            streaming: streaming(offer),
            clock: Arc::clone(&self.clock),
            memory: self.memory.clone(),
            warm: self.warm.clone(),
            live: self.live.clone(),
            called_off: self.called_off.clone(),
        };
        self.begin(steps::place_volumes(inputs));
    }

    /// What was placed is this attempt's, and goes with it.
    fn own(&mut self, placed: Box<Placed>) {
        if let Some(held) = &placed.held {
            self.container.clone_from(&held.name);
        }
        self.placed = Some(placed);
    }

    fn run(&mut self) {
        let held = self.placed.as_mut().and_then(|placed| placed.held.take());
        let (Some(offer), Some(job), Some(engine), Some(image), Some(placed)) =
            (&self.offer, &self.job, &self.engine, &self.image, &self.placed)
        else {
            return self.defect("no job to run");
        };
        let (name, image) = (&image.name, &image.resolved.image);
        let policy = placed.policy;
        let folders = placed.workspace.folders();
        let sealed = Sealed {
            job,
            image,
            bare_home: placed.bare_home.as_deref(),
            policy,
            gpus: placed.gpus.as_ref().map_or(&[][..], Claimed::uuids),
            folders,
            runtime: &self.config.runtime,
            streaming: offer.streaming_details.is_some(),
        };
        let body = match sealed.container() {
            Ok(body) => body,
            Err(error) => {
                let failure = Failure::job(JobFailureReason::Unknown, JobStage::Execution, error.to_string());
                return self.begin(async move { Done::Failed(failure) });
            }
        };
        let container = self.container.clone();
        tracing::info!(image = image_label(name, image.id), container, "running");
        let (engine, capture, clock) = (engine.clone(), self.capture.clone(), Arc::clone(&self.clock));
        if let Some(held) = held {
            let mark = Uuid::new_v4().to_string();
            let Some(orders) = orders(image, &body, &mark) else {
                return self.defect("a container waited for a job without a program");
            };
            let running = container::run_held(engine.clone(), held, orders, mark, capture, clock);
            self.begin(async move { running.await.map_or_else(Done::Failed, Done::Exited) });
        } else {
            let called_off = self.called_off.clone();
            let running = container::run(
                engine.clone(),
                container.clone(),
                body,
                capture,
                clock,
                called_off,
            );
            self.begin(async move { running.await.map_or_else(Done::Failed, Done::Exited) });
        }
        let disk = policy.allowance.disk;
        let watching = watch(folders.root.clone(), disk, Arc::clone(&self.clock));
        self.begin_until_called_off(async move {
            watching.await;
            Done::DiskFull(disk)
        });
        if policy.root == Root::Writable {
            let watching = watch_root(engine, container, disk, Arc::clone(&self.clock));
            self.begin_until_called_off(async move {
                watching.await;
                Done::DiskFull(disk)
            });
        }
        if self.line.is_muster() {
            let (live, clock) = (self.live.clone(), Arc::clone(&self.clock));
            let limit = Timing::of(offer).execution.as_secs();
            self.begin_until_called_off(async move {
                let since = clock.now();
                loop {
                    let run = clock.now().since(since).as_secs();
                    live.progress(ProgressOf::Execution, run, Some(limit));
                    clock.sleep(TELL_EVERY).await;
                }
            });
        }
    }

    fn open_session(&mut self) {
        let (Some(offer), Some(engine), Some(image), Some(placed)) =
            (&self.offer, &self.engine, &self.image, &self.placed)
        else {
            return self.defect("no job to serve");
        };
        let Some(details) = offer.streaming_details.clone() else {
            return self.defect("no client to serve");
        };
        let (told, answer) = oneshot::channel();
        let attester = self.line.is_muster().then(|| (self.line.mouth(), answer));
        let terms = details.muster.as_ref().and_then(|terms| terms.grader.clone());
        let beside = terms.map(|terms| {
            Grader::new(co_grader::Plan {
                engine: engine.clone(),
                config: Arc::clone(&self.config),
                terms,
                attempt: self.attempt_id(),
                class: offer.executor_class,
                container: self.container.clone(),
                folders: placed.workspace.folders().clone(),
                policy: placed.policy,
                gpus: placed.gpus.as_ref().map_or(&[][..], Claimed::uuids).to_vec(),
                clock: Arc::clone(&self.clock),
                tasks: self.tasks.clone(),
            })
        });
        let opening = session::Opening {
            engine: engine.clone(),
            container: self.container.clone(),
            folder: placed.workspace.folders().sockets.clone(),
            attempt: self.attempt_id(),
            details,
            image: image.resolved.image.id,
            miner: offer.job_started_receipt_payload.miner_hotkey,
            validator: offer.job_started_receipt_payload.validator_hotkey,
            lifetime: Timing::of(offer).execution,
            settings: self.config.streaming.clone(),
            attester,
            beside,
            clock: Arc::clone(&self.clock),
            tasks: self.tasks.clone(),
        };
        self.attested = Some(told);
        let end = self.end_session.clone();
        self.begin_until_called_off(async move {
            tokio::select! {
                () = end.cancelled() => Done::Stopped,
                done = session::open(opening) => done,
            }
        });
    }

    async fn say_answers(&mut self) -> Result<(), SocketError> {
        let Some(open) = self.session.take() else {
            self.defect("no session to tell of");
            return Ok(());
        };
        let ready = StreamingJobReady {
            job_uuid: self.attempt_id(),
            executor_token: None,
            public_key: open.certificate.clone(),
            ip: None,
            port: open.port(),
            miner_signature: None,
        };
        let (end, called_off) = (self.end_session.clone(), self.called_off.clone());
        self.begin(session::serve(*open, end, called_off, Arc::clone(&self.clock)));
        self.line
            .send(&FromMiner::V0StreamingJobReadyRequest(ready))
            .await
    }

    /// Only Muster knows what it means.
    async fn say_closed(&mut self) -> Result<(), SocketError> {
        let Some(close) = self.close.take() else {
            return Ok(());
        };
        if !self.line.is_muster() {
            return Ok(());
        }
        let closed = SessionClosed {
            job_uuid: self.attempt_id(),
            close,
        };
        self.line.send(&FromMiner::MusterSessionClosed(closed)).await
    }

    fn stop(&self) {
        let Some(engine) = self.engine.clone() else {
            return self.defect("no container to stop");
        };
        let (name, grace) = (self.container.clone(), self.config.stop_grace());
        self.begin(async move {
            if let Err(error) = engine.stop(&name, grace).await {
                // It is removed by force when the attempt ends.
                tracing::warn!(error = %Causes(&error), "the container could not be asked to stop");
            }
            Done::Stopped
        });
    }

    fn collect(&self) {
        let (Some(job), Some(placed)) = (&self.job, &self.placed) else {
            return self.defect("no outputs");
        };
        self.begin(steps::collect(
            Arc::clone(&self.config),
            Arc::clone(job),
            placed.workspace.folders().clone(),
            self.attempt.state() == State::Collecting,
            self.live.clone(),
            self.called_off.clone(),
        ));
    }

    fn begin(&self, work: impl Future<Output = Done> + Send + 'static) {
        self.work.push(Box::pin(work));
    }

    /// For work that may be dropped in the middle.
    fn begin_until_called_off(&self, work: impl Future<Output = Done> + Send + 'static) {
        let called_off = self.called_off.clone();
        self.begin(async move {
            tokio::select! {
                () = called_off.cancelled() => Done::Stopped,
                done = work => done,
            }
        });
    }

    /// The machine asks for what its order of states excludes.
    fn defect(&self, what: &'static str) {
        let failure = Failure::horde(HordeFailureReason::UnhandledException, JobStage::Unknown, what);
        self.begin(async move { Done::Failed(failure) });
    }

    fn offered_image(&self) -> Option<String> {
        self.offer.as_ref().and_then(|offer| offer.docker_image.clone())
    }

    /// The image that the job runs; that of the offer until the request is there.
    fn wanted_image(&self) -> Option<String> {
        let requested = self.job.as_ref().map(|job| job.docker_image.clone());
        requested.or_else(|| self.offered_image())
    }

    fn requested(&self) -> Event {
        let wanted = self.job.as_ref().map(|job| job.docker_image.as_str());
        let there = self.image.as_ref().map(|image| image.name.as_str());
        let image_ready = there.is_some() && there == wanted;
        Event::Requested { image_ready }
    }

    fn attempt_id(&self) -> AttemptId {
        self.token.attempt()
    }

    // === the end ===

    /// The container goes first: when the miner hears the result, the machine is free again.
    async fn conclude(mut self, conclusion: Conclusion) -> Result<(), Error> {
        let tidied = timeout(TIDY_LIMIT, self.tidy()).await.unwrap_or_default();
        if !tidied {
            tracing::error!(
                container = self.container,
                "the container may still be there; the next executor tries again"
            );
        }
        let muster = self.line.is_muster();
        let (artifacts, uploaded, machine) = match self.results.take().map(|results| *results) {
            Some(results) => (results.artifacts, results.uploaded, Some(results.specs)),
            None => Default::default(),
        };
        let report = Report {
            attempt: self.token.attempt(),
            image: self.wanted_image(),
            ran: self.image.as_deref().map(Ready::named),
            printed: self.capture.printed(),
            artifacts,
            uploaded,
            muster,
            specs: machine,
        };
        let mut unheard = None;
        if let Err(error) = self.say_closed().await {
            unheard = Some(Error::MinerLost(Causes(&error).to_string()));
        }
        for message in report.messages(&conclusion) {
            if let Err(error) = self.line.send(&message).await {
                unheard = Some(Error::MinerLost(Causes(&error).to_string()));
                break;
            }
        }
        if let Some(gpus) = self.placed.as_mut().and_then(|placed| placed.gpus.take()) {
            gpus.give_back(&self.clock).await;
        }
        let plan = self.placed.as_mut().and_then(|placed| placed.plan.take());
        match self.placed.take() {
            // By its folder the next executor finds the container.
            Some(placed) if !tidied => placed.workspace.leave(),
            Some(placed) => {
                if let Err(error) = placed.workspace.remove() {
                    tracing::warn!(error = %Causes(&error), "files of the job are left behind");
                }
            }
            None => {}
        }
        match (&self.warm, &self.engine, plan) {
            (Some(warm), Some(engine), Some(plan)) if tidied => warm.keep(engine, plan),
            (_, _, Some(_) | None) => {}
        }
        self.line.goodbye().await;
        match (conclusion, unheard) {
            (Conclusion::Parted(parting), _) => Err(parting.into()),
            (Conclusion::Finished | Conclusion::Failed(_), Some(error)) => Err(error),
            (Conclusion::Finished, None) => Ok(()),
            (Conclusion::Failed(failure), None) => {
                tracing::info!(message = failure.message, "the job failed and was reported");
                Error::unfit(&failure).map_or(Ok(()), Err)
            }
        }
    }

    /// Removes the container, and once more if one was being made meanwhile. Says whether it is gone.
    async fn tidy(&mut self) -> bool {
        self.called_off.cancel();
        let mut gone = self.remove_container().await;
        let mut made = false;
        while let Some(done) = self.work.next().await {
            match done {
                Done::Exited(_) | Done::Failed(_) => made = true,
                Done::Placed(placed) => {
                    // Too late to run, with a container that waits for it perhaps.
                    self.own(placed);
                    made = true;
                }
                Done::SessionOver(close) => self.close = Some(close),
                Done::Image(..)
                | Done::Answers(_)
                | Done::DiskFull(_)
                | Done::Stopped
                | Done::Collected(_) => {}
            }
        }
        if made {
            gone = self.remove_container().await;
        }
        gone
    }

    async fn remove_container(&mut self) -> bool {
        let Some(engine) = &self.engine else { return true };
        let removed = engine.remove(&self.container).await;
        if let Err(error) = &removed {
            tracing::error!(error = %Causes(error), "the container could not be removed");
        }
        removed.is_ok()
    }
}
