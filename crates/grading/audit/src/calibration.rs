//! Calibrations: what honest machines did with an engine, what cheaper engines do, and how far verdicts may go.

use std::collections::BTreeSet;

use muster_protocol::{Digest, canonical};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::fixed_point::{ONE, exp2};
use crate::honest_bound::HonestBound;
use crate::likelihood::LikelihoodTable;
use crate::margin_cells::{CellCounts, ENTROPY_BINS, MARGIN_BINS};
use crate::premise::upper_mean;
use crate::wilson::BILLION;

/// The format and version of a calibration whose whitelisted image is the reference, too.
pub const CALIBRATION_FORMAT: &str = "muster/audit-calibration/1";
/// The format and version of a calibration whose answers another image scores.
pub const REFERENCED_CALIBRATION_FORMAT: &str = "muster/audit-calibration/2";
/// The most known answers of a calibration.
const MAX_KNOWN_ANSWERS: usize = 64;
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
    /// The format and version: [`CALIBRATION_FORMAT`] or [`REFERENCED_CALIBRATION_FORMAT`].
    pub format: String,
    /// The numbers that are binned.
    pub statistic: Statistic,
    /// Digest of weights, dtype, tokenizer and template.
    pub model: Digest,
    /// The whitelisted image. It is the reference, too, if `reference` names no other one.
    pub engine: Digest,
    /// Digest of the image's arguments and variables.
    pub arguments: Digest,
    /// The image that scores answers of the whitelisted one, where that is another image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<ReferenceBuild>,
    /// The sampler of the whitelisted image, whose choices the reference replays. Without one no seed is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampler: Option<EngineSampler>,
    /// Answers of the whitelisted image under known seeds, by which a reference shows that it replays this version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_answers: Vec<KnownAnswer>,
    /// Honest runs. Never miners' traffic: if most miners cheated, cheating would become honest.
    pub machines: Vec<MachineRun>,
    /// Engines that are cheaper than the whitelisted one, or other models.
    pub alternatives: Vec<Alternative>,
}

/// The image that scores answers of another image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceBuild {
    /// The image that scores, by the digest of its configuration.
    pub engine: Digest,
    /// Digest of its arguments and variables.
    pub arguments: Digest,
}

/// An engine that draws by a seed of its own, which requests name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SamplerEngine {
    /// llama.cpp: numbers of 32 bits.
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    /// vLLM: numbers of 64 bits.
    #[serde(rename = "vllm")]
    Vllm,
}

impl SamplerEngine {
    /// The name in requests to a reference and in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::Vllm => "vllm",
        }
    }

    /// The seed that a request names; `None` if it names none, or one for which the engine draws a seed by itself.
    pub fn seed_in(self, request: &Map<String, Value>) -> Option<i64> {
        let seed = request.get("seed")?.as_i64()?;
        let is_fixed = match self {
            // The largest number of 32 bits and −1 stand for a random seed.
            Self::LlamaCpp => (0..i64::from(u32::MAX)).contains(&seed),
            Self::Vllm => seed != -1,
        };
        is_fixed.then_some(seed)
    }
}

/// The sampler of an engine in one version of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineSampler {
    /// The program in the whitelisted image.
    pub engine: SamplerEngine,
    /// Its version: for llama.cpp the build, such as `b11549`.
    pub version: String,
}

/// An answer of the whitelisted image under a seed that the request names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownAnswer {
    /// The request's parameters as JSON text: the seed and everything else that decides the tokens.
    pub request: String,
    /// The ids of the prompt's tokens.
    pub prompt: Vec<u32>,
    /// The ids of the answer's tokens.
    pub output: Vec<u32>,
}

