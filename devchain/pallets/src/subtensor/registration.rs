//! Registration: a hotkey takes a uid, at genesis or for a price. On a full subnet it takes the weakest neuron's.

use super::{
    Active, BlockAtRegistration, Burn, Config, Consensus, Dividends, Emission, Error, Event, Incentive,
    IsNetworkMember, Keys, LastUpdate, MaxAllowedUids, MaxRegistrationsPerBlock, MechanismCountCurrent,
    NetworkRegistrationAllowed, NetworksAdded, OwnedHotkeys, Owner, Pallet, PruningScores,
    RAORecycledForRegistration, Rank, RegistrationsThisBlock, RegistrationsThisInterval, StakeWeight,
    SubnetworkN, TargetRegistrationsPerInterval, Trust, Uids, ValidatorPermit, ValidatorTrust,
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
        let most = TargetRegistrationsPerInterval::<T>::get(netuid).saturating_mul(3);
        ensure!(
            RegistrationsThisInterval::<T>::get(netuid) < most,
            Error::<T>::TooManyRegistrationsThisInterval
        );
        ensure!(
            !Uids::<T>::contains_key(netuid, hotkey),
            Error::<T>::HotKeyAlreadyRegisteredInSubNet
        );

        let price = Burn::<T>::get(netuid);
        let spendable = T::Currency::reducible_balance(coldkey, Preservation::Preserve, Fortitude::Polite);
        ensure!(spendable >= price.0, Error::<T>::NotEnoughBalanceToStake);
        let owner = Owner::<T>::get(hotkey);
        ensure!(
            owner.is_none_or(|owner| owner == *coldkey),
            Error::<T>::NonAssociatedColdKey
        );

        let uid = Self::take_uid(netuid, hotkey, coldkey)?;
        let burned = T::Currency::burn_from(
            coldkey,
            price.0,
            Preservation::Preserve,
            Precision::Exact,
            Fortitude::Polite,
        )?;
        RegistrationsThisBlock::<T>::insert(netuid, taken.saturating_add(1));
        RegistrationsThisInterval::<T>::mutate(netuid, |count| *count = count.saturating_add(1));
        RAORecycledForRegistration::<T>::mutate(netuid, |total| {
            *total = TaoBalance(total.0.saturating_add(burned))
        });
        Self::raise_price(netuid);
        Self::deposit_event(Event::NeuronRegistered(netuid, uid, hotkey.clone()));
        Ok(())
    }

    /// Registers as [`Self::do_burned_register`] does, if the price is not above a limit.
    pub(super) fn do_register_limit(
        coldkey: &AccountId,
        netuid: NetUid,
        hotkey: &AccountId,
        limit: u64,
    ) -> DispatchResult {
        ensure!(
            netuid != NetUid::ROOT,
            Error::<T>::RegistrationNotPermittedOnRootSubnet
        );
        ensure!(NetworksAdded::<T>::get(netuid), Error::<T>::SubnetNotExists);
        ensure!(
            Burn::<T>::get(netuid).0 <= limit,
            Error::<T>::RegistrationPriceLimitExceeded
        );
        Self::do_burned_register(coldkey, netuid, hotkey)
    }

    /// Gives a hotkey the next uid or, where the subnet is full, the weakest neuron's.
    pub(super) fn take_uid(netuid: NetUid, hotkey: &AccountId, coldkey: &AccountId) -> Result<u16, Error<T>> {
        let neurons = SubnetworkN::<T>::get(netuid);
        if neurons < MaxAllowedUids::<T>::get(netuid) {
            SubnetworkN::<T>::insert(netuid, neurons.saturating_add(1));
            Self::append_columns(netuid);
            Self::seat_neuron(netuid, neurons, hotkey, coldkey);
            return Ok(neurons);
        }
        let uid = Self::neuron_to_prune(netuid).ok_or(Error::<T>::NoNeuronIdAvailable)?;
        Self::clear_neuron(netuid, uid);
        Self::seat_neuron(netuid, uid, hotkey, coldkey);
        Self::renew_columns(netuid, uid);
        Ok(uid)
    }

    /// Writes down who holds a uid, from now on.
    fn seat_neuron(netuid: NetUid, uid: u16, hotkey: &AccountId, coldkey: &AccountId) {
        let now = Self::now();
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
    }

    /// The columns of a newcomer on a reused uid: it counts as active, and as having set weights now; the rest is zero.
    fn renew_columns(netuid: NetUid, uid: u16) {
        Active::<T>::mutate(netuid, |column| {
            if let Some(active) = column.get_mut(usize::from(uid)) {
                *active = true;
            }
        });
        for mecid in 0..MechanismCountCurrent::<T>::get(netuid).0 {
            Self::set_last_update(netuid.index(MechId(mecid)), uid);
        }
    }

    /// One more place in every column.
    fn append_columns(netuid: NetUid) {
        ValidatorPermit::<T>::append(netuid, false);
        Active::<T>::append(netuid, true);
        Emission::<T>::append(netuid, AlphaBalance(0));
        Dividends::<T>::append(netuid, 0u16);
        Consensus::<T>::append(netuid, 0u16);
        Rank::<T>::append(netuid, 0u16);
        Trust::<T>::append(netuid, 0u16);
        ValidatorTrust::<T>::append(netuid, 0u16);
        PruningScores::<T>::append(netuid, 0u16);
        StakeWeight::<T>::append(netuid, 0u16);
        for mecid in 0..MechanismCountCurrent::<T>::get(netuid).0 {
            let index = netuid.index(MechId(mecid));
            Incentive::<T>::append(index, 0u16);
            LastUpdate::<T>::append(index, Self::now());
        }
    }
}
