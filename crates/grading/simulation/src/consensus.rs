//! The consensus of validators' weights, as the chain finds it: what less than half of the stake gives is cut away.

/// One, in the unit of shares.
pub(crate) const UNIT: u64 = 1_000_000_000_000;

/// The consensus of one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Consensus {
    /// The weight of each miner that validators with half of the stake give at least (κ = 0.5).
    pub(crate) weights: Vec<u64>,
    /// The part of each validator's weights that is not cut away.
    pub(crate) trust: Vec<u64>,
    /// The pay of each validator for a unit of its stake; [`UNIT`] is the mean.
    pub(crate) pay: Vec<u64>,
    /// The pay for a unit of stake of a validator of whose weights nothing is cut away.
    pub(crate) most: u64,
}

/// Shares of [`UNIT`] of these amounts; all 0 if their sum is.
pub(crate) fn normalise(amounts: &[u64]) -> Vec<u64> {
    let sum: u128 = amounts.iter().map(|amount| u128::from(*amount)).sum();
    let share = |amount: &u64| {
        let part = u128::from(*amount).saturating_mul(UNIT.into()).checked_div(sum);
        u64::try_from(part.unwrap_or(0)).unwrap_or(UNIT)
    };
    amounts.iter().map(share).collect()
}

/// The consensus of normalised rows of weights, each with its validator's stake.
///
/// A validator's bond in a miner is its share of the stake behind the miner's clipped weight, and it is paid its share
/// of the miner's incentive. Both have the same divisor, so its pay for a unit of stake is the part of its own weights
/// that is not cut away, over the mean of that part. The moving average of bonds is left out: it delays pay.
pub(crate) fn agree(rows: &[(u64, Vec<u64>)]) -> Consensus {
    let miners = rows.iter().map(|(_, row)| row.len()).max().unwrap_or(0);
    let weights: Vec<u64> = (0..miners)
        .map(|miner| {
            let given = rows.iter();
            median(given.map(|(stake, row)| (row.get(miner).copied().unwrap_or(0), *stake)))
        })
        .collect();
    let trust: Vec<u64> = rows
        .iter()
        .map(|(_, row)| {
            row.iter()
                .zip(&weights)
                .fold(0_u64, |sum, (own, all)| sum.saturating_add(*own.min(all)))
        })
        .collect();
    let stake: u128 = rows.iter().map(|(stake, _)| u128::from(*stake)).sum();
    let trusted: u128 = rows
        .iter()
        .zip(&trust)
        .map(|((stake, _), trust)| u128::from(*stake).saturating_mul((*trust).into()))
        .sum();
    let pay = |trust: u64| {
        let part = u128::from(trust)
            .saturating_mul(stake)
            .saturating_mul(UNIT.into());
        u64::try_from(part.checked_div(trusted).unwrap_or(0)).unwrap_or(u64::MAX)
    };
    Consensus {
        pay: trust.iter().map(|trust| pay(*trust)).collect(),
        most: pay(UNIT),
        weights,
        trust,
    }
}

/// The largest value that holders of at least half of the stake give or exceed.
fn median(values: impl Iterator<Item = (u64, u64)>) -> u64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(|one, other| other.cmp(one));
    let all: u128 = values.iter().map(|(_, stake)| u128::from(*stake)).sum();
    let mut held = 0_u128;
    for (value, stake) in values {
        held = held.saturating_add(stake.into());
        if held.saturating_mul(2) >= all {
            return value;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[(u64, &[u64])]) -> Vec<(u64, Vec<u64>)> {
        rows.iter().map(|(stake, row)| (*stake, normalise(row))).collect()
    }

    #[test]
    fn weight_given_by_less_than_half_of_the_stake_is_cut_away() {
        let found = agree(&rows(&[(30, &[1, 1, 0]), (30, &[1, 1, 0]), (40, &[0, 1, 1])]));
        assert_eq!(found.weights, [UNIT / 2, UNIT / 2, 0]);
        assert_eq!(found.trust, [UNIT, UNIT, UNIT / 2]);
        // The mean of the trust is 0.8.
        assert_eq!(found.pay, [UNIT / 4 * 5, UNIT / 4 * 5, UNIT / 8 * 5]);
        assert_eq!(agree(&[]), Consensus::default());
    }

    #[test]
    fn equal_weights_pay_by_stake_alone() {
        let found = agree(&rows(&[(1, &[1, 3]), (9, &[1, 3])]));
        assert_eq!(found.trust, [UNIT, UNIT]);
        assert_eq!(found.pay, [UNIT, UNIT]);
    }
}
