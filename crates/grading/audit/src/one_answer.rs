//! The evidence of one answer by itself, as it is sent to the client that reported the answer.

use crate::calibration::{Calibration, CalibrationLevel, Statistic};
use crate::fixed_point::ONE;
use crate::likelihood::LikelihoodTable;
use crate::margin_cells::{CellCounts, ENTROPY_BINS, TokenScore};

/// The mean likelihood at which one answer speaks against its miner. An honest machine's answer comes to it with a
/// probability of at most one in a hundred, whichever alternatives are tested.
pub const ANSWER_EVIDENCE: u64 = 100;

/// The scores of one answer, judged by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerJudgement {
    /// The tokens of the answer.
    pub tokens: u64,
    /// The tokens of them that are not the model's choice.
    pub off: u64,
    /// The mean of min(L, e⁸) over the tested alternatives, rounded down.
    pub evidence: u64,
}

/// Judges single answers by one calibration.
#[derive(Clone, Debug)]
pub struct AnswerJudge {
    tables: Vec<LikelihoodTable>,
}

impl AnswerJudge {
    /// A judge by the bound that convicts; `None` if the calibration says nothing about single answers. The premise is
    /// tested anew, which takes a moment.
    pub fn new(calibration: &Calibration) -> Option<Self> {
        let alternatives = calibration.tested_alternatives();
        let bound = match (calibration.level(&alternatives), calibration.statistic) {
            (CalibrationLevel::Zero, _) | (_, Statistic::Surprise) => return None,
            (CalibrationLevel::One, Statistic::Margin) => calibration.bound().widened(),
            (CalibrationLevel::Two, Statistic::Margin) => calibration.bound(),
        };
        Some(Self {
            tables: calibration.tables(&bound, alternatives.iter().copied()),
        })
    }

    /// Judges an answer by the scores of its tokens.
    pub fn judge(&self, tokens: &[TokenScore]) -> AnswerJudgement {
        let cells = CellCounts::of(tokens);
        let sum: u128 = self.tables.iter().map(|table| table.of_answer(&cells)).sum();
        let count = u128::try_from(self.tables.len()).unwrap_or(u128::MAX).max(1);
        let off = (0..ENTROPY_BINS).map(|entropy| u64::from(cells.at_least(entropy, 1)));
        AnswerJudgement {
            tokens: u64::try_from(tokens.len()).unwrap_or(u64::MAX),
            off: off.sum(),
            evidence: u64::try_from(sum / count / ONE).unwrap_or(u64::MAX),
        }
    }
}

impl AnswerJudgement {
    /// Whether the answer speaks against its miner.
    pub const fn speaks_against(&self) -> bool {
        self.evidence >= ANSWER_EVIDENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::margin_cells::{ENTROPY_EDGES, MARGIN_BINS, MARGIN_EDGES, Margin};

    fn calibration() -> Calibration {
        Calibration::parse(include_str!("../../../../tests/vectors/audit-calibration.json")).unwrap()
    }

    /// Tokens that fall into these cells.
    fn tokens_of(cells: &CellCounts) -> Vec<TokenScore> {
        let mut tokens = Vec::new();
        for (entropy, row) in cells.0.iter().enumerate() {
            for (margin, count) in row.iter().enumerate() {
                let margin = match margin {
                    0 => Margin::Micronats(0),
                    last if last == MARGIN_BINS - 1 => Margin::Impossible,
                    bin => Margin::Micronats(MARGIN_EDGES[bin - 1] + 1),
                };
                let entropy = entropy.checked_sub(1).map_or(0, |bin| ENTROPY_EDGES[bin]);
                let token = TokenScore { margin, entropy };
                tokens.extend(std::iter::repeat_n(token, usize::try_from(*count).unwrap()));
            }
        }
        tokens
    }

    #[test]
    fn measured_answers_of_four_bits_speak_against_their_miner_and_those_of_machines_do_not() {
        let calibration = calibration();
        let judge = AnswerJudge::new(&calibration).unwrap();
        let against = |answers: &[CellCounts]| {
            let judged = answers.iter().map(|cells| judge.judge(&tokens_of(cells)));
            judged.filter(AnswerJudgement::speaks_against).count()
        };
        for machine in &calibration.machines {
            let accused = against(&machine.answers);
            assert!(
                accused * 100 <= machine.answers.len(),
                "{}: {accused}",
                machine.machine
            );
        }
        let int4 = calibration
            .alternatives
            .iter()
            .find(|one| one.name == "int4")
            .unwrap();
        let found = against(&int4.answers);
        assert!(
            found * 2 > int4.answers.len(),
            "{found} of {}",
            int4.answers.len()
        );
    }

    #[test]
    fn a_calibration_of_one_machine_says_nothing() {
        let mut calibration = calibration();
        let tokens = tokens_of(&calibration.machines[0].answers[0]);
        let judged = AnswerJudge::new(&calibration).unwrap().judge(&tokens);
        assert_eq!(judged.tokens, u64::try_from(tokens.len()).unwrap());
        calibration.statistic = Statistic::Surprise;
        assert!(AnswerJudge::new(&calibration).is_none());
        calibration.statistic = Statistic::Margin;
        calibration.machines.truncate(1);
        assert!(AnswerJudge::new(&calibration).is_none());
    }
}
