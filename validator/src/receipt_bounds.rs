//! The bounds of other validators' receipts: whose receipts may count, how near to their page they were signed, and how
//! many of them a validator and a miner may add to a cycle.
//!
//! The bounds follow from the chain's present subnet and from the epochs in the store, so a process that starts again
//! has the same ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_chain::weights_window::Window;
use muster_chain::{BlockNumber, Metagraph};
use muster_protocol::receipt::MAX_AHEAD;
use muster_protocol::{ExecutorClass, MinerKey, Timestamp, ValidatorKey};
use muster_receipts::{CycleScale, PairCycle, PairStrength, ReceiptQuota, ReceiptTally, RejectionReason};
use muster_scoring::{EpochFacts, GradedExecutors, LOOKBACK_BLOCKS, MULTIPLIER};
use muster_store::StoreError;

use crate::store::GatheredFinish;
use crate::validator_state::ValidatorState;
use crate::weights::BlockTimes;

/// Cycles before its page in which a receipt may have been signed. Older ones are late in the scores.
const CYCLES_BEFORE_PAGE: u64 = 2;

/// The bounds of others' receipts.
#[derive(Debug)]
pub(crate) struct ReceiptBounds {
    me: ValidatorKey,
    /// The validators with a permit, each with its largest share of the stake: its own and everybody's, in rao. This
    /// validator is among them.
    shares: BTreeMap<ValidatorKey, (u64, u64)>,
    permitted: BTreeSet<ValidatorKey>,
    /// The most executors that were proven in one of the epochs.
    proven: BTreeMap<MinerKey, u64>,
    graded: Arc<GradedExecutors>,
    scale: CycleScale,
    /// The first block of the present cycle.
    cycle: u64,
    times: Option<BlockTimes>,
}

/// The facts that the bounds follow from.
pub(crate) struct BoundInputs<'a> {
    /// This validator, whose own receipts have no bound.
    pub(crate) me: ValidatorKey,
    /// The present subnet.
    pub(crate) metagraph: &'a Metagraph,
    /// The epochs whose permits count, beside the present ones.
    pub(crate) epochs: &'a [EpochFacts],
    /// The executors that count in the present cycle.
    pub(crate) graded: Arc<GradedExecutors>,
    /// The times of the chain's blocks.
    pub(crate) times: Option<BlockTimes>,
}

