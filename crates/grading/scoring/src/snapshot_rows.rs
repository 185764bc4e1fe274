//! The facts that a cycle's snapshot and its scores both hold: neurons, paid receipts, proven executors, deferred work
//! and the weights that stand.

use muster_protocol::receipt::FinishedReceipt;
use muster_protocol::{ExecutorClass, Hotkey, MinerKey, Uid};
use serde::{Deserialize, Serialize};

/// A neuron, as far as scoring needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neuron {
    /// The neuron's number in the subnet.
    pub uid: Uid,
    /// The key with which the neuron acts.
    pub hotkey: Hotkey,
    /// The key that owns the neuron.
    pub coldkey: Hotkey,
    /// The block in which the neuron got its uid; 0 where the chain does not state it.
    #[serde(default)]
    pub registered: u64,
}

/// A finished receipt and the class of its executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaidReceipt {
    /// The receipt, which states the pay.
    pub receipt: FinishedReceipt,
    /// The class of the executor, by the attempt's started receipt; `None` if no started receipt is known.
    pub class: Option<ExecutorClass>,
}

/// Executors of one class and one miner that proved what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvenExecutors {
    /// The miner of the executors.
    pub miner: MinerKey,
    /// The class of the executors.
    pub class: ExecutorClass,
    /// The number of the executors.
    pub executors: u32,
}

/// Counted work beyond what a miner's credit could do in the cycle of its receipts: a job that took longer than a cycle
/// ends in one of them, and a newcomer has no credit yet. The next cycles count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeferredWork {
    /// The miner that worked.
    pub miner: MinerKey,
    /// The class of the executor.
    pub class: ExecutorClass,
    /// The work, in milliseconds.
    pub ms: u64,
}

/// A weight of the scoring validator that the chain has, or is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnchainWeight {
    /// The neuron, as it was when it got the weight.
    #[serde(flatten)]
    pub neuron: Neuron,
    /// The weight, of 65,535.
    pub weight: u16,
}
