//! The allowance of validators: how much work each may have paid, as everybody can check by the finished receipt alone.
//!
//! A receipt names blocks. Each block is worth the validator's share of the stake in the proven executors of the miner,
//! times [`MULTIPLIER`](crate::MULTIPLIER). Blocks are named and not saved up, so honest receipts are independent of one another: a
//! receipt that a validator has not seen costs exactly itself. `docs/adr/0064` has the reasons.

use std::collections::BTreeMap;

use muster_protocol::job::MAX_JOB_SECS;
use muster_protocol::{ExecutorClass, MinerKey, Timestamp, ValidatorKey};
use serde::{Deserialize, Serialize};

use crate::DropReason;
use crate::block_ranges::{BlockRanges, to_ranges};
use crate::block_worth::{Epoch, EpochFacts, block_at, to_ms};
use crate::key_map::KeyMap;
use crate::snapshot_rows::PaidReceipt;

/// How many blocks before its attempt a block may lie that a receipt names: a day of twelve-second blocks. It bounds
/// bursts, not the mean (`docs/adr/0064`).
pub const LOOKBACK_BLOCKS: u64 = 7_200;

/// The stakes and the proven executors at every epoch whose blocks may be named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowanceInputs {
    /// The epochs, oldest first. The first one only states the stake before the second.
    pub epochs: Vec<EpochFacts>,
    /// Blocks that were named by receipts of earlier cycles.
    #[serde(default)]
    pub spent: Vec<SpentBlocks>,
}

/// A range of blocks that was named by a receipt of an earlier cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SpentBlocks {
    /// The validator of the receipt.
    pub validator: ValidatorKey,
    /// The miner of the receipt.
    pub miner: MinerKey,
    /// The class of the receipt.
    pub class: ExecutorClass,
    /// The first block of the range.
    pub first: u64,
    /// The last block of the range.
    pub last: u64,
}

/// A receipt, as far as allowance needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) validator: ValidatorKey,
    pub(crate) miner: MinerKey,
    pub(crate) class: ExecutorClass,
    /// When the attempt began.
    pub(crate) began: Timestamp,
    /// When the attempt ended.
    pub(crate) ended: Timestamp,
    /// The named blocks.
    pub(crate) blocks: &'a [u64],
}

impl Claim<'_> {
    fn group(&self) -> Group {
        (self.validator, self.miner, self.class)
    }
}

