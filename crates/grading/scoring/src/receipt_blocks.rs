//! A validator's own allowance: the blocks that its receipts have named, and those that the next one names.
//!
//! The newest blocks are named first. A validator that began to record stakes lately does not know what old blocks are
//! worth, so it reads most of a receipt's amount from blocks that it knows.

use std::collections::{BTreeMap, HashMap};

use muster_protocol::receipt::MAX_BLOCK_NUMBERS;
use muster_protocol::{ExecutorClass, MinerKey, Timestamp, ValidatorKey};

use crate::allowance::LOOKBACK_BLOCKS;
use crate::block_ranges::{BlockRanges, to_ranges};
use crate::block_worth::{EpochFacts, block_worth, to_ms};

/// An attempt that is to be paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayableAttempt {
    /// The miner of the attempt.
    pub miner: MinerKey,
    /// The class of its executor.
    pub class: ExecutorClass,
    /// When it began.
    pub began: Timestamp,
    /// When the paid time ends.
    pub ended: Timestamp,
    /// The amount to be covered, in executor-microseconds.
    pub micros: u64,
}

/// The blocks that a validator may still name, for every miner and class.
#[derive(Clone, Debug)]
pub struct AllowanceBook {
    me: ValidatorKey,
    /// The epochs by their first blocks.
    epochs: BTreeMap<u64, OwnEpoch>,
    named: HashMap<(MinerKey, ExecutorClass), BlockRanges>,
}

/// One epoch, as far as this validator's own allowance needs it.
#[derive(Clone, Debug)]
struct OwnEpoch {
    facts_ms: u64,
    block_ms: u64,
    /// This validator's stake at the epoch's first block, if it held a permit.
    stake: Option<u64>,
    /// The stake of everybody with a permit.
    all: u128,
    proven: HashMap<(MinerKey, ExecutorClass), u32>,
}

/// Blocks of one epoch that have the same worth.
struct WorthyBlocks {
    first: u64,
    last: u64,
    worth: u128,
}

impl AllowanceBook {
    /// A book without epochs and names.
    pub fn new(me: ValidatorKey) -> Self {
        Self {
            me,
            epochs: BTreeMap::new(),
            named: HashMap::new(),
        }
    }

    /// Notes an epoch, or notes it again with what has been agreed on since.
    pub fn note_epoch(&mut self, facts: &EpochFacts) {
        let proven = facts.proven.iter();
        let epoch = OwnEpoch {
            facts_ms: facts.first_ms,
            block_ms: facts.block_ms,
            stake: facts.permitted.get(&self.me).copied(),
            all: facts.permitted.values().map(|stake| u128::from(*stake)).sum(),
            proven: proven
                .map(|proven| ((proven.miner, proven.class), proven.executors))
                .collect(),
        };
        self.epochs.insert(facts.first_block, epoch);
    }

    /// Whether the epoch that begins with this block is noted.
    pub fn knows(&self, first_block: u64) -> bool {
        self.epochs.contains_key(&first_block)
    }

    /// Forgets the epochs and the names before this block.
    pub fn forget_before(&mut self, block: u64) {
        // The epoch that holds the block, and the one before, whose stake counts too.
        let kept = self.epochs.range(..=block).rev().nth(1).map(|(first, _)| *first);
        if let Some(kept) = kept {
            self.epochs = self.epochs.split_off(&kept);
        }
        if let Some(before) = block.checked_sub(1) {
            self.named.retain(|_, ranges| {
                ranges.remove(0, before);
                ranges.iter().next().is_some()
            });
        }
    }

    /// Notes the blocks of a receipt that was issued.
    pub fn note_named(&mut self, miner: MinerKey, class: ExecutorClass, blocks: &[u64]) {
        if blocks.is_empty() {
            return;
        }
        let ranges = self.named.entry((miner, class)).or_default();
        for (first, last) in to_ranges(blocks) {
            ranges.insert(first, last);
        }
    }

    /// The blocks that pay an attempt, sorted: as many of the newest that were not named yet as its amount needs, at
    /// most as many as a receipt may hold. They are noted as named. `head` is the last finalised block.
    pub fn name_blocks(&mut self, attempt: &PayableAttempt, head: u64) -> Vec<u64> {
        let newest = self.block_at(attempt.ended).min(head);
        let oldest = self.block_at(attempt.began).saturating_sub(LOOKBACK_BLOCKS);
        let place = (attempt.miner, attempt.class);
        let (mut blocks, mut left) = (Vec::new(), u128::from(attempt.micros));
        for piece in self.free_blocks(place, oldest, newest) {
            let room = MAX_BLOCK_NUMBERS.saturating_sub(blocks.len());
            let held = piece.last.saturating_sub(piece.first).saturating_add(1);
            let needed = u64::try_from(left.div_ceil(piece.worth)).unwrap_or(u64::MAX);
            let taken = held.min(needed).min(u64::try_from(room).unwrap_or(u64::MAX));
            if taken == 0 {
                break;
            }
            blocks.extend((piece.last.saturating_sub(taken).saturating_add(1)..=piece.last).rev());
            left = left.saturating_sub(piece.worth.saturating_mul(taken.into()));
        }
        blocks.reverse();
        self.note_named(attempt.miner, attempt.class, &blocks);
        blocks
    }

