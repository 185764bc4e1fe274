//! The test of the premise: on a machine that took no part in the bound, honest answers do not speak against it.
//!
//! The theorems need E[min(L, e⁸) | past] ≤ 1. Answers of one machine may resemble their neighbours, so whole blocks of
//! consecutive answers are resampled.

use crate::seeded_numbers::SeededNumbers;

/// Consecutive answers that are resampled together.
pub const BLOCK_ANSWERS: usize = 8;
/// The number of resampled means.
pub const RESAMPLES: usize = 1_000;
/// The rank, from 0, of the upper bound of 95 % among the sorted means.
const RANK: usize = RESAMPLES * 95 / 100;

/// The upper 95 % bound of the mean, by a circular block bootstrap; `None` without values. Values and bound are Q32,
/// and `seed` names the data.
pub fn upper_mean(values: &[u128], seed: &[u8]) -> Option<u128> {
    if values.is_empty() {
        return None;
    }
    let blocks = values.len().div_ceil(BLOCK_ANSWERS);
    let block_sums: Vec<u128> = (0..values.len())
        .map(|start| values.iter().cycle().skip(start).take(BLOCK_ANSWERS).sum())
        .collect();
    let mut numbers = SeededNumbers::new("muster/audit-bootstrap/1", seed);
    let count = u128::try_from(blocks * BLOCK_ANSWERS).unwrap_or(1);
    let mut mean = || {
        let drawn = (0..blocks).map(|_| block_sums.get(numbers.below(values.len())).copied().unwrap_or(0));
        drawn.sum::<u128>() / count
    };
    let mut means: Vec<u128> = (0..RESAMPLES).map(|_| mean()).collect();
    means.sort_unstable();
    means.get(RANK).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixed_point::ONE;

    #[test]
    fn the_bound_lies_above_the_mean_and_widens_with_the_spread() {
        assert_eq!(upper_mean(&[], b"x"), None);
        assert_eq!(upper_mean(&[ONE; 100], b"x"), Some(ONE));
        let spread: Vec<u128> = (0..320)
            .map(|at| if at % 16 == 0 { 8 * ONE } else { ONE / 4 })
            .collect();
        let mean = spread.iter().sum::<u128>() / 320;
        let upper = upper_mean(&spread, b"x").unwrap();
        assert!(mean < upper && upper < 2 * mean, "{mean} {upper}");
        assert_eq!(upper_mean(&spread, b"x"), Some(upper), "the seed fixes it");
        let clustered: Vec<u128> = (0..320)
            .map(|at| if at < 20 { 8 * ONE } else { ONE / 4 })
            .collect();
        assert!(
            upper_mean(&clustered, b"x").unwrap() > upper,
            "neighbours that resemble one another"
        );
    }
}
