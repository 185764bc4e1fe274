//! The consensus of validators: for each neuron the largest weight that a majority of stake supports.

use crate::{Matrix, Share};

/// The stake-weighted median of each column, with `majority` in the place of one half. Validators who gave a neuron
/// nothing count with nothing.
pub(crate) fn consensus(weights: &Matrix, stake: &[Share], majority: Share) -> Vec<Share> {
    let everybody: Share = stake.iter().copied().sum();
    let minority = everybody.minus(majority);
    let mut columns: Vec<Vec<(Share, Share)>> = vec![Vec::new(); stake.len()];
    for (row, stake) in weights
        .iter()
        .zip(stake)
        .filter(|(_, stake)| **stake > Share::ZERO)
    {
        for (target, weight) in row {
            if let Some(column) = columns.get_mut(usize::from(*target)) {
                column.push((*weight, *stake));
            }
        }
    }
    columns
        .into_iter()
        .map(|column| median(column, everybody, minority))
        .collect()
}

/// The smallest weight at or below which there is more stake than the minority's.
fn median(mut column: Vec<(Share, Share)>, everybody: Share, minority: Share) -> Share {
    column.sort_unstable();
    let supporters: Share = column.iter().map(|(_, stake)| *stake).sum();
    let mut below = everybody.minus(supporters);
    if below > minority {
        return Share::ZERO;
    }
    for (weight, stake) in &column {
        below = below.plus(*stake);
        if below > minority {
            return *weight;
        }
    }
    // A majority of nobody: the largest weight has it.
    column.last().map_or(Share::ZERO, |(weight, _)| *weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(value: f64) -> Share {
        Share::from_bits((value * 65536.0 * 65536.0) as u64)
    }

    #[track_caller]
    fn check(column: &[(f64, f64)], majority: f64, expected: f64) {
        let stake: Vec<Share> = column.iter().map(|(_, stake)| share(*stake)).collect();
        let weights: Matrix = column
            .iter()
            .map(|(weight, _)| vec![(0, share(*weight))])
            .collect();
        let consensus = consensus(&weights, &stake, share(majority));
        assert_eq!(consensus.first().copied(), Some(share(expected)), "{column:?}");
    }

    #[test]
    fn a_majority_of_stake_decides() {
        check(&[(0.1, 0.25), (0.5, 0.25), (0.9, 0.5)], 0.5, 0.9);
        check(&[(0.1, 0.25), (0.5, 0.5), (0.9, 0.25)], 0.5, 0.5);
        check(&[(0.1, 0.5), (0.9, 0.5)], 0.5, 0.9);
        check(&[(0.1, 0.75), (0.9, 0.25)], 0.5, 0.1);
        check(&[(0.0, 0.75), (0.9, 0.25)], 0.5, 0.0);
        check(&[(0.7, 1.0)], 0.5, 0.7);
    }

    #[test]
    fn other_majorities_move_the_median() {
        check(&[(0.1, 0.75), (0.9, 0.25)], 0.25, 0.9);
        check(&[(0.1, 0.25), (0.9, 0.75)], 1.0, 0.1);
        check(&[(0.1, 0.5), (0.9, 0.5)], 0.0, 0.9);
    }
}
