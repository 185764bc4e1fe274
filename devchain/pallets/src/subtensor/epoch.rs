//! The clock of epochs. An epoch of a subnet falls due `tempo` blocks after the last one; what it computes (consensus,
//! incentive, emission) is not part of this chain yet, so the columns that it would write stay as they are.

use super::{
    BlocksSinceLastStep, Config, LastEpochBlock, NetworksAdded, Pallet, PendingEpochAt,
    RegistrationsThisBlock, SubnetEpochIndex, Tempo,
};
use crate::types::NetUid;

impl<T: Config> Pallet<T> {
    /// What every block begins with.
    pub(super) fn begin_block() {
        let now = Self::now();
        let subnets: Vec<NetUid> = NetworksAdded::<T>::iter_keys()
            .filter(|netuid| *netuid != NetUid::ROOT)
            .collect();
        for netuid in subnets {
            RegistrationsThisBlock::<T>::remove(netuid);
            if Self::next_epoch(netuid).is_some_and(|due| due <= now) {
                LastEpochBlock::<T>::insert(netuid, now);
                PendingEpochAt::<T>::remove(netuid);
                SubnetEpochIndex::<T>::mutate(netuid, |index| *index = index.saturating_add(1));
                BlocksSinceLastStep::<T>::insert(netuid, 0);
            } else {
                BlocksSinceLastStep::<T>::mutate(netuid, |blocks| *blocks = blocks.saturating_add(1));
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
}
