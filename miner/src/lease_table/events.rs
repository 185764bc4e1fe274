//! The events that the lease table takes and the effects that it returns.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_protocol::wire::executor::OneTimeSecret;
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::miner::{AttemptNotice, InitialJobRequest, JobRequest};
use muster_protocol::wire::muster::{CancelJob, ListedImage, WhitelistNotice};
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{
    AttemptId, ExecutorClass, ExecutorToken, FeatureSet, Manifest, Receipt, ReceiptKind, Timestamp,
    ValidatorKey,
};

use crate::admission::OfferFlaw;
use crate::lease::{ExecutorReport, LeaseSnapshot, ReturningExecutor};
use crate::validator_shares::shares::ValidatorStakes;

/// One authenticated connection of a validator, never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// One connection of an executor, never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DialId(pub u64);

/// An offer whose signatures have been checked; the result is part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobOffer {
    /// The validator's request as it arrived.
    pub request: Box<InitialJobRequest>,
    /// The started receipt with both signatures, or what is wrong with the offer.
    pub receipt: Result<Receipt, OfferFlaw>,
    /// Whether the miner serves the validator at this moment.
    pub served: bool,
    /// The validator's stake beside those of the others that the miner serves at this moment.
    pub stakes: ValidatorStakes,
    /// Why the operator's limit on machine time admits no further machine; `None` if it does.
    pub unaffordable: Option<String>,
}

/// The number of jobs that executors run at once, by class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorCapacity {
    /// All of them.
    pub all: Manifest,
    /// Those that take images from archives or with a login.
    pub private_images: Manifest,
}

/// An event from outside the lease table.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A validator has authenticated on a new connection.
    Joined {
        /// The new connection.
        connection: ConnectionId,
        /// The key that the validator proved.
        validator: ValidatorKey,
        /// Whether it showed the header of Muster.
        muster: bool,
        /// The features that it showed.
        features: FeatureSet,
    },
    /// A validator's connection closed.
    Left(ConnectionId),
    /// A validator offers an attempt.
    Offered {
        /// On which connection.
        connection: ConnectionId,
        /// The offer with the result of its checks.
        offer: Box<JobOffer>,
        /// Drawn by the caller, for the executor if the offer is accepted.
        token: ExecutorToken,
    },
    /// A validator sends the job itself.
    Payload {
        /// On which connection.
        connection: ConnectionId,
        /// The job as it arrived.
        request: Box<JobRequest>,
    },
    /// A validator cancels an attempt.
    Cancelled {
        /// On which connection.
        connection: ConnectionId,
        /// The attempt and the validator's reason.
        cancel: CancelJob,
    },
    /// A validator has a message about the checkpoints of an attempt for its executor.
    Forwarded {
        /// On which connection.
        connection: ConnectionId,
        /// The attempt of the lease.
        attempt: AttemptId,
        /// The message as it arrived.
        message: Box<MinerToExecutor>,
    },
    /// A validator publishes the images that may serve its sealed sessions.
    Listed {
        /// On which connection.
        connection: ConnectionId,
        /// The whole list; it replaces the earlier one.
        notice: WhitelistNotice,
    },
    /// The chain was read: the validators that the miner serves now.
    Permitted(BTreeSet<ValidatorKey>),
    /// A validator signed an accepted or finished receipt, and this miner has countersigned it.
    ReceiptOffered {
        /// On which connection.
        connection: ConnectionId,
        /// The receipt with both signatures.
        receipt: Box<Receipt>,
    },
    /// An executor dialled in.
    Dialled {
        /// The executor's connection.
        dial: DialId,
        /// The token that it showed.
        token: ExecutorToken,
        /// The executor's IP address as the miner sees it.
        executor_ip: Option<String>,
        /// Whether the miner started it for its lease alone on this machine.
        apart: bool,
        /// The features that it showed.
        features: FeatureSet,
        /// The secret that it shows to come back, drawn by the caller.
        secret: OneTimeSecret,
    },
    /// An executor comes back to its lease over a new connection.
    Reattached {
        /// The new connection.
        dial: DialId,
        /// The attempt of the lease.
        attempt: AttemptId,
        /// The secrets that it shows and gets.
        back: ReturningExecutor,
    },
    /// An executor reported.
    Said {
        /// On which connection.
        dial: DialId,
        /// The attempt of its token.
        attempt: AttemptId,
        /// The executor's report.
        report: Box<ExecutorReport>,
    },
    /// An executor's connection closed.
    ExecutorGone {
        /// The connection that closed.
        dial: DialId,
        /// The attempt of its token.
        attempt: AttemptId,
    },
    /// An executor is not there yet for a reason that its engine gives.
    ExecutorWaits {
        /// The attempt it is started for.
        attempt: AttemptId,
        /// The engine's reason.
        reason: String,
    },
    /// An executor could not be started, or its process ended.
    ExecutorExited {
        /// The attempt it was started for.
        attempt: AttemptId,
        /// The exit as text, for a failure message.
        how: String,
    },
    /// Persistent executors came or went: the number of jobs that all of them run at once.
    Capacity(ExecutorCapacity),
    /// The operator empties the miner, or fills it again: it accepts no more offers, and programs with checkpoints are
    /// asked to leave.
    Drain(bool),
    /// The operator empties the hosts on which these attempts run: programs with checkpoints are asked to leave.
    DrainAttempts(BTreeSet<AttemptId>),
    /// The miner's process will end: it accepts no more offers. Jobs go on as long as it waits for them.
    Closing,
    /// The miner ends every open lease.
    Stop,
    /// Time has passed; deadlines are due.
    Tick,
}

