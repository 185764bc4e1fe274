//! The clock of epochs and what an epoch does: it reads a subnet's columns, has the arithmetic done elsewhere
//! (`muster-devchain-consensus`), writes the columns and pays.
//!
//! An epoch falls due `tempo` blocks after the last one, as on the public chain since `LastEpochBlock` exists; before,
//! it was `tempo + 1`.

use super::{
    Active, ActivityCutoff, AlphaDividendsPerSubnet, BlockAtRegistration, BlocksSinceLastStep, Bonds,
    BondsMovingAverage, BondsPenalty, CommitRevealWeightsEnabled, Config, Consensus, Dividends, Emission,
    Incentive, Kappa, Keys, LastEpochBlock, LastMechansimStepBlock, LastUpdate, MaxAllowedValidators,
    MechanismCountCurrent, NetworksAdded, Pallet, PendingEpochAt, PendingServerEmission,
    PendingValidatorEmission, PruningScores, Rank, StakeThreshold, StakeWeight, SubnetAlphaOutEmission,
    SubnetEpochIndex, SubnetworkN, Tempo, TotalHotkeyAlpha, Trust, ValidatorPermit, ValidatorTrust, Weights,
};
use crate::AccountId;
use crate::types::{AlphaBalance, MechId, NetUid, NetUidStorageIndex};
use muster_devchain_consensus::{Epoch, Neuron, Payment, Row, Rules, Seat, pay, run};
use std::collections::BTreeMap;

impl<T: Config> Pallet<T> {
    /// The work at the beginning of every block.
    pub(super) fn begin_block() {
        for netuid in Self::netuids()
            .into_iter()
            .filter(|netuid| *netuid != NetUid::ROOT)
        {
            Self::renew_registrations(netuid);
            Self::accrue(netuid);
            // Bounded, as on the public chain: one more than the tempo shows that an epoch is overdue.
            let most = u64::from(Tempo::<T>::get(netuid)).saturating_add(1);
            BlocksSinceLastStep::<T>::mutate(netuid, |blocks| *blocks = blocks.saturating_add(1).min(most));
            let due = Self::epoch_is_due(netuid);
            Self::reveal_timelocked(netuid, due);
            if due {
                Self::run_epoch(netuid);
                Self::close_epoch(netuid);
            }
        }
    }

    /// The block of a subnet's next epoch; `None` where there is no such subnet or its tempo is 0.
    #[must_use]
    pub fn next_epoch(netuid: NetUid) -> Option<u64> {
        let tempo = u64::from(Tempo::<T>::get(netuid));
        if tempo == 0 || !NetworksAdded::<T>::get(netuid) {
            return None;
        }
        let due = LastEpochBlock::<T>::get(netuid).saturating_add(tempo);
        Some(match PendingEpochAt::<T>::get(netuid) {
            0 => due,
            asked => due.min(asked),
        })
    }

    fn epoch_is_due(netuid: NetUid) -> bool {
        Self::next_epoch(netuid).is_some_and(|due| due <= Self::now())
    }

    /// Lays the block's emission aside, half for miners and half for validators.
    fn accrue(netuid: NetUid) {
        let AlphaBalance(emitted) = SubnetAlphaOutEmission::<T>::get(netuid);
        if emitted > 0 {
            Self::lay_aside(netuid, emitted);
        }
    }

    fn lay_aside(netuid: NetUid, amount: u64) {
        let miners = amount.checked_div(2).unwrap_or(0);
        let validators = amount.saturating_sub(miners);
        PendingServerEmission::<T>::mutate(netuid, |sum| sum.0 = sum.0.saturating_add(miners));
        PendingValidatorEmission::<T>::mutate(netuid, |sum| sum.0 = sum.0.saturating_add(validators));
    }

    fn close_epoch(netuid: NetUid) {
        let now = Self::now();
        LastEpochBlock::<T>::insert(netuid, now);
        LastMechansimStepBlock::<T>::insert(netuid, now);
        PendingEpochAt::<T>::remove(netuid);
        SubnetEpochIndex::<T>::mutate(netuid, |index| *index = index.saturating_add(1));
        BlocksSinceLastStep::<T>::insert(netuid, 0);
    }

