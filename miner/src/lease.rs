//! One lease: an executor lent to one attempt, from its acceptance to its end. A pure machine.
//!
//! The attempt's id is the fencing token: a message about another attempt, or after the end, changes nothing and is
//! refused by name. The *history* is every message about the attempt in the order in which its validator must get them.
//! A reconnected validator gets the whole history; known messages have no effect on it.

mod return_secrets;
#[cfg(test)]
mod tests;
mod trace;
mod transitions;

use std::time::Duration;

use muster_process::certificate::digest_of_pem;
use muster_protocol::wire::executor::{ExecutorUp, OneTimeSecret, SessionClosed};
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::miner::{
    HordeFailed, InitialJobRequest, JobFailed, JobFinished, JobRequest, MachineSpecs, StreamingDetails,
    StreamingJobReady,
};
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{
    AttemptId, ExecutorClass, HordeFailureReason, ParticipantType, Receipt, Timestamp, ValidatorKey,
};
use muster_response_proof::{Attestation, HashScheme, Price};

pub use return_secrets::{Fence, LeaseSnapshot, ReturningExecutor};
pub use trace::TracedLease;
pub(crate) use trace::read_trace;
pub use transitions::{Lease, has_private_image, job_time, runs_unbroken};

/// How long the miner waits before it gives a lease up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimeouts {
    /// For an executor to dial in, beyond its class's spin-up time.
    pub startup: Duration,
    /// For a dialled-in executor to have the image, or to report that it has to fetch it.
    pub prepare: Duration,
    /// The most that an image may take to be fetched, for a validator that gives it a time limit of its own.
    pub image: Duration,
    /// For the validator to send the job once the executor is ready.
    pub payload: Duration,
    /// Beyond the sum of the job's own times.
    pub margin: Duration,
    /// How far an executor's clock may be off before its sessions are not attested.
    pub skew: Duration,
    /// For an executor to come back after its connection was lost. Zero: the lease is lost with the connection.
    pub reattach: Duration,
    /// For a program that can go on elsewhere, from its begin; `None` if it may take as long as its job allows.
    pub lend: Option<Duration>,
}

/// The time that a program has for saving its state before its executor leaves.
pub const DRAIN_LEAD: Duration = Duration::from_secs(300);

/// The stage of a running job, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseStage {
    /// Inputs on their way.
    Fetching,
    /// The program is at work.
    Executing,
    /// A streaming job answers.
    Serving,
    /// Outputs on their way.
    Delivering,
}

/// The stage of a lease whose image is fetched. Such a lease keeps no executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FetchStage {
    /// It waits for a slot.
    Waiting,
    /// It has a slot, and the image is on its way.
    Granted,
    /// The image is there, and the lease waits for an executor.
    Arrived,
}

/// The end of a lease. Its message is the last of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseEnding {
    /// The job succeeded.
    Finished,
    /// The job's own failure.
    Failed,
    /// The subnet's failure.
    HordeFailed,
    /// Its validator cancelled it; there is nothing to report.
    Cancelled,
}

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// An executor was started and has not dialled in.
    WaitingForExecutor,
    /// It has the offer and prepares: checks, image.
    Preparing,
    /// Its image is fetched.
    Fetching(FetchStage),
    /// It is ready; the validator must send the job.
    WaitingForPayload,
    /// It has the job.
    Running(LeaseStage),
    /// Nothing more happens.
    Ended(LeaseEnding),
}

/// An executor's report on its attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum ExecutorReport {
    /// Up, and has to fetch the image.
    Up(ExecutorUp),
    /// Up, and has the image.
    Ready,
    /// The inputs are in place.
    VolumesReady,
    /// A streaming job answers; address and signature are filled in.
    StreamingReady(Box<StreamingJobReady>),
    /// Its session is to be attested; signed already, in case it may be.
    Seal(Box<SealingRequest>),
    /// The closing statement of its session.
    Closed(SessionClosed),
    /// The program has ended.
    ExecutionDone,
    /// The hardware of its machine.
    Specs(Box<MachineSpecs>),
    /// The job's result.
    Finished(Box<JobFinished>),
    /// The job's own failure.
    Failed(Box<JobFailed>),
    /// The subnet's failure.
    HordeFailed(Box<HordeFailed>),
    /// A generic error, in its words.
    Error(String),
    /// Live output or progress, for validators that are connected now.
    Live(Box<MinerToValidator>),
}