/// A task for the dispatcher. Effects are carried out in order; every write of a batch of events is durable before any
/// message of the batch is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Make a change durable.
    Write(LeaseWrite),
    /// Send a message to validators.
    Tell {
        /// The connections of the validators.
        to: Vec<ConnectionId>,
        /// The message to send.
        message: Box<MinerToValidator>,
    },
    /// Send live output or progress to Muster validators; it may be dropped.
    Live {
        /// The connections of the validators.
        to: Vec<ConnectionId>,
        /// The message to send.
        message: Box<MinerToValidator>,
    },
    /// Send a validator the history of an ended lease, read from the store.
    Retell {
        /// The validator's connection.
        to: ConnectionId,
        /// The attempt of the lease.
        attempt: AttemptId,
    },
    /// Send a Muster validator a receipt that it signed before, read from the store.
    RepeatReceipt {
        /// The validator's connection.
        to: ConnectionId,
        /// The attempt of the receipt.
        attempt: AttemptId,
        /// The kind of the receipt.
        kind: ReceiptKind,
    },
    /// Start an executor.
    Start {
        /// The token that the executor must show when it dials in.
        token: ExecutorToken,
        /// The class of the executor.
        class: ExecutorClass,
        /// Whether the executor must take an image from an archive or with a login.
        private_image: bool,
        /// The most that the lease may take.
        lasts: Duration,
    },
    /// Go on with the executor of a lease that an earlier process of this miner opened.
    Resume {
        /// The token with which it was started.
        token: ExecutorToken,
        /// The class of the executor.
        class: ExecutorClass,
        /// Whether the executor must take an image from an archive or with a login.
        private_image: bool,
        /// Whether it was started on this machine for its lease alone.
        apart: bool,
        /// The most that the lease may take.
        lasts: Duration,
    },
    /// Admit the executor on a connection to its lease.
    Admit {
        /// The executor's connection.
        dial: DialId,
        /// The attempt of the lease.
        attempt: AttemptId,
    },
    /// Refuse the executor on a connection.
    Dismiss {
        /// The executor's connection.
        dial: DialId,
        /// The reason, in the words of the wire.
        details: String,
    },
    /// Send a message to the executor of a lease.
    Order {
        /// The attempt of the lease.
        attempt: AttemptId,
        /// The message to send.
        message: Box<MinerToExecutor>,
    },
    /// Ask persistent executors to fetch these images.
    Shelve(Vec<ListedImage>),
    /// Stop the executor of a lease.
    StopExecutor {
        /// The attempt of the lease.
        attempt: AttemptId,
    },
}

/// A change of the store.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseWrite {
    /// A lease begins.
    Opened {
        /// The attempt of the lease.
        attempt: AttemptId,
        /// The validator that made the offer.
        validator: ValidatorKey,
        /// The time of the acceptance.
        at: Timestamp,
    },
    /// The executor of a lease was admitted, and can come back.
    Held {
        /// The attempt of the lease.
        attempt: AttemptId,
        /// Everything that a later process of this miner needs to go on with the lease.
        snapshot: Box<LeaseSnapshot>,
    },
    /// A lease has ended.
    Ended {
        /// The attempt of the lease.
        attempt: AttemptId,
        /// Owed or cancelled.
        status: LeaseStatus,
        /// The messages that its validator must get, the final one last.
        history: Vec<MinerToValidator>,
        /// The time of the end.
        at: Timestamp,
    },
    /// The finished receipt is there: the history is no longer owed.
    Settled(AttemptId),
    /// A receipt with both signatures.
    Receipt(Box<Receipt>),
    /// Attempts too old to matter.
    Forgotten(Vec<AttemptId>),
}

/// The status of an attempt in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseStatus {
    /// Its executor is, or was, at work.
    Open,
    /// Ended; its validator has not acknowledged the end.
    Owed,
    /// Ended and acknowledged by the finished receipt.
    Settled,
    /// Given up by its validator.
    Cancelled,
}

impl LeaseStatus {
    /// All statuses, in the order of a lease's life.
    pub const ALL: [Self; 4] = [Self::Open, Self::Owed, Self::Settled, Self::Cancelled];

    /// The text in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Owed => "owed",
            Self::Settled => "settled",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An attempt as the store keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseRecord {
    /// The id of the attempt.
    pub attempt: AttemptId,
    /// The validator that made the offer.
    pub validator: ValidatorKey,
    /// The status of its lease.
    pub status: LeaseStatus,
    /// The kinds of its stored receipts.
    pub receipts: Vec<ReceiptKind>,
    /// The lease with its receipts, if it is open and its executor can come back.
    pub held: Option<HeldLease>,
    /// The time of its beginning or, once ended, of its end.
    pub at: Timestamp,
}

/// An open lease whose executor can come back.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldLease {
    /// The lease as it was when its executor was admitted last.
    pub snapshot: Box<LeaseSnapshot>,
    /// Its started receipt.
    pub started: Receipt,
    /// Its accepted receipt, if the validator has signed it.
    pub accepted: Option<Receipt>,
}

/// The first message of every history.
pub(super) fn accepted_message(attempt: AttemptId) -> MinerToValidator {
    MinerToValidator::V0AcceptJobRequest(AttemptNotice { job_uuid: attempt })
}
