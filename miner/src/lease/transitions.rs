//! The transitions of a lease.

mod fetching;
mod returning;
mod sealing;

use std::time::Duration;

use muster_protocol::job::{Fault, IMAGE_FETCH_KEY, ImageFetchFailure, LEASE_OVER, RESUME_KEY};
use muster_protocol::wire::checkpoints::DrainJob;
use muster_protocol::wire::executor::{EndStored, OneTimeSecret};
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::miner::{
    AttemptNotice, HordeFailed, InitialJobRequest, JobRequest, MachineSpecs, StreamingDetails,
};
use muster_protocol::wire::muster::CancelJob;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{
    AttemptId, ExecutorClass, ExecutorToken, Feature, FeatureSet, HordeFailureReason, ParticipantType,
    Timestamp, ValidatorKey,
};
use serde_json::json;

use super::return_secrets::Hold;
use super::trace::{LeaseTrace, add_trace};
use super::{
    DRAIN_LEAD, Effect, Event, ExecutorReport, Fence, FetchStage, LeaseEnding, LeaseRefusal, LeaseStage,
    LeaseState, LeaseTimeouts, SlotHolders, horde_failed,
};

/// The processes that may take the place of one that ended, for one lease. A machine that kills them all is not fit.
/// Each of them ends at once while another process is about to take the container over.
const MAX_SUCCESSORS: u32 = 8;

/// The longest a job may take whose validator names no times, as in ComputeHorde.
const UNTIMED_JOB: Duration = Duration::from_secs(20 * 60);

/// The state machine of one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    validator: ValidatorKey,
    class: ExecutorClass,
    token: ExecutorToken,
    patience: LeaseTimeouts,
    state: LeaseState,
    deadline: Timestamp,
    /// Held until the executor has shown that it has it.
    offer: Option<Box<InitialJobRequest>>,
    /// The job: held until the executor has shown that it has it, and before it may be sent.
    job: Option<Box<JobRequest>>,
    /// How the executor comes back; `None` if it cannot.
    hold: Option<Hold>,
    /// Of a lease that an earlier process of this miner opened, until its executor has come back and repeated that it
    /// is ready.
    restored: Option<RestoredLease>,
    /// The time limit of its image in seconds; `None` for a validator that gives the image none of its own.
    image_time_limit: Option<u64>,
    /// The account that its fetch counts towards; empty if the validator names none.
    account: String,
    /// Whether its executor must take an image from an archive or with a login.
    private_image: bool,
    /// The registry of an image that has to be fetched.
    registry: String,
    /// When the image must be there and an executor free, for a lease that fetches. The deadline of the fetch itself is
    /// later, so that the validator's clock comes first.
    seated_by: Timestamp,
    /// Whether the miner started its executor for it alone. Such an executor takes nothing from other leases while it
    /// fetches, unless the lease keeps it.
    apart: bool,
    /// The engine's reason for which its executor was not there yet; empty if none was given.
    waits_for: String,
    /// Whether it keeps its executor while it fetches.
    keeps_executor: bool,
    /// Of a streaming job.
    streaming: Option<StreamingDetails>,
    /// Whether the closing statement of its session has been sent.
    closed_told: bool,
    volume_offered: bool,
    job_time: Duration,
    /// For how long its program may run here, if that is bounded and the program can go on elsewhere.
    lend: Option<Duration>,
    /// When its program is asked to save its state and to leave; `None` if it never is, or was asked.
    drain_at: Option<Timestamp>,
    specs_reported: bool,
    /// The times of its stages; `None` if its validator does not want them.
    trace: Option<LeaseTrace>,
    history: Vec<MinerToValidator>,
}

/// The facts of a lease that an earlier process of this miner opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RestoredLease {
    /// When the job must have ended; `None` if its executor has not got the job, or has not come back yet.
    job_until: Option<Timestamp>,
}

type Step = Result<Vec<Effect>, LeaseRefusal>;

