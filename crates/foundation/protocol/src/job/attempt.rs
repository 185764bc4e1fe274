//! One attempt of a job on one miner, as its validator sees it: a pure function of state, event and time.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::image_fetch::{IMAGE_FETCH_KEY, ImageFetchFailure};
use super::outcome::Outcome;
use crate::class::ExecutorClass;
use crate::status::{HordeFailureReason, JobStage, JobStatus, ParticipantType};
use crate::time::Timestamp;
use crate::trace::TraceStage;
use crate::wire::facilitator::{
    FailureDetails, HordeFailureDetails, MinerResponse, RejectionDetails, StatusMetadata, StreamingAddress,
};
use crate::wire::miner::ExecutorTiming;

/// The facts that are fixed before an attempt begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptPlan {
    /// The class of executor; it determines the spin-up time.
    pub class: ExecutorClass,
    /// Whether the job accepts requests while it runs.
    pub streaming: bool,
    /// The time limits of the stages.
    pub timing: ExecutorTiming,
    /// Time for dialling the miner for the first time; after it another miner is tried.
    pub dial: Duration,
    /// Time for a miner to accept or decline an offer.
    pub reservation: Duration,
    /// Time for an executor to start, beyond its class's spin-up time.
    pub startup: Duration,
    /// Time for which a connection may stay lost before the miner counts as lost.
    pub reconnect: Duration,
    /// The clock of the image, for a miner that reports when it begins to fetch one. `None` for attempts stored by
    /// versions without it.
    #[serde(default)]
    pub image: Option<ImageClock>,
}

/// The limits of fetching an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageClock {
    /// Time for the image, by the user's terms. The miner's policy may allow less.
    pub limit: Duration,
    /// Time without any message about the image after which the miner counts as lost.
    pub silence: Duration,
}

impl AttemptPlan {
    /// The validity of an accepted receipt: all the time that the job may still take.
    pub fn accepted_ttl(&self) -> Duration {
        let t = &self.timing;
        let stages = [
            t.allowed_leeway,
            t.download_time_limit,
            t.execution_time_limit,
            t.upload_time_limit,
            t.streaming_start_time_limit,
        ];
        let sum = stages.into_iter().fold(0, u64::saturating_add);
        self.class
            .spin_up_time()
            .saturating_add(self.startup)
            .saturating_add(self.image.map_or(Duration::ZERO, |image| image.limit))
            .saturating_add(Duration::from_secs(sum))
    }

    /// Executor-seconds that an attempt reserves and is paid for: download, execution and upload.
    pub fn executor_seconds(&self) -> u64 {
        let t = &self.timing;
        t.download_time_limit
            .saturating_add(t.execution_time_limit)
            .saturating_add(t.upload_time_limit)
    }
}

/// The stage that an attempt has reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobState {
    /// The validator dials the miner.
    Connecting,
    /// The miner has the offer.
    Offered,
    /// The miner has accepted; an executor starts.
    Accepted,
    /// The executor is up and fetches the image, which holds no executor's place.
    Fetching,
    /// The executor has the image; the job itself is sent.
    Ready,
    /// The inputs are in place.
    VolumesReady,
    /// A streaming job accepts requests.
    Streaming,
    /// The program has ended; the outputs are being delivered.
    Executed,
    /// The attempt is over.
    Ended(Outcome),
}

/// Something that happens to an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A connection to the miner is up and authenticated, the first or a further one.
    Connected,
    /// The connection is lost.
    Disconnected,
    /// The miner accepts the offer.
    Accepted,
    /// The miner declines the offer.
    Declined(RejectionDetails),
    /// The executor is up and must fetch the image, for which the miner allows this much time.
    ExecutorUp {
        /// The limit by the miner's policy.
        allowed: Duration,
    },
    /// The miner reports progress of the image.
    ImageProgress,
    /// The executor is up and has the image.
    ExecutorReady,
    /// The inputs are in place.
    VolumesReady,
    /// A streaming job accepts requests at this address.
    StreamingReady(StreamingAddress),
    /// The program has ended.
    ExecutionDone,
    /// The miner reports success.
    Finished(Box<MinerResponse>),
    /// The miner reports a failure of the job's own.
    Failed(Box<FailureDetails>),
    /// The miner reports a failure of the subnet.
    HordeFailed(HordeFailureDetails),
    /// The user has cancelled the job; holds the user's reason.
    Cancelled(String),
    /// Time has passed.
    Tick,
}

