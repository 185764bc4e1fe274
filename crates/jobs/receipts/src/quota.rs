//! The most receipts that one pair of a validator and a miner may add to one cycle.
//!
//! A receipt needs the signatures of both its parties, so a pair fills its own quota only, on whichever page the
//! receipts are served. The quota follows from the work that the pair can be paid for in one cycle: the validator's
//! share of the stake and the miner's proven executors bound that work, and an attempt is not worth counting below a
//! second of an executor. Work beyond the quota would not count in the scores either.

use std::collections::BTreeMap;

use muster_protocol::{MinerKey, ReceiptPayload, ValidatorKey};

/// The receipts of one attempt: started, accepted and finished.
const RECEIPTS_OF_AN_ATTEMPT: u64 = 3;

/// The shortest attempt that a quota is made for, in milliseconds. Shorter ones live on the floor.
const SHORTEST_ATTEMPT_MS: u64 = 1_000;

/// The attempts that every pair may add to a cycle, whatever its stake and its executors: newcomers, attempts that
/// failed at once, and offers that nobody took.
const FLOOR_ATTEMPTS: u64 = 1_000;

/// The executors that a miner is supposed to have in classes that nobody grades.
const UNGRADED_EXECUTORS: u64 = 16;

/// Bytes for the payload of a receipt that names a few blocks.
const RECEIPT_BYTES: u64 = 640;

/// Bytes for the block numbers of one receipt that names as many as it may: the receipt of a long job.
const LONGEST_RECEIPT_BYTES: u64 = 120_000;

/// Receipts of long jobs that every pair may add to a cycle, beside one for each of its executors.
const FLOOR_LONG_JOBS: u64 = 8;

/// The length of a cycle, and what a validator may spend in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CycleScale {
    /// Blocks of a cycle, from the chain's tempo.
    pub blocks: u64,
    /// The time between two blocks, in milliseconds.
    pub block_ms: u64,
    /// Blocks before a cycle whose allowance may be spent in it.
    pub lookback_blocks: u64,
    /// How many times its share of the stake a validator may use.
    pub multiplier: u64,
}

/// The stake of a pair's validator and the executors of its miner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairStrength {
    /// The validator's stake, in rao.
    pub stake: u64,
    /// The stake of everybody with a permit, in rao; 0 if it is not known. Then the stake bounds nothing.
    pub all_stake: u64,
    /// The miner's proven executors, of all graded classes.
    pub executors: u64,
    /// Whether there are classes that nobody grades.
    pub has_ungraded: bool,
}

/// The most receipts of one pair in one cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptQuota {
    /// The number of receipts.
    pub receipts: u64,
    /// The bytes of their payloads, as [`payload_bytes`] counts them.
    pub bytes: u64,
}

/// The receipts of one pair that are kept for one cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiptAmount {
    /// The number of receipts.
    pub receipts: u64,
    /// The bytes of their payloads, as [`payload_bytes`] counts them.
    pub bytes: u64,
}

/// A pair in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PairCycle {
    /// The first block of the cycle in which the receipts were signed.
    pub cycle: u64,
    /// The validator that signed the receipts.
    pub validator: ValidatorKey,
    /// The miner that signed them, too.
    pub miner: MinerKey,
}

/// The receipts that are kept, by pair and cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptTally {
    kept: BTreeMap<PairCycle, ReceiptAmount>,
}

impl ReceiptTally {
    /// A tally of what is kept already.
    pub fn new(kept: BTreeMap<PairCycle, ReceiptAmount>) -> Self {
        Self { kept }
    }

    /// Whether a pair has room for a receipt of this many bytes.
    pub fn has_room(&self, pair: &PairCycle, quota: &ReceiptQuota, bytes: u64) -> bool {
        quota.admits(&self.kept.get(pair).copied().unwrap_or_default(), bytes)
    }

    /// Adds a receipt of this many bytes to a pair; returns `false` and adds nothing if it is beyond the quota.
    pub fn admit(&mut self, pair: PairCycle, quota: &ReceiptQuota, bytes: u64) -> bool {
        let kept = self.kept.entry(pair).or_default();
        let has_room = quota.admits(kept, bytes);
        if has_room {
            kept.add(bytes);
        }
        has_room
    }
}

impl ReceiptQuota {
    /// The quota of a pair.
    pub fn of(pair: &PairStrength, scale: &CycleScale) -> Self {
        let attempts = (pair.payable_ms(scale) / SHORTEST_ATTEMPT_MS).saturating_add(FLOOR_ATTEMPTS);
        let receipts = attempts.saturating_mul(RECEIPTS_OF_AN_ATTEMPT);
        let long_jobs = pair.all_executors().saturating_add(FLOOR_LONG_JOBS);
        let bytes = receipts
            .saturating_mul(RECEIPT_BYTES)
            .saturating_add(long_jobs.saturating_mul(LONGEST_RECEIPT_BYTES));
        Self { receipts, bytes }
    }