impl Lease {
    /// A lease just accepted; the caller starts its executor.
    pub fn new(
        validator: ValidatorKey,
        mut offer: Box<InitialJobRequest>,
        token: ExecutorToken,
        patience: LeaseTimeouts,
        now: Timestamp,
    ) -> Self {
        let class = offer.executor_class;
        let mut trace = None;
        if let Some(context) = offer.muster.as_mut().and_then(|terms| terms.traceparent.as_mut()) {
            let traced = LeaseTrace::new(*context, now);
            *context = traced.for_executor(token.attempt());
            trace = Some(traced);
        }
        // The login and the archive stay in the offer, which is dropped once the executor has it.
        let terms = offer.muster.as_deref();
        Self {
            validator,
            class,
            patience,
            state: LeaseState::WaitingForExecutor,
            deadline: now.plus(class.spin_up_time()).plus(patience.startup),
            image_time_limit: terms.and_then(|terms| terms.image_time_limit),
            account: terms.and_then(|terms| terms.account.clone()).unwrap_or_default(),
            private_image: has_private_image(&offer),
            registry: String::new(),
            seated_by: now,
            apart: false,
            waits_for: String::new(),
            keeps_executor: false,
            streaming: offer.streaming_details.clone(),
            closed_told: false,
            volume_offered: offer.volume.is_some(),
            job_time: patience.job_limit(&offer).saturating_add(patience.margin),
            lend: patience.lend_of(&offer),
            drain_at: None,
            specs_reported: false,
            trace,
            history: vec![MinerToValidator::V0AcceptJobRequest(AttemptNotice {
                job_uuid: token.attempt(),
            })],
            token,
            offer: Some(offer),
            job: None,
            hold: None,
            restored: None,
        }
    }

    /// The most that it may take from its offer on, every wait included.
    pub fn longest(&self) -> Duration {
        let image = self.image_time_limit.map(Duration::from_secs);
        self.patience.longest_lease(self.class, image, self.job_time)
    }

    /// The attempt it serves.
    pub fn attempt(&self) -> AttemptId {
        self.token.attempt()
    }

    /// The validator that made the offer.
    pub fn validator(&self) -> ValidatorKey {
        self.validator
    }

    /// The kind of executor lent.
    pub fn class(&self) -> ExecutorClass {
        self.class
    }

    /// The token that its executor must show when it dials in.
    pub fn token(&self) -> &ExecutorToken {
        &self.token
    }

    /// How far it has come.
    pub fn state(&self) -> LeaseState {
        self.state
    }

    /// Whether it takes an executor from the miner's capacity at this moment.
    pub fn holds_executor(&self) -> bool {
        match self.state {
            LeaseState::WaitingForExecutor
            | LeaseState::Preparing
            | LeaseState::WaitingForPayload
            | LeaseState::Running(_) => true,
            LeaseState::Fetching(_) => !self.apart || self.keeps_executor,
            LeaseState::Ended(_) => false,
        }
    }

    /// Whether its executor must take an image from an archive or with a login.
    pub fn has_private_image(&self) -> bool {
        self.private_image
    }

    /// The features that its executor must have shown before it gets the offer, which the lease still holds then.
    pub fn needed_features(&self) -> FeatureSet {
        let terms = self.offer.as_ref().and_then(|offer| offer.muster.as_ref());
        let starts = terms.is_some_and(|terms| terms.start.is_some());
        let private = self.private_image.then_some(Feature::PrivateImages);
        let start = starts.then_some(Feature::ProgramStart);
        private.into_iter().chain(start).collect()
    }

    /// Whether it still holds the offer, which may hold a login at a registry.
    #[cfg(test)]
    pub(crate) fn holds_offer(&self) -> bool {
        self.offer.is_some()
    }

    /// Whether the miner started its executor for it alone.
    pub fn is_apart(&self) -> bool {
        self.apart
    }

    /// Keeps its executor while its image is fetched, because too many leases already wait without one.
    pub fn keep_executor(&mut self) {
        self.keeps_executor = true;
    }

    /// The account and the registry of its fetch.
    pub fn fetch_of(&self) -> (&str, &str) {
        (&self.account, &self.registry)
    }

