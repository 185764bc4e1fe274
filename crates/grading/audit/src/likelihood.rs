//! The likelihood ratio of an answer: an alternative engine against the worst engine within the honest bound.

use crate::fixed_point::{exp2, log2_ratio};
use crate::honest_bound::HonestBound;
use crate::margin_cells::{CellCounts, ENTROPY_BINS, MARGIN_BINS};
use crate::wilson::BILLION;

/// log₂(e⁸) in Q32: the most that one answer counts.
pub const CAP_LOG2: i64 = 49_570_624_149;

/// The base-2 logarithms of the likelihood ratios of all cells, in Q32.
///
/// Within an entropy the ratios never fall with the margin. Therefore the ratio of every engine that stays within the
/// honest bound has an expectation of at most one, however much better than the bound the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LikelihoodTable {
    logs: [[i64; MARGIN_BINS]; ENTROPY_BINS],
}

impl LikelihoodTable {
    /// The table of an alternative by its counts.
    pub fn new(bound: &HonestBound, alternative: &CellCounts) -> Self {
        let mut logs = [[0; MARGIN_BINS]; ENTROPY_BINS];
        for (entropy, row) in logs.iter_mut().enumerate() {
            if alternative.tokens(entropy) > 0 {
                let cheat = alternative_masses(alternative, entropy);
                *row = rising_ratios(&cheat, &bound.masses(entropy));
            }
        }
        Self { logs }
    }

    /// min(L, e⁸) of an answer, in Q32.
    pub fn of_answer(&self, answer: &CellCounts) -> u128 {
        let cells = self.logs.iter().flatten().zip(answer.0.iter().flatten());
        let add =
            |sum: i64, (log, count): (&i64, &u32)| sum.saturating_add(log.saturating_mul((*count).into()));
        exp2(cells.fold(0, add).min(CAP_LOG2))
    }

    /// The logarithms at an entropy.
    pub fn logs(&self, entropy: usize) -> [i64; MARGIN_BINS] {
        self.logs.get(entropy).copied().unwrap_or_default()
    }
}

/// The shares of the bins of margins under the alternative, in billionths: half a token is added to each bin, so that
/// no bin is impossible.
fn alternative_masses(alternative: &CellCounts, entropy: usize) -> [u64; MARGIN_BINS] {
    let tokens = u64::from(alternative.tokens(entropy));
    let mut masses = [0; MARGIN_BINS];
    let row = alternative.0.get(entropy).copied().unwrap_or_default();
    for (mass, count) in masses.iter_mut().zip(row) {
        *mass = (2 * u64::from(count) + 1).saturating_mul(BILLION) / (2 * tokens + 9);
    }
    masses
}

/// Neighbouring bins that are judged as one.
struct Pool {
    cheat: u64,
    honest: u64,
    bins: usize,
}

impl Pool {
    /// Whether the ratio of this pool is above that of `next`. A pool without mass under the bound has a ratio above
    /// all others.
    fn exceeds(&self, next: &Self) -> bool {
        let (left, right) = (
            u128::from(self.cheat) * u128::from(next.honest),
            u128::from(next.cheat) * u128::from(self.honest),
        );
        left > right || self.honest == 0
    }
}

