//! The bound on honest engines: how often margins of each size may occur at most, by entropy.

use crate::margin_cells::{CellCounts, ENTROPY_BINS, MARGIN_BINS};
use crate::wilson::{BILLION, RateInterval};

/// The least share of tokens that are off under a widened bound: one in a hundred.
const WIDENED_FLOOR: u64 = BILLION / 100;
/// The factor of a widened bound.
const WIDENED_FACTOR: u64 = 3;

/// For each bin of entropy and each bin of margins but the first: the largest share of tokens, in billionths, whose
/// margin lies in that bin or a higher one. An engine within the bound errs at most as often, at most as far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HonestBound {
    tails: [[u64; MARGIN_BINS - 1]; ENTROPY_BINS],
}

impl HonestBound {
    /// The envelope of machines: the upper confidence bound of the worst machine, at every entropy and size. Where a
    /// machine has no token, nothing is known, and nothing counts against a miner.
    pub fn of(machines: &[CellCounts]) -> Self {
        let mut tails = [[0; MARGIN_BINS - 1]; ENTROPY_BINS];
        for (entropy, row) in tails.iter_mut().enumerate() {
            for (tail, margin) in row.iter_mut().zip(1..) {
                let of_machine = |machine: &CellCounts| {
                    let off = machine.at_least(entropy, margin);
                    RateInterval::of(off.into(), machine.tokens(entropy).into()).high
                };
                *tail = machines.iter().map(of_machine).max().unwrap_or(BILLION);
            }
        }
        Self { tails }
    }

    /// Three times the bound, and at least one token in a hundred off: only gross cheats exceed it.
    #[must_use]
    pub fn widened(&self) -> Self {
        let mut wide = *self;
        for row in &mut wide.tails {
            for tail in row.iter_mut() {
                *tail = tail.saturating_mul(WIDENED_FACTOR).min(BILLION);
            }
            if let Some(off) = row.first_mut() {
                *off = (*off).max(WIDENED_FLOOR);
            }
        }
        wide
    }

    /// The shares of the bins of margins at an entropy, in billionths, under the worst engine within the bound.
    pub fn masses(&self, entropy: usize) -> [u64; MARGIN_BINS] {
        let mut masses = [0; MARGIN_BINS];
        let tails = self
            .tails
            .get(entropy)
            .copied()
            .unwrap_or([BILLION; MARGIN_BINS - 1]);
        let from = std::iter::once(BILLION).chain(tails);
        let beyond = tails.into_iter().chain([0]);
        for (mass, (from, beyond)) in masses.iter_mut().zip(from.zip(beyond)) {
            *mass = from.saturating_sub(beyond);
        }
        masses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::margin_cells::{Margin, TokenScore};

    fn counts(off: u32, tokens: u32) -> CellCounts {
        let token = |at| TokenScore {
            margin: Margin::Micronats(if at < off { 20_000 } else { 0 }),
            entropy: 1_000,
        };
        CellCounts::of(&(0..tokens).map(token).collect::<Vec<_>>())
    }

    #[test]
    fn the_worst_machine_decides() {
        let bound = HonestBound::of(&[counts(0, 996), counts(9, 996)]);
        let off = RateInterval::of(9, 996).high;
        let far = RateInterval::of(0, 996).high;
        let masses = bound.masses(1);
        assert_eq!(masses.iter().sum::<u64>(), BILLION);
        assert_eq!((masses[0], masses[8]), (BILLION - off, far));
        assert_eq!(masses[2], off - far, "up to 0.05 nats");
        assert_eq!(bound.masses(0)[0], 0, "without tokens nothing is known");
        assert_eq!(HonestBound::of(&[]).masses(1)[8], BILLION);
    }

    #[test]
    fn a_widened_bound_is_three_times_as_large_and_allows_one_in_a_hundred() {
        let bound = HonestBound::of(&[counts(0, 99_996)]);
        let wide = bound.widened();
        assert_eq!(bound.masses(1)[0], BILLION - 40_000);
        assert_eq!(wide.masses(1)[0], BILLION - BILLION / 100);
        assert_eq!(wide.masses(1)[8], 120_000);
        let large = HonestBound::of(&[counts(40, 100)]).widened();
        assert_eq!(large.masses(1)[0], 0);
    }
}