/// An event of a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The executor dialled in with the lease's token.
    Dialled {
        /// Its address as the miner sees it, which a streaming job must know.
        executor_ip: Option<String>,
        /// Whether the miner started it for this lease alone, so that it takes nothing from others while it fetches.
        apart: bool,
        /// The secret that it shows to come back, drawn by the caller; `None` if it does not know how to.
        secret: Option<OneTimeSecret>,
    },
    /// The executor came back over a new connection.
    Reattached(ReturningExecutor),
    /// There is a slot for the fetch of its image.
    FetchGranted,
    /// There is an executor for it, now that its image is there.
    Seated,
    /// The executor reported.
    Said(ExecutorReport),
    /// The executor's socket closed.
    ExecutorGone,
    /// The executor is not there yet for a reason that its engine gives, with this text.
    ExecutorWaits(String),
    /// The executor could not be started, or its process ended, with this text.
    ExecutorExited(String),
    /// The validator sent the job.
    Payload(Box<JobRequest>),
    /// The validator gave the attempt up.
    Cancelled {
        /// In its words.
        reason: String,
    },
    /// A message of the validator's or the miner's own that a running executor gets as it is.
    Forwarded(Box<MinerToExecutor>),
    /// The miner stops. A lease whose executor can come back stays open.
    MinerStops,
    /// Time has passed.
    Tick,
    /// Time has passed for a lease that waits for a slot, while the leases with these receipts hold the slots.
    TickWithoutSlot(SlotHolders),
}

/// The leases that hold the slots for fetches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlotHolders {
    /// The number of all of them.
    pub leases: usize,
    /// The receipts of the first of them, those that began first.
    pub receipts: Vec<Receipt>,
}

/// A task for the caller, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The lease is over: its history must be durable before any later effect.
    Ended(LeaseEnding),
    /// Send the validator a message.
    Tell(Box<MinerToValidator>),
    /// Send the validator a message if it is connected now. The message is no part of the history.
    Live(Box<MinerToValidator>),
    /// Send the executor a message.
    Order(Box<MinerToExecutor>),
    /// Stop the executor, after a grace period to leave by itself.
    StopExecutor,
    /// Make the lease durable before any later effect: its executor may come back to another process of this miner.
    Hold(Box<LeaseSnapshot>),
    /// Start a process that takes the place of the executor's, which ended while the job's container runs.
    StartSuccessor,
}

/// An event that has no place in the lease's state. The state is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    /// Out of order.
    #[error("{event} cannot follow while attempt {attempt} is {state}")]
    OutOfOrder {
        /// The attempt of the lease.
        attempt: AttemptId,
        /// The event, as text.
        event: &'static str,
        /// The state of the lease, as text.
        state: &'static str,
    },
    /// The inputs came with the offer and again with the job.
    #[error("Received job volume twice job_uuid: {0}")]
    VolumeTwice(AttemptId),
    /// Never leased here, or over.
    #[error("attempt {0} has no open lease here")]
    NotOpen(AttemptId),
    /// The executor that wants to come back has a secret that was used, or none of this lease.
    #[error("another process serves attempt {0}, or its secret is spent")]
    NotHeld(AttemptId),
}

impl LeaseTimeouts {
    /// The most that a lease may take whose job takes `job` at most, the margin included: its waits come one after the
    /// other. `image` is the limit that the validator gives the image, if it gives one.
    pub fn longest_lease(&self, class: ExecutorClass, image: Option<Duration>, job: Duration) -> Duration {
        let image = image.map_or(Duration::ZERO, |limit| limit.min(self.image));
        let waits = [
            class.spin_up_time(),
            self.startup,
            self.prepare,
            image,
            self.payload,
            job,
            self.reattach,
        ];
        waits.into_iter().fold(Duration::ZERO, Duration::saturating_add)
    }

    /// The most that a lease for this offer may take.
    pub fn longest_of_offer(&self, offer: &InitialJobRequest) -> Duration {
        let terms = offer.muster.as_deref();
        let image = terms.and_then(|terms| terms.image_time_limit);
        let job = self.job_limit(offer).saturating_add(self.margin);
        self.longest_lease(offer.executor_class, image.map(Duration::from_secs), job)
    }

    /// The most that the job of this offer may take here: by its own times, or by the time for which an executor is
    /// lent to a job that can go on elsewhere.
    pub fn job_limit(&self, offer: &InitialJobRequest) -> Duration {
        let own = job_time(offer);
        let Some((lend, timing)) = self.lend_of(offer).zip(offer.executor_timing) else {
            return own;
        };
        let execution = Duration::from_secs(timing.execution_time_limit);
        own.saturating_sub(execution.saturating_sub(lend))
    }

