//! The reasons why neurons get no weight.

use std::collections::BTreeMap;
use std::fmt;

use muster_protocol::{MinerKey, Uid};
use serde::{Deserialize, Serialize};

use crate::DropReason;

/// A neuron without a weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZeroWeight {
    /// The neuron's number in the subnet.
    pub uid: Uid,
    /// The neuron's hotkey.
    pub miner: MinerKey,
    /// The reason why the neuron gets no weight.
    pub why: ZeroReason,
}

/// The reason why a neuron gets no weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroReason {
    /// The neuron is the scoring validator.
    Myself,
    /// No validator wrote the neuron a finished receipt in this cycle, and it has no proven executor.
    NoReceipts,
    /// None of the neuron's receipts counts; holds the number for each reason.
    NothingCounts(BTreeMap<DropReason, u64>),
    /// The classes of the neuron's work have weight 0 in this subnet.
    WorthlessClass,
    /// The neuron, or another one of its coldkey, was convicted of cheating.
    Convicted,
    /// The neuron worked in graded classes, and none of its executors there is proven.
    NothingProven,
    /// The neuron's share is less than a 131070th of the best one's, which the chain's weights cannot express.
    TooSmall,
}

impl fmt::Display for ZeroReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Myself => f.write_str("it is this validator"),
            Self::NoReceipts => f.write_str("no validator paid it for a job in this cycle"),
            Self::NothingCounts(reasons) => {
                f.write_str("none of its work counts: ")?;
                for (at, (reason, count)) in reasons.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}{count} because {reason}")?;
                }
                Ok(())
            }
            Self::WorthlessClass => {
                f.write_str("the classes that it worked in have no weight in this subnet")
            }
            Self::Convicted => f.write_str("its coldkey was convicted of cheating"),
            Self::NothingProven => {
                f.write_str("none of its executors of the classes that it worked in is proven")
            }
            Self::TooSmall => f.write_str("its share is too small for the chain's weights"),
        }
    }
}
