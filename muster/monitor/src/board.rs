//! The status that one screen shows: a user's jobs, a validator or a miner.

use muster_protocol::Timestamp;
use muster_status_views::audits::AuditsStatus;
use muster_status_views::miner::MinerStatus;
use muster_status_views::validator::{
    BatchesStatus, MinersStatus, QueueStatus, SessionsStatus, ValidatorStatus,
};

/// A user's own jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserStatus {
    /// The account's name.
    pub account: String,
    /// The facilitator's address.
    pub facilitator: String,
    /// The newest jobs, the newest first.
    pub jobs: Vec<UserJob>,
    /// The subnet's offers.
    pub offers: Vec<ClassOffer>,
}

/// A job of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserJob {
    /// The job's id.
    pub id: String,
    /// The image that it runs.
    pub image: String,
    /// Its state as text.
    pub state: String,
    /// Whether it has ended.
    pub ended: bool,
    /// Whether it has ended well.
    pub completed: bool,
    /// The time of its submission.
    pub created_at: Option<Timestamp>,
    /// The time of its last status.
    pub changed_at: Option<Timestamp>,
    /// Its place in the queue, or the reason of its failure.
    pub note: String,
}

/// The offers of one class at one validator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassOffer {
    /// The class of executor.
    pub class: String,
    /// Executors of the class.
    pub executors: u32,
    /// Those that are free.
    pub free: u32,
    /// Jobs that wait.
    pub waiting: u64,
    /// The time that a new job would wait, as text.
    pub wait: String,
}

/// A validator as its operator sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValidatorBoard {
    /// Jobs, links and cycles.
    pub status: ValidatorStatus,
    /// The queue by class, and the jobs in it.
    pub queue: QueueStatus,
    /// The miners' offers and proofs.
    pub miners: MinersStatus,
    /// The gateway; nothing without one.
    pub sessions: SessionsStatus,
    /// The grading batches.
    pub batches: BatchesStatus,
    /// The adopted verdicts about streamed answers.
    pub audits: AuditsStatus,
}

/// Everything that one screen shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Board {
    /// A user's jobs.
    User(UserStatus),
    /// A validator's board.
    Validator(Box<ValidatorBoard>),
    /// A miner's status.
    Miner(Box<MinerStatus>),
}
