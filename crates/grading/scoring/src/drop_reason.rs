//! The reasons why work does not count.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason why a receipt does not count, or a part of it.
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
    /// Two receipts of the same validator about the same attempt differ; none of them counts.
    Contradicting,
    /// No started receipt names the class of the executor.
    NoStart,
    /// Its validator and its miner have one owner.
    OwnColdkey,
    /// The receipt was signed before the cycle before this one.
    Late,
    /// The attempt ended after its receipt was signed.
    AheadOfItsTime,
    /// The attempt began longer before its receipt than the longest job takes.
    Ancient,
    /// The validator had no stake, or no permit, at the boundaries of the epochs of the named blocks.
    NoStake,
    /// The named blocks belong to no known epoch of the subnet.
    ForeignBlock,
    /// The named blocks came after the attempt, or are not final.
    FutureBlock,
    /// The named blocks are too old.
    ExpiredBlock,
    /// The named blocks are named by another receipt of the same validator, miner and class.
    NamedTwice,
    /// The amount exceeds the allowance of the named blocks.
    OverAllowance,
    /// The amount exceeds the time that the attempt took, and the minimum charge.
    OverTime,
    /// At some instant, more attempts ran than the miner has proven executors.
    BeyondProven,
    /// The validator has burned less than its receipts cost.
    NotBurned,
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
            Self::Contradicting => "its validator signed two different receipts about the attempt",
            Self::NoStart => "no started receipt says of which class the executor was",
            Self::OwnColdkey => "its validator and its miner have the same coldkey",
            Self::Late => "it was signed before the cycle before this one",
            Self::AheadOfItsTime => "its attempt ended after it was signed",
            Self::Ancient => "its attempt began longer ago than the longest job takes",
            Self::NoStake => "its validator had no stake or no permit at the epochs of its blocks",
            Self::ForeignBlock => "its blocks belong to no known epoch of the subnet",
            Self::FutureBlock => "its blocks came after the attempt",
            Self::ExpiredBlock => "its blocks are too old",
            Self::NamedTwice => "another receipt names the same blocks",
            Self::OverAllowance => "its blocks allow less",
            Self::OverTime => "the attempt took less time",
            Self::BeyondProven => "more attempts ran at once than executors are proven",
            Self::NotBurned => "its validator burned too little for it",
        })
    }
}
