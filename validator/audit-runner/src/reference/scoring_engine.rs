//! How the answers of a model are scored: by the whitelisted image itself, or by another image that replays the sampler
//! of the whitelisted one.

use std::collections::BTreeMap;

use muster_audit::{Calibration, EngineSampler, SamplerEngine, Statistic};
use muster_protocol::ImageId;
use serde::Deserialize;
use serde_json::{Number, Value};

/// The image that scores a model's answers where the whitelisted image cannot: `images/llm` with the same weights.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferenceEngine {
    /// The image, named by the digest of its configuration.
    pub image: ImageId,
    /// The name by which a container engine pulls the image if it does not have it.
    #[serde(default)]
    pub reference: Option<String>,
    /// The arguments of the image's entry point. It has to listen on the socket `http.sock`.
    #[serde(default)]
    pub args: Vec<String>,
    /// The sampler of the whitelisted image. Without one no seed is known, and verdicts are `weak` at most.
    #[serde(default)]
    pub sampler: Option<SamplerSettings>,
}

/// The sampler of a whitelisted image that draws by seeds of its own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplerSettings {
    /// The program in the whitelisted image.
    pub engine: SamplerEngine,
    /// Its version. The reference refuses to replay another one than it knows.
    pub version: String,
    /// The parameters that the image takes where a request leaves them out. Absent: those of llama.cpp's server, or
    /// none for vLLM.
    #[serde(default)]
    pub defaults: Option<BTreeMap<String, Number>>,
}

impl SamplerSettings {
    /// The sampler as calibrations name it.
    pub(crate) fn named(&self) -> EngineSampler {
        EngineSampler {
            engine: self.engine,
            version: self.version.clone(),
        }
    }

    /// The parameters that the image takes where a request leaves them out.
    pub(crate) fn defaults(&self) -> BTreeMap<String, Value> {
        match &self.defaults {
            Some(given) => given
                .iter()
                .map(|(name, number)| (name.clone(), Value::Number(number.clone())))
                .collect(),
            None => match self.engine {
                SamplerEngine::LlamaCpp => [
                    ("temperature", Value::from(0.8)),
                    ("top_k", Value::from(40)),
                    ("top_p", Value::from(0.95)),
                    ("min_p", Value::from(0.05)),
                ]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
                SamplerEngine::Vllm => BTreeMap::new(),
            },
        }
    }
}

/// The sampler that has chosen the tokens of a model's answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// Muster's, by the seed that the seal names.
    Muster,
    /// Another engine's, by the seed that the request names.
    Engine(SamplerSettings),
    /// One that nobody can replay.
    Unknown,
}

impl Sampling {
    /// The sampler of the answers of a model that is scored by this other image, if it is.
    pub(crate) fn of(engine: Option<&ReferenceEngine>) -> Self {
        match engine {
            None => Self::Muster,
            Some(engine) => match &engine.sampler {
                Some(sampler) => Self::Engine(sampler.clone()),
                None => Self::Unknown,
            },
        }
    }
}

/// Why a calibration does not fit the configured reference of a model, whatever the image is; `None` if it does.
pub(crate) fn mismatch(engine: Option<&ReferenceEngine>, calibration: &Calibration) -> Option<String> {
    match (Sampling::of(engine), &calibration.reference) {
        (Sampling::Muster, None) => None,
        (Sampling::Muster, Some(reference)) => Some(format!(
            "its answers are scored by the image {}: [audit.reference_engines] has to name it",
            reference.engine
        )),
        (Sampling::Engine(_) | Sampling::Unknown, None) => Some(
            "it is one of a whitelisted image that scores its own answers, and [audit.reference_engines] names \
             another reference"
                .to_owned(),
        ),
        (Sampling::Unknown, Some(_)) => (calibration.statistic == Statistic::Margin).then(|| {
            "it rests on seeds, and [audit.reference_engines] names no sampler of the engine".to_owned()
        }),
        // Where the statistic is without seeds, the requests' seeds are not used.
        (Sampling::Engine(sampler), Some(_)) => match &calibration.sampler {
            Some(of) if *of != sampler.named() => Some(format!(
                "it is of the sampler of {} {}, and [audit.reference_engines] names that of {} {}",
                of.engine.name(),
                of.version,
                sampler.engine.name(),
                sampler.version
            )),
            Some(_) if calibration.known_answers.is_empty() => Some(
                "it has no known answers, by which a reference shows that it replays this version of the engine"
                    .to_owned(),
            ),
            Some(_) => None,
            None => Some(
                "it is without seeds, and [audit.reference_engines] names a sampler: \
                 [audit.unseeded_calibrations] is the place of such a calibration"
                    .to_owned(),
            ),
        },
    }
}
