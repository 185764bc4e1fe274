//! The evidence of a sequential test after each answer, for charts.

use serde::Serialize;

use crate::e_process::{EProcess, Restart};
use crate::verdict::ScoredAnswer;

/// The most points of a curve. Of a longer test the most evidence of each run of answers is shown.
const MOST_POINTS: usize = 500;

/// The evidence of one test as it grew, by the first reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EvidenceCurve {
    /// The answers that it tests: `all`, `public`, `private`, or `missing` for the test of missing answers.
    pub test: &'static str,
    /// The points in the order of the log.
    pub points: Vec<EvidencePoint>,
}

/// The evidence after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EvidencePoint {
    /// The number of the answer, from 1.
    pub answer: usize,
    /// The binary logarithm of the mean evidence after it, in thousandths.
    pub log2: i64,
}

impl EvidenceCurve {
    pub(crate) fn of(test: &'static str, answers: &[&ScoredAnswer], alternatives: usize) -> Self {
        let unscored = vec![0; alternatives];
        let likelihoods = answers
            .iter()
            .map(|scored| scored.first.as_ref().unwrap_or(&unscored).clone());
        Self::of_likelihoods(test, likelihoods, alternatives)
    }

    /// The curve of a restarted test of answers with these likelihoods under each alternative.
    pub(crate) fn of_likelihoods(
        test: &'static str,
        likelihoods: impl Iterator<Item = Vec<u128>>,
        alternatives: usize,
    ) -> Self {
        let mut evidence = EProcess::new(alternatives, Restart::AtOne);
        let observe = |(answer, likelihoods): (usize, Vec<u128>)| {
            evidence.observe(&likelihoods);
            EvidencePoint {
                answer,
                log2: evidence.mean_log2(),
            }
        };
        let points: Vec<EvidencePoint> = (1..).zip(likelihoods).map(observe).collect();
        let run = points.len().div_ceil(MOST_POINTS).max(1);
        let highest = |run: &[EvidencePoint]| run.iter().copied().max_by_key(|point| point.log2);
        Self {
            test,
            points: points.chunks(run).filter_map(highest).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e_process::ALARM;
    use crate::fixed_point::{ONE, exp2};
    use crate::likelihood::CAP_LOG2;

    #[test]
    fn a_long_test_keeps_its_highest_evidence() {
        let answer = |likelihood| ScoredAnswer {
            first: Some(vec![likelihood]),
            second: None,
        };
        let (bad, good) = (answer(exp2(CAP_LOG2)), answer(ONE / 3));
        let mut answers = vec![&good; 3_000];
        answers.splice(1_500..1_503, [&bad; 3]);
        let curve = EvidenceCurve::of("all", &answers, 1);
        assert_eq!(curve.points.len(), 500);
        let highest = curve.points.iter().max_by_key(|point| point.log2).unwrap();
        assert_eq!(highest.answer, 1_503);
        assert!(highest.log2 >= i64::from(ALARM.ilog2()) * 1_000, "{highest:?}");
        assert!(curve.points[0].answer <= 6 && curve.points[1].answer > 6);
    }

    #[test]
    fn an_answer_that_nobody_scored_counts_for_the_miner() {
        let unscored = ScoredAnswer::default();
        let curve = EvidenceCurve::of("all", &[&unscored], 1);
        assert!(curve.points[0].log2 < 0, "{curve:?}");
    }
}
