//! Stake: a hotkey's stake on a subnet is shared by coldkeys. A staker buys shares, dividends raise the value of
//! every share, a miner's pay buys shares for its owner.
//!
//! There is no pool and no price: one rao buys one unit of stake on every subnet. The TAO that was paid is the subnet's
//! until stake is given back; what was emitted can be given back as far as that TAO reaches.

use super::{
    Alpha, AlphaDividendsPerSubnet, Config, Error, Event, NetworksAdded, Owner, Pallet, SubnetAlphaOut,
    SubnetTAO, TotalHotkeyAlpha, TotalHotkeyShares,
};
use crate::AccountId;
use crate::types::{AlphaBalance, FixedU128, NetUid, TaoBalance};
use frame_support::dispatch::DispatchResult;
use frame_support::ensure;
use frame_support::traits::fungible::{Inspect, Mutate};
use frame_support::traits::tokens::{Fortitude, Precision, Preservation};
use sp_core::U256;

/// The least amount that can be staked or taken back, in rao.
pub const LEAST_STAKE: u64 = 2_000_000;

/// `value × numerator ÷ denominator`, rounded down; 0 where the divisor is 0.
fn scale(value: u128, numerator: u128, denominator: u128) -> u128 {
    let product = U256::from(value).saturating_mul(U256::from(numerator));
    let quotient = product.checked_div(U256::from(denominator)).unwrap_or_default();
    quotient.min(U256::from(u128::MAX)).low_u128()
}

/// `value × numerator ÷ denominator`, rounded up.
fn scale_up(value: u128, numerator: u128, denominator: u128) -> u128 {
    let down = scale(value, numerator, denominator);
    if U256::from(down).saturating_mul(U256::from(denominator))
        < U256::from(value).saturating_mul(U256::from(numerator))
    {
        down.saturating_add(1)
    } else {
        down
    }
}

impl<T: Config> Pallet<T> {
    pub(super) fn do_add_stake(
        coldkey: &AccountId,
        hotkey: &AccountId,
        netuid: NetUid,
        amount: TaoBalance,
    ) -> DispatchResult {
        ensure!(NetworksAdded::<T>::get(netuid), Error::<T>::SubnetNotExists);
        ensure!(amount.0 >= LEAST_STAKE, Error::<T>::AmountTooLow);
        let spendable = T::Currency::reducible_balance(coldkey, Preservation::Preserve, Fortitude::Polite);
        ensure!(spendable >= amount.0, Error::<T>::NotEnoughBalanceToStake);
        ensure!(
            Owner::<T>::contains_key(hotkey),
            Error::<T>::HotKeyAccountNotExists
        );
        T::Currency::burn_from(
            coldkey,
            amount.0,
            Preservation::Preserve,
            Precision::Exact,
            Fortitude::Polite,
        )?;
        SubnetTAO::<T>::mutate(netuid, |held| held.0 = held.0.saturating_add(amount.0));
        Self::stake_for(hotkey, coldkey, netuid, amount.0);
        let bought = AlphaBalance(amount.0);
        Self::deposit_event(Event::StakeAdded(
            coldkey.clone(),
            hotkey.clone(),
            amount,
            bought,
            netuid,
            0,
        ));
        Ok(())
    }

    pub(super) fn do_remove_stake(
        coldkey: &AccountId,
        hotkey: &AccountId,
        netuid: NetUid,
        amount: AlphaBalance,
    ) -> DispatchResult {
        ensure!(NetworksAdded::<T>::get(netuid), Error::<T>::SubnetNotExists);
        ensure!(
            Owner::<T>::contains_key(hotkey),
            Error::<T>::HotKeyAccountNotExists
        );
        let owned = Self::stake_of(hotkey, coldkey, netuid);
        ensure!(amount.0 <= owned, Error::<T>::NotEnoughStakeToWithdraw);
        // A rest below the minimum may be taken back if it is the whole stake.
        ensure!(
            amount.0 >= LEAST_STAKE || (amount.0 == owned && owned > 0),
            Error::<T>::AmountTooLow
        );
        let held = SubnetTAO::<T>::get(netuid).0;
        let left = held
            .checked_sub(amount.0)
            .ok_or(Error::<T>::InsufficientLiquidity)?;
        SubnetTAO::<T>::insert(netuid, TaoBalance(left));
        Self::unstake(hotkey, coldkey, netuid, amount.0);
        T::Currency::mint_into(coldkey, amount.0)?;
        let paid = TaoBalance(amount.0);
        Self::deposit_event(Event::StakeRemoved(
            coldkey.clone(),
            hotkey.clone(),
            paid,
            amount,
            netuid,
            0,
        ));
        Ok(())
    }

