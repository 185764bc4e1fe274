//! One attempt of an epoch, as the jobs make it and the validators' receipts state it.

use std::ops::Range;

use muster_protocol::AttemptId;

/// One attempt at a miner, within one epoch.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) id: AttemptId,
    /// The place of the validator that pays it.
    pub(crate) payer: usize,
    /// The place of the miner.
    pub(crate) miner: usize,
    /// The number of the executor.
    pub(crate) slot: usize,
    /// The begin within the epoch, in milliseconds.
    pub(crate) from: u64,
    /// The duration in milliseconds.
    pub(crate) ms: u64,
    /// The blocks that it names.
    pub(crate) blocks: Range<u64>,
}