    /// Whether a pair that has `kept` may add a receipt of this many bytes.
    pub fn admits(&self, kept: &ReceiptAmount, bytes: u64) -> bool {
        kept.receipts < self.receipts && kept.bytes.saturating_add(bytes) <= self.bytes
    }
}

impl PairStrength {
    /// The executors that may work at once. A miner without a proven one may work with one: newcomers are paid later.
    fn graded_executors(&self) -> u64 {
        self.executors.max(1)
    }

    fn all_executors(&self) -> u64 {
        let ungraded = if self.has_ungraded { UNGRADED_EXECUTORS } else { 0 };
        self.graded_executors().saturating_add(ungraded)
    }

    /// The most executor-milliseconds of one cycle that can count: no more than the executors can work, and no more
    /// than the validator's allowance pays. The blocks of a class that is not graded are worth one executor.
    fn payable_ms(&self, scale: &CycleScale) -> u64 {
        let cycle_ms = scale.blocks.saturating_mul(scale.block_ms);
        let graded = self
            .allowed_ms(self.graded_executors(), scale)
            .min(cycle_ms.saturating_mul(self.graded_executors()));
        let ungraded = if self.has_ungraded {
            let worked = cycle_ms.saturating_mul(UNGRADED_EXECUTORS);
            self.allowed_ms(1, scale).min(worked)
        } else {
            0
        };
        graded.saturating_add(ungraded)
    }

    /// The allowance that the validator may have saved up for one cycle at a miner with these executors, in
    /// executor-milliseconds.
    fn allowed_ms(&self, executors: u64, scale: &CycleScale) -> u64 {
        if self.all_stake == 0 {
            return u64::MAX;
        }
        let blocks = scale.blocks.saturating_add(scale.lookback_blocks);
        let factors = [scale.multiplier, executors, blocks, scale.block_ms];
        let whole = factors
            .into_iter()
            .fold(u128::from(self.stake), |product, factor| {
                product.saturating_mul(u128::from(factor))
            });
        u64::try_from(whole / u128::from(self.all_stake)).unwrap_or(u64::MAX)
    }
}