    /// When a [`Event::Tick`] is due.
    pub fn deadline(&self) -> Timestamp {
        let own = self
            .drain_at
            .map_or(self.deadline, |drain| drain.min(self.deadline));
        self.away_until().map_or(own, |until| until.min(own))
    }

    /// When the lease is lost because its executor is away; `None` while the executor is connected.
    pub fn away_until(&self) -> Option<Timestamp> {
        self.hold.as_ref().and_then(|hold| hold.away_until)
    }

    /// Everything its validator must have received, in order.
    pub fn history(&self) -> &[MinerToValidator] {
        &self.history
    }

    /// Gives the history away, once the lease is over.
    pub fn into_history(self) -> Vec<MinerToValidator> {
        self.history
    }

    /// The next state and what to do.
    ///
    /// # Errors
    /// An event that has no place in the present state; nothing has changed then.
    pub fn apply(&mut self, event: Event, now: Timestamp) -> Step {
        if let Some(trace) = &mut self.trace {
            trace.begin_event(now);
        }
        let step = self.transition(event, now);
        if let Some(trace) = &mut self.trace {
            trace.note(self.state);
        }
        step
    }

    fn transition(&mut self, event: Event, now: Timestamp) -> Step {
        match event {
            Event::Dialled {
                executor_ip,
                apart,
                secret,
            } => self.on_dialled(executor_ip, apart, secret, now),
            Event::Reattached(back) => self.on_reattached(back, now),
            Event::FetchGranted => self.on_fetch_granted(),
            Event::Seated => self.on_seated(now),
            Event::Said(report) => self.on_report(report, now),
            Event::ExecutorGone => self.on_gone(now),
            Event::ExecutorWaits(reason) => {
                self.waits_for = reason;
                Ok(vec![])
            }
            Event::ExecutorExited(how) => self.on_exited(how, now),
            Event::Payload(request) => self.on_payload(request, now),
            Event::Cancelled { reason } => self.on_cancelled(reason),
            Event::Forwarded(message) => Ok(self.on_forwarded(message)),
            Event::MinerStops => self.on_miner_stops(),
            Event::Tick => self.on_tick(now, &SlotHolders::default()),
            Event::TickWithoutSlot(holders) => self.on_tick(now, &holders),
        }
    }

    fn on_dialled(
        &mut self,
        executor_ip: Option<String>,
        apart: bool,
        secret: Option<OneTimeSecret>,
        now: Timestamp,
    ) -> Step {
        match (self.state, self.offer.take()) {
            (LeaseState::WaitingForExecutor, Some(mut offer)) => {
                self.apart = apart;
                if let Some(details) = &mut offer.streaming_details {
                    details.executor_ip = executor_ip;
                }
                self.enter(LeaseState::Preparing, now.plus(self.patience.prepare));
                let mut holding = Vec::new();
                if let Some(secret) = secret.filter(|_| !self.patience.reattach.is_zero()) {
                    self.hold = Some(Hold::new(Fence::new(&secret)));
                    self.offer = Some(offer.clone());
                    holding = self.hold_effects(secret);
                }
                // A lease begins with its offer.
                let mut effects = vec![Effect::Order(Box::new(MinerToExecutor::V0InitialJobRequest(
                    offer,
                )))];
                effects.extend(holding);
                Ok(effects)
            }
            (
                LeaseState::WaitingForExecutor
                | LeaseState::Preparing
                | LeaseState::Fetching(_)
                | LeaseState::WaitingForPayload
                | LeaseState::Running(_)
                | LeaseState::Ended(_),
                offer,
            ) => {
                self.offer = offer;
                Err(self.out_of_order("an executor dialling in"))
            }
        }
    }

