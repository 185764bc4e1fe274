//! Calibrations: what honest machines did with an engine, what cheaper engines do, and how far verdicts may go.

use std::collections::BTreeSet;

use muster_protocol::{Digest, canonical};
use serde::{Deserialize, Serialize};

use crate::fixed_point::ONE;
use crate::honest_bound::HonestBound;
use crate::likelihood::LikelihoodTable;
use crate::margin_cells::CellCounts;
use crate::premise::upper_mean;

/// The format and version of a calibration.
pub const CALIBRATION_FORMAT: &str = "muster/audit-calibration/1";
/// Machines of a calibration of level 1.
const LEVEL_1_MACHINES: usize = 2;
/// Machines of a calibration of level 2.
const LEVEL_2_MACHINES: usize = 5;
/// Types of GPU of a calibration of level 2.
const LEVEL_2_GPUS: usize = 2;

/// The numbers that are binned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// Margins under the known seed of each answer.
    Margin,
    /// Without a seed: how far a token's −log p lies above the entropy. Far weaker, and a tuned temperature defeats it.
    Surprise,
}

/// All that is known about honest and cheaper engines of one model under one whitelisted image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    /// The format and version: [`CALIBRATION_FORMAT`].
    pub format: String,
    /// The numbers that are binned.
    pub statistic: Statistic,
    /// Digest of weights, dtype, tokenizer and template.
    pub model: Digest,
    /// The whitelisted image, which is the reference, too.
    pub engine: Digest,
    /// Digest of the image's arguments and variables.
    pub arguments: Digest,
    /// Honest runs. Never miners' traffic: if most miners cheated, cheating would become honest.
    pub machines: Vec<MachineRun>,
    /// Engines that are cheaper than the whitelisted one, or other models.
    pub alternatives: Vec<Alternative>,
}

/// The scored answers of one honest machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRun {
    /// The machine's name.
    pub machine: String,
    /// The type of its GPU, or of its processor.
    pub gpu: String,
    /// The answers, in the order in which they were made.
    pub answers: Vec<CellCounts>,
}

/// The scored answers of an engine that a miner must not use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// Its name in reports, such as `int4`.
    pub name: String,
    /// Its scored answers, in the order in which they were made.
    pub answers: Vec<CellCounts>,
}

/// How far verdicts may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum CalibrationLevel {
    /// There are not enough machines: no verdict.
    #[serde(rename = "0")]
    Zero,
    /// The reference on two machines: suspicion, and conviction of gross cheats only.
    #[serde(rename = "1")]
    One,
    /// Five machines of two types: conviction of every alternative that no left-out machine resembles.
    #[serde(rename = "2")]
    Two,
}

/// A machine that exceeded the premise when it was left out: honest miners like it would gather evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExceededPremise {
    /// The machine that was left out.
    pub machine: String,
    /// The alternative whose evidence it would have raised.
    pub alternative: String,
    /// The upper 95 % bound of the mean of min(L, e⁸), in thousandths.
    pub upper_per_mille: u128,
}

/// A text is no calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The text is not JSON, or lacks fields.
    #[error("it is not a calibration of spot checks")]
    Text(#[from] serde_json::Error),
    /// The format is another one.
    #[error("its format is {0:?}, this version reads {CALIBRATION_FORMAT:?}")]
    Format(String),
}

impl Calibration {
    /// Reads a calibration.
    ///
    /// # Errors
    /// The text is none, or of another version.
    pub fn parse(text: &str) -> Result<Self, CalibrationError> {
        let calibration: Self = serde_json::from_str(text)?;
        if calibration.format == CALIBRATION_FORMAT {
            Ok(calibration)
        } else {
            Err(CalibrationError::Format(calibration.format))
        }
    }

    /// The canonical text, as Python's `json.dumps(calibration, sort_keys=True, separators=(",", ":"))` writes it.
    pub fn to_text(&self) -> String {
        // A struct of texts, integers and lists always has a JSON form.
        canonical::sorted_compact_of(self).unwrap_or_default()
    }

    /// The bound of all machines.
    pub fn bound(&self) -> HonestBound {
        self.bound_without(None)
    }

    /// The tables of these alternatives against a bound.
    pub fn tables<'a>(
        &self,
        bound: &HonestBound,
        alternatives: impl IntoIterator<Item = &'a Alternative>,
    ) -> Vec<LikelihoodTable> {
        let table =
            |alternative: &Alternative| LikelihoodTable::new(bound, &CellCounts::sum(&alternative.answers));
        alternatives.into_iter().map(table).collect()
    }

    /// The alternatives that no left-out machine resembles too much: miners are tested against these alone.
    pub fn tested_alternatives(&self) -> Vec<&Alternative> {
        let exceeded = self.exceeded_premises();
        let holds = |alternative: &&Alternative| {
            !exceeded
                .iter()
                .any(|premise| premise.alternative == alternative.name)
        };
        self.alternatives.iter().filter(holds).collect()
    }

    /// How far verdicts by this calibration may go if these alternatives are tested.
    pub fn level(&self, tested: &[&Alternative]) -> CalibrationLevel {
        let gpus: BTreeSet<&str> = self.machines.iter().map(|run| run.gpu.as_str()).collect();
        if self.machines.len() < LEVEL_1_MACHINES || tested.is_empty() {
            CalibrationLevel::Zero
        } else if self.machines.len() < LEVEL_2_MACHINES || gpus.len() < LEVEL_2_GPUS {
            CalibrationLevel::One
        } else {
            CalibrationLevel::Two
        }
    }

    /// Every machine that, left out, exceeds the premise under the bound of the others.
    pub fn exceeded_premises(&self) -> Vec<ExceededPremise> {
        let mut exceeded = Vec::new();
        for (left_out, run) in self.machines.iter().enumerate() {
            let tables = self.tables(&self.bound_without(Some(left_out)), &self.alternatives);
            for (alternative, table) in self.alternatives.iter().zip(tables) {
                let values: Vec<u128> = run.answers.iter().map(|answer| table.of_answer(answer)).collect();
                let seed = format!("{}\n{}", run.machine, alternative.name);
                let upper = upper_mean(&values, seed.as_bytes()).unwrap_or(u128::MAX);
                if upper > ONE {
                    exceeded.push(ExceededPremise {
                        machine: run.machine.clone(),
                        alternative: alternative.name.clone(),
                        upper_per_mille: (upper / ONE).saturating_mul(1_000) + (upper % ONE) * 1_000 / ONE,
                    });
                }
            }
        }
        exceeded
    }

    fn bound_without(&self, left_out: Option<usize>) -> HonestBound {
        let others = self.machines.iter().enumerate();
        let others = others.filter(|(at, _)| Some(*at) != left_out);
        let sums: Vec<CellCounts> = others.map(|(_, run)| CellCounts::sum(&run.answers)).collect();
        HonestBound::of(&sums)
    }
}