impl ReceiptAmount {
    /// Adds a receipt of this many bytes.
    pub fn add(&mut self, bytes: u64) {
        self.receipts = self.receipts.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The bytes of a receipt that count: those of its payload's JSON, as stores and snapshots hold it.
pub fn payload_bytes(payload: &ReceiptPayload) -> u64 {
    // A struct of texts, integers and lists always has a JSON form.
    let text = serde_json::to_string(payload).unwrap_or_default();
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use muster_protocol::receipt::{FinishedReceipt, FinishedTag, MAX_BLOCK_NUMBERS};
    use muster_protocol::{AttemptId, Hotkey, MinerKey, Timestamp, ValidatorKey};
    use proptest::prelude::*;

    use super::*;

    /// The public network: 361 blocks of twelve seconds, and the allowance of a day before them.
    const PUBLIC: CycleScale = CycleScale {
        blocks: 361,
        block_ms: 12_000,
        lookback_blocks: 7_200,
        multiplier: 4,
    };
    const CYCLE_SECS: u64 = 361 * 12;

    fn pair(stake_percent: u64, executors: u64) -> PairStrength {
        PairStrength {
            stake: stake_percent * 1_000_000_000,
            all_stake: 100_000_000_000,
            executors,
            has_ungraded: false,
        }
    }

    fn finished(blocks: usize) -> ReceiptPayload {
        let key = Hotkey::from_bytes([255; 32]);
        let at = Timestamp::from_micros(1_769_000_000_123_456);
        ReceiptPayload::Finished(FinishedReceipt {
            job_uuid: AttemptId::from_uuid(uuid::Uuid::from_u128(u128::MAX)),
            miner_hotkey: MinerKey(key),
            validator_hotkey: ValidatorKey(key),
            timestamp: at,
            receipt_type: FinishedTag,
            time_started: at,
            time_took_us: 2_592_000_000_000,
            score_str: "2592000.000000".to_owned(),
            block_numbers: vec![99_999_999; blocks],
        })
    }

    #[test]
    fn a_busy_miner_of_a_hundred_executors_with_one_second_jobs_is_not_cut() {
        let quota = ReceiptQuota::of(&pair(10, 100), &PUBLIC);
        let attempts = 100 * CYCLE_SECS;
        assert!(quota.receipts >= 3 * attempts, "{quota:?}");
        assert!(
            quota.bytes >= 3 * attempts * payload_bytes(&finished(2)),
            "{quota:?}"
        );
    }

    #[test]
    fn a_pair_without_stake_or_executors_has_the_floor() {
        let quota = ReceiptQuota::of(&pair(0, 0), &PUBLIC);
        assert_eq!(quota.receipts, 3_000);
        assert!(
            quota.bytes >= 8 * payload_bytes(&finished(MAX_BLOCK_NUMBERS)),
            "long jobs of a small pair: {quota:?}"
        );
    }

    #[test]
    fn the_receipts_of_a_long_job_on_each_executor_fit() {
        let quota = ReceiptQuota::of(&pair(10, 100), &PUBLIC);
        assert!(quota.bytes >= 100 * payload_bytes(&finished(MAX_BLOCK_NUMBERS)));
    }

    #[test]
    fn stake_that_is_not_known_bounds_nothing() {
        let unknown = PairStrength {
            all_stake: 0,
            ..pair(0, 10)
        };
        assert_eq!(
            ReceiptQuota::of(&unknown, &PUBLIC),
            ReceiptQuota::of(&pair(100, 10), &PUBLIC)
        );
    }

    #[test]
    fn a_crumb_of_stake_gives_no_more_than_its_allowance() {
        let crumb = PairStrength {
            stake: 100_000_000,
            ..pair(0, 10_000)
        };
        let quota = ReceiptQuota::of(&crumb, &PUBLIC);
        let allowed = 4 * 10_000 * (361 + 7_200) * 12 / 1_000;
        assert_eq!(quota.receipts, 3 * (allowed + 1_000));
    }

    #[test]
    fn a_class_that_nobody_grades_has_room_for_sixteen_executors() {
        let ungraded = PairStrength {
            has_ungraded: true,
            ..pair(100, 0)
        };
        let quota = ReceiptQuota::of(&ungraded, &PUBLIC);
        assert_eq!(quota.receipts, 3 * (17 * CYCLE_SECS + 1_000));
    }

    #[test]
    fn a_full_pair_takes_nothing_more() {
        let quota = ReceiptQuota {
            receipts: 2,
            bytes: 100,
        };
        let mut kept = ReceiptAmount::default();
        assert!(quota.admits(&kept, 100) && !quota.admits(&kept, 101));
        kept.add(60);
        assert!(quota.admits(&kept, 40) && !quota.admits(&kept, 41));
        kept.add(1);
        assert!(!quota.admits(&kept, 1), "a third receipt");
    }

    proptest! {
        /// All work that the scores could count has room: attempts of a second or more that fit on the executors and
        /// into the allowance, each with its three receipts.
        #[test]
        fn work_that_can_count_has_room(
            stake in 0u64..1_000, others in 1u64..1_000, executors in 0u64..2_000, blocks in 1u64..1_000,
            secs in 1u64..100,
        ) {
            let strength = PairStrength { stake, all_stake: stake + others, executors, has_ungraded: false };
            let scale = CycleScale { blocks, ..PUBLIC };
            let quota = ReceiptQuota::of(&strength, &scale);
            let room = executors.max(1) * blocks * 12;
            let allowed = 4 * stake * executors.max(1) * (blocks + 7_200) * 12 / (stake + others);
            let attempts = room.min(allowed) / secs;
            prop_assert!(quota.receipts >= 3 * attempts);
            prop_assert!(quota.bytes >= 3 * attempts * payload_bytes(&finished(2)));
        }

        #[test]
        fn more_stake_and_more_executors_never_make_a_quota_smaller(
            stake in 0u64..1_000, more in 0u64..1_000, executors in 0u64..2_000, has_ungraded: bool,
        ) {
            let of = |stake, executors| {
                let strength = PairStrength { stake, all_stake: 2_000, executors, has_ungraded };
                ReceiptQuota::of(&strength, &PUBLIC)
            };
            let (small, large) = (of(stake, executors), of(stake + more, executors + more));
            prop_assert!(small.receipts <= large.receipts && small.bytes <= large.bytes);
        }

        #[test]
        fn no_quota_overflows(
            stake: u64, all_stake: u64, executors: u64, has_ungraded: bool, blocks: u64, block_ms: u64,
        ) {
            let strength = PairStrength { stake, all_stake, executors, has_ungraded };
            let quota = ReceiptQuota::of(&strength, &CycleScale { blocks, block_ms, ..PUBLIC });
            prop_assert!(quota.receipts >= 3_000);
        }
    }
}