/// The logarithms of cheat/honest, with neighbours pooled until they never fall (pool adjacent violators).
fn rising_ratios(cheat: &[u64; MARGIN_BINS], honest: &[u64; MARGIN_BINS]) -> [i64; MARGIN_BINS] {
    let mut pools: Vec<Pool> = Vec::with_capacity(MARGIN_BINS);
    for (cheat, honest) in cheat.iter().zip(honest) {
        let mut last = Pool {
            cheat: *cheat,
            honest: *honest,
            bins: 1,
        };
        while let Some(before) = pools.pop_if(|before| before.exceeds(&last)) {
            last.cheat = last.cheat.saturating_add(before.cheat);
            last.honest = last.honest.saturating_add(before.honest);
            last.bins += before.bins;
        }
        pools.push(last);
    }
    let mut logs = [0; MARGIN_BINS];
    let spread = pools
        .iter()
        .flat_map(|pool| std::iter::repeat_n(log2_ratio(pool.cheat, pool.honest), pool.bins));
    for (log, ratio) in logs.iter_mut().zip(spread) {
        *log = ratio;
    }
    logs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixed_point::ONE;

    fn row(counts: [u32; MARGIN_BINS]) -> CellCounts {
        let mut cells = CellCounts::default();
        cells.0[2] = counts;
        cells
    }

    /// Σ mass·ratio in billionths, where the ratio is read back from its logarithm.
    fn expectation(masses: &[u64; MARGIN_BINS], logs: &[i64; MARGIN_BINS]) -> u128 {
        let terms = masses.iter().zip(logs);
        terms
            .map(|(mass, log)| u128::from(*mass) * exp2(*log) / ONE)
            .sum()
    }

    #[test]
    fn an_off_token_is_evidence_and_an_agreeing_one_is_the_opposite() {
        let honest = row([99_900, 90, 5, 5, 0, 0, 0, 0, 0]);
        let cheat = row([9_000, 300, 300, 200, 100, 60, 30, 10, 0]);
        let table = LikelihoodTable::new(&HonestBound::of(&[honest]), &cheat);
        let logs = table.logs(2);
        assert!(logs.is_sorted() && logs[0] < 0 && logs[8] > 4 << 32, "{logs:?}");
        assert_eq!(
            table.logs(0),
            [0; MARGIN_BINS],
            "no tokens of the alternative there"
        );
        assert!(table.of_answer(&row([128, 0, 0, 0, 0, 0, 0, 0, 0])) < ONE / 1_000);
        let capped = table.of_answer(&row([0, 0, 0, 0, 0, 0, 0, 90, 0]));
        assert_eq!(capped, exp2(CAP_LOG2));
        assert_eq!(capped / ONE, 2_980, "e⁸ = 2980.96");
    }

    #[test]
    fn where_no_honest_token_is_off_a_token_that_is_off_speaks_against_the_miner() {
        // The bound then allows tokens that are off at any distance, so all distances count the same.
        let bound = HonestBound::of(&[row([4_000, 0, 0, 0, 0, 0, 0, 0, 0])]);
        let table = LikelihoodTable::new(&bound, &row([870, 50, 40, 20, 10, 5, 4, 1, 0]));
        let logs = table.logs(2);
        assert!(logs[0] < 0 && logs[1] > 6 << 32, "{logs:?}");
        assert!(logs[1..].iter().all(|log| *log == logs[1]), "{logs:?}");
    }

    #[test]
    fn an_alternative_that_errs_less_than_the_bound_says_nothing() {
        let honest = row([900, 20, 20, 20, 20, 10, 5, 5, 0]);
        let better = row([99_999, 1, 0, 0, 0, 0, 0, 0, 0]);
        let table = LikelihoodTable::new(&HonestBound::of(&[honest]), &better);
        let answer = table.of_answer(&row([0, 3, 3, 3, 3, 0, 0, 0, 0]));
        assert!(answer <= ONE, "{answer}");
    }

    fn counts() -> impl Strategy<Value = [u32; MARGIN_BINS]> {
        let off = proptest::collection::vec(0_u32..2_000, MARGIN_BINS - 1);
        (1_u32..200_000, off).prop_map(|(agreeing, off)| {
            let mut row = [agreeing; MARGIN_BINS];
            row[1..].copy_from_slice(&off);
            row
        })
    }

    proptest! {
        #[test]
        fn every_engine_within_the_bound_has_an_expectation_of_at_most_one(
            honest in counts(), cheat in counts(), shrink in proptest::collection::vec(0_u64..=1_000, MARGIN_BINS - 1),
        ) {
            let bound = HonestBound::of(&[row(honest)]);
            let table = LikelihoodTable::new(&bound, &row(cheat));
            prop_assert!(table.logs(2).is_sorted());
            prop_assert!(expectation(&bound.masses(2), &table.logs(2)) <= BILLION.into());
            // Any other engine within the bound: each tail is a part of the bound's, and tails never rise.
            let (mut masses, mut tail, mut bounds) = ([0_u64; MARGIN_BINS], BILLION, BILLION);
            for (at, mass) in bound.masses(2).iter().enumerate() {
                bounds -= mass;
                let next = shrink.get(at).map_or(0, |part| tail.min(bounds * part / 1_000));
                masses[at] = tail - next;
                tail = next;
            }
            prop_assert_eq!(masses.iter().sum::<u64>(), BILLION);
            prop_assert!(expectation(&masses, &table.logs(2)) <= BILLION.into());
        }
    }
}
