//! What goes into the book and what comes out.

use muster_protocol::wire::miner::{AttemptNotice, FromMiner, InitialJobRequest, JobRequest, ToMiner};
use muster_protocol::wire::muster::{CancelJob, ListedImage, WhitelistNotice};
use muster_protocol::{
    AttemptId, ExecutorClass, ExecutorToken, Manifest, Receipt, ReceiptKind, Timestamp, ValidatorKey,
};

use crate::admission::Flaw;
use crate::lease::Report;

/// One authenticated connection of a validator, never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// One connection of an executor, never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DialId(pub u64);

/// An offer whose signatures have been checked, well or ill.
#[derive(Clone, Debug, PartialEq)]
pub struct Offered {
    /// What is asked.
    pub request: Box<InitialJobRequest>,
    /// The started receipt with both signatures, or what is wrong with the offer.
    pub receipt: Result<Receipt, Flaw>,
    /// Whether the miner serves the validator at this moment.
    pub served: bool,
}

/// What can happen to the miner.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A validator proved who it is.
    Joined {
        /// Its connection.
        connection: ConnectionId,
        /// Who.
        validator: ValidatorKey,
        /// Whether it is Muster.
        muster: bool,
    },
    /// Its connection closed.
    Left(ConnectionId),
    /// It offers an attempt.
    Offered {
        /// On which connection.
        connection: ConnectionId,
        /// What.
        offer: Box<Offered>,
        /// Drawn by the caller, for the executor if the offer is accepted.
        token: ExecutorToken,
    },
    /// It sends the job.
    Payload {
        /// On which connection.
        connection: ConnectionId,
        /// What.
        request: Box<JobRequest>,
    },
    /// It gives an attempt up.
    Cancelled {
        /// On which connection.
        connection: ConnectionId,
        /// What, and why.
        cancel: CancelJob,
    },
    /// It says which images may serve for it.
    Listed {
        /// On which connection.
        connection: ConnectionId,
        /// Which.
        notice: WhitelistNotice,
    },
    /// It signed an accepted or finished receipt; both signatures stand.
    ReceiptOffered {
        /// On which connection.
        connection: ConnectionId,
        /// What.
        receipt: Box<Receipt>,
    },
    /// An executor dialled in.
    Dialled {
        /// Its connection.
        dial: DialId,
        /// What it showed.
        token: ExecutorToken,
        /// Its address.
        executor_ip: Option<String>,
    },
    /// An executor reported.
    Said {
        /// On which connection.
        dial: DialId,
        /// The attempt of its token.
        attempt: AttemptId,
        /// What.
        report: Box<Report>,
    },
    /// An executor's connection closed.
    ExecutorGone {
        /// Which.
        dial: DialId,
        /// The attempt of its token.
        attempt: AttemptId,
    },
    /// An executor could not be started, or its process ended.
    ExecutorExited {
        /// The attempt it was started for.
        attempt: AttemptId,
        /// In words.
        how: String,
    },
    /// Standing executors came or went: so many jobs all of them run at once.
    Capacity(Manifest),
    /// Take nothing more on.
    Drain,
    /// End what is open.
    Stop,
    /// Time has passed.
    Tick,
}

/// What the dispatcher has to do, in this order; everything written in one batch of events is durable before anything
/// of the batch is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Make it durable.
    Write(Write),
    /// Tell validators.
    Tell {
        /// Their connections.
        to: Vec<ConnectionId>,
        /// What.
        message: Box<FromMiner>,
    },
    /// Tell Muster validators what they may miss.
    Live {
        /// Their connections.
        to: Vec<ConnectionId>,
        /// What.
        message: Box<FromMiner>,
    },
    /// Tell a validator the story of an ended lease, which the store has.
    Retell {
        /// Its connection.
        to: ConnectionId,
        /// Which.
        attempt: AttemptId,
    },
    /// Tell a Muster validator a receipt it signed before, as the store has it.
    RepeatReceipt {
        /// Its connection.
        to: ConnectionId,
        /// Which attempt.
        attempt: AttemptId,
        /// Which of its receipts.
        kind: ReceiptKind,
    },
    /// Start an executor.
    Start {
        /// What it must show.
        token: ExecutorToken,
        /// Of which kind.
        class: ExecutorClass,
    },
    /// The executor on this connection serves that lease.
    Admit {
        /// Which connection.
        dial: DialId,
        /// Which lease.
        attempt: AttemptId,
    },
    /// The executor on this connection has no business here.
    Dismiss {
        /// Which connection.
        dial: DialId,
        /// Why, in the words of the wire.
        details: String,
    },
    /// Tell the executor of a lease.
    Order {
        /// Which lease.
        attempt: AttemptId,
        /// What.
        message: Box<ToMiner>,
    },
    /// Have these images at hand.
    Shelve(Vec<ListedImage>),
    /// Let the executor of a lease go.
    StopExecutor {
        /// Which lease.
        attempt: AttemptId,
    },
}

/// What has to become durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A lease begins.
    Opened {
        /// The attempt.
        attempt: AttemptId,
        /// For whom.
        validator: ValidatorKey,
        /// When.
        at: Timestamp,
    },
    /// A lease has ended.
    Ended {
        /// The attempt.
        attempt: AttemptId,
        /// Owed or cancelled.
        standing: Standing,
        /// What its validator must hear, the final message last.
        story: Vec<FromMiner>,
        /// When.
        at: Timestamp,
    },
    /// The finished receipt is there: the story is owed no longer.
    Settled(AttemptId),
    /// A receipt with both signatures.
    Receipt(Box<Receipt>),
    /// Attempts too old to matter.
    Forgotten(Vec<AttemptId>),
}

/// Where an attempt stands in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Its executor is, or was, at work.
    Open,
    /// Ended; its validator has not acknowledged the end.
    Owed,
    /// Ended and acknowledged by the finished receipt.
    Settled,
    /// Given up by its validator.
    Cancelled,
}

impl Standing {
    /// Every standing.
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

/// What the store remembers of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The attempt.
    pub attempt: AttemptId,
    /// For whom.
    pub validator: ValidatorKey,
    /// Where it stands.
    pub standing: Standing,
    /// Which of its receipts are held.
    pub receipts: Vec<ReceiptKind>,
    /// When it began or ended.
    pub at: Timestamp,
}

/// The first sentence of every story.
pub(super) fn accepted(attempt: AttemptId) -> FromMiner {
    FromMiner::V0AcceptJobRequest(AttemptNotice { job_uuid: attempt })
}