impl ReceiptBounds {
    /// The bounds of receipts that are gathered now: permits of this epoch and of the one before count.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn of_gathering(
        state: &ValidatorState,
        metagraph: &Metagraph,
        times: Option<BlockTimes>,
    ) -> Result<Self, StoreError> {
        let window = Window::at(metagraph.tempo, metagraph.last_epoch, metagraph.block);
        let length = window.end.0.saturating_sub(window.cycle.0);
        let before = window.cycle.0.saturating_sub(length);
        Self::since(state, metagraph, times, BlockNumber(before)).await
    }

    /// The bounds of receipts that are scored: permits of every epoch count in which they may have been gathered, from
    /// the one before block `first` on. A cycle that is scored late loses nobody's receipts.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn of_scoring(
        state: &ValidatorState,
        metagraph: &Metagraph,
        times: Option<BlockTimes>,
        first: BlockNumber,
    ) -> Result<Self, StoreError> {
        let length = u64::from(metagraph.tempo).saturating_add(1);
        let before = BlockNumber(first.0.saturating_sub(length));
        Self::since(state, metagraph, times, before).await
    }

    async fn since(
        state: &ValidatorState,
        metagraph: &Metagraph,
        times: Option<BlockTimes>,
        first: BlockNumber,
    ) -> Result<Self, StoreError> {
        let mut epochs = state.store.epochs_between(first.0, metagraph.block.0).await?;
        epochs.retain(|epoch| epoch.first_block >= first.0);
        Ok(Self::new(BoundInputs {
            me: state.key(),
            metagraph,
            epochs: &epochs,
            graded: state.proven(),
            times,
        }))
    }

    /// The bounds that follow from these inputs.
    pub(crate) fn new(inputs: BoundInputs<'_>) -> Self {
        let BoundInputs {
            me,
            metagraph,
            epochs,
            graded,
            times,
        } = inputs;
        let window = Window::at(metagraph.tempo, metagraph.last_epoch, metagraph.block);
        let permitted_now = metagraph.neurons.iter().filter(|neuron| neuron.permit);
        let now: BTreeMap<_, _> = permitted_now
            .map(|neuron| (ValidatorKey(neuron.hotkey), neuron.stake))
            .collect();
        let mut shares = BTreeMap::new();
        for stakes in epochs.iter().map(|epoch| &epoch.permitted).chain([&now]) {
            add_shares(&mut shares, stakes);
        }
        shares.entry(me).or_insert((0, 0));
        let mut proven = BTreeMap::<MinerKey, u64>::new();
        for epoch in epochs {
            let mut sums = BTreeMap::<MinerKey, u64>::new();
            for row in &epoch.proven {
                let sum = sums.entry(row.miner).or_default();
                *sum = sum.saturating_add(row.executors.into());
            }
            for (miner, sum) in sums {
                let most = proven.entry(miner).or_default();
                *most = sum.max(*most);
            }
        }
        Self {
            me,
            permitted: shares.keys().copied().collect(),
            shares,
            proven,
            graded,
            scale: CycleScale {
                blocks: window.end.0.saturating_sub(window.cycle.0),
                block_ms: times.map_or(BlockTimes::USUAL_BLOCK_MS, |times| times.block_ms),
                lookback_blocks: LOOKBACK_BLOCKS,
                multiplier: MULTIPLIER,
            },
            cycle: window.cycle.0,
            times,
        }
    }

    /// The validators whose receipts may count.
    pub(crate) fn permitted(&self) -> &BTreeSet<ValidatorKey> {
        &self.permitted
    }

    /// How long before its page a receipt may have been signed.
    pub(crate) fn before_page(&self) -> Duration {
        let cycle_ms = self.scale.blocks.saturating_mul(self.scale.block_ms);
        Duration::from_millis(cycle_ms.saturating_mul(CYCLES_BEFORE_PAGE)).max(MAX_AHEAD)
    }

    /// The first block of the cycle that holds this time.
    pub(crate) fn cycle_of(&self, time: Timestamp) -> u64 {
        let Some(times) = self.times else {
            return self.cycle;
        };
        let (block, length) = (times.block_at(time).0, self.scale.blocks.max(1));
        match block.checked_sub(self.cycle) {
            Some(later) => self.cycle.saturating_add(later / length * length),
            None => {
                let back = self.cycle.saturating_sub(block).div_ceil(length);
                self.cycle.saturating_sub(back.saturating_mul(length))
            }
        }
    }

    /// The quota of a validator and a miner; `None` if they have none: this validator's own receipts are as many as it
    /// signed.
    pub(crate) fn quota(&self, validator: ValidatorKey, miner: MinerKey) -> Option<ReceiptQuota> {
        if validator == self.me {
            return None;
        }
        let (stake, all_stake) = self.shares.get(&validator).copied().unwrap_or((0, 1));
        let (mut executors, mut has_ungraded) = (0_u64, false);
        for class in ExecutorClass::ALL {
            match self.graded.of(miner, class) {
                Some(proven) => executors = executors.saturating_add(proven.into()),
                None => has_ungraded = true,
            }
        }
        let proven = self.proven.get(&miner).copied().unwrap_or(0);
        let pair = PairStrength {
            stake,
            all_stake,
            executors: executors.max(proven),
            has_ungraded,
        };
        Some(ReceiptQuota::of(&pair, &self.scale))
    }

    /// Whether a stored receipt enters the scores of a cycle, and if not, the reason. `tally` holds those that did.
    pub(crate) fn admit(
        &self,
        tally: &mut ReceiptTally,
        finish: &GatheredFinish,
    ) -> Result<(), RejectionReason> {
        let (validator, miner) = (finish.validator, finish.miner);
        if !self.permitted.contains(&validator) {
            return Err(RejectionReason::NoPermit);
        }
        let Some(quota) = self.quota(validator, miner) else {
            return Ok(());
        };
        let pair = PairCycle {
            cycle: self.cycle_of(finish.signed_at),
            validator,
            miner,
        };
        match tally.admit(pair, &quota, finish.bytes) {
            true => Ok(()),
            false => Err(RejectionReason::OverQuota),
        }
    }
}

