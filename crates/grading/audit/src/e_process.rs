//! Sequential tests by e-values: evidence that grows against a miner whose answers the honest bound cannot explain.
//!
//! For every share x of answers that a miner may cheat in, an answer multiplies the evidence by
//! (1 − x) + x·min(L, e⁸). If E[min(L, e⁸) | past] ≤ 1 for an honest miner, then its restarted evidence reaches A after
//! A answers on average at the earliest, and its evidence without restarts ever reaches A with a probability of at most
//! 1/A. Both are theorems; the condition is tested by [`crate::premise`].

use crate::fixed_point::{ONE, log2, multiply};

/// The shares of cheated answers that are tried, in hundredths.
pub const SHARES: [u8; 4] = [100, 30, 10, 3];
/// The mean evidence at which a test alarms: 50 audited answers a day and 1,000 tests for 3,650 days. A restarted test
/// of an honest miner alarms after as many answers on average at the earliest.
pub const ALARM: u128 = 50 * 1_000 * 3_650;
/// The mean evidence that confirms an alarm on fresh answers: an honest miner gets there with a probability of at most
/// one in a thousand.
pub const CONFIRMATION: u128 = 1_000;
/// The most evidence that is kept, in Q32: 2⁴⁸, far above [`ALARM`].
const MOST: u128 = ONE << 48;

/// The lowest logarithm of the evidence that is shown, in thousandths: 2⁻²⁰ is as good as nothing.
pub const LEAST_LOG2: i64 = -20_000;

/// The rule after an answer that speaks for the miner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The evidence begins again at one: the test waits for a miner that begins to cheat at some time.
    AtOne,
    /// The evidence stays low: the test is of a fixed run of answers.
    Never,
}

/// The evidence of one test, for each alternative and each of [`SHARES`], in Q32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EProcess {
    restart: Restart,
    evidence: Vec<[u128; SHARES.len()]>,
}

impl EProcess {
    /// A test against this number of alternatives.
    pub fn new(alternatives: usize, restart: Restart) -> Self {
        Self {
            restart,
            evidence: vec![[ONE; SHARES.len()]; alternatives],
        }
    }

    /// Takes min(L, e⁸) of an answer under each alternative, in Q32.
    pub fn observe(&mut self, likelihoods: &[u128]) {
        for (row, likelihood) in self.evidence.iter_mut().zip(likelihoods) {
            for (evidence, share) in row.iter_mut().zip(SHARES) {
                let before = match self.restart {
                    Restart::AtOne => (*evidence).max(ONE),
                    Restart::Never => *evidence,
                };
                *evidence = multiply(before, e_value(share, *likelihood)).min(MOST);
            }
        }
    }

    /// The mean of all values, rounded down to whole ones.
    pub fn mean(&self) -> u128 {
        self.fine_mean() / ONE
    }

    /// The binary logarithm of the mean of all values in thousandths, at least [`LEAST_LOG2`]: the height in a chart.
    pub fn mean_log2(&self) -> i64 {
        let mean = self.fine_mean();
        let beyond = (u128::BITS - mean.leading_zeros()).saturating_sub(63);
        let Ok(head) = u64::try_from(mean >> beyond) else {
            return LEAST_LOG2;
        };
        if head == 0 {
            return LEAST_LOG2;
        }
        // The head's logarithm in Q32, the digits that were cut off, and the 32 digits behind the point of the mean.
        let whole = (i64::from(beyond) - 32) * 1_000;
        ((log2(head) * 1_000) >> 32).saturating_add(whole).max(LEAST_LOG2)
    }

    /// The mean of all values in Q32.
    fn fine_mean(&self) -> u128 {
        let count = u128::try_from(self.evidence.len() * SHARES.len()).unwrap_or(1);
        let sum: u128 = self.evidence.iter().flatten().sum();
        sum / count.max(1)
    }
}

