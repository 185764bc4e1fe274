//! The price of a registration: each one raises it, every block lowers it, and it stays within the subnet's bounds. So
//! the public chain does since `BurnHalfLife` exists; before, it was adjusted once an interval.

use super::{
    AdjustmentInterval, Burn, BurnHalfLife, BurnIncreaseMult, Config, LastAdjustmentBlock, MaxBurn, MinBurn,
    Pallet, RegistrationsThisBlock, RegistrationsThisInterval,
};
use crate::types::{FixedU128, NetUid, TaoBalance};
use muster_devchain_consensus::half_life_factor;
use sp_core::U256;

/// A number of thousandths.
pub(super) fn thousandths(value: u32) -> FixedU128 {
    FixedU128 {
        bits: (u128::from(value) << 64).checked_div(1000).unwrap_or(0),
    }
}

/// An amount times a factor, rounded down.
fn times(amount: u64, factor: FixedU128) -> u64 {
    let product = U256::from(amount).saturating_mul(U256::from(factor.bits)) >> 64u32;
    product.min(U256::from(u64::MAX)).low_u64()
}

impl<T: Config> Pallet<T> {
    /// Begins a block for registrations: a lower price, counters at zero.
    pub(super) fn renew_registrations(netuid: NetUid) {
        RegistrationsThisBlock::<T>::remove(netuid);
        let now = Self::now();
        let age = now.saturating_sub(LastAdjustmentBlock::<T>::get(netuid));
        if age >= u64::from(AdjustmentInterval::<T>::get(netuid)) {
            LastAdjustmentBlock::<T>::insert(netuid, now);
            RegistrationsThisInterval::<T>::remove(netuid);
        }
        let half_life = BurnHalfLife::<T>::get(netuid);
        if half_life > 0 && now > 1 {
            let price = Burn::<T>::get(netuid).0;
            let factor = half_life_factor(half_life);
            Self::set_price(
                netuid,
                price,
                u64::try_from(u128::from(price).saturating_mul(factor) >> 32).unwrap_or(price),
            );
        }
    }

    /// The price after a registration.
    pub(super) fn raise_price(netuid: NetUid) {
        let price = Burn::<T>::get(netuid).0;
        let factor = BurnIncreaseMult::<T>::get(netuid);
        Self::set_price(netuid, price, times(price, factor).max(price));
    }

    fn set_price(netuid: NetUid, before: u64, wished: u64) {
        let (least, most) = (MinBurn::<T>::get(netuid).0, MaxBurn::<T>::get(netuid).0);
        let price = wished.min(most).max(least);
        if price != before {
            Burn::<T>::insert(netuid, TaoBalance(price));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_multiplied_and_rounded_down() {
        assert_eq!(times(1_000, thousandths(1_260)), 1_259);
        assert_eq!(times(1_000, thousandths(1_000)), 1_000);
        assert_eq!(times(1_000, thousandths(1_500)), 1_500);
        assert_eq!(times(u64::MAX, thousandths(2_000)), u64::MAX);
    }
}