    fn on_report(&mut self, report: ExecutorReport, now: Timestamp) -> Step {
        match report {
            ExecutorReport::Up(up) => self.on_up(up, now),
            ExecutorReport::Ready => self.on_ready(now),
            ExecutorReport::VolumesReady => {
                let message = MinerToValidator::V0VolumesReadyRequest(self.notice());
                let from = [LeaseStage::Fetching];
                let effects = self.advance(&from, LeaseStage::Executing, message, "volumes in place")?;
                self.job = None;
                if !effects.is_empty() {
                    self.drain_at = self.lend.map(|lend| now.plus(lend.saturating_sub(lead_of(lend))));
                }
                Ok(effects)
            }
            ExecutorReport::StreamingReady(ready) => {
                if self.streaming.is_none() {
                    return Err(self.out_of_order("a streaming address"));
                }
                let from = [LeaseStage::Executing];
                let message = MinerToValidator::V0StreamingJobReadyRequest(*ready);
                self.advance(&from, LeaseStage::Serving, message, "a streaming address")
            }
            ExecutorReport::Seal(sealing) => self.on_seal(*sealing, now),
            ExecutorReport::Closed(closed) => self.on_closed(closed),
            ExecutorReport::ExecutionDone => {
                let from = if self.streaming.is_some() {
                    LeaseStage::Serving
                } else {
                    LeaseStage::Executing
                };
                let message = MinerToValidator::V0ExecutionDoneRequest(self.notice());
                self.advance(&[from], LeaseStage::Delivering, message, "the end of the program")
            }
            ExecutorReport::Specs(specs) => self.on_specs(*specs),
            ExecutorReport::Finished(result) => match self.state {
                LeaseState::Running(LeaseStage::Delivering) => {
                    let message = MinerToValidator::V0JobFinishedRequest(*result);
                    Ok(self.end_as_reported(LeaseEnding::Finished, message))
                }
                LeaseState::WaitingForExecutor
                | LeaseState::Preparing
                | LeaseState::Fetching(_)
                | LeaseState::WaitingForPayload
                | LeaseState::Running(LeaseStage::Fetching | LeaseStage::Executing | LeaseStage::Serving)
                | LeaseState::Ended(_) => Err(self.out_of_order("a result")),
            },
            ExecutorReport::Failed(failure) => self.fail(
                "a failure",
                LeaseEnding::Failed,
                MinerToValidator::V0JobFailedRequest(*failure),
            ),
            ExecutorReport::HordeFailed(failure) => {
                let message = MinerToValidator::V0HordeFailedRequest(*failure);
                self.fail("a failure", LeaseEnding::HordeFailed, message)
            }
            ExecutorReport::Error(details) => {
                let reason = HordeFailureReason::GenericError;
                let message = self.horde_failed(ParticipantType::Executor, reason, details);
                self.fail("an error", LeaseEnding::HordeFailed, message)
            }
            ExecutorReport::Live(message) => self.on_live(message),
        }
    }

    fn on_specs(&mut self, specs: MachineSpecs) -> Step {
        match self.state {
            // Once: the history is kept, and an executor must not make it grow without end.
            LeaseState::Preparing
            | LeaseState::Fetching(_)
            | LeaseState::WaitingForPayload
            | LeaseState::Running(_)
                if !self.specs_reported =>
            {
                self.specs_reported = true;
                Ok(vec![self.tell(MinerToValidator::V0MachineSpecsRequest(specs))])
            }
            // Repeated.
            LeaseState::Preparing
            | LeaseState::Fetching(_)
            | LeaseState::WaitingForPayload
            | LeaseState::Running(_) => Ok(vec![]),
            LeaseState::WaitingForExecutor | LeaseState::Ended(_) => Err(self.out_of_order("machine specs")),
        }
    }

    fn on_live(&self, message: Box<MinerToValidator>) -> Step {
        match self.state {
            LeaseState::Preparing
            | LeaseState::Fetching(_)
            | LeaseState::WaitingForPayload
            | LeaseState::Running(_) => Ok(vec![Effect::Live(message)]),
            LeaseState::WaitingForExecutor | LeaseState::Ended(_) => Err(self.out_of_order("output")),
        }
    }