/// The allowance of each claim in executor-microseconds, in the order given, or the reason why it has none. Blocks
/// after `last_block` are not final.
///
/// A claim about an attempt that ended before the second of the epochs is not checked, because the stakes of that time
/// are not known: a validator that was started lately pays it in full.
pub(crate) fn allowances(
    inputs: &AllowanceInputs,
    last_block: u64,
    claims: &[Claim<'_>],
) -> Vec<Result<u64, DropReason>> {
    let epochs = Epoch::all(&inputs.epochs);
    // The order of the groups does not matter: each claim belongs to one of them.
    let mut groups = KeyMap::<Group, Vec<Named>>::default();
    for (owner, claim) in claims.iter().enumerate() {
        let group = groups.entry(claim.group()).or_default();
        let ranges = to_ranges(claim.blocks).into_iter();
        group.extend(ranges.map(|(first, last)| Named {
            first,
            last,
            owner: Some(owner),
        }));
    }
    for spent in &inputs.spent {
        if let Some(group) = groups.get_mut(&(spent.validator, spent.miner, spent.class)) {
            let (first, last) = (spent.first, spent.last.max(spent.first));
            group.push(Named {
                first,
                last,
                owner: None,
            });
        }
    }
    let mut tallies = vec![Tally::default(); claims.len()];
    for named in groups.into_values() {
        let pieces = single_pieces(&named);
        let blocks = |range: &(u64, u64)| range.1.saturating_sub(range.0).saturating_add(1);
        for (owner, range) in named
            .iter()
            .filter_map(|named| Some((named.owner?, (named.first, named.last))))
        {
            if let Some(tally) = tallies.get_mut(owner) {
                tally.shared = tally.shared.saturating_add(blocks(&range));
            }
        }
        for (owner, range) in pieces {
            if let (Some(claim), Some(tally)) = (claims.get(owner), tallies.get_mut(owner)) {
                tally.shared = tally.shared.saturating_sub(blocks(&range));
                add_piece(tally, claim, &epochs, last_block, range);
            }
        }
    }
    let checked_from = inputs.epochs.get(1).map_or(0, |epoch| epoch.first_ms);
    let result = |(claim, tally): (&Claim<'_>, Tally)| {
        if to_ms(claim.ended) < checked_from {
            Ok(u64::MAX)
        } else {
            tally.result()
        }
    };
    claims.iter().zip(tallies).map(result).collect()
}

/// The ranges that the receipts of a cycle named, for the next cycles: those that are still worth something after
/// `last_block` to an attempt of the longest duration.
pub(crate) fn spent_after(
    inputs: &AllowanceInputs,
    claims: &[Claim<'_>],
    last_block: u64,
) -> Vec<SpentBlocks> {
    let mut groups = SpentRanges::of(&inputs.spent);
    for claim in claims {
        groups.add(claim.group(), claim.blocks);
    }
    let block_ms = inputs.epochs.last().map_or(u64::MAX, |epoch| epoch.block_ms);
    let longest = (MAX_JOB_SECS * 1_000) / block_ms.max(1);
    let oldest = last_block.saturating_sub(LOOKBACK_BLOCKS.saturating_add(longest));
    groups.into_list(|range| range.last >= oldest)
}

/// The spent blocks without those that these receipts name: a cycle whose weights were lost is scored again.
pub fn unspend(spent: &[SpentBlocks], receipts: &[PaidReceipt]) -> Vec<SpentBlocks> {
    let mut groups = SpentRanges::of(spent);
    for paid in receipts {
        let receipt = &paid.receipt;
        if let Some(class) = paid.class {
            let group = (receipt.validator_hotkey, receipt.miner_hotkey, class);
            groups.remove(group, &receipt.block_numbers);
        }
    }
    groups.into_list(|_| true)
}

/// Spent ranges by validator, miner and class.
#[derive(Default)]
struct SpentRanges(BTreeMap<Group, BlockRanges>);

impl SpentRanges {
    fn of(spent: &[SpentBlocks]) -> Self {
        let mut all = Self::default();
        for spent in spent {
            let ranges = all
                .0
                .entry((spent.validator, spent.miner, spent.class))
                .or_default();
            ranges.insert(spent.first, spent.last.max(spent.first));
        }
        all
    }

    fn add(&mut self, group: Group, blocks: &[u64]) {
        let ranges = self.0.entry(group).or_default();
        for (first, last) in to_ranges(blocks) {
            ranges.insert(first, last);
        }
    }

    fn remove(&mut self, group: Group, blocks: &[u64]) {
        if let Some(ranges) = self.0.get_mut(&group) {
            for (first, last) in to_ranges(blocks) {
                ranges.remove(first, last);
            }
        }
    }

    fn into_list(self, keep: impl Fn(&SpentBlocks) -> bool) -> Vec<SpentBlocks> {
        let of_group = |((validator, miner, class), ranges): (Group, BlockRanges)| {
            let ranges: Vec<_> = ranges.iter().collect();
            ranges.into_iter().map(move |(first, last)| SpentBlocks {
                validator,
                miner,
                class,
                first,
                last,
            })
        };
        self.0.into_iter().flat_map(of_group).filter(keep).collect()
    }
}

type Group = (ValidatorKey, MinerKey, ExecutorClass);

/// A range of blocks that a claim names; without an owner, that a receipt of an earlier cycle named.
#[derive(Clone, Copy)]
struct Named {
    first: u64,
    last: u64,
    owner: Option<usize>,
}

/// The sum of a claim's blocks, and the first fault among them.
#[derive(Clone, Default)]
struct Tally {
    micros: u128,
    /// Whether a block was valid, whatever it is worth.
    valid: bool,
    /// Blocks that others name as well.
    shared: u64,
    fault: Option<DropReason>,
}

impl Tally {
    fn fault(&mut self, reason: DropReason) {
        self.fault = Some(self.fault.map_or(reason, |known| known.min(reason)));
    }

    fn result(self) -> Result<u64, DropReason> {
        if self.micros > 0 {
            return Ok(u64::try_from(self.micros).unwrap_or(u64::MAX));
        }
        let shared = (self.shared > 0).then_some(DropReason::NamedTwice);
        let fault = self.fault.or(shared).filter(|_| !self.valid);
        Err(fault.unwrap_or(DropReason::OverAllowance))
    }
}

/// Adds the worth of a range that only this claim names.
fn add_piece(tally: &mut Tally, claim: &Claim<'_>, epochs: &[Epoch<'_>], last_final: u64, range: (u64, u64)) {
    let oldest = block_at(epochs, claim.began).saturating_sub(LOOKBACK_BLOCKS);
    let newest = block_at(epochs, claim.ended).min(last_final);
    if range.1 > newest {
        tally.fault(DropReason::FutureBlock);
    }
    if range.0 < oldest {
        tally.fault(DropReason::ExpiredBlock);
    }
    let (first, last) = (range.0.max(oldest), range.1.min(newest));
    if first > last {
        return;
    }
    if epochs.first().is_none_or(|epoch| first < epoch.facts.first_block) {
        tally.fault(DropReason::ForeignBlock);
    }
    for epoch in epochs {
        let (from, to) = (first.max(epoch.facts.first_block), last.min(epoch.last_block));
        if from > to {
            continue;
        }
        match epoch.worth(claim.validator, claim.miner, claim.class) {
            Some(worth) => {
                let blocks = u128::from(to.saturating_sub(from).saturating_add(1));
                tally.micros = tally.micros.saturating_add(worth.saturating_mul(blocks));
                tally.valid = true;
            }
            None => tally.fault(DropReason::NoStake),
        }
    }
}

/// The parts of ranges that only one claim names, each with the place of the claim.
fn single_pieces(named: &[Named]) -> Vec<(usize, (u64, u64))> {
    // The exclusive or of all open owners is the owner, where only one is open.
    let id = |named: &Named| named.owner.map_or(0, |owner| owner.saturating_add(1));
    let begins = named.iter().map(|named| (named.first, true, id(named)));
    let ends = named
        .iter()
        .map(|named| (named.last.saturating_add(1), false, id(named)));
    let mut changes: Vec<_> = begins.chain(ends).collect();
    changes.sort_unstable();
    let (mut open, mut owners, mut pieces) = (0_usize, 0_usize, Vec::new());
    let mut next = changes.iter().skip(1);
    for (at, begins, id) in &changes {
        open = if *begins {
            open.saturating_add(1)
        } else {
            open.saturating_sub(1)
        };
        owners ^= id;
        let until = next.next().map_or(*at, |(at, ..)| *at);
        if open == 1
            && until > *at
            && let Some(owner) = owners.checked_sub(1)
        {
            pieces.push((owner, (*at, until.saturating_sub(1))));
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    use super::*;
    use crate::ProvenExecutors;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
    const BLOCK_MS: u64 = 12_000;

    fn validator(seed: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([seed; 32]))
    }

    fn miner(seed: u8) -> MinerKey {
        MinerKey(Hotkey::from_bytes([seed; 32]))
    }

    /// Epochs of a hundred blocks from block 100 on, in which validator 1 has a tenth of the stake and miner 9 has
    /// `executors`.
    fn inputs(count: u64, executors: u32) -> AllowanceInputs {
        let epoch = |number: u64| EpochFacts {
            first_block: number * 100,
            first_ms: number * 100 * BLOCK_MS,
            block_ms: BLOCK_MS,
            permitted: [(validator(1), 100), (validator(2), 900)].into(),
            proven: vec![ProvenExecutors {
                miner: miner(9),
                class: CLASS,
                executors,
            }],
        };
        AllowanceInputs {
            epochs: (1..=count).map(epoch).collect(),
            spent: vec![],
        }
    }

    fn time(block: u64) -> Timestamp {
        Timestamp::from_micros(i64::try_from(block * BLOCK_MS * 1_000).unwrap())
    }

    /// A claim of validator 1 for miner 9 about an attempt in these blocks.
    fn claim(began: u64, ended: u64, blocks: &[u64]) -> Claim<'_> {
        Claim {
            validator: validator(1),
            miner: miner(9),
            class: CLASS,
            began: time(began),
            ended: time(ended),
            blocks,
        }
    }

    fn one(inputs: &AllowanceInputs, claim: Claim<'_>) -> Result<u64, DropReason> {
        allowances(inputs, 10_000_000, &[claim]).remove(0)
    }

    #[test]
    fn a_block_is_worth_the_share_of_the_stake_in_the_proven_executors() {
        let inputs = inputs(4, 5);
        // 4 · 0.1 · 5 executors · 12 s.
        assert_eq!(one(&inputs, claim(300, 310, &[305])), Ok(24_000_000));
        assert_eq!(
            one(&inputs, claim(300, 310, &[301, 302, 302, 303])),
            Ok(72_000_000)
        );
        assert_eq!(
            one(
                &inputs,
                Claim {
                    validator: validator(2),
                    ..claim(300, 310, &[305])
                }
            ),
            Ok(216_000_000)
        );
        let newcomer = Claim {
            miner: miner(8),
            ..claim(300, 310, &[305])
        };
        assert_eq!(
            one(&inputs, newcomer),
            Ok(4_800_000),
            "as if it had proven one executor"
        );
        assert_eq!(one(&inputs, claim(300, 310, &[])), Err(DropReason::OverAllowance));
    }

    #[test]
    fn stake_counts_once_it_was_there_at_two_boundaries_with_a_permit() {
        let mut inputs = inputs(4, 5);
        assert_eq!(
            one(&inputs, claim(195, 210, &[199])),
            Err(DropReason::NoStake),
            "no boundary before"
        );
        assert_eq!(
            one(&inputs, claim(100, 110, &[])),
            Ok(u64::MAX),
            "nothing is known of the stakes before the first boundary but one"
        );
        inputs.epochs[1].permitted.insert(validator(1), 10);
        assert_eq!(
            one(&inputs, claim(200, 210, &[205])),
            Ok(24_000_000 * 10 / 91),
            "the lower one counts"
        );
        assert_eq!(
            one(&inputs, claim(300, 310, &[305])),
            Ok(2_400_000),
            "one epoch later still"
        );
        inputs.epochs[2].permitted.remove(&validator(1));
        assert_eq!(one(&inputs, claim(300, 310, &[305])), Err(DropReason::NoStake));
        assert_eq!(one(&inputs, claim(400, 410, &[405])), Err(DropReason::NoStake));
        for epoch in &mut inputs.epochs {
            epoch.permitted.values_mut().for_each(|stake| *stake = 0);
        }
        assert_eq!(
            one(&inputs, claim(200, 210, &[205])),
            Err(DropReason::NoStake),
            "zero stake everywhere"
        );
    }

    #[test]
    fn every_bad_block_has_its_reason_and_the_good_ones_count() {
        let mut inputs = inputs(100, 5);
        assert_eq!(
            one(&inputs, claim(300, 310, &[311])),
            Err(DropReason::FutureBlock)
        );
        assert_eq!(
            one(&inputs, claim(300, 310, &[u64::MAX, 0])),
            Err(DropReason::ForeignBlock)
        );
        assert_eq!(
            one(&inputs, claim(300, 310, &[99])),
            Err(DropReason::ForeignBlock)
        );
        assert_eq!(
            one(&inputs, claim(9_000, 9_010, &[1_799])),
            Err(DropReason::ExpiredBlock)
        );
        assert_eq!(one(&inputs, claim(9_000, 9_010, &[1_800])), Ok(24_000_000));
        assert_eq!(one(&inputs, claim(300, 310, &[99, 305, 900])), Ok(24_000_000));
        let claims = [claim(300, 310, &[305])];
        assert_eq!(
            allowances(&inputs, 304, &claims),
            [Err(DropReason::FutureBlock)],
            "not final"
        );
        inputs.spent = vec![SpentBlocks {
            validator: validator(1),
            miner: miner(9),
            class: CLASS,
            first: 300,
            last: 305,
        }];
        assert_eq!(
            one(&inputs, claim(300, 310, &[304, 305])),
            Err(DropReason::NamedTwice)
        );
        assert_eq!(one(&inputs, claim(300, 310, &[305, 306])), Ok(24_000_000));
        let none = AllowanceInputs {
            epochs: vec![],
            spent: vec![],
        };
        assert!(one(&none, claim(300, 310, &[305])).is_err());
    }

    #[test]
    fn a_block_that_two_receipts_name_counts_for_neither() {
        let inputs = inputs(4, 5);
        let (left, right) = (claim(300, 310, &[301, 302, 303]), claim(300, 310, &[303, 304]));
        let got = allowances(&inputs, 10_000, &[left, right]);
        assert_eq!(got, [Ok(48_000_000), Ok(24_000_000)]);
        let other = Claim {
            class: ExecutorClass::AlwaysOnCpu8c16Gb,
            ..right
        };
        assert_eq!(
            allowances(&inputs, 10_000, &[left, other])[0],
            Ok(72_000_000),
            "of another class"
        );
        assert_eq!(
            allowances(&inputs, 10_000, &[left, left]),
            [Err(DropReason::NamedTwice); 2]
        );
    }

    #[test]
    fn named_blocks_stay_spent_while_they_are_worth_something() {
        let inputs = inputs(4, 5);
        let spent = spent_after(&inputs, &[claim(300, 310, &[301, 302, 305])], 1_000);
        let ranges = |spent: &[SpentBlocks]| -> Vec<_> {
            spent.iter().map(|spent| (spent.first, spent.last)).collect()
        };
        assert_eq!(ranges(&spent), [(301, 302), (305, 305)]);
        let mut next = AllowanceInputs { spent, ..inputs };
        let more = spent_after(&next, &[claim(300, 310, &[303, 304, 309])], 1_000);
        assert_eq!(
            ranges(&more),
            [(301, 305), (309, 309)],
            "neighbours are one range"
        );
        // Thirty days of twelve-second blocks: as long as an attempt may last whose window begins so early.
        let longest = 216_000;
        assert_eq!(
            spent_after(&next, &[], 302 + longest + LOOKBACK_BLOCKS + 1).len(),
            1
        );
        assert_eq!(spent_after(&next, &[], 10_000_000), []);
        next.spent = more;
        let receipt = crate::testing::paid(validator(1), miner(9), CLASS, vec![302, 303, 304, 309]);
        assert_eq!(
            ranges(&unspend(&next.spent, &[receipt])),
            [(301, 301), (305, 305)]
        );
    }

    proptest! {
        #[test]
        fn allowances_are_those_of_a_block_by_block_sum_and_bounded_by_the_share(
            claims in proptest::collection::vec(proptest::collection::vec(250_u64..330, 0..40), 0..8),
        ) {
            let inputs = inputs(4, 5);
            let claims: Vec<_> = claims.iter().map(|blocks| claim(300, 320, blocks)).collect();
            let got = allowances(&inputs, 10_000, &claims);
            for (at, claim) in claims.iter().enumerate() {
                let alone = |block: &u64| !claims.iter().enumerate()
                    .any(|(other, named)| other != at && named.blocks.contains(block));
                let valid: std::collections::BTreeSet<_> =
                    claim.blocks.iter().filter(|block| **block <= 320 && alone(block)).collect();
                prop_assert_eq!(got[at].unwrap_or(0), 24_000_000 * u64::try_from(valid.len()).unwrap());
            }
            let sum: u64 = got.iter().map(|amount| amount.unwrap_or(0)).sum();
            prop_assert!(sum <= 24_000_000 * 71, "never more than the share in the window");
        }
    }
}
