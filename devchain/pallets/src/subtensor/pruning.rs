//! Pruning: a registration on a full subnet replaces the neuron that earned least in the last epoch, of equals the one
//! that has been there longest, of those the lowest uid. Neurons within their immunity are spared as long as others can
//! go; the owner's hotkey always.

use super::{
    AssociatedEvmAddress, Axons, BlockAtRegistration, Bonds, Config, Consensus, Dividends, Emission,
    ImmunityPeriod, Incentive, IsNetworkMember, Keys, MechanismCountCurrent, MinNonImmuneUids,
    NeuronCertificates, Pallet, Prometheus, PruningScores, Rank, StakeWeight, SubnetOwnerHotkey, SubnetworkN,
    Trust, Uids, ValidatorPermit, ValidatorTrust, Weights,
};
use crate::types::{MechId, NetUid};
use std::collections::BTreeMap;

/// One who may have to go. The order of the fields is the order of the rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Candidate {
    emission: u64,
    registered: u64,
    uid: u16,
}

/// Chooses between those who are spared and those who are not, of whom `least` stay.
fn weakest(spared: &[Candidate], others: &[Candidate], least: u16) -> Option<u16> {
    let from = if others.len() > usize::from(least) {
        others
    } else {
        spared
    };
    from.iter().min().map(|candidate| candidate.uid)
}

impl<T: Config> Pallet<T> {
    /// The uid that a registration on a full subnet takes; `None` where nobody can go.
    #[must_use]
    pub fn neuron_to_prune(netuid: NetUid) -> Option<u16> {
        let emissions = Emission::<T>::get(netuid);
        let registrations: BTreeMap<u16, u64> = BlockAtRegistration::<T>::iter_prefix(netuid).collect();
        let owner = SubnetOwnerHotkey::<T>::get(netuid).and_then(|owner| Uids::<T>::get(netuid, owner));
        let candidate = |uid: u16| Candidate {
            emission: emissions.get(usize::from(uid)).map_or(0, |emission| emission.0),
            registered: registrations.get(&uid).copied().unwrap_or_default(),
            uid,
        };
        let immunity = u64::from(ImmunityPeriod::<T>::get(netuid));
        let (spared, others): (Vec<_>, Vec<_>) = (0..SubnetworkN::<T>::get(netuid))
            .filter(|uid| Some(*uid) != owner)
            .map(candidate)
            .partition(|candidate| Self::now().saturating_sub(candidate.registered) < immunity);
        weakest(&spared, &others, MinNonImmuneUids::<T>::get(netuid))
    }

    /// Removes everything that belongs to the hotkey that held a uid. The uid itself stays, for the next one.
    pub(super) fn clear_neuron(netuid: NetUid, uid: u16) {
        if let Some(hotkey) = Keys::<T>::take(netuid, uid) {
            Uids::<T>::remove(netuid, &hotkey);
            IsNetworkMember::<T>::remove(&hotkey, netuid);
            Axons::<T>::remove(netuid, &hotkey);
            NeuronCertificates::<T>::remove(netuid, &hotkey);
            Prometheus::<T>::remove(netuid, &hotkey);
        }
        AssociatedEvmAddress::<T>::remove(netuid, uid);
        ValidatorPermit::<T>::mutate(netuid, |column| clear(column, uid));
        Emission::<T>::mutate(netuid, |column| clear(column, uid));
        Consensus::<T>::mutate(netuid, |column| clear(column, uid));
        Dividends::<T>::mutate(netuid, |column| clear(column, uid));
        Rank::<T>::mutate(netuid, |column| clear(column, uid));
        Trust::<T>::mutate(netuid, |column| clear(column, uid));
        ValidatorTrust::<T>::mutate(netuid, |column| clear(column, uid));
        PruningScores::<T>::mutate(netuid, |column| clear(column, uid));
        StakeWeight::<T>::mutate(netuid, |column| clear(column, uid));
        for mecid in 0..MechanismCountCurrent::<T>::get(netuid).0 {
            Self::clear_weights(netuid, MechId(mecid), uid);
        }
    }

    /// Removes a uid's weights and bonds, and what others have for it. Bonds of others on it are void at the next epoch
    /// by the date of the registration, unless that is the very block of an epoch: then they stay, as on the public
    /// chain.
    fn clear_weights(netuid: NetUid, mecid: MechId, uid: u16) {
        let index = netuid.index(mecid);
        Incentive::<T>::mutate(index, |column| clear(column, uid));
        Bonds::<T>::remove(index, uid);
        Weights::<T>::remove(index, uid);
        let others: Vec<(u16, Vec<(u16, u16)>)> = Weights::<T>::iter_prefix(index).collect();
        for (validator, mut row) in others {
            if let Some(weight) = row.iter_mut().find(|(target, _)| *target == uid) {
                weight.1 = 0;
                Weights::<T>::insert(index, validator, row);
            }
        }
    }
}

fn clear<V: Default>(column: &mut [V], uid: u16) {
    if let Some(value) = column.get_mut(usize::from(uid)) {
        *value = V::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(emission: u64, registered: u64, uid: u16) -> Candidate {
        Candidate {
            emission,
            registered,
            uid,
        }
    }

    #[test]
    fn the_weakest_then_the_oldest_then_the_lowest_goes() {
        let others = [one(5, 0, 0), one(1, 7, 1), one(1, 3, 2), one(1, 3, 3)];
        assert_eq!(weakest(&[one(0, 9, 4)], &others, 0), Some(2));
        assert_eq!(weakest(&[], &[], 0), None);
    }

    #[test]
    fn the_spared_go_only_when_too_few_others_are_left() {
        let spared = [one(0, 9, 4), one(0, 8, 5)];
        assert_eq!(weakest(&spared, &[one(5, 0, 0)], 1), Some(5));
        assert_eq!(weakest(&spared, &[], 0), Some(5));
        assert_eq!(weakest(&[], &[one(5, 0, 0)], 1), None);
    }
}
