//! The money of an epoch, to the last unit.
//!
//! Half of it, rounded down, is the miners', the rest the validators'; where one side has no shares, the other has it
//! all. Each half is divided by shares, rounding down; what rounding leaves goes to the largest share, of equal ones to
//! the lowest uid. Where nobody has a share nothing is paid, and the whole amount waits for the next epoch.

use crate::Share;
use crate::epoch::{Outcome, some};

/// The pay of one neuron, in the token's 10⁻⁹ units.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payment {
    /// For being weighed.
    pub miner: u64,
    /// The pay for its validating.
    pub validator: u64,
}

impl Payment {
    /// The sum of both parts.
    #[must_use]
    pub fn sum(self) -> u64 {
        self.miner.saturating_add(self.validator)
    }
}

/// Divides an amount among neurons, by uid. `None` where nobody has a share.
#[must_use]
pub fn pay(amount: u64, outcome: &Outcome) -> Option<Vec<Payment>> {
    let half = amount.checked_div(2).unwrap_or(0);
    let nothing = || vec![0; outcome.seats.len()];
    let (miners, validators) = match (some(&outcome.miners), some(&outcome.validators)) {
        (true, true) => {
            let rest = amount.saturating_sub(half);
            (divide(half, &outcome.miners)?, divide(rest, &outcome.validators)?)
        }
        (true, false) => (divide(amount, &outcome.miners)?, nothing()),
        (false, true) => (nothing(), divide(amount, &outcome.validators)?),
        (false, false) => return None,
    };
    let payment = |(miner, validator)| Payment { miner, validator };
    Some(miners.into_iter().zip(validators).map(payment).collect())
}

/// Divides an amount by shares, to the last unit. `None` where there is no share.
fn divide(amount: u64, shares: &[Share]) -> Option<Vec<u64>> {
    let sum: u128 = shares.iter().map(|share| u128::from(share.bits())).sum();
    let part = |share: &Share| -> Option<u64> {
        let part = u128::from(amount)
            .checked_mul(u128::from(share.bits()))?
            .checked_div(sum)?;
        u64::try_from(part).ok()
    };
    let mut parts: Vec<u64> = shares.iter().map(part).collect::<Option<_>>()?;
    let rest = amount.saturating_sub(parts.iter().sum());
    let best = shares.iter().copied().max().filter(|best| *best > Share::ZERO)?;
    let place = shares.iter().position(|share| *share == best)?;
    if let Some(part) = parts.get_mut(place) {
        *part = part.saturating_add(rest);
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::Seat;

    fn shares(values: &[u32]) -> Vec<Share> {
        values
            .iter()
            .copied()
            .map(|value| Share::whole(value.into()))
            .collect()
    }

    #[test]
    fn the_rest_goes_to_the_largest_share() {
        assert_eq!(divide(10, &shares(&[1, 1, 1])), Some(vec![4, 3, 3]));
        assert_eq!(divide(10, &shares(&[1, 2, 0])), Some(vec![3, 7, 0]));
        assert_eq!(
            divide(u64::MAX, &shares(&[1, 1])),
            Some(vec![u64::MAX / 2 + 1, u64::MAX / 2])
        );
        assert_eq!(divide(0, &shares(&[5])), Some(vec![0]));
    }

    #[test]
    fn nobody_is_paid_where_nobody_has_a_share() {
        assert_eq!(divide(10, &shares(&[0, 0])), None);
        assert_eq!(divide(10, &[]), None);
        assert_eq!(pay(10, &Outcome::default()), None);
    }

    #[test]
    fn a_side_without_shares_leaves_its_half_to_the_other() {
        let paid = |miners: &[u32], validators: &[u32]| {
            let outcome = Outcome {
                seats: vec![Seat::default(); 2],
                miners: shares(miners),
                validators: shares(validators),
                ..Outcome::default()
            };
            let paid = pay(101, &outcome).unwrap_or_default();
            paid.iter().map(|p| (p.miner, p.validator)).collect::<Vec<_>>()
        };
        assert_eq!(paid(&[0, 0], &[1, 3]), [(0, 25), (0, 76)]);
        assert_eq!(paid(&[1, 3], &[0, 0]), [(25, 0), (76, 0)]);
        assert_eq!(paid(&[1, 3], &[1, 0]), [(12, 51), (38, 0)]);
    }
}
