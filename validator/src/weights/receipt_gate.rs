//! The gate between scoring and gathering: a gathered receipt must not be placed in a cycle while that cycle is scored.

use muster_chain::{BlockNumber, Epoch};
use muster_protocol::Timestamp;
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

    /// Follows the block times.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<BlockTimes>> {
        self.block_times.subscribe()
    }
}

/// The time of one block and the time between two: converts a time in a receipt to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockTimes {
    pub(crate) block: BlockNumber,
    /// The time of `block` in milliseconds since 1970.
    pub(crate) time_ms: u64,
    /// Milliseconds between two blocks.
    pub(crate) block_ms: u64,
}

impl BlockTimes {
    /// The block that is the head at `time`, which may lie in the future.
    pub(crate) fn block_at(&self, time: Timestamp) -> BlockNumber {
        let micros = i128::from(time.micros());
        let since = micros.saturating_sub(i128::from(self.time_ms).saturating_mul(1_000));
        let length = i128::from(self.block_ms.max(1)).saturating_mul(1_000);
        let block = i128::from(self.block.0).saturating_add(since.div_euclid(length));
        BlockNumber(u64::try_from(block.max(0)).unwrap_or(u64::MAX))
    }

    /// The time at which `block` came, or will come.
    pub(crate) fn time_of(&self, block: BlockNumber) -> Timestamp {
        let blocks = i128::from(block.0).saturating_sub(i128::from(self.block.0));
        let since = blocks.saturating_mul(i128::from(self.block_ms));
        let micros = i128::from(self.time_ms)
            .saturating_add(since)
            .saturating_mul(1_000);
        Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_converted_to_a_block() {
        let times = BlockTimes {
            block: BlockNumber(100),
            time_ms: 1_000_000,
            block_ms: 12_000,
        };
        let at = |secs| times.block_at(Timestamp::from_secs(secs)).0;
        assert_eq!((at(1_000), at(1_011), at(1_012)), (100, 100, 101));
        assert_eq!((at(999), at(988), at(0)), (99, 99, 16));
        assert_eq!(times.time_of(BlockNumber(101)), Timestamp::from_secs(1_012));
        assert_eq!(times.time_of(BlockNumber(99)), Timestamp::from_secs(988));
        let young = BlockTimes {
            block: BlockNumber(3),
            ..times
        };
        assert_eq!(young.block_at(Timestamp::from_secs(0)), BlockNumber(0));
        let still = BlockTimes { block_ms: 0, ..times };
        assert!(
            still.block_at(Timestamp::from_secs(2_000)).0 > 100,
            "a block time of zero does not divide by zero"
        );
    }
}
