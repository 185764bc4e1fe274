//! From the finished receipts of one cycle to scores: a pure fold over integers that any party can repeat on the same
//! snapshot.
//!
//! The unit of work is the executor-microsecond: a millionth of an executor-second, which is the unit of a receipt's
//! `score_str`. Work is summed by executor class and coldkey, split evenly over the coldkey's hotkeys that worked, and
//! turned into points. Each class is worth its weight, divided by the shares of its work and, where executors have
//! proven what they are, by the shares of the proven ones. The answers of sealed sessions are a kind of work of their
//! own beside the classes; its unit is the rao that proven answers earned by their tokens.
//!
//! A receipt or a session that does not count is dropped with a reason and never stops the others. Every neuron without
//! a weight gets a reason. [`to_u16`] turns scores into the weights that the chain accepts.

mod fold;
mod normalize;
mod weight_list;
mod zero_reasons;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use muster_protocol::receipt::FinishedReceipt;
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, Uid, ValidatorKey};
use serde::{Deserialize, Serialize};

pub use fold::score;
pub use normalize::to_u16;
pub use weight_list::{follow_uids, score_and_weigh, weights_of};
pub use zero_reasons::{ZeroReason, ZeroWeight, explain_zeros};

/// The worth of one unit of a class's weight, in points.
pub const POINTS: u64 = 1_000_000_000_000;

/// The largest weight of a class, or of streaming: all weights and their points fit into 64 bits.
pub const MAX_CLASS_WEIGHT: u32 = 1_000_000;

/// Dropped receipts that are listed; further ones are counted.
pub const MAX_LISTED: usize = 1_000;

/// All inputs of the scores of a cycle.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScoringSnapshot {
    /// The validator that scores.
    pub me: ValidatorKey,
    /// The neurons of the subnet.
    pub neurons: Vec<Neuron>,
    /// Other validators whose receipts count.
    pub validators: BTreeSet<ValidatorKey>,
    /// The weight of each class; a class that is not listed has weight 0.
    pub class_weights: BTreeMap<ExecutorClass, u32>,
    /// The finished receipts of the cycle.
    pub receipts: Vec<PaidReceipt>,
    /// The weight of all answers of sealed sessions together, on the scale of the classes' weights.
    #[serde(default)]
    pub streaming_weight: u32,
    /// The scorer's own sealed sessions that ended in the cycle.
    #[serde(default)]
    pub streamed: Vec<StreamedSession>,
    /// Executors that proved what they are, by the last batch of each miner.
    #[serde(default)]
    pub proven: Vec<ProvenExecutors>,
    /// The part of each class's weight that goes to proven executors, in percent, where there are any; paid work gets
    /// the rest.
    #[serde(default)]
    pub capacity_percent: u8,
}

/// Executors of one class and one miner that proved what they are, or are at work as receipts show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvenExecutors {
    /// The miner of the executors.
    pub miner: MinerKey,
    /// The class of the executors.
    pub class: ExecutorClass,
    /// The number of the executors.
    pub executors: u32,
}

/// A neuron, as far as scoring needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neuron {
    /// The neuron's number in the subnet.
    pub uid: Uid,
    /// The key with which the neuron acts.
    pub hotkey: Hotkey,
    /// The key that owns the neuron.
    pub coldkey: Hotkey,
}

/// A finished receipt and the class of its executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaidReceipt {
    /// The receipt, which states the pay.
    pub receipt: FinishedReceipt,
    /// The class of the executor, by the attempt's started receipt; `None` if no started receipt is known.
    pub class: Option<ExecutorClass>,
}

/// The answers of one sealed session, by the counts of the gateway that asked it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamedSession {
    /// The id of the session's attempt.
    pub attempt: AttemptId,
    /// The miner that ran the session.
    pub miner: MinerKey,
    /// Number of answers whose proofs hold.
    pub proven: u64,
    /// Number of answers without a proof, which pay nothing.
    pub unproven: u64,
    /// Input tokens of the proven answers.
    pub input_tokens: u64,
    /// Output tokens of the proven answers.
    pub output_tokens: u64,
    /// Earnings of the proven answers, in rao.
    pub earned: u64,
    /// The fault of the session's closing statement, or the part that is missing before it.
    #[serde(default)]
    pub fault: Option<String>,
}

/// The earnings of one miner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// The miner's number in the subnet.
    pub uid: Uid,
    /// The miner's hotkey.
    pub miner: MinerKey,
    /// Executor-microseconds, after its coldkey's work was split.
    pub micros: u64,
    /// Earnings of its sessions' answers, in rao, after its coldkey's were split.
    #[serde(default)]
    pub rao: u64,
    /// The worth of all its work, in points; in scores of an earlier release, the same as `micros`.
    #[serde(default)]
    pub points: u64,
}

/// The reason why a receipt or a session does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The miner is not, or no longer, in the subnet.
    NotRegistered,
    /// The receipt's validator may not set weights in the subnet, so its statement of pay does not count.
    Stranger,
    /// `score_str` is not an amount.
    NoAmount,
    /// The receipt pays nothing: the attempt failed.
    Unpaid,
    /// The receipt pays more than the longest job can cost.
    TooMuch,
    /// Another receipt of the same validator has the same attempt.
    Repeated,
    /// No started receipt tells the class of the executor.
    NoStart,
    /// None of the session's answers was proven.
    Unproven,
    /// The session's answers were proven and cost nothing.
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

/// A session that did not end as it should. Its proven part is paid; the missing part pays nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultySession {
    /// The id of the session's attempt.
    pub attempt: AttemptId,
    /// The miner that ran the session.
    pub miner: MinerKey,
    /// Number of its answers that pay nothing.
    pub unproven: u64,
    /// The fault, if there is one beyond unproven answers.
    pub fault: Option<String>,
}

/// The result of scoring: every receipt counts towards a score or is among the dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scores {
    /// The scores by uid, of miners that earned anything.
    pub scores: Vec<Score>,
    /// The first dropped receipts, in the order given, at most [`MAX_LISTED`].
    pub dropped: Vec<(AttemptId, DropReason)>,
    /// Number of dropped receipts that are not listed.
    #[serde(default)]
    pub more_dropped: u64,
    /// Sessions that did not end as they should, whether or not they count, in the order given; at most [`MAX_LISTED`].
    #[serde(default)]
    pub faults: Vec<FaultySession>,
    /// Every neuron without a weight, by uid, with the reason.
    #[serde(default)]
    pub zeros: Vec<ZeroWeight>,
}