    /// Takes from a coldkey's stake what it has at most.
    fn unstake(hotkey: &AccountId, coldkey: &AccountId, netuid: NetUid, amount: u64) {
        let stake = TotalHotkeyAlpha::<T>::get(hotkey, netuid).0;
        let shares = TotalHotkeyShares::<T>::get(hotkey, netuid).bits;
        let part = Alpha::<T>::get((hotkey, coldkey, netuid)).bits;
        let all = amount == Self::stake_of(hotkey, coldkey, netuid);
        let sold = if all {
            part
        } else {
            scale_up(shares, amount.into(), stake.into()).min(part)
        };
        let keep = |bits: u128| FixedU128 {
            bits: bits.saturating_sub(sold),
        };
        TotalHotkeyShares::<T>::insert(hotkey, netuid, keep(shares));
        if all {
            Alpha::<T>::remove((hotkey, coldkey, netuid));
        } else {
            Alpha::<T>::insert((hotkey, coldkey, netuid), keep(part));
        }
        let lower = |stake: &mut AlphaBalance| stake.0 = stake.0.saturating_sub(amount);
        TotalHotkeyAlpha::<T>::mutate(hotkey, netuid, lower);
        SubnetAlphaOut::<T>::mutate(netuid, lower);
    }

    /// Adds a coldkey's stake to a hotkey.
    pub(super) fn stake_for(hotkey: &AccountId, coldkey: &AccountId, netuid: NetUid, amount: u64) {
        let stake = TotalHotkeyAlpha::<T>::get(hotkey, netuid).0;
        let shares = TotalHotkeyShares::<T>::get(hotkey, netuid).bits;
        let bought = if stake == 0 || shares == 0 {
            u128::from(amount) << 64
        } else {
            scale(shares, amount.into(), stake.into())
        };
        let all = FixedU128 {
            bits: shares.saturating_add(bought),
        };
        TotalHotkeyShares::<T>::insert(hotkey, netuid, all);
        Alpha::<T>::mutate((hotkey, coldkey, netuid), |part| {
            part.bits = part.bits.saturating_add(bought)
        });
        Self::raise_stake(hotkey, netuid, amount);
    }

    /// Adds to the stake of everybody who staked with a hotkey, in proportion.
    pub(super) fn pay_dividends(hotkey: &AccountId, netuid: NetUid, amount: u64) {
        AlphaDividendsPerSubnet::<T>::insert(netuid, hotkey, AlphaBalance(amount));
        if TotalHotkeyShares::<T>::get(hotkey, netuid).bits == 0 {
            Self::pay_owner(hotkey, netuid, amount);
        } else {
            Self::raise_stake(hotkey, netuid, amount);
        }
    }

    /// Adds to the stake of a hotkey's owner.
    pub(super) fn pay_owner(hotkey: &AccountId, netuid: NetUid, amount: u64) {
        let owner = Owner::<T>::get(hotkey).unwrap_or_else(|| hotkey.clone());
        Self::stake_for(hotkey, &owner, netuid, amount);
    }

    /// The value of a coldkey's part in a hotkey's stake.
    #[must_use]
    pub fn stake_of(hotkey: &AccountId, coldkey: &AccountId, netuid: NetUid) -> u64 {
        let stake = TotalHotkeyAlpha::<T>::get(hotkey, netuid).0;
        let shares = TotalHotkeyShares::<T>::get(hotkey, netuid).bits;
        let part = Alpha::<T>::get((hotkey, coldkey, netuid)).bits;
        u64::try_from(scale(stake.into(), part, shares)).unwrap_or(u64::MAX)
    }

    fn raise_stake(hotkey: &AccountId, netuid: NetUid, amount: u64) {
        let raise = |stake: &mut AlphaBalance| stake.0 = stake.0.saturating_add(amount);
        TotalHotkeyAlpha::<T>::mutate(hotkey, netuid, raise);
        SubnetAlphaOut::<T>::mutate(netuid, raise);
    }
}