    /// Computes the epoch of every mechanism and pays what was laid aside, in equal parts for each mechanism; what the
    /// division leaves is the first one's.
    fn run_epoch(netuid: NetUid) {
        let laid_aside = [
            PendingServerEmission::<T>::take(netuid),
            PendingValidatorEmission::<T>::take(netuid),
        ];
        let amount = laid_aside
            .iter()
            .fold(0, |sum: u64, part| sum.saturating_add(part.0));
        let mechanisms = MechanismCountCurrent::<T>::get(netuid).0.max(1);
        let part = amount.checked_div(mechanisms.into()).unwrap_or(0);
        let first = amount.saturating_sub(part.saturating_mul(u64::from(mechanisms).saturating_sub(1)));

        let mut sums = vec![Sum::default(); usize::from(SubnetworkN::<T>::get(netuid))];
        for mecid in 0..mechanisms {
            let index = netuid.index(MechId(mecid));
            let outcome = run(&Self::epoch_of(netuid, index));
            let amount = if mecid == 0 { first } else { part };
            match pay(amount, &outcome) {
                Some(payments) => sums
                    .iter_mut()
                    .zip(payments)
                    .for_each(|(sum, payment)| sum.pay(payment)),
                None => Self::lay_aside(netuid, amount),
            }
            sums.iter_mut()
                .zip(&outcome.seats)
                .for_each(|(sum, seat)| sum.add(seat));
            Incentive::<T>::insert(index, column(&outcome.seats, |seat| seat.incentive));
            Self::store_bonds(index, outcome.bonds);
        }
        Self::store_seats(netuid, &sums, mechanisms.into());
        Self::pay_out(netuid, &sums);
    }

    /// A mechanism before its epoch.
    fn epoch_of(netuid: NetUid, index: NetUidStorageIndex) -> Epoch {
        let permits = ValidatorPermit::<T>::get(netuid);
        let updates = LastUpdate::<T>::get(index);
        let registrations: BTreeMap<u16, u64> = BlockAtRegistration::<T>::iter_prefix(netuid).collect();
        let commits = if CommitRevealWeightsEnabled::<T>::get(netuid) {
            Self::oldest_commits(netuid, index)
        } else {
            BTreeMap::new()
        };
        let neurons = Self::hotkeys(netuid).into_iter().zip(0u16..);
        let neuron = |(hotkey, uid): (AccountId, u16)| Neuron {
            stake: TotalHotkeyAlpha::<T>::get(&hotkey, netuid).0,
            permit: permits.get(usize::from(uid)).copied().unwrap_or_default(),
            last_update: updates.get(usize::from(uid)).copied().unwrap_or_default(),
            registered: registrations.get(&uid).copied().unwrap_or_default(),
            committed: commits.get(&hotkey).copied(),
        };
        Epoch {
            neurons: neurons.map(neuron).collect(),
            weights: Self::rows(netuid, Weights::<T>::iter_prefix(index)),
            bonds: Self::rows(netuid, Bonds::<T>::iter_prefix(index)),
            rules: Self::rules(netuid),
        }
    }

    fn rules(netuid: NetUid) -> Rules {
        let block = Self::now();
        let last = LastMechansimStepBlock::<T>::get(netuid);
        Rules {
            block,
            bonds_since: if last == 0 {
                block.saturating_sub(Tempo::<T>::get(netuid).into())
            } else {
                last.saturating_add(1)
            },
            activity_cutoff: ActivityCutoff::<T>::get(netuid).into(),
            kappa: Kappa::<T>::get(netuid),
            bonds_moving_average: BondsMovingAverage::<T>::get(netuid),
            bonds_penalty: BondsPenalty::<T>::get(netuid),
            max_validators: MaxAllowedValidators::<T>::get(netuid),
            stake_threshold: StakeThreshold::<T>::get(),
        }
    }

    /// A subnet's hotkeys by uid.
    fn hotkeys(netuid: NetUid) -> Vec<AccountId> {
        let by_uid: BTreeMap<u16, AccountId> = Keys::<T>::iter_prefix(netuid).collect();
        by_uid.into_values().collect()
    }