/// (1 − x) + x·L in Q32, x in hundredths.
fn e_value(share: u8, likelihood: u128) -> u128 {
    (u128::from(100 - share) * ONE + u128::from(share) * likelihood) / 100
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixed_point::exp2;
    use crate::likelihood::CAP_LOG2;

    fn after(restart: Restart, likelihoods: &[u128]) -> u128 {
        let mut test = EProcess::new(1, restart);
        likelihoods.iter().for_each(|one| test.observe(&[*one]));
        test.mean()
    }

    #[test]
    fn three_strong_answers_of_one_alternative_are_an_alarm() {
        let cap = exp2(CAP_LOG2);
        assert!(after(Restart::AtOne, &[cap, cap]) < ALARM);
        assert!(after(Restart::AtOne, &[cap, cap, cap]) >= ALARM);
        let mixed = [vec![0; 300], vec![cap; 3]].concat();
        assert!(
            after(Restart::AtOne, &mixed) >= ALARM,
            "honest days before do not help"
        );
        assert!(after(Restart::Never, &mixed) < CONFIRMATION);
        let many = vec![cap; 100];
        assert!(after(Restart::AtOne, &many) >= ALARM, "evidence is bounded");
    }

    #[test]
    fn a_chart_shows_the_logarithm_of_the_mean_evidence() {
        let mut test = EProcess::new(1, Restart::Never);
        assert_eq!(test.mean_log2(), 0);
        // Under the share of all answers the evidence is 8, under the others 3.1, 1.7 and 1.21.
        test.observe(&[8 * ONE]);
        let mean = (8.0_f64 + 3.1 + 1.7 + 1.21) / 4.0;
        #[expect(clippy::cast_precision_loss, reason = "tests compare with floating point")]
        let told = test.mean_log2() as f64 / 1_000.0;
        assert!((told - mean.log2()).abs() < 0.002, "{told}");
        for _ in 0..200 {
            test.observe(&[exp2(CAP_LOG2)]);
        }
        assert_eq!(test.mean_log2(), 48_000, "evidence is bounded");
        let none = EProcess::new(0, Restart::Never);
        assert_eq!(none.mean_log2(), LEAST_LOG2);
    }

    #[test]
    fn a_cheat_in_a_tenth_of_the_answers_is_found_and_honest_answers_are_not() {
        let cap = exp2(CAP_LOG2);
        let tenth: Vec<u128> = (0..100)
            .map(|at| if at % 10 == 9 { cap } else { 1 << 20 })
            .collect();
        assert!(after(Restart::AtOne, &tenth) >= ALARM);
        assert_eq!(after(Restart::AtOne, &[ONE / 3; 5_000]), 0);
    }

    proptest! {
        /// The exact expectation over a tree of likelihoods of mean one: evidence without restarts is a martingale.
        #[test]
        fn evidence_does_not_grow_on_average(high in 2_u128..2_980, steps in 1_u32..10) {
            // With probability 1/high the likelihood is `high`, else 0: its mean is one.
            let (mut total, mut weight_left) = (0_f64, 1_f64);
            for path in 0..1_u32 << steps {
                let mut test = EProcess::new(1, Restart::Never);
                let mut weight = 1_f64;
                for step in 0..steps {
                    let up = path >> step & 1 == 1;
                    let chance = 1.0 / f64::from(u32::try_from(high).unwrap());
                    weight *= if up { chance } else { 1.0 - chance };
                    test.observe(&[if up { high * ONE } else { 0 }]);
                }
                let sum: u128 = test.evidence.iter().flatten().sum();
                #[expect(clippy::cast_precision_loss, reason = "an expectation of a test")]
                let mean = sum as f64 / 4.0 / 4_294_967_296.0;
                // The bound on evidence only lowers it.
                total += weight * mean;
                weight_left -= weight;
            }
            prop_assert!(weight_left.abs() < 1e-9);
            prop_assert!(total <= 1.0 + 1e-9, "{}", total);
        }
    }
}
