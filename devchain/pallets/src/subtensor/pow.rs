//! Registration for work: the hotkey looks for a nonce whose seal, made with a recent block, is below what the
//! difficulty allows. The public chain has dropped it since spec version 365; here it is closed unless the subnet opens
//! it.

use super::{
    Config, Difficulty, Error, Event, MaxRegistrationsPerBlock, NetworkPowRegistrationAllowed, NetworksAdded,
    Owner, Pallet, RegistrationsThisBlock, Uids, UsedWork,
};
use crate::AccountId;
use crate::types::NetUid;
use frame_support::{dispatch::DispatchResult, ensure};
use frame_system::pallet_prelude::BlockNumberFor;
use sp_core::U256;
use sp_io::hashing::{keccak_256, sha2_256};
use sp_runtime::SaturatedConversion;

/// How many blocks ago the work may have begun.
const FRESH: u64 = 3;

/// The seal of a nonce for a hotkey in a block.
#[must_use]
pub fn seal(block_hash: &[u8], hotkey: &AccountId, nonce: u64) -> [u8; 32] {
    let block_and_hotkey = keccak_256(&[block_hash, hotkey.as_ref()].concat());
    keccak_256(&sha2_256(&[&nonce.to_le_bytes()[..], &block_and_hotkey].concat()))
}

/// Whether a seal is rare enough.
fn hard_enough(seal: &[u8; 32], difficulty: u64) -> bool {
    U256::from_little_endian(seal)
        .checked_mul(U256::from(difficulty))
        .is_some()
}

impl<T: Config> Pallet<T> {
    pub(super) fn do_register(
        who: &AccountId,
        netuid: NetUid,
        block_number: u64,
        nonce: u64,
        work: &[u8],
        hotkey: &AccountId,
        coldkey: &AccountId,
    ) -> DispatchResult {
        ensure!(who == hotkey, Error::<T>::TransactorAccountShouldBeHotKey);
        ensure!(
            netuid != NetUid::ROOT,
            Error::<T>::RegistrationNotPermittedOnRootSubnet
        );
        ensure!(NetworksAdded::<T>::get(netuid), Error::<T>::SubnetNotExists);
        ensure!(
            NetworkPowRegistrationAllowed::<T>::get(netuid),
            Error::<T>::SubNetRegistrationDisabled
        );
        let taken = RegistrationsThisBlock::<T>::get(netuid);
        ensure!(
            taken < MaxRegistrationsPerBlock::<T>::get(netuid),
            Error::<T>::TooManyRegistrationsThisBlock
        );
        ensure!(
            !Uids::<T>::contains_key(netuid, hotkey),
            Error::<T>::HotKeyAlreadyRegisteredInSubNet
        );
        let age = Self::now()
            .checked_sub(block_number)
            .ok_or(Error::<T>::InvalidWorkBlock)?;
        ensure!(age < FRESH, Error::<T>::InvalidWorkBlock);
        let work: [u8; 32] = work.try_into().map_err(|_| Error::<T>::InvalidSeal)?;
        ensure!(
            hard_enough(&work, Difficulty::<T>::get(netuid)),
            Error::<T>::InvalidDifficulty
        );
        let block: BlockNumberFor<T> = block_number.saturated_into();
        let block_hash = frame_system::Pallet::<T>::block_hash(block);
        ensure!(
            seal(block_hash.as_ref(), hotkey, nonce) == work,
            Error::<T>::InvalidSeal
        );
        ensure!(
            Owner::<T>::get(hotkey).is_none_or(|owner| owner == *coldkey),
            Error::<T>::NonAssociatedColdKey
        );
        UsedWork::<T>::insert(work.to_vec(), Self::now());
        let uid = Self::take_uid(netuid, hotkey, coldkey)?;
        RegistrationsThisBlock::<T>::insert(netuid, taken.saturating_add(1));
        Self::deposit_event(Event::NeuronRegistered(netuid, uid, hotkey.clone()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difficulty_is_a_bound_on_the_seal() {
        let mut seal = [255; 32];
        assert!(hard_enough(&seal, 1));
        assert!(!hard_enough(&seal, 2));
        // Little-endian: the last byte is the highest.
        seal[31] = 0;
        assert!(hard_enough(&seal, 256));
        assert!(!hard_enough(&seal, 257));
    }
}
