//! How an epoch turns weights into pay: Yuma consensus, as Bittensor's subnets run it, in numbers that are the same on
//! every machine.
//!
//! Pure functions from what the chain stores to what it will store. The order of reading is the order of the data:
//! [`input`] what an epoch begins with, `stake` who counts for how much, `weights` which of the weights count, `median`
//! what the validators agree on, `bonds` what early agreement is worth, [`epoch`] all of it together, [`pay`] the
//! money.
//!
//! Shares are binary fixed-point numbers with 32 fractional bits, the width that the public chain computes with; every
//! multiplication and division rounds down. Money is whole numbers throughout and none of it is lost: see [`pay`].

mod bonds;
mod decay;
pub mod epoch;
pub mod input;
mod median;
pub mod pay;
mod share;
mod stake;
mod weights;

pub use decay::half_life_factor;
pub use epoch::{Outcome, Seat, run};
pub use input::{Epoch, Neuron, Row, Rules};
pub use pay::{Payment, pay};
pub use share::Share;

/// A matrix by row: for each neuron the columns in which it has something.
pub(crate) type Matrix = Vec<Shares>;

/// A row of one: columns, in order, and what it has there.
pub(crate) type Shares = Vec<(u16, Share)>;

/// Divides every share by their sum; all zeros stay as they are.
pub(crate) fn normalise(shares: &mut [Share]) {
    let sum = shares.iter().copied().sum();
    for share in shares {
        *share = share.over(sum);
    }
}

/// A share of one in 65535 parts, rounded down; more than one is one.
pub(crate) fn parts(share: Share) -> u16 {
    let parts = share.times(Share::whole(u16::MAX.into())).floor();
    u16::try_from(parts).unwrap_or(u16::MAX)
}

/// The share that `parts` of 65535 are.
pub(crate) fn of_parts(parts: u16) -> Share {
    Share::part(parts.into(), u16::MAX.into())
}

/// Divides every column by its sum; columns of zeros stay as they are.
pub(crate) fn normalise_columns(matrix: &mut Matrix, columns: usize) {
    let mut sums = vec![Share::ZERO; columns];
    for (column, share) in matrix.iter().flatten() {
        if let Some(sum) = sums.get_mut(usize::from(*column)) {
            *sum = sum.plus(*share);
        }
    }
    for (column, share) in matrix.iter_mut().flatten() {
        *share = share.over(at(&sums, *column));
    }
}

/// The value of a column; the default where the column is too short.
pub(crate) fn at<V: Copy + Default>(values: &[V], place: u16) -> V {
    values.get(usize::from(place)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_round_down_and_stop_at_one() {
        assert_eq!(parts(Share::ONE), u16::MAX);
        assert_eq!(parts(Share::whole(7)), u16::MAX);
        assert_eq!(parts(Share::part(1, 2)), 32767);
        assert_eq!(parts(Share::ZERO), 0);
        assert_eq!(of_parts(u16::MAX), Share::ONE);
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let mut shares = [Share::ZERO; 3];
        normalise(&mut shares);
        assert_eq!(shares, [Share::ZERO; 3]);
        let mut matrix = vec![vec![(0, Share::ZERO)], vec![(9, Share::ONE)]];
        normalise_columns(&mut matrix, 1);
        assert_eq!(matrix, [[(0, Share::ZERO)], [(9, Share::ZERO)]]);
    }
}
