//! One attempt of a job on one miner, as its validator sees it: a pure function of state, event and time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::outcome::Outcome;
use crate::class::ExecutorClass;
use crate::status::{HordeFailureReason, JobStage, JobStatus, ParticipantType};
use crate::time::Timestamp;
use crate::wire::facilitator::{
    FailureDetails, HordeFailureDetails, MinerResponse, RejectionDetails, StatusMetadata, StreamingAddress,
};
use crate::wire::miner::ExecutorTiming;

/// What is fixed before an attempt begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptPlan {
    /// The kind of executor; it says how long spinning up may take.
    pub class: ExecutorClass,
    /// Whether the job answers requests while it runs.
    pub streaming: bool,
    /// The clocks of the stages.
    pub timing: ExecutorTiming,
    /// How long dialling the miner for the first time may take: another one may be free meanwhile.
    pub dial: Duration,
    /// How long a miner may think about an offer.
    pub reservation: Duration,
    /// How long an executor may take to start, beyond its class's spin-up time.
    pub startup: Duration,
    /// How long a connection may stay lost before the miner counts as lost.
    pub reconnect: Duration,
}

impl AttemptPlan {
    /// The seconds for which an accepted receipt holds: everything the job may still take.
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
            .saturating_add(Duration::from_secs(sum))
    }

    /// Executor-seconds an attempt reserves and is paid for: download, execution and upload.
    pub fn executor_seconds(&self) -> u64 {
        let t = &self.timing;
        t.download_time_limit
            .saturating_add(t.execution_time_limit)
            .saturating_add(t.upload_time_limit)
    }
}

/// How far an attempt has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobState {
    /// The miner is being dialled.
    Connecting,
    /// It has the offer.
    Offered,
    /// It will run the job; an executor is on its way.
    Accepted,
    /// The executor has the image; the job itself is sent.
    Ready,
    /// The inputs are in place.
    VolumesReady,
    /// A streaming job answers.
    Streaming,
    /// The program has ended; outputs are on their way.
    Executed,
    /// Nothing more happens.
    Ended(Outcome),
}

/// What can happen to an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A connection to the miner stands and is authenticated, the first or a further one.
    Connected,
    /// The connection is gone.
    Disconnected,
    /// The miner will run it.
    Accepted,
    /// The miner will not.
    Declined(RejectionDetails),
    /// The executor is up and has the image.
    ExecutorReady,
    /// The inputs are in place.
    VolumesReady,
    /// A streaming job answers there.
    StreamingReady(StreamingAddress),
    /// The program has ended.
    ExecutionDone,
    /// Success.
    Finished(Box<MinerResponse>),
    /// The job's own failure.
    Failed(Box<FailureDetails>),
    /// The subnet's failure.
    HordeFailed(HordeFailureDetails),
    /// Its user no longer wants it, in the user's words.
    Cancelled(String),
    /// Time has passed.
    Tick,
}

/// What the shell around the machine has to do, in this order.
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
        /// Whether it pays.
        paid: bool,
    },
    /// Tell the miner that nobody waits for the attempt any longer.
    SendCancel,
    /// Dial the miner again.
    Reconnect,
    /// Tell the user's side.
    Report(JobStatus, Option<Box<StatusMetadata>>),
}

