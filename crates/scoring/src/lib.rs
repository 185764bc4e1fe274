//! From the finished receipts of one cycle to scores: a pure fold over integers that anyone can run again on the same
//! snapshot.
//!
//! The unit of work is the executor-microsecond: a millionth of an executor-second, which is what a receipt's `score_str`
//! counts. Work is summed by executor class and coldkey, split evenly over the coldkey's hotkeys that worked, and turned
//! into points: each class is worth its weight, divided by the shares of its work. A receipt that does not count is
//! dropped with a reason and never stops the others; a neuron that gets nothing is told why.

mod fold;
mod zero;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use muster_protocol::receipt::FinishedReceipt;
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, ValidatorKey};
use serde::{Deserialize, Serialize};

pub use fold::score;
pub use zero::{Why, Zero, zeros};

/// What one unit of a class's weight is worth, in points.
pub const POINTS: u64 = 1_000_000_000_000;

/// The largest weight of a class: five of them and their points fit into 64 bits.
pub const MAX_CLASS_WEIGHT: u32 = 1_000_000;

/// Dropped receipts that are listed; the others are counted.
pub const MAX_LISTED: usize = 1_000;

/// Everything that scores depend on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// Who scores.
    pub me: ValidatorKey,
    /// The subnet.
    pub neurons: Vec<Neuron>,
    /// Validators whose receipts count, beside the scorer's own.
    pub validators: BTreeSet<ValidatorKey>,
    /// What each class is worth beside the others; one that is not named is worth nothing.
    pub class_weights: BTreeMap<ExecutorClass, u32>,
    /// The finished receipts of the cycle.
    pub receipts: Vec<Paid>,
}

/// A neuron, as far as scoring needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neuron {
    /// Its place in the subnet.
    pub uid: u16,
    /// Who it is.
    pub hotkey: Hotkey,
    /// Who owns it.
    pub coldkey: Hotkey,
}

/// A finished receipt and what it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paid {
    /// The pay slip.
    pub receipt: FinishedReceipt,
    /// The class of the executor, by the attempt's started receipt; `None` if nobody has seen one.
    pub class: Option<ExecutorClass>,
}

/// What one miner earned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// Its place in the subnet.
    pub uid: u16,
    /// Who it is.
    pub miner: MinerKey,
    /// Executor-seconds, in millionths, after its coldkey's work was split.
    pub micros: u64,
    /// What they are worth; for scores of an earlier release, the same as `micros`.
    #[serde(default)]
    pub points: u64,
}

/// Why a receipt does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dropped {
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
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRegistered => "the miner is not registered in the subnet",
            Self::Stranger => "its validator holds no permit in the subnet",
            Self::NoAmount => "its score is not an amount",
            Self::Unpaid => "it pays nothing",
            Self::TooMuch => "it pays more than the longest job can cost",
            Self::Repeated => "its attempt was counted already",
            Self::NoStart => "no started receipt says of which class the executor was",
        })
    }
}

/// The whole answer: every receipt counts towards a score or is among the dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scores {
    /// By uid; nobody with nothing.
    pub scores: Vec<Score>,
    /// The first of the dropped, in the order given.
    pub dropped: Vec<(AttemptId, Dropped)>,
    /// Dropped receipts that are not listed.
    #[serde(default)]
    pub more_dropped: u64,
    /// Everyone who gets nothing, and why, by uid.
    #[serde(default)]
    pub zeros: Vec<Zero>,
}
