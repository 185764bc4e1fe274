//! Conversion between times and blocks.

use muster_chain::BlockNumber;
use muster_protocol::Timestamp;

/// The time of one block and the time between two: converts a time in a receipt to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTimes {
    /// The block whose time is known.
    pub block: BlockNumber,
    /// The time of `block` in milliseconds since 1970.
    pub time_ms: u64,
    /// Milliseconds between two blocks.
    pub block_ms: u64,
}

impl BlockTimes {
    /// The duration of a block where the chain does not have it, in milliseconds: Bittensor's.
    pub const USUAL_BLOCK_MS: u64 = 12_000;

    /// The block that is the head at `time`, which may lie in the future.
    pub fn block_at(&self, time: Timestamp) -> BlockNumber {
        let micros = i128::from(time.micros());
        let since = micros.saturating_sub(i128::from(self.time_ms).saturating_mul(1_000));
        let length = i128::from(self.block_ms.max(1)).saturating_mul(1_000);
        let block = i128::from(self.block.0).saturating_add(since.div_euclid(length));
        BlockNumber(u64::try_from(block.max(0)).unwrap_or(u64::MAX))
    }

    /// The time at which `block` came, or will come.
    pub fn time_of(&self, block: BlockNumber) -> Timestamp {
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
