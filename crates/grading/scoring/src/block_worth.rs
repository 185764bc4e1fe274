//! The epochs whose blocks may be named: the stakes and the proven executors at each of them, the worth of a block, and
//! the block that was the head at a time.

use std::collections::BTreeMap;

use muster_protocol::{ExecutorClass, MinerKey, Timestamp, ValidatorKey};
use serde::{Deserialize, Serialize};

use crate::snapshot_rows::ProvenExecutors;

/// How many times its share of the stake a validator may use: with one, a subnet whose only busy validator holds a
/// fifth of the stake would leave four fifths of its hardware without work (`docs/adr/0064`).
pub const MULTIPLIER: u64 = 4;

/// The subnet at the first finalised block of one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochFacts {
    /// The first block of the epoch.
    pub first_block: u64,
    /// The time of that block, in milliseconds since 1970.
    pub first_ms: u64,
    /// The duration of a block, in milliseconds.
    pub block_ms: u64,
    /// The stake of everybody who held a permit at that block, in rao.
    pub permitted: BTreeMap<ValidatorKey, u64>,
    /// The agreed capacity at that block, in whole executors: the credit of what was shown, rounded up.
    pub proven: Vec<ProvenExecutors>,
}

/// An epoch with the shares of its validators.
pub(crate) struct Epoch<'a> {
    pub(crate) facts: &'a EpochFacts,
    /// The last block of the epoch.
    pub(crate) last_block: u64,
    /// The stake that counts, by validator: the lower one of this boundary and the one before.
    stakes: BTreeMap<ValidatorKey, u64>,
    /// The stake of everybody with a permit.
    all: u128,
    proven: BTreeMap<(MinerKey, ExecutorClass), u32>,
}

impl<'a> Epoch<'a> {
    pub(crate) fn all(epochs: &'a [EpochFacts]) -> Vec<Self> {
        let nobody = BTreeMap::new();
        let before = std::iter::once(&nobody).chain(epochs.iter().map(|epoch| &epoch.permitted));
        let next = epochs.iter().skip(1).map(|epoch| epoch.first_block);
        let ends = next.map(|first| first.saturating_sub(1)).chain([u64::MAX]);
        let epoch =
            |((facts, before), last_block): ((&'a EpochFacts, &BTreeMap<ValidatorKey, u64>), u64)| Self {
                facts,
                last_block,
                stakes: facts
                    .permitted
                    .iter()
                    .filter_map(|(validator, now)| Some((*validator, *before.get(validator)?.min(now))))
                    .collect(),
                all: facts.permitted.values().map(|stake| u128::from(*stake)).sum(),
                proven: facts
                    .proven
                    .iter()
                    .map(|proven| ((proven.miner, proven.class), proven.executors))
                    .collect(),
            };
        epochs.iter().zip(before).zip(ends).map(epoch).collect()
    }

    /// The worth of one block, in executor-microseconds; none if the validator has no share in this epoch.
    pub(crate) fn worth(
        &self,
        validator: ValidatorKey,
        miner: MinerKey,
        class: ExecutorClass,
    ) -> Option<u128> {
        let stake = self.stakes.get(&validator).copied().filter(|stake| *stake > 0)?;
        let proven = self.proven.get(&(miner, class)).copied().unwrap_or(0);
        block_worth(stake, self.all, proven, self.facts.block_ms)
    }
}

/// The worth of one block to a validator with `stake` of `all` stakes, at a miner with `proven` proven executors, in
/// executor-microseconds. A miner that has not proven anything yet is on probation with one executor. None without
/// stake.
pub(crate) fn block_worth(stake: u64, all: u128, proven: u32, block_ms: u64) -> Option<u128> {
    u128::from(MULTIPLIER)
        .saturating_mul(stake.into())
        .saturating_mul(proven.max(1).into())
        .saturating_mul(block_ms.into())
        .saturating_mul(1_000)
        .checked_div(all)
        .filter(|_| stake > 0)
}

/// The block that was the head at `time`; 0 before the first epoch.
pub(crate) fn block_at(epochs: &[Epoch<'_>], time: Timestamp) -> u64 {
    let ms = to_ms(time);
    let epoch = epochs.iter().rfind(|epoch| epoch.facts.first_ms <= ms);
    epoch.map_or(0, |epoch| epoch.facts.block_at_ms(ms).min(epoch.last_block))
}

/// Milliseconds since 1970; 0 for a time before.
pub(crate) fn to_ms(time: Timestamp) -> u64 {
    u64::try_from(time.micros() / 1_000).unwrap_or(0)
}

impl EpochFacts {
    /// The block that was the head at a time after the first block, if the epoch did not end before.
    fn block_at_ms(&self, ms: u64) -> u64 {
        let since = ms.saturating_sub(self.first_ms) / self.block_ms.max(1);
        self.first_block.saturating_add(since)
    }
}