    /// For how long an executor is lent to the program of this offer, if that is bounded and the program can go on
    /// elsewhere.
    pub fn lend_of(&self, offer: &InitialJobRequest) -> Option<Duration> {
        let is_resumable = offer.muster.as_ref().is_some_and(|terms| terms.resumable);
        self.lend.filter(|_| is_resumable)
    }
}

impl LeaseState {
    /// The state as text, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::WaitingForExecutor => "waiting for its executor",
            Self::Preparing => "getting its image",
            Self::Fetching(FetchStage::Waiting) => "waiting for its turn to fetch its image",
            Self::Fetching(FetchStage::Granted) => "fetching its image",
            Self::Fetching(FetchStage::Arrived) => "waiting for a free executor with its image",
            Self::WaitingForPayload => "waiting for its validator",
            Self::Running(LeaseStage::Fetching) => "fetching its inputs",
            Self::Running(LeaseStage::Executing) => "running",
            Self::Running(LeaseStage::Serving) => "streaming",
            Self::Running(LeaseStage::Delivering) => "delivering its outputs",
            Self::Ended(_) => "ended",
        }
    }
}

/// The subnet's failure of an attempt, as a message.
pub fn horde_failed(
    attempt: AttemptId,
    reported_by: ParticipantType,
    reason: HordeFailureReason,
    message: String,
) -> MinerToValidator {
    MinerToValidator::V0HordeFailedRequest(HordeFailed {
        job_uuid: attempt,
        reported_by,
        message,
        reason,
        context: None,
    })
}

// === attestation ===

/// A statement with the miner's signature, which leaves the miner only if the statement is true of its lease.
#[derive(Clone, Debug, PartialEq)]
pub struct SealingRequest {
    /// The statement as the executor made it.
    pub stated: Attestation,
    /// With the signature, in text form.
    pub signed: String,
}

/// The reason for which a session is not attested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Unsealable {
    #[error("the session is of another attempt, or for another validator")]
    Stranger,
    #[error("the session lets in another client than the one whose certificate came with the job")]
    Client,
    #[error("the executor's clock is {} ms {direction} its miner's, more than the {} ms that are allowed; set it by NTP", off.as_millis(), allowed.as_millis())]
    Clock {
        off: Duration,
        direction: &'static str,
        allowed: Duration,
    },
    #[error("the session would be valid for longer than its lease")]
    TooLong,
    #[error("the session differs from the terms that its validator gave: {0}")]
    Terms(&'static str),
}

/// The facts of a lease that a statement must match.
struct LeaseTerms<'a> {
    attempt: AttemptId,
    validator: ValidatorKey,
    details: &'a StreamingDetails,
    /// When the lease ends whatever happens.
    ends: Timestamp,
    /// Between the executor's clock and ours.
    skew: Duration,
}

/// Checks that a statement of an executor, made a moment ago, is true of its lease.
fn check_attestation(stated: &Attestation, lent: &LeaseTerms<'_>, now: Timestamp) -> Result<(), Unsealable> {
    let job = lent.details.job_of(lent.attempt);
    if stated.attempt != lent.attempt || stated.job != job || stated.audience != lent.validator {
        return Err(Unsealable::Stranger);
    }
    let client = digest_of_pem(&lent.details.public_key).map_err(|_| Unsealable::Client)?;
    if stated.client_certificate != client {
        return Err(Unsealable::Client);
    }
    let (ahead, behind) = (stated.not_before.since(now), now.since(stated.not_before));
    for (off, direction) in [(ahead, "ahead of"), (behind, "behind")] {
        if off > lent.skew {
            return Err(Unsealable::Clock {
                off,
                direction,
                allowed: lent.skew,
            });
        }
    }
    if stated.not_after > lent.ends.plus(lent.skew) {
        return Err(Unsealable::TooLong);
    }
    let differing = match &lent.details.muster {
        Some(terms) => [
            ("the image", stated.image == terms.image),
            ("the model", stated.model == terms.weights),
            ("the hash scheme", stated.scheme.name() == terms.scheme),
            (
                "the price",
                stated.price
                    == Price {
                        input: terms.input_price,
                        output: terms.output_price,
                    },
            ),
        ],
        // A job that answers its user directly: nothing is sold by the token.
        None => [
            ("the image", true),
            ("the model", stated.model.is_none()),
            ("the hash scheme", stated.scheme == HashScheme::RawHttp),
            ("the price", stated.price == Price::default()),
        ],
    };
    match differing.iter().find(|(_, same)| !same) {
        Some((what, _)) => Err(Unsealable::Terms(what)),
        None => Ok(()),
    }
}