/// An action for the shell around the machine. Actions are carried out in the order given.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send the offer with the started receipt.
    SendOffer,
    /// Send the validator's half of the accepted receipt.
    SendAcceptedReceipt,
    /// Send the job itself.
    SendJob,
    /// Send the validator's half of the finished receipt.
    SendFinishedReceipt {
        /// Whether the receipt pays.
        paid: bool,
    },
    /// Send the miner the order to stop the attempt.
    SendCancel,
    /// Dial the miner again.
    Reconnect,
    /// Report a status to the user's side.
    Report(JobStatus, Option<Box<StatusMetadata>>),
}

/// An event that cannot happen in the attempt's state: a defect of the peer. The state is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{event} cannot follow while the attempt is {state}")]
pub struct IllegalEvent {
    /// The event, as text.
    pub event: &'static str,
    /// The state that the attempt was in, as text.
    pub state: &'static str,
}

/// The state machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    plan: AttemptPlan,
    state: JobState,
    /// The time at which the present stage has lasted too long.
    deadline: Timestamp,
    /// The time at which the miner counts as lost; set while the connection is lost.
    link_deadline: Option<Timestamp>,
    /// The time at which a miner that fetches the image is silent for too long. It is not stored, because each progress
    /// message moves it: a resumed attempt gets it anew with its connection.
    #[serde(skip)]
    silent_at: Option<Timestamp>,
    /// When the executor was ready for the job, by the validator's clock; from then on the attempt is paid. `None`
    /// before that, and for attempts stored by versions without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ready_at: Option<Timestamp>,
    /// When the attempt came to each stage, oldest first. Empty for attempts stored by versions without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reached: Vec<(TraceStage, Timestamp)>,
}

type Step = Result<(Attempt, Vec<Effect>), IllegalEvent>;

impl Attempt {
    /// An attempt whose miner is about to be dialled.
    pub fn new(plan: AttemptPlan, now: Timestamp) -> Self {
        let deadline = now.plus(plan.dial);
        Self {
            plan,
            state: JobState::Connecting,
            deadline,
            link_deadline: None,
            silent_at: None,
            ready_at: None,
            reached: vec![(TraceStage::Dial, now)],
        }
    }

    /// The attempt as it must be restored after a crash: assume that the offer was sent. An attempt past that stage
    /// stays as it is.
    #[must_use]
    pub fn assume_offered(self, now: Timestamp) -> Self {
        match self.state {
            JobState::Connecting => {
                let reservation = self.plan.reservation;
                self.stage(JobState::Offered, now.plus(reservation))
            }
            JobState::Offered
            | JobState::Accepted
            | JobState::Fetching
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed
            | JobState::Ended(_) => self,
        }
    }

    /// Allows the connection to stay lost for `reconnect` at least: the miner keeps its leases meanwhile.
    #[must_use]
    pub fn with_reconnect(mut self, reconnect: Duration) -> Self {
        self.plan.reconnect = self.plan.reconnect.max(reconnect);
        self
    }

    /// Limits the program of an attempt that has not been offered yet: it goes on with what an earlier one began.
    #[must_use]
    pub fn with_execution_limit(mut self, seconds: u64) -> Self {
        self.plan.timing.execution_time_limit = seconds;
        self
    }

    /// The attempt whose executor was ready since `then` at the latest: its own report of that was lost with a
    /// connection, so the validator does not know when it came.
    #[must_use]
    pub fn assume_ready_since(mut self, then: Timestamp) -> Self {
        self.ready_at = self.ready_at.map(|at| at.min(then));
        self
    }

