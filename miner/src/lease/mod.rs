//! One lease: an executor lent to one attempt, from its acceptance to its end. A pure machine.
//!
//! The attempt's id is the fencing token: what speaks of another attempt, or comes after the end, changes nothing and
//! is refused by name. The *story* is every message about the attempt in the order in which its validator must hear
//! them; whoever connects again is told the whole of it, and takes what it knows already as nothing new.

mod machine;
#[cfg(test)]
mod tests;

use std::time::Duration;

use muster_process::certificate::digest_of_pem;
use muster_protocol::wire::executor::SessionClosed;
use muster_protocol::wire::miner::{
    FromMiner, HordeFailed, JobFailed, JobFinished, JobRequest, MachineSpecs, StreamingDetails,
    StreamingJobReady, ToMiner,
};
use muster_protocol::{AttemptId, HordeFailureReason, ParticipantType, Timestamp, ValidatorKey};
use muster_response_proof::{Attestation, HashScheme, Price};

pub use machine::Lease;

/// How long the miner waits before it gives a lease up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For an executor to dial in, beyond its class's spin-up time.
    pub startup: Duration,
    /// For a dialled-in executor to have the image.
    pub prepare: Duration,
    /// For the validator to send the job once the executor is ready.
    pub payload: Duration,
    /// Beyond the sum of the job's own times.
    pub margin: Duration,
    /// How far an executor's clock may be off before its sessions are not attested.
    pub skew: Duration,
}

/// Where a running job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Inputs on their way.
    Fetching,
    /// The program is at work.
    Executing,
    /// A streaming job answers.
    Serving,
    /// Outputs on their way.
    Delivering,
}

/// How a lease ended. The message that says so is the last of its story.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Success.
    Finished,
    /// The job's own failure.
    Failed,
    /// The subnet's failure.
    HordeFailed,
    /// Its validator gave it up; there is nothing to tell.
    Cancelled,
}

/// How far a lease has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// An executor was started and has not dialled in.
    WaitingForExecutor,
    /// It has the offer and prepares: checks, image.
    Preparing,
    /// It is ready; the validator owes the job.
    WaitingForPayload,
    /// It has the job.
    Running(Stage),
    /// Nothing more happens.
    Ended(Ending),
}

/// What an executor can say about its attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// Up, and has the image.
    Ready,
    /// The inputs are in place.
    VolumesReady,
    /// A streaming job answers; address and signature are filled in.
    StreamingReady(Box<StreamingJobReady>),
    /// Its session is to be attested; signed already, in case it may be.
    Seal(Box<Sealing>),
    /// The last word of its session.
    Closed(SessionClosed),
    /// The program has ended.
    ExecutionDone,
    /// The hardware.
    Specs(Box<MachineSpecs>),
    /// Success.
    Finished(Box<JobFinished>),
    /// The job's own failure.
    Failed(Box<JobFailed>),
    /// The subnet's failure.
    HordeFailed(Box<HordeFailed>),
    /// A generic error, in its words.
    Error(String),
    /// What the job prints, or how far it is: for whoever listens now.
    Live(Box<FromMiner>),
}

/// What can happen to a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The executor dialled in with the lease's token.
    Dialled {
        /// Its address as the miner sees it, which a streaming job must know.
        executor_ip: Option<String>,
    },
    /// The executor reported.
    Said(Report),
    /// The executor's socket closed.
    ExecutorGone,
    /// The executor could not be started, or its process ended, in these words.
    ExecutorExited(String),
    /// The validator sent the job.
    Payload(Box<JobRequest>),
    /// The validator gave the attempt up.
    Cancelled {
        /// In its words.
        reason: String,
    },
    /// The miner stops, or has found this lease open after a restart.
    MinerStops,
    /// Time has passed.
    Tick,
}

/// What the shell has to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The lease is over: make its story durable before anything that follows is done.
    Ended(Ending),
    /// Tell the validator.
    Tell(Box<FromMiner>),
    /// Tell the validator if it listens now. No part of the story.
    Live(Box<FromMiner>),
    /// Tell the executor.
    Order(Box<ToMiner>),
    /// Let the executor go: it has a while to leave by itself.
    StopExecutor,
}

/// An event that has no place in the lease's state. The state is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Out of order.
    #[error("{event} cannot follow while attempt {attempt} is {state}")]
    OutOfOrder {
        /// Which attempt.
        attempt: AttemptId,
        /// What came.
        event: &'static str,
        /// What was.
        state: &'static str,
    },
    /// The inputs came with the offer and again with the job.
    #[error("Received job volume twice job_uuid: {0}")]
    VolumeTwice(AttemptId),
    /// Never leased here, or over.
    #[error("attempt {0} has no open lease here")]
    NotOpen(AttemptId),
}

impl LeaseState {
    /// The state in words, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::WaitingForExecutor => "waiting for its executor",
            Self::Preparing => "getting its image",
            Self::WaitingForPayload => "waiting for its validator",
            Self::Running(Stage::Fetching) => "fetching its inputs",
            Self::Running(Stage::Executing) => "running",
            Self::Running(Stage::Serving) => "streaming",
            Self::Running(Stage::Delivering) => "delivering its outputs",
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
) -> FromMiner {
    FromMiner::V0HordeFailedRequest(HordeFailed {
        job_uuid: attempt,
        reported_by,
        message,
        reason,
        context: None,
    })
}

// === what a miner may put its name to ===

/// A statement with the miner's signature, which leaves the miner only if the statement is true of its lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Sealing {
    /// What it says.
    pub stated: Attestation,
    /// With the signature, in text form.
    pub signed: String,
}

/// Why a session is not attested.
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

/// What is true of a lease.
struct Lent<'a> {
    attempt: AttemptId,
    validator: ValidatorKey,
    details: &'a StreamingDetails,
    /// When the lease ends whatever happens.
    ends: Timestamp,
    /// Between the executor's clock and ours.
    skew: Duration,
}

/// Whether a statement of an executor, made a moment ago, is true of its lease.
fn judge(stated: &Attestation, lent: &Lent<'_>, now: Timestamp) -> Result<(), Unsealable> {
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