    fn on_payload(&mut self, request: Box<JobRequest>, now: Timestamp) -> Step {
        match self.state {
            LeaseState::WaitingForPayload => {
                if self.volume_offered && request.volume.is_some() {
                    return Err(LeaseRefusal::VolumeTwice(self.attempt()));
                }
                self.enter(LeaseState::Running(LeaseStage::Fetching), now.plus(self.job_time));
                self.job = self.hold.as_ref().map(|_| request.clone());
                Ok(vec![Effect::Order(Box::new(MinerToExecutor::V0JobRequest(
                    request,
                )))])
            }
            // Sent again after a reconnection: the executor has it.
            LeaseState::Running(_) => Ok(vec![]),
            // The executor has not come back yet. It reports then whether it has the job.
            LeaseState::Preparing | LeaseState::Fetching(_) if self.restored.is_some() => {
                self.job = Some(request);
                Ok(vec![])
            }
            LeaseState::WaitingForExecutor
            | LeaseState::Preparing
            | LeaseState::Fetching(_)
            | LeaseState::Ended(_) => Err(self.out_of_order("the job")),
        }
    }

    fn on_cancelled(&mut self, reason: String) -> Step {
        match self.state {
            LeaseState::WaitingForExecutor
            | LeaseState::Preparing
            | LeaseState::Fetching(_)
            | LeaseState::WaitingForPayload
            | LeaseState::Running(_) => {
                self.leave(LeaseEnding::Cancelled);
                Ok(vec![
                    Effect::Ended(LeaseEnding::Cancelled),
                    self.cancel_order(reason),
                    Effect::StopExecutor,
                ])
            }
            LeaseState::Ended(_) => Ok(vec![]),
        }
    }

    /// A message that comes too early or too late is of no use to anybody.
    fn on_forwarded(&self, message: Box<MinerToExecutor>) -> Vec<Effect> {
        match self.state {
            LeaseState::Running(_) => vec![Effect::Order(message)],
            LeaseState::WaitingForExecutor
            | LeaseState::Preparing
            | LeaseState::Fetching(_)
            | LeaseState::WaitingForPayload
            | LeaseState::Ended(_) => vec![],
        }
    }

    fn on_tick(&mut self, now: Timestamp, holders: &SlotHolders) -> Step {
        if self.away_until().is_some_and(|until| until <= now) {
            let text = format!(
                "the executor's connection was lost while the job was {}, and it did not come back within {} s",
                self.state.name(),
                self.patience.reattach.as_secs()
            );
            return self.lose(HordeFailureReason::ExecutorDisconnected, text);
        }
        if self.drain_at.is_some_and(|drain| drain <= now) {
            return Ok(self.ask_to_leave());
        }
        if now < self.deadline {
            return Ok(vec![]);
        }
        if let (LeaseState::Running(LeaseStage::Executing), Some(lend)) = (self.state, self.lend) {
            return Ok(self.end_lending(lend));
        }
        let (reason, text) = match self.state {
            LeaseState::WaitingForExecutor => {
                let mut text = "the executor did not dial in within its spin-up and startup time".to_owned();
                if !self.waits_for.is_empty() {
                    text = format!("{text}; it waited for: {}", self.waits_for);
                }
                return self.lose(HordeFailureReason::ExecutorSpinupFailed, text);
            }
            LeaseState::Preparing => (
                HordeFailureReason::ExecutorReadinessTimedOut,
                "the executor dialled in and did not become ready in time",
            ),
            // While the image is on its way the validator's clock comes first; that end is for one that has gone.
            LeaseState::Fetching(stage) => {
                let (failure, text) = match stage {
                    FetchStage::Waiting => return self.lose_slot(holders),
                    FetchStage::Granted => (
                        ImageFetchFailure::TimedOut,
                        "the image did not arrive within the time that is allowed for it",
                    ),
                    FetchStage::Arrived => (
                        ImageFetchFailure::NoExecutor,
                        "the image arrived, and no executor became free in time",
                    ),
                };
                return self.lose_image(text, json!({ IMAGE_FETCH_KEY: failure }));
            }
            LeaseState::WaitingForPayload => (
                HordeFailureReason::GenericError,
                "the executor was ready and the validator did not send the job in time",
            ),
            LeaseState::Running(LeaseStage::Fetching) => (
                HordeFailureReason::VolumesTimedOut,
                "the job outlived the sum of its times while it fetched its inputs",
            ),
            LeaseState::Running(LeaseStage::Executing | LeaseStage::Serving) => (
                HordeFailureReason::ExecutionTimedOut,
                "the job outlived the sum of its times while it ran",
            ),
            LeaseState::Running(LeaseStage::Delivering) => (
                HordeFailureReason::FinalResponseTimedOut,
                "the job outlived the sum of its times while it delivered its outputs",
            ),
            LeaseState::Ended(_) => return Ok(vec![]),
        };
        self.lose(reason, text.to_owned())
    }

