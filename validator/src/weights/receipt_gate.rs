//! The gate between scoring and gathering: a gathered receipt must not be placed in a cycle while that cycle is scored.

use muster_chain::Epoch;
use muster_subnet_view::BlockTimes;
use tokio::sync::{Mutex, MutexGuard, watch};

/// Keeps scoring and the storing of gathered receipts apart, and tells the gatherer the chain's cycle and block times.
#[derive(Debug, Default)]
pub(crate) struct ScoringGate {
    block_times: watch::Sender<Option<BlockTimes>>,
    cycle: watch::Sender<Option<Epoch>>,
    exclusive: Mutex<()>,
}

impl ScoringGate {
    /// Locks the gate: while a cycle is scored, or while a gathered receipt is given the block that decides its cycle.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, ()> {
        self.exclusive.lock().await
    }

    /// Notes the chain's block times, as its rules for weights state them.
    pub(crate) fn set_block_times(&self, times: BlockTimes) {
        self.block_times.send_replace(Some(times));
    }

    /// The chain's block times; `None` before the chain has told its rules.
    pub(crate) fn block_times(&self) -> Option<BlockTimes> {
        *self.block_times.borrow()
    }

    /// Notes the present cycle.
    pub(crate) fn set_cycle(&self, cycle: Epoch) {
        self.cycle.send_replace(Some(cycle));
    }

    /// The present cycle; `None` before the chain has answered.
    pub(crate) fn cycle(&self) -> Option<Epoch> {
        *self.cycle.borrow()
    }

    /// Follows the cycle.
    pub(crate) fn subscribe_cycle(&self) -> watch::Receiver<Option<Epoch>> {
        self.cycle.subscribe()
    }

    /// Follows the block times.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<BlockTimes>> {
        self.block_times.subscribe()
    }
}