/// Adds validators, or raises their shares to those of `stakes`.
fn add_shares(shares: &mut BTreeMap<ValidatorKey, (u64, u64)>, stakes: &BTreeMap<ValidatorKey, u64>) {
    let all = stakes
        .values()
        .fold(0_u64, |sum, stake| sum.saturating_add(*stake));
    for (validator, stake) in stakes {
        let share = shares.entry(*validator).or_insert((*stake, all));
        let product = |one: u64, other: u64| u128::from(one).saturating_mul(other.into());
        // A share of no stake at all is a whole one: the stakes are not known.
        let is_larger = share.1 > 0 && (all == 0 || product(*stake, share.1) > product(share.0, all));
        if is_larger {
            *share = (*stake, all);
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_chain::{Netuid, Neuron};
    use muster_protocol::{Hotkey, Uid};
    use muster_scoring::ProvenExecutors;

    use super::*;

    const ME: ValidatorKey = ValidatorKey(Hotkey::from_bytes([1; 32]));
    const OTHER: ValidatorKey = ValidatorKey(Hotkey::from_bytes([2; 32]));
    const GONE: ValidatorKey = ValidatorKey(Hotkey::from_bytes([3; 32]));
    const MINER: MinerKey = MinerKey(Hotkey::from_bytes([9; 32]));

    fn metagraph(stakes: &[(ValidatorKey, u64)]) -> Metagraph {
        let neuron = |(uid, (key, stake)): (u16, &(ValidatorKey, u64))| Neuron {
            uid: Uid(uid),
            hotkey: key.0,
            coldkey: key.0,
            axon: None,
            stake: *stake,
            permit: true,
            active: true,
            registered: BlockNumber(0),
            last_update: BlockNumber(0),
            incentive: 0,
        };
        Metagraph {
            block: BlockNumber(1_100),
            netuid: Netuid(1),
            tempo: 99,
            last_epoch: BlockNumber(1_000),
            neurons: (0..).zip(stakes).map(neuron).collect(),
            certificates: BTreeMap::new(),
        }
    }

    fn epoch(first_block: u64, stakes: &[(ValidatorKey, u64)], executors: u32) -> EpochFacts {
        EpochFacts {
            first_block,
            first_ms: first_block * 12_000,
            block_ms: 12_000,
            permitted: stakes.iter().copied().collect(),
            proven: vec![ProvenExecutors {
                miner: MINER,
                class: ExecutorClass::AlwaysOnTest,
                executors,
            }],
        }
    }

    fn bounds(now: &[(ValidatorKey, u64)], epochs: &[EpochFacts]) -> ReceiptBounds {
        ReceiptBounds::new(BoundInputs {
            me: ME,
            metagraph: &metagraph(now),
            epochs,
            graded: Arc::default(),
            times: Some(BlockTimes {
                block: BlockNumber(1_100),
                time_ms: 1_100 * 12_000,
                block_ms: 12_000,
            }),
        })
    }

    fn finish(validator: ValidatorKey, block: i64, bytes: u64) -> GatheredFinish {
        GatheredFinish {
            validator,
            miner: MINER,
            signed_at: Timestamp::from_secs(block * 12),
            bytes,
        }
    }

    #[test]
    fn a_validator_that_lost_its_permit_an_epoch_ago_still_counts() {
        let bounds = bounds(&[(OTHER, 10)], &[epoch(1_000, &[(GONE, 10)], 0)]);
        assert_eq!(*bounds.permitted(), [ME, OTHER, GONE].into());
        let nobody = ValidatorKey(Hotkey::from_bytes([4; 32]));
        let admitted = bounds.admit(&mut ReceiptTally::default(), &finish(nobody, 1_050, 400));
        assert_eq!(admitted, Err(RejectionReason::NoPermit));
    }

    #[test]
    fn a_pair_has_its_largest_share_and_its_most_executors_of_all_epochs() {
        let falling = [epoch(1_000, &[(OTHER, 50), (GONE, 50)], 100)];
        let fallen = bounds(&[(OTHER, 1), (GONE, 999)], &falling);
        let steady = bounds(
            &[(OTHER, 50), (GONE, 50)],
            &[epoch(1_000, &[(OTHER, 50), (GONE, 50)], 100)],
        );
        assert_eq!(fallen.quota(OTHER, MINER), steady.quota(OTHER, MINER));
        let newcomer = bounds(&[(OTHER, 50), (GONE, 50)], &[]);
        assert!(
            newcomer.quota(OTHER, MINER).unwrap().receipts < steady.quota(OTHER, MINER).unwrap().receipts
        );
    }

    #[test]
    fn own_receipts_have_no_quota() {
        let bounds = bounds(&[(ME, 1), (OTHER, 1)], &[]);
        assert_eq!(bounds.quota(ME, MINER), None);
        let huge = finish(ME, 1_050, u64::MAX);
        assert_eq!(bounds.admit(&mut ReceiptTally::default(), &huge), Ok(()));
    }

    #[test]
    fn a_miner_that_comes_back_with_a_backlog_has_a_quota_for_each_cycle_of_it() {
        let bounds = bounds(&[(ME, 1), (OTHER, 1)], &[]);
        let cycles = [1_150, 1_100, 1_099, 1_000, 999, 950, 0]
            .map(|block| bounds.cycle_of(Timestamp::from_secs(block * 12)));
        assert_eq!(cycles, [1_100, 1_100, 1_000, 1_000, 900, 900, 0]);
        let quota = bounds.quota(OTHER, MINER).unwrap();
        let mut tally = ReceiptTally::default();
        for block in [1_050, 950, 850] {
            let full = bounds.admit(&mut tally, &finish(OTHER, block, quota.bytes));
            assert_eq!(full, Ok(()), "block {block}");
            let more = bounds.admit(&mut tally, &finish(OTHER, block, 1));
            assert_eq!(more, Err(RejectionReason::OverQuota), "block {block}");
        }
    }

    #[test]
    fn a_receipt_may_be_signed_two_cycles_before_its_page() {
        let bounds = bounds(&[], &[]);
        assert_eq!(
            bounds.before_page(),
            Duration::from_secs(3_600),
            "two cycles are shorter"
        );
        let mut slow = bounds;
        slow.scale.blocks = 361;
        assert_eq!(slow.before_page(), Duration::from_secs(2 * 361 * 12));
    }

    #[test]
    fn stakes_that_are_not_known_make_a_whole_share() {
        let mut shares = BTreeMap::new();
        add_shares(&mut shares, &[(OTHER, 1), (GONE, 3)].into());
        assert_eq!(shares[&OTHER], (1, 4));
        add_shares(&mut shares, &[(OTHER, 1), (GONE, 1)].into());
        assert_eq!((shares[&OTHER], shares[&GONE]), ((1, 2), (3, 4)));
        add_shares(&mut shares, &[(OTHER, 0)].into());
        assert_eq!(shares[&OTHER], (0, 0));
        add_shares(&mut shares, &[(OTHER, 1), (GONE, 1)].into());
        assert_eq!(shares[&OTHER], (0, 0));
    }
}