    /// The time for which the executor is lent is almost over: its program is to save its state and to leave.
    fn ask_to_leave(&mut self) -> Vec<Effect> {
        self.drain_at = None;
        if self.state != LeaseState::Running(LeaseStage::Executing) {
            return vec![];
        }
        let drain = DrainJob {
            job_uuid: self.attempt(),
            lead_s: self.lend.map_or(0, |lend| lead_of(lend).as_secs()),
        };
        vec![Effect::Order(Box::new(MinerToExecutor::MusterDrain(drain)))]
    }

    /// The program did not leave although it was asked to.
    fn end_lending(&mut self, lend: Duration) -> Vec<Effect> {
        let text = format!(
            "this miner lends an executor for {} s at most, and the program did not save its state and leave before; the \
             job goes on elsewhere from its last checkpoint",
            lend.as_secs()
        );
        let order = self.cancel_order(text.clone());
        let failure = HordeFailed {
            job_uuid: self.attempt(),
            reported_by: ParticipantType::Miner,
            message: text,
            reason: HordeFailureReason::ExecutionTimedOut,
            context: Some(json!({ "fault": Fault::User, RESUME_KEY: LEASE_OVER })),
        };
        let mut effects = self.end(
            LeaseEnding::HordeFailed,
            MinerToValidator::V0HordeFailedRequest(failure),
        );
        let before_stop = effects.len().saturating_sub(1);
        effects.insert(before_stop, order);
        effects
    }

    /// One stage further, from any of `from`. A report of a stage that is passed is a repetition.
    fn advance(
        &mut self,
        from: &[LeaseStage],
        to: LeaseStage,
        message: MinerToValidator,
        event: &'static str,
    ) -> Step {
        match self.state {
            LeaseState::Running(stage) if from.contains(&stage) => {
                self.state = LeaseState::Running(to);
                Ok(vec![self.tell(message)])
            }
            LeaseState::Running(stage) if stage >= to => Ok(vec![]),
            LeaseState::Running(_)
            | LeaseState::WaitingForExecutor
            | LeaseState::Preparing
            | LeaseState::Fetching(_)
            | LeaseState::WaitingForPayload
            | LeaseState::Ended(_) => Err(self.out_of_order(event)),
        }
    }

    /// The executor ends the attempt with a message of its own.
    fn fail(&mut self, event: &'static str, ending: LeaseEnding, message: MinerToValidator) -> Step {
        match self.state {
            LeaseState::Preparing
            | LeaseState::Fetching(_)
            | LeaseState::WaitingForPayload
            | LeaseState::Running(_) => Ok(self.end_as_reported(ending, message)),
            LeaseState::WaitingForExecutor | LeaseState::Ended(_) => Err(self.out_of_order(event)),
        }
    }

    /// The miner ends the attempt because its executor is lost.
    fn lose(&mut self, reason: HordeFailureReason, text: String) -> Step {
        match self.state {
            LeaseState::WaitingForExecutor
            | LeaseState::Preparing
            | LeaseState::Fetching(_)
            | LeaseState::WaitingForPayload
            | LeaseState::Running(_) => {
                let order = self.cancel_order(text.clone());
                let message = self.horde_failed(ParticipantType::Miner, reason, text);
                let mut effects = self.end(LeaseEnding::HordeFailed, message);
                let before_stop = effects.len().saturating_sub(1);
                effects.insert(before_stop, order);
                Ok(effects)
            }
            LeaseState::Ended(_) => Ok(vec![]),
        }
    }

