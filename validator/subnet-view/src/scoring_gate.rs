//! The gate between scoring and gathering: a gathered receipt must not be placed in a cycle while that cycle is scored.

use muster_chain::Epoch;
use tokio::sync::{Mutex, MutexGuard, watch};

use crate::BlockTimes;

/// Keeps scoring and the storing of gathered receipts apart, and gives the gatherer the chain's cycle and block times.
#[derive(Debug, Default)]
pub struct ScoringGate {
    block_times: watch::Sender<Option<BlockTimes>>,
    cycle: watch::Sender<Option<Epoch>>,
    exclusive: Mutex<()>,
}

impl ScoringGate {
    /// Locks the gate: while a cycle is scored, or while a gathered receipt is given the block that decides its cycle.
    pub async fn lock(&self) -> MutexGuard<'_, ()> {
        self.exclusive.lock().await
    }

    /// Notes the chain's block times, as its rules for weights state them.
    pub fn set_block_times(&self, times: BlockTimes) {
        self.block_times.send_replace(Some(times));
    }

    /// The chain's block times; `None` before the chain has stated its rules.
    pub fn block_times(&self) -> Option<BlockTimes> {
        *self.block_times.borrow()
    }

    /// Notes the present cycle.
    pub fn set_cycle(&self, cycle: Epoch) {
        self.cycle.send_replace(Some(cycle));
    }

    /// The present cycle; `None` before the chain has answered.
    pub fn cycle(&self) -> Option<Epoch> {
        *self.cycle.borrow()
    }

    /// Follows the cycle.
    pub fn subscribe_cycle(&self) -> watch::Receiver<Option<Epoch>> {
        self.cycle.subscribe()
    }

    /// Follows the block times.
    pub fn subscribe(&self) -> watch::Receiver<Option<BlockTimes>> {
        self.block_times.subscribe()
    }
}