    /// The executor-microseconds that this validator may still have paid at a miner, if an attempt ended now. None
    /// while the stakes of the whole window are not known: a subnet younger than a day has no full window, and its
    /// users' jobs run all the same.
    pub fn left(&self, miner: MinerKey, class: ExecutorClass, head: u64) -> Option<u64> {
        let oldest = head.checked_sub(LOOKBACK_BLOCKS)?;
        let checked = *self.epochs.keys().nth(1)?;
        if checked > oldest {
            return None;
        }
        let worth = |piece: WorthyBlocks| {
            let blocks = piece.last.saturating_sub(piece.first).saturating_add(1);
            piece.worth.saturating_mul(blocks.into())
        };
        let sum: u128 = self
            .free_blocks((miner, class), oldest, head)
            .into_iter()
            .map(worth)
            .sum();
        Some(u64::try_from(sum).unwrap_or(u64::MAX))
    }

    /// The blocks in a window that were not named yet and are worth something, newest first.
    fn free_blocks(&self, place: (MinerKey, ExecutorClass), oldest: u64, newest: u64) -> Vec<WorthyBlocks> {
        let mut pieces = Vec::new();
        // One above the last block of the epoch that is looked at.
        let mut above = u64::MAX;
        let mut epochs = self.epochs.range(..=newest).rev().peekable();
        while let Some((first_block, epoch)) = epochs.next() {
            let (first, last) = ((*first_block).max(oldest), above.saturating_sub(1).min(newest));
            let worth = epochs.peek().and_then(|(_, before)| epoch.worth(before, place));
            if let Some(worth) = worth.filter(|worth| *worth > 0)
                && first <= last
            {
                let gaps = match self.named.get(&place) {
                    Some(named) => named.gaps(first, last),
                    None => vec![(first, last)],
                };
                pieces.extend(
                    gaps.into_iter()
                        .map(|(first, last)| WorthyBlocks { first, last, worth }),
                );
            }
            if *first_block <= oldest {
                break;
            }
            above = *first_block;
        }
        pieces
    }

    /// The block that was the head at a time; 0 before the first epoch.
    fn block_at(&self, time: Timestamp) -> u64 {
        let ms = to_ms(time);
        let mut above = u64::MAX;
        for (first_block, epoch) in self.epochs.iter().rev() {
            if epoch.facts_ms <= ms {
                let since = ms.saturating_sub(epoch.facts_ms) / epoch.block_ms.max(1);
                return first_block.saturating_add(since).min(above.saturating_sub(1));
            }
            above = *first_block;
        }
        0
    }
}