/// An event that cannot happen in the state the attempt is in: the peer's defect. The state is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{event} cannot follow while the attempt is {state}")]
pub struct IllegalEvent {
    /// What came.
    pub event: &'static str,
    /// What was.
    pub state: &'static str,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    plan: AttemptPlan,
    state: JobState,
    /// When the present stage has lasted too long.
    deadline: Timestamp,
    /// Set while the connection is lost: when the miner counts as lost.
    link_deadline: Option<Timestamp>,
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
        }
    }

    /// The same attempt as whoever takes it up later has to think of it once its offer may be on its way: the miner may have
    /// heard of it. One that is further stays as it is.
    #[must_use]
    pub fn assume_offered(self, now: Timestamp) -> Self {
        match self.state {
            JobState::Connecting => {
                let reservation = self.plan.reservation;
                self.stage(JobState::Offered, now.plus(reservation))
            }
            JobState::Offered
            | JobState::Accepted
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed
            | JobState::Ended(_) => self,
        }
    }

    /// How far it has come.
    pub fn state(&self) -> &JobState {
        &self.state
    }

    /// What was fixed before it began.
    pub fn plan(&self) -> &AttemptPlan {
        &self.plan
    }

    /// Its end, once it has one.
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.state {
            JobState::Ended(outcome) => Some(outcome),
            JobState::Connecting
            | JobState::Offered
            | JobState::Accepted
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed => None,
        }
    }

    /// When a [`Event::Tick`] is due; `None` once it has ended.
    pub fn deadline(&self) -> Option<Timestamp> {
        match self.outcome() {
            Some(_) => None,
            None => Some(
                self.link_deadline
                    .map_or(self.deadline, |link| link.min(self.deadline)),
            ),
        }
    }

    /// Takes one event.
    ///
    /// # Errors
    /// [`Illegal`] for an event that runs ahead of the state. Repetitions of what has already happened are not errors:
    /// peers say things again after a reconnection.
    pub fn apply(self, event: Event, now: Timestamp) -> Step {
        if self.outcome().is_some() {
            return Ok((self, vec![]));
        }
        match event {
            Event::Connected => self.on_connected(now),
            Event::Disconnected => self.on_disconnected(now),
            Event::Accepted => self.on_accepted(now),
            Event::Declined(details) => self.on_declined(details),
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
        match self.state {
            JobState::Connecting => Ok((self.assume_offered(now), vec![Effect::SendOffer])),
            // The offer may have been lost with the connection; a miner knows an attempt by its id.
            JobState::Offered => Ok((self, vec![Effect::SendOffer])),
            JobState::Accepted
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
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed => Err(self.illegal("a refusal")),
            JobState::Ended(_) => Ok((self, vec![])),
        }
    }

    fn on_executor_ready(self, now: Timestamp) -> Step {
        match self.state {
            JobState::Connecting | JobState::Offered => Err(self.illegal("a ready executor")),
            JobState::Accepted => {
                let t = self.plan.timing;
                let until = now.plus(secs(t.allowed_leeway)).plus(secs(t.download_time_limit));
                let effects = vec![Effect::SendJob, Effect::Report(JobStatus::ExecutorReady, None)];
                Ok((self.stage(JobState::Ready, until), effects))
            }
            // Said again after a reconnection: the miner still waits for the job.
            JobState::Ready => Ok((self, vec![Effect::SendJob])),
            JobState::VolumesReady | JobState::Streaming | JobState::Executed | JobState::Ended(_) => {
                Ok((self, vec![]))
            }
        }
    }

    fn on_volumes_ready(self) -> Step {
        match self.state {
            JobState::Connecting | JobState::Offered | JobState::Accepted => {
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
            JobState::Connecting | JobState::Offered | JobState::Accepted | JobState::Ready => {
                Err(self.illegal("a streaming address"))
            }
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
            JobState::Connecting | JobState::Offered | JobState::Accepted | JobState::Ready => {
                Err(self.illegal("the end of the program"))
            }
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
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed => Ok(self.end(outcome)),
            JobState::Ended(_) => Ok((self, vec![])),
        }
    }

    /// The miner is told, if it ever heard of the attempt; what it does with its executor is its affair.
    fn on_cancelled(self, reason: &str) -> (Self, Vec<Effect>) {
        let (offered, stage) = match self.state {
            JobState::Connecting => (false, JobStage::ExecutorStartup),
            JobState::Offered | JobState::Accepted => (true, JobStage::ExecutorStartup),
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
        let lost = self.link_deadline.is_some_and(|link| now >= link);
        if now < self.deadline && !lost {
            return Ok((self, vec![]));
        }
        let reason = if lost {
            HordeFailureReason::MinerConnectionFailed
        } else {
            self.timeout_reason()
        };
        let message = if lost {
            format!(
                "the connection to the miner was lost while the job was {} and did not come back",
                self.state.name()
            )
        } else {
            format!(
                "the miner did not go on in time while the job was {}",
                self.state.name()
            )
        };
        let details = HordeFailureDetails {
            reported_by: ParticipantType::Validator,
            reason,
            message,
            context: None,
        };
        let (attempt, mut effects) = self.end(Outcome::HordeFailed(details));
        effects.insert(0, Effect::SendCancel);
        Ok((attempt, effects))
    }

    fn timeout_reason(&self) -> HordeFailureReason {
        match self.state {
            JobState::Connecting => HordeFailureReason::MinerConnectionFailed,
            JobState::Offered => HordeFailureReason::InitialResponseTimedOut,
            JobState::Accepted => HordeFailureReason::ExecutorReadinessTimedOut,
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
        self
    }

    /// Every accepted attempt ends with a finished receipt, paid or not, so that both sides know it is over.
    fn end(mut self, outcome: Outcome) -> (Self, Vec<Effect>) {
        let accepted = match self.state {
            JobState::Connecting | JobState::Offered | JobState::Ended(_) => false,
            JobState::Accepted
            | JobState::Ready
            | JobState::VolumesReady
            | JobState::Streaming
            | JobState::Executed => true,
        };
        let mut effects = Vec::with_capacity(2);
        if accepted {
            effects.push(Effect::SendFinishedReceipt {
                paid: outcome.is_paid(),
            });
        }
        effects.push(Effect::Report(
            outcome.status(),
            Some(Box::new(outcome.metadata())),
        ));
        self.state = JobState::Ended(outcome);
        self.link_deadline = None;
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
    /// The state in a word, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Offered => "offered",
            Self::Accepted => "waiting for its executor",
            Self::Ready => "fetching its inputs",
            Self::VolumesReady => "running",
            Self::Streaming => "streaming",
            Self::Executed => "delivering its outputs",
            Self::Ended(_) => "ended",
        }
    }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