    /// When the executor was ready for the job, by the validator's clock; `None` if it never was, or if a version
    /// stored the attempt that did not note it.
    pub fn ready_at(&self) -> Option<Timestamp> {
        self.ready_at
    }

    /// When the attempt came to each stage, by the validator's clock, oldest first; `receipts` is its end.
    pub fn reached(&self) -> &[(TraceStage, Timestamp)] {
        &self.reached
    }

    /// The stage that the attempt has reached.
    pub fn state(&self) -> &JobState {
        &self.state
    }

    /// The facts that were fixed before the attempt began.
    pub fn plan(&self) -> &AttemptPlan {
        &self.plan
    }

    /// The end of the attempt, once it is over.
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.state {
            JobState::Ended(outcome) => Some(outcome),
            JobState::Connecting
            | JobState::Offered
            | JobState::Accepted
            | JobState::Fetching
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed => None,
        }
    }

    /// The time at which the present stage has lasted too long.
    pub fn deadline(&self) -> Option<Timestamp> {
        match self.outcome() {
            Some(_) => None,
            None => {
                let earlier = [self.link_deadline, self.silent_at].into_iter().flatten();
                Some(earlier.fold(self.deadline, Timestamp::min))
            }
        }
    }

    /// Whether the attempt takes one of its miner's executors, or may come to take one at any moment.
    pub fn holds_executor(&self) -> bool {
        match self.state {
            JobState::Connecting
            | JobState::Offered
            | JobState::Accepted
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed => true,
            JobState::Fetching | JobState::Ended(_) => false,
        }
    }

    /// Applies one event.
    ///
    /// # Errors
    /// [`IllegalEvent`] for an event that runs ahead of the state. An event that has already happened is not an error:
    /// peers repeat messages after a reconnection.
    pub fn apply(self, event: Event, now: Timestamp) -> Step {
        if self.outcome().is_some() {
            return Ok((self, vec![]));
        }
        let before = self.state.trace_stage();
        let (mut attempt, effects) = self.transition(event, now)?;
        let stage = attempt.state.trace_stage();
        if stage != before {
            attempt.reached.push((stage, now));
        }
        Ok((attempt, effects))
    }

    fn transition(self, event: Event, now: Timestamp) -> Step {
        match event {
            Event::Connected => self.on_connected(now),
            Event::Disconnected => self.on_disconnected(now),
            Event::Accepted => self.on_accepted(now),
            Event::Declined(details) => self.on_declined(details),
            Event::ExecutorUp { allowed } => self.on_executor_up(allowed, now),
            Event::ImageProgress => Ok(self.on_image_progress(now)),
            Event::ExecutorReady => self.on_executor_ready(now),
            Event::VolumesReady => self.on_volumes_ready(),
            Event::StreamingReady(address) => self.on_streaming_ready(address),
            Event::ExecutionDone => self.on_execution_done(),
            Event::Finished(response) => self.on_finished(response),
            Event::Failed(details) => self.on_failure(Outcome::Failed(details), "a job failure"),
            Event::HordeFailed(details) => self.on_failure(Outcome::HordeFailed(details), "a horde failure"),
            Event::Cancelled(reason) => Ok(self.on_cancelled(&reason)),
            Event::Tick => self.on_tick(now),
        }
    }

    fn on_connected(mut self, now: Timestamp) -> Step {
        self.link_deadline = None;
        self.silent_at = self.silence_from(now);
        match self.state {
            JobState::Connecting => Ok((self.assume_offered(now), vec![Effect::SendOffer])),
            // The offer may have been lost with the connection; a miner knows an attempt by its id.
            JobState::Offered => Ok((self, vec![Effect::SendOffer])),
            JobState::Accepted
            | JobState::Fetching
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed
            | JobState::Ended(_) => Ok((self, vec![])),
        }
    }

    fn on_disconnected(mut self, now: Timestamp) -> Step {
        if self.link_deadline.is_none() {
            self.link_deadline = Some(now.plus(self.plan.reconnect));
        }
        // Nothing can be received without a connection.
        self.silent_at = None;
        Ok((self, vec![Effect::Reconnect]))
    }

    fn on_accepted(self, now: Timestamp) -> Step {
        match self.state {
            JobState::Connecting => Err(self.illegal("acceptance")),
            JobState::Offered => {
                let ready_by = now.plus(self.plan.class.spin_up_time()).plus(self.plan.startup);
                let effects = vec![
                    Effect::SendAcceptedReceipt,
                    Effect::Report(JobStatus::Accepted, None),
                ];
                Ok((self.stage(JobState::Accepted, ready_by), effects))
            }
            JobState::Accepted
            | JobState::Fetching
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed
            | JobState::Ended(_) => Ok((self, vec![])),
        }
    }

    fn on_declined(self, details: RejectionDetails) -> Step {
        match self.state {
            JobState::Connecting => Err(self.illegal("a refusal")),
            JobState::Offered => Ok(self.end(Outcome::Rejected(details))),
            JobState::Accepted
            | JobState::Fetching
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed => Err(self.illegal("a refusal")),
            JobState::Ended(_) => Ok((self, vec![])),
        }
    }

    /// The image has a clock of its own: the user's limit or the miner's, whichever is shorter. The miner's report of
    /// its own time-out has the startup time to arrive.
    fn on_executor_up(self, allowed: Duration, now: Timestamp) -> Step {
        match (&self.state, self.plan.image) {
            (JobState::Accepted, Some(image)) => {
                let until = now.plus(image.limit.min(allowed)).plus(self.plan.startup);
                let mut attempt = self.stage(JobState::Fetching, until);
                attempt.silent_at = attempt.silence_from(now);
                Ok((attempt, vec![]))
            }
            (JobState::Connecting | JobState::Offered | JobState::Accepted, _) => {
                Err(self.illegal("the fetch of an image"))
            }
            (
                JobState::Fetching
                | JobState::Ready
                | JobState::VolumesReady
                | JobState::Streaming
                | JobState::Executed
                | JobState::Ended(_),
                _,
            ) => Ok((self, vec![])),
        }
    }

    fn on_image_progress(mut self, now: Timestamp) -> (Self, Vec<Effect>) {
        if self.silent_at.is_some() {
            self.silent_at = self.silence_from(now);
        }
        (self, vec![])
    }

    /// When a miner that fetches the image has been silent for too long, if its last message arrives at `now`.
    fn silence_from(&self, now: Timestamp) -> Option<Timestamp> {
        match (&self.state, self.plan.image) {
            (JobState::Fetching, Some(image)) => Some(now.plus(image.silence)),
            (
                JobState::Connecting
                | JobState::Offered
                | JobState::Accepted
                | JobState::Fetching
                | JobState::Ready
                | JobState::VolumesReady
                | JobState::Streaming
                | JobState::Executed
                | JobState::Ended(_),
                _,
            ) => None,
        }
    }

    fn on_executor_ready(self, now: Timestamp) -> Step {
        match self.state {
            JobState::Connecting | JobState::Offered => Err(self.illegal("a ready executor")),
            JobState::Accepted | JobState::Fetching => {
                let t = self.plan.timing;
                let until = now.plus(secs(t.allowed_leeway)).plus(secs(t.download_time_limit));
                let effects = vec![Effect::SendJob, Effect::Report(JobStatus::ExecutorReady, None)];
                let mut attempt = self.stage(JobState::Ready, until);
                attempt.ready_at = Some(now);
                Ok((attempt, effects))
            }
            // A repetition after a reconnection: the miner still waits for the job.
            JobState::Ready => Ok((self, vec![Effect::SendJob])),
            JobState::VolumesReady | JobState::Streaming | JobState::Executed | JobState::Ended(_) => {
                Ok((self, vec![]))
            }
        }
    }

    fn on_volumes_ready(self) -> Step {
        match self.state {
            JobState::Connecting | JobState::Offered | JobState::Accepted | JobState::Fetching => {
                Err(self.illegal("volumes in place"))
            }
            JobState::Ready => {
                let t = self.plan.timing;
                let more = if self.plan.streaming {
                    t.streaming_start_time_limit
                } else {
                    t.execution_time_limit
                };
                let until = self.deadline.plus(secs(more));
                Ok((
                    self.stage(JobState::VolumesReady, until),
                    vec![Effect::Report(JobStatus::VolumesReady, None)],
                ))
            }
            JobState::VolumesReady | JobState::Streaming | JobState::Executed | JobState::Ended(_) => {
                Ok((self, vec![]))
            }
        }
    }

    fn on_streaming_ready(self, address: StreamingAddress) -> Step {
        match self.state {
            JobState::Connecting
            | JobState::Offered
            | JobState::Accepted
            | JobState::Fetching
            | JobState::Ready => Err(self.illegal("a streaming address")),
            JobState::VolumesReady if !self.plan.streaming => Err(self.illegal("a streaming address")),
            JobState::VolumesReady => {
                let until = self.deadline.plus(secs(self.plan.timing.execution_time_limit));
                let metadata = StatusMetadata {
                    streaming_details: Some(address),
                    ..StatusMetadata::default()
                };
                let effects = vec![Effect::Report(
                    JobStatus::StreamingReady,
                    Some(Box::new(metadata)),
                )];
                Ok((self.stage(JobState::Streaming, until), effects))
            }
            JobState::Streaming | JobState::Executed | JobState::Ended(_) => Ok((self, vec![])),
        }
    }

    fn on_execution_done(self) -> Step {
        match self.state {
            JobState::Connecting
            | JobState::Offered
            | JobState::Accepted
            | JobState::Fetching
            | JobState::Ready => Err(self.illegal("the end of the program")),
            JobState::VolumesReady if self.plan.streaming => Err(self.illegal("the end of the program")),
            JobState::VolumesReady | JobState::Streaming => {
                let until = self.deadline.plus(secs(self.plan.timing.upload_time_limit));
                Ok((
                    self.stage(JobState::Executed, until),
                    vec![Effect::Report(JobStatus::ExecutionDone, None)],
                ))
            }
            JobState::Executed | JobState::Ended(_) => Ok((self, vec![])),
        }
    }

    fn on_finished(self, response: Box<MinerResponse>) -> Step {
        match self.state {
            JobState::Connecting
            | JobState::Offered
            | JobState::Accepted
            | JobState::Fetching
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming => Err(self.illegal("a result")),
            JobState::Executed => Ok(self.end(Outcome::Completed(response))),
            JobState::Ended(_) => Ok((self, vec![])),
        }
    }

    fn on_failure(self, outcome: Outcome, event: &'static str) -> Step {
        match self.state {
            JobState::Connecting => Err(self.illegal(event)),
            JobState::Offered
            | JobState::Accepted
            | JobState::Fetching
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed => Ok(self.end(outcome)),
            JobState::Ended(_) => Ok((self, vec![])),
        }
    }

    /// Sends the cancellation only to a miner that may have the offer. The miner decides what to do with its executor.
    fn on_cancelled(self, reason: &str) -> (Self, Vec<Effect>) {
        let (offered, stage) = match self.state {
            JobState::Connecting => (false, JobStage::ExecutorStartup),
            JobState::Offered | JobState::Accepted | JobState::Fetching => (true, JobStage::ExecutorStartup),
            JobState::Ready => (true, JobStage::VolumeDownload),
            JobState::VolumesReady if self.plan.streaming => (true, JobStage::StreamingStartup),
            JobState::VolumesReady | JobState::Streaming => (true, JobStage::Execution),
            JobState::Executed => (true, JobStage::ResultUpload),
            JobState::Ended(_) => return (self, vec![]),
        };
        let (attempt, mut effects) = self.end(Outcome::cancelled(stage, reason));
        if offered {
            effects.insert(0, Effect::SendCancel);
        }
        (attempt, effects)
    }

    fn on_tick(self, now: Timestamp) -> Step {
        let past = |limit: Option<Timestamp>| limit.is_some_and(|limit| now >= limit);
        let (lost, silent) = (past(self.link_deadline), past(self.silent_at));
        if now < self.deadline && !lost && !silent {
            return Ok((self, vec![]));
        }
        let (state, mut context) = (self.state.name(), None);
        let (reason, message) = if lost {
            let message = format!(
                "the connection to the miner was lost while the job was {state} and did not come back"
            );
            (HordeFailureReason::MinerConnectionFailed, message)
        } else if silent {
            let message = format!("the miner reported nothing for too long while the job was {state}");
            (HordeFailureReason::ExecutorReadinessTimedOut, message)
        } else {
            if self.state == JobState::Fetching {
                context = Some(json!({ IMAGE_FETCH_KEY: ImageFetchFailure::TimedOut }));
            }
            let message = format!("the miner did not go on in time while the job was {state}");
            (self.timeout_reason(), message)
        };
        let details = HordeFailureDetails {
            reported_by: ParticipantType::Validator,
            reason,
            message,
            context,
        };
        let (attempt, mut effects) = self.end(Outcome::HordeFailed(details));
        effects.insert(0, Effect::SendCancel);
        Ok((attempt, effects))
    }

    fn timeout_reason(&self) -> HordeFailureReason {
        match self.state {
            JobState::Connecting => HordeFailureReason::MinerConnectionFailed,
            JobState::Offered => HordeFailureReason::InitialResponseTimedOut,
            JobState::Accepted | JobState::Fetching => HordeFailureReason::ExecutorReadinessTimedOut,
            JobState::Ready => HordeFailureReason::VolumesTimedOut,
            JobState::VolumesReady if self.plan.streaming => HordeFailureReason::StreamingJobReadyTimedOut,
            JobState::VolumesReady | JobState::Streaming => HordeFailureReason::ExecutionTimedOut,
            JobState::Executed => HordeFailureReason::FinalResponseTimedOut,
            JobState::Ended(_) => HordeFailureReason::Unknown,
        }
    }

    fn stage(mut self, state: JobState, deadline: Timestamp) -> Self {
        self.state = state;
        self.deadline = deadline;
        self.silent_at = None;
        self
    }

    /// Every accepted attempt ends with a finished receipt, paid or not, so that both sides know that it is over. Time
    /// before the executor was ready is paid to nobody.
    fn end(mut self, outcome: Outcome) -> (Self, Vec<Effect>) {
        let (accepted, ready) = match self.state {
            JobState::Connecting | JobState::Offered | JobState::Ended(_) => (false, false),
            JobState::Accepted | JobState::Fetching => (true, false),
            JobState::Ready | JobState::VolumesReady | JobState::Streaming | JobState::Executed => {
                (true, true)
            }
        };
        let mut effects = Vec::with_capacity(2);
        if accepted {
            effects.push(Effect::SendFinishedReceipt {
                paid: ready && outcome.is_paid(),
            });
        }
        effects.push(Effect::Report(
            outcome.status(),
            Some(Box::new(outcome.metadata())),
        ));
        self.state = JobState::Ended(outcome);
        self.link_deadline = None;
        self.silent_at = None;
        (self, effects)
    }

    fn illegal(&self, event: &'static str) -> IllegalEvent {
        IllegalEvent {
            event,
            state: self.state.name(),
        }
    }
}

impl JobState {
    /// The state as a text for people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Offered => "offered",
            Self::Accepted => "waiting for its executor",
            Self::Fetching => "fetching its image",
            Self::Ready => "fetching its inputs",
            Self::VolumesReady => "running",
            Self::Streaming => "streaming",
            Self::Executed => "delivering its outputs",
            Self::Ended(_) => "ended",
        }
    }

    /// The stage of the job's trace that the validator is in.
    fn trace_stage(&self) -> TraceStage {
        match self {
            Self::Connecting => TraceStage::Dial,
            Self::Offered => TraceStage::Offer,
            Self::Accepted => TraceStage::Start,
            Self::Fetching => TraceStage::Pull,
            Self::Ready => TraceStage::Volumes,
            Self::VolumesReady => TraceStage::Run,
            Self::Streaming => TraceStage::Serve,
            Self::Executed => TraceStage::Collect,
            Self::Ended(_) => TraceStage::Receipts,
        }
    }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