impl OwnEpoch {
    /// The worth of one block, in executor-microseconds; none without stake at this boundary and the one before.
    fn worth(&self, before: &Self, place: (MinerKey, ExecutorClass)) -> Option<u128> {
        let stake = self.stake?.min(before.stake?);
        let proven = self.proven.get(&place).copied().unwrap_or(0);
        block_worth(stake, self.all, proven, self.block_ms)
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    use super::*;
    use crate::ProvenExecutors;
    use crate::allowance::{AllowanceInputs, Claim, allowances};

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
    const BLOCK_MS: u64 = 12_000;
    const ME: ValidatorKey = ValidatorKey(Hotkey::from_bytes([1; 32]));
    const MINER: MinerKey = MinerKey(Hotkey::from_bytes([9; 32]));

    /// An epoch of a hundred blocks in which this validator has a tenth of the stake, and the miner two executors.
    fn epoch(number: u64) -> EpochFacts {
        EpochFacts {
            first_block: number * 100,
            first_ms: number * 100 * BLOCK_MS,
            block_ms: BLOCK_MS,
            permitted: [(ME, 100), (ValidatorKey(MINER.0), 900)].into(),
            proven: vec![ProvenExecutors {
                miner: MINER,
                class: CLASS,
                executors: 2,
            }],
        }
    }

    fn book(epochs: u64) -> AllowanceBook {
        let mut book = AllowanceBook::new(ME);
        (1..=epochs).for_each(|number| book.note_epoch(&epoch(number)));
        book
    }

    fn time(block: u64) -> Timestamp {
        Timestamp::from_micros(i64::try_from(block * BLOCK_MS * 1_000).unwrap())
    }

    fn attempt(began: u64, ended: u64, micros: u64) -> PayableAttempt {
        PayableAttempt {
            miner: MINER,
            class: CLASS,
            began: time(began),
            ended: time(ended),
            micros,
        }
    }

    /// 4 · 0.1 · 2 executors · 12 s.
    const WORTH: u64 = 9_600_000;

    #[test]
    fn the_newest_blocks_are_named_first_and_none_twice() {
        let mut book = book(4);
        assert_eq!(
            book.name_blocks(&attempt(300, 310, 2 * WORTH + 1), 1_000),
            [308, 309, 310]
        );
        assert_eq!(book.name_blocks(&attempt(300, 310, WORTH), 1_000), [307]);
        assert_eq!(book.name_blocks(&attempt(300, 311, 2 * WORTH), 1_000), [306, 311]);
        assert_eq!(
            book.name_blocks(&attempt(300, 320, WORTH), 315),
            [315],
            "only final blocks"
        );
        let other = PayableAttempt {
            class: ExecutorClass::AlwaysOnCpu8c16Gb,
            ..attempt(300, 310, 2 * WORTH)
        };
        assert_eq!(
            book.name_blocks(&other, 1_000),
            [307, 308, 309, 310],
            "one executor on probation"
        );
        assert_eq!(book.name_blocks(&attempt(300, 310, 0), 1_000), [0; 0]);
    }

    #[test]
    fn blocks_of_unknown_stakes_are_not_named() {
        let mut young = book(2);
        let all = young.name_blocks(&attempt(205, 210, u64::MAX), 1_000);
        assert_eq!((all.first(), all.last(), all.len()), (Some(&200), Some(&210), 11));
        assert_eq!(book(1).name_blocks(&attempt(105, 110, WORTH), 1_000), [0; 0]);
        let mut without_permit = epoch(3);
        without_permit.permitted.remove(&ME);
        let mut book = book(2);
        book.note_epoch(&without_permit);
        assert_eq!(book.name_blocks(&attempt(305, 310, WORTH), 1_000), [299]);
    }

    #[test]
    fn a_receipt_holds_at_most_ten_thousand_blocks() {
        let mut book = book(200);
        let blocks = book.name_blocks(&attempt(10_000, 19_000, u64::MAX), 100_000);
        assert_eq!((blocks.len(), blocks.last()), (MAX_BLOCK_NUMBERS, Some(&19_000)));
    }

    #[test]
    fn the_rest_of_the_window_is_known_once_its_stakes_are() {
        let mut book = book(100);
        let all = (LOOKBACK_BLOCKS + 1) * WORTH;
        assert_eq!(book.left(MINER, CLASS, 9_000), Some(all));
        book.name_blocks(&attempt(8_990, 9_000, 5 * WORTH), 9_000);
        assert_eq!(book.left(MINER, CLASS, 9_000), Some(all - 5 * WORTH));
        assert_eq!(
            book.left(MINER, CLASS, 7_300),
            None,
            "the window reaches back to block 100"
        );
        assert_eq!(book.left(MINER, CLASS, 100), None);
        book.forget_before(8_998);
        assert_eq!(book.left(MINER, CLASS, 9_000), None);
        assert_eq!(
            book.name_blocks(&attempt(8_990, 9_000, WORTH), 9_000),
            [8_997],
            "the names before it are forgotten"
        );
    }

    proptest! {
        #[test]
        fn named_blocks_are_those_that_every_validator_counts(
            jobs in proptest::collection::vec((150_u64..700, 0_u64..60, 0_u64..400_000_000), 1..20),
        ) {
            let mut book = book(6);
            let named: Vec<(PayableAttempt, Vec<u64>)> = jobs.iter().map(|(began, length, micros)| {
                let attempt = attempt(*began, began + length, *micros);
                (attempt, book.name_blocks(&attempt, 10_000))
            }).collect();
            let claims: Vec<Claim<'_>> = named.iter().map(|(attempt, blocks)| Claim {
                validator: ME,
                miner: MINER,
                class: CLASS,
                began: attempt.began,
                ended: attempt.ended,
                blocks,
            }).collect();
            let inputs = AllowanceInputs { epochs: (1..=6).map(epoch).collect(), spent: vec![] };
            let allowed = allowances(&inputs, 10_000, &claims);
            for ((attempt, blocks), allowed) in named.iter().zip(allowed) {
                if attempt.ended < time(200) {
                    continue;
                }
                let worth = u64::try_from(blocks.len()).unwrap() * WORTH;
                prop_assert_eq!(allowed.unwrap_or(0), worth);
                prop_assert!(worth < attempt.micros + WORTH, "no block more than needed");
            }
        }
    }
}