/// The scored answers of one honest machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRun {
    /// The machine's name.
    pub machine: String,
    /// The type of its GPU, or of its processor.
    pub gpu: String,
    /// The executor class of such machines, if it is known: an adopter follows no accusation of machines of other ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
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
    #[error("the file is not a calibration of spot checks")]
    Text(#[from] serde_json::Error),
    /// The format is another one.
    #[error(
        "the calibration's format is {0:?}, this version reads {CALIBRATION_FORMAT:?} and {REFERENCED_CALIBRATION_FORMAT:?}"
    )]
    Format(String),
    /// The fields of another image are not those of the format.
    #[error(
        "a calibration whose answers another image scores is of {REFERENCED_CALIBRATION_FORMAT:?}; it names that image \
         in `reference`, and the engine's `sampler` if its statistic is `margin`, which needs the seeds; at most \
         {MAX_KNOWN_ANSWERS} known answers"
    )]
    Reference,
}

impl Calibration {
    /// Reads a calibration.
    ///
    /// # Errors
    /// The text is none, or of another version.
    pub fn parse(text: &str) -> Result<Self, CalibrationError> {
        let calibration: Self = serde_json::from_str(text)?;
        calibration.check_format()?;
        Ok(calibration)
    }

    /// Checks that the fields are those of the format.
    ///
    /// # Errors
    /// The format is unknown, or has other fields.
    pub fn check_format(&self) -> Result<(), CalibrationError> {
        let fits = match self.format.as_str() {
            CALIBRATION_FORMAT => {
                self.reference.is_none() && self.sampler.is_none() && self.known_answers.is_empty()
            }
            REFERENCED_CALIBRATION_FORMAT => {
                self.reference.is_some()
                    && self.sampler.is_some() == (self.statistic == Statistic::Margin)
                    && self.known_answers.len() <= MAX_KNOWN_ANSWERS
            }
            other => return Err(CalibrationError::Format(other.to_owned())),
        };
        if fits {
            Ok(())
        } else {
            Err(CalibrationError::Reference)
        }
    }

    /// The image that scores answers.
    pub fn reference_engine(&self) -> Digest {
        self.reference.map_or(self.engine, |reference| reference.engine)
    }

    /// Whether this calibration judges the answers without seeds of the engine, model and reference of a calibration
    /// that rests on seeds.
    pub fn is_unseeded_of(&self, seeded: &Self) -> bool {
        let reference = |one: &Self| one.reference.map(|reference| reference.engine);
        self.statistic == Statistic::Surprise
            && seeded.statistic == Statistic::Margin
            && reference(self).is_some()
            && (self.model, self.engine, reference(self)) == (seeded.model, seeded.engine, reference(seeded))
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

    /// Whether the premise holds for every single token of a left-out machine, at each entropy by itself, under the
    /// widened bound of the others. The author of prompts chooses entropies and lengths of answers. The likelihood of
    /// an answer is the product of its tokens', so the premise then holds for answers of any length whose tokens err
    /// independently.
    pub(crate) fn holds_by_token(&self, alternative: &Alternative) -> bool {
        (0..self.machines.len()).all(|left_out| {
            let others = self.bound_without(Some(left_out)).widened();
            let table = LikelihoodTable::new(&others, &CellCounts::sum(&alternative.answers));
            let machine: Vec<CellCounts> = self
                .machines
                .get(left_out)
                .map(|run| CellCounts::sum(&run.answers))
                .into_iter()
                .collect();
            // The ratios rise with the margin, so the upper bound of each tail gives that of the mean.
            let upper = HonestBound::of(&machine);
            (0..ENTROPY_BINS).all(|entropy| mean_ratio(&upper.masses(entropy), &table.logs(entropy)) <= ONE)
        })
    }

    fn bound_without(&self, left_out: Option<usize>) -> HonestBound {
        let others = self.machines.iter().enumerate();
        let others = others.filter(|(at, _)| Some(*at) != left_out);
        let sums: Vec<CellCounts> = others.map(|(_, run)| CellCounts::sum(&run.answers)).collect();
        HonestBound::of(&sums)
    }
}

/// The mean of a token's likelihood in Q32 over these shares of margins, which are billionths.
fn mean_ratio(masses: &[u64; MARGIN_BINS], logs: &[i64; MARGIN_BINS]) -> u128 {
    let terms = masses.iter().zip(logs);
    let sum: u128 = terms.map(|(mass, log)| u128::from(*mass) * exp2(*log)).sum();
    sum / u128::from(BILLION)
}