    /// Stored rows by uid, with an empty one for each uid that has none.
    fn rows(netuid: NetUid, stored: impl Iterator<Item = (u16, Row)>) -> Vec<Row> {
        let mut rows = vec![Row::new(); usize::from(SubnetworkN::<T>::get(netuid))];
        for (uid, row) in stored {
            if let Some(place) = rows.get_mut(usize::from(uid)) {
                *place = row;
            }
        }
        rows
    }

    fn store_bonds(index: NetUidStorageIndex, bonds: Vec<Row>) {
        let before: Vec<u16> = Bonds::<T>::iter_key_prefix(index).collect();
        for uid in before {
            Bonds::<T>::remove(index, uid);
        }
        for (uid, row) in (0u16..).zip(bonds).filter(|(_, row)| !row.is_empty()) {
            Bonds::<T>::insert(index, uid, row);
        }
    }

    /// Writes the columns that a subnet has once for all of its mechanisms: the mean of theirs.
    fn store_seats(netuid: NetUid, sums: &[Sum], mechanisms: u32) {
        let mean = |value: fn(&Sum) -> u32| -> Vec<u16> {
            let mean = |sum: &Sum| value(sum).checked_div(mechanisms).unwrap_or(0);
            sums.iter()
                .map(|sum| u16::try_from(mean(sum)).unwrap_or(u16::MAX))
                .collect()
        };
        Active::<T>::insert(netuid, column(sums, |sum| sum.active));
        ValidatorPermit::<T>::insert(netuid, column(sums, |sum| sum.permit));
        StakeWeight::<T>::insert(netuid, mean(|sum| sum.stake));
        Consensus::<T>::insert(netuid, mean(|sum| sum.consensus));
        Rank::<T>::insert(netuid, mean(|sum| sum.rank));
        Trust::<T>::insert(netuid, mean(|sum| sum.trust));
        ValidatorTrust::<T>::insert(netuid, mean(|sum| sum.validator_trust));
        Dividends::<T>::insert(netuid, mean(|sum| sum.dividends));
        PruningScores::<T>::insert(netuid, mean(|sum| sum.pruning_score));
        Emission::<T>::insert(netuid, column(sums, |sum| AlphaBalance(sum.payment.sum())));
    }

    /// A miner's pay is its owner's stake; a validator's raises the stake of everybody who staked with it.
    fn pay_out(netuid: NetUid, sums: &[Sum]) {
        let last: Vec<AccountId> = AlphaDividendsPerSubnet::<T>::iter_key_prefix(netuid).collect();
        for hotkey in last {
            AlphaDividendsPerSubnet::<T>::remove(netuid, hotkey);
        }
        for (hotkey, sum) in Self::hotkeys(netuid).iter().zip(sums) {
            if sum.payment.validator > 0 {
                Self::pay_dividends(hotkey, netuid, sum.payment.validator);
            }
            if sum.payment.miner > 0 {
                Self::pay_owner(hotkey, netuid, sum.payment.miner);
            }
        }
    }
}

/// One neuron's seats in all mechanisms, added up.
#[derive(Clone, Copy, Default)]
struct Sum {
    active: bool,
    permit: bool,
    stake: u32,
    consensus: u32,
    rank: u32,
    trust: u32,
    validator_trust: u32,
    dividends: u32,
    pruning_score: u32,
    payment: Payment,
}

impl Sum {
    fn pay(&mut self, payment: Payment) {
        self.payment.miner = self.payment.miner.saturating_add(payment.miner);
        self.payment.validator = self.payment.validator.saturating_add(payment.validator);
    }

    fn add(&mut self, seat: &Seat) {
        self.active |= seat.active;
        self.permit |= seat.permit;
        for (sum, value) in [
            (&mut self.stake, seat.stake),
            (&mut self.consensus, seat.consensus),
            (&mut self.rank, seat.incentive),
            (&mut self.trust, seat.trust),
            (&mut self.validator_trust, seat.validator_trust),
            (&mut self.dividends, seat.dividends),
            (&mut self.pruning_score, seat.pruning_score),
        ] {
            *sum = sum.saturating_add(value.into());
        }
    }
}

/// One column of all neurons.
fn column<S, V>(neurons: &[S], value: impl Fn(&S) -> V) -> Vec<V> {
    neurons.iter().map(value).collect()
}
