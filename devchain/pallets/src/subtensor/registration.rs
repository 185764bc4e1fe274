//! Registration: a hotkey takes a uid, at genesis or for a price. A full subnet takes nobody: replacing its weakest neuron
//! is not part of this chain yet.

use super::{
    Active, BlockAtRegistration, Burn, Config, Consensus, Dividends, Emission, Error, Event, Incentive,
    IsNetworkMember, Keys, LastUpdate, MaxAllowedUids, MaxRegistrationsPerBlock, MechanismCountCurrent,
    NetworkRegistrationAllowed, NetworksAdded, OwnedHotkeys, Owner, Pallet, RAORecycledForRegistration,
    RegistrationsThisBlock, SubnetworkN, Uids, ValidatorPermit, ValidatorTrust,
};
use crate::AccountId;
use crate::types::{AlphaBalance, MechId, NetUid, TaoBalance};
use frame_support::dispatch::DispatchResult;
use frame_support::ensure;
use frame_support::traits::fungible::{Inspect, Mutate};
use frame_support::traits::tokens::{Fortitude, Precision, Preservation};

impl<T: Config> Pallet<T> {
    pub(super) fn do_burned_register(
        coldkey: &AccountId,
        netuid: NetUid,
        hotkey: &AccountId,
    ) -> DispatchResult {
        ensure!(
            netuid != NetUid::ROOT,
            Error::<T>::RegistrationNotPermittedOnRootSubnet
        );
        ensure!(NetworksAdded::<T>::get(netuid), Error::<T>::SubnetNotExists);
        ensure!(
            NetworkRegistrationAllowed::<T>::get(netuid),
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

        let price = Burn::<T>::get(netuid);
        let spendable = T::Currency::reducible_balance(coldkey, Preservation::Expendable, Fortitude::Polite);
        ensure!(spendable >= price.0, Error::<T>::NotEnoughBalanceToStake);
        let owner = Owner::<T>::get(hotkey);
        ensure!(
            owner.is_none_or(|owner| owner == *coldkey),
            Error::<T>::NonAssociatedColdKey
        );

        let uid = Self::append_neuron(netuid, hotkey, coldkey)?;
        let burned = T::Currency::burn_from(
            coldkey,
            price.0,
            Preservation::Expendable,
            Precision::Exact,
            Fortitude::Polite,
        )?;
        RegistrationsThisBlock::<T>::insert(netuid, taken.saturating_add(1));
        RAORecycledForRegistration::<T>::mutate(netuid, |total| {
            *total = TaoBalance(total.0.saturating_add(burned))
        });
        Self::deposit_event(Event::NeuronRegistered(netuid, uid, hotkey.clone()));
        Ok(())
    }

    /// Gives a hotkey the next uid and a place in every column.
    pub(super) fn append_neuron(
        netuid: NetUid,
        hotkey: &AccountId,
        coldkey: &AccountId,
    ) -> Result<u16, Error<T>> {
        let uid = SubnetworkN::<T>::get(netuid);
        ensure!(
            uid < MaxAllowedUids::<T>::get(netuid),
            Error::<T>::NoNeuronIdAvailable
        );
        let now = Self::now();
        SubnetworkN::<T>::insert(netuid, uid.saturating_add(1));
        Uids::<T>::insert(netuid, hotkey, uid);
        Keys::<T>::insert(netuid, uid, hotkey);
        IsNetworkMember::<T>::insert(hotkey, netuid, true);
        BlockAtRegistration::<T>::insert(netuid, uid, now);
        Owner::<T>::insert(hotkey, coldkey);
        OwnedHotkeys::<T>::mutate(coldkey, |owned| {
            if !owned.contains(hotkey) {
                owned.push(hotkey.clone());
            }
        });

        ValidatorPermit::<T>::append(netuid, false);
        Active::<T>::append(netuid, true);
        Dividends::<T>::append(netuid, 0u16);
        Consensus::<T>::append(netuid, 0u16);
        ValidatorTrust::<T>::append(netuid, 0u16);
        Emission::<T>::append(netuid, AlphaBalance(0));
        for mecid in 0..MechanismCountCurrent::<T>::get(netuid).0 {
            let index = netuid.index(MechId(mecid));
            LastUpdate::<T>::append(index, now);
            Incentive::<T>::append(index, 0u16);
        }
        Ok(uid)
    }
}