    fn end(&mut self, ending: LeaseEnding, mut message: MinerToValidator) -> Vec<Effect> {
        self.leave(ending);
        add_trace(self.trace.as_ref(), &mut message);
        let tell = self.tell(message);
        vec![Effect::Ended(ending), tell, Effect::StopExecutor]
    }

    /// Ends the lease as its executor reported. An executor that can come back keeps its report until it is notified
    /// that the end is durable.
    fn end_as_reported(&mut self, ending: LeaseEnding, message: MinerToValidator) -> Vec<Effect> {
        let mut effects = self.end(ending, message);
        if self.hold.is_some() {
            let stored = EndStored {
                job_uuid: self.attempt(),
            };
            let order = Effect::Order(Box::new(MinerToExecutor::MusterEndStored(stored)));
            effects.insert(effects.len().saturating_sub(1), order);
        }
        effects
    }

    fn leave(&mut self, ending: LeaseEnding) {
        self.state = LeaseState::Ended(ending);
        self.offer = None;
        self.job = None;
    }

    fn enter(&mut self, state: LeaseState, deadline: Timestamp) {
        self.state = state;
        self.deadline = deadline;
    }

    fn tell(&mut self, message: MinerToValidator) -> Effect {
        self.history.push(message.clone());
        Effect::Tell(Box::new(message))
    }

    fn notice(&self) -> AttemptNotice {
        AttemptNotice {
            job_uuid: self.attempt(),
        }
    }

    fn cancel_order(&self, reason: String) -> Effect {
        let cancel = CancelJob {
            job_uuid: self.attempt(),
            reason,
        };
        Effect::Order(Box::new(MinerToExecutor::MusterCancelJob(cancel)))
    }

    fn horde_failed(
        &self,
        by: ParticipantType,
        reason: HordeFailureReason,
        message: String,
    ) -> MinerToValidator {
        horde_failed(self.attempt(), by, reason, message)
    }

    fn out_of_order(&self, event: &'static str) -> LeaseRefusal {
        LeaseRefusal::OutOfOrder {
            attempt: self.attempt(),
            event,
            state: self.state.name(),
        }
    }
}

/// How long before the end of the lent time a program is asked to leave.
fn lead_of(lend: Duration) -> Duration {
    DRAIN_LEAD.min(lend / 2)
}

/// The longest that a program may run which cannot go on elsewhere; `None` for one that can, and for a session.
pub fn runs_unbroken(offer: &InitialJobRequest) -> Option<Duration> {
    let is_resumable = offer.muster.as_ref().is_some_and(|terms| terms.resumable);
    let is_session = offer.streaming_details.is_some();
    if is_resumable || is_session {
        return None;
    }
    let execution = offer.executor_timing.map(|timing| timing.execution_time_limit);
    Some(execution.map_or_else(|| job_time(offer), Duration::from_secs))
}

/// The most a job may take, by its own times.
pub fn job_time(offer: &InitialJobRequest) -> Duration {
    match (offer.executor_timing, offer.timeout_seconds) {
        (Some(t), _) => {
            let parts = [
                t.allowed_leeway,
                t.download_time_limit,
                t.execution_time_limit,
                t.upload_time_limit,
                t.streaming_start_time_limit,
            ];
            Duration::from_secs(parts.into_iter().fold(0, u64::saturating_add))
        }
        (None, Some(secs)) => Duration::from_secs(secs),
        (None, None) => UNTIMED_JOB,
    }
}

/// Whether the offer's image comes from an archive or with a login.
pub fn has_private_image(offer: &InitialJobRequest) -> bool {
    let terms = offer.muster.as_deref();
    terms.is_some_and(|terms| {
        terms.image_archive.is_some() || terms.registry.is_some() || terms.credentials.is_some()
    })
}
