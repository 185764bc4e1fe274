//! From the finished receipts of one cycle to scores: a pure fold over integers that anyone can run again on the same
//! snapshot.
//!
//! The unit of work is the executor-microsecond: a millionth of an executor-second, which is what a receipt's `score_str`
//! counts. Work is summed by executor class and coldkey, split evenly over the coldkey's hotkeys that worked, and turned
//! into points: each class is worth its weight, divided by the shares of its work and, where executors have proven what they are, by
//! those of the proven ones. What sealed sessions answered is work of a kind of its own beside the classes: its unit is the rao
//! that proven answers earned by their tokens. A receipt or a session that does not count is dropped with a reason and never
//! stops the others; a neuron that gets nothing is told why.

mod fold;
mod normalize;
mod weights;
mod zero;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use muster_protocol::receipt::FinishedReceipt;
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, Uid, ValidatorKey};
use serde::{Deserialize, Serialize};

pub use fold::score;
pub use normalize::to_u16;
pub use weights::{follow_uids, score_and_weigh, weights_of};
pub use zero::{ZeroReason, ZeroWeight, explain_zeros};

/// What one unit of a class's weight is worth, in points.
pub const POINTS: u64 = 1_000_000_000_000;

/// The largest weight of a class, or of streaming: all of them and their points fit into 64 bits.
pub const MAX_CLASS_WEIGHT: u32 = 1_000_000;

/// DropReason receipts that are listed; the others are counted.
pub const MAX_LISTED: usize = 1_000;

/// Everything that scores depend on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScoringSnapshot {
    /// Who scores.
    pub me: ValidatorKey,
    /// The subnet.
    pub neurons: Vec<Neuron>,
    /// Validators whose receipts count, beside the scorer's own.
    pub validators: BTreeSet<ValidatorKey>,
    /// What each class is worth beside the others; one that is not named is worth nothing.
    pub class_weights: BTreeMap<ExecutorClass, u32>,
    /// The finished receipts of the cycle.
    pub receipts: Vec<PaidReceipt>,
    /// What all that sessions answered is worth beside the classes.
    #[serde(default)]
    pub streaming_weight: u32,
    /// The scorer's own sealed sessions that were over in the cycle.
    #[serde(default)]
    pub streamed: Vec<StreamedSession>,
    /// Executors that proved what they are, by the last batch of each miner.
    #[serde(default)]
    pub proven: Vec<ProvenExecutors>,
    /// Of each class's weight, how many percent go to proven executors, where any are; the rest goes to paid work.
    #[serde(default)]
    pub capacity_percent: u8,
}

/// Executors of one kind of one miner that proved what they are, or are at work where receipts show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvenExecutors {
    /// Whose.
    pub miner: MinerKey,
    /// Of which kind.
    pub class: ExecutorClass,
    /// How many.
    pub executors: u32,
}

/// A neuron, as far as scoring needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neuron {
    /// Its place in the subnet.
    pub uid: Uid,
    /// Who it is.
    pub hotkey: Hotkey,
    /// Who owns it.
    pub coldkey: Hotkey,
}

/// A finished receipt and what it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaidReceipt {
    /// The pay slip.
    pub receipt: FinishedReceipt,
    /// The class of the executor, by the attempt's started receipt; `None` if nobody has seen one.
    pub class: Option<ExecutorClass>,
}

/// What one sealed session answered, by the counts of the gateway that asked it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamedSession {
    /// The attempt that it was.
    pub attempt: AttemptId,
    /// Who ran it.
    pub miner: MinerKey,
    /// Answers whose proofs hold.
    pub proven: u64,
    /// Answers that pay nothing, having none.
    pub unproven: u64,
    /// Tokens that proven answers read.
    pub input_tokens: u64,
    /// Tokens that they wrote.
    pub output_tokens: u64,
    /// What they earned, in rao.
    pub earned: u64,
    /// What was wrong with the session's last word or missing before it.
    #[serde(default)]
    pub fault: Option<String>,
}

/// What one miner earned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// Its place in the subnet.
    pub uid: Uid,
    /// Who it is.
    pub miner: MinerKey,
    /// Executor-seconds, in millionths, after its coldkey's work was split.
    pub micros: u64,
    /// What its sessions' answers earned, in rao, after its coldkey's was split.
    #[serde(default)]
    pub rao: u64,
    /// What all of it is worth; for scores of an earlier release, the same as `micros`.
    #[serde(default)]
    pub points: u64,
}

/// ZeroReason a receipt or a session does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The hotkey is not, or no longer, in the subnet.
    NotRegistered,
    /// Its validator may not set weights in the subnet, so its word about pay does not count.
    Stranger,
    /// `score_str` is no amount.
    NoAmount,
    /// It pays nothing: the attempt failed.
    Unpaid,
    /// It pays more than the longest job can cost.
    TooMuch,
    /// The same attempt stood in another receipt of the same validator already.
    Repeated,
    /// No started receipt says of which class the executor was.
    NoStart,
    /// None of the session's answers was proven.
    Unproven,
    /// The session's answers were proven, and cost nothing.
    Free,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRegistered => "the miner is not registered in the subnet",
            Self::Stranger => "its validator holds no permit in the subnet",
            Self::NoAmount => "its score is not an amount",
            Self::Unpaid => "it pays nothing",
            Self::TooMuch => "it pays more than the longest job can cost",
            Self::Repeated => "its attempt was counted already",
            Self::NoStart => "no started receipt says of which class the executor was",
            Self::Unproven => "none of the session's answers was proven",
            Self::Free => "the session's answers cost nothing",
        })
    }
}

/// A session that did not end as it should. What was proven of it is paid all the same; what is missing pays nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultySession {
    /// The attempt that it was.
    pub attempt: AttemptId,
    /// Who ran it.
    pub miner: MinerKey,
    /// Answers of it that pay nothing.
    pub unproven: u64,
    /// What is wrong, if it is more than that.
    pub fault: Option<String>,
}

/// The whole answer: every receipt counts towards a score or is among the dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scores {
    /// By uid; nobody with nothing.
    pub scores: Vec<Score>,
    /// The first of the dropped, in the order given.
    pub dropped: Vec<(AttemptId, DropReason)>,
    /// DropReason receipts that are not listed.
    #[serde(default)]
    pub more_dropped: u64,
    /// Sessions that did not end as they should, whether or not they count, in the order given; as many as of the dropped.
    #[serde(default)]
    pub faults: Vec<FaultySession>,
    /// Everyone who gets nothing, and why, by uid.
    #[serde(default)]
    pub zeros: Vec<ZeroWeight>,
}
