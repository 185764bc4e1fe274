//! The fee of a transaction whose call is not free: little, as on the public chain.

use frame_support::weights::Weight;

/// 50 rao per million of execution weight.
pub struct WeightToFee;

impl frame_support::weights::WeightToFee for WeightToFee {
    type Balance = u64;

    fn weight_to_fee(weight: &Weight) -> u64 {
        weight.ref_time().saturating_div(20_000)
    }
}
