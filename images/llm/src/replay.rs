//! The samplers whose choices a score can replay: ours, and those of two engines that draw by seeds of their own.

use std::collections::BTreeMap;

use crate::llama_cpp::{self, Uniforms};
use crate::noise::{self, Noise, ONE, Seed};
use crate::sampler::{Draw, Parameters, Slack};

/// The sampler and the seed by which the tokens of an answer are claimed to have been chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chooser {
    /// Ours, under the seed of the answer.
    Muster(Seed),
    /// llama.cpp's ([`llama_cpp::VERSION`]), with the uniform numbers of its seed.
    LlamaCpp(Uniforms),
    /// The sampler of vLLM's newer runner for GPUs, under the seed of the request: noise by counters, so it is equal on
    /// every machine. The version is of November 2026: noise in f32, of the complement of a uniform number.
    Vllm(i64),
}

/// One position of one answer, as its sampler saw it.
pub(crate) enum Replay<'a> {
    Drawn(Draw<'a>),
    LlamaCpp {
        logits: &'a [f32],
        parameters: &'a Parameters,
        uniform: u64,
    },
    /// The position is beyond the numbers that were drawn.
    Beyond,
}

impl Chooser {
    /// The largest margin, in Q24, that rounding explains: a quarter of a nat, or for llama.cpp 1/64 of a probability.
    pub(crate) const fn rounding(&self) -> i64 {
        match self {
            Self::Muster(_) | Self::Vllm(_) => ONE / 4,
            Self::LlamaCpp(_) => ONE / 64,
        }
    }

    /// The sampler at the `position`-th token of an answer behind `prompt` tokens.
    pub(crate) fn at<'a>(
        &self,
        logits: &'a [f32],
        counts: &BTreeMap<u32, u32>,
        parameters: &'a Parameters,
        prompt: usize,
        position: u32,
    ) -> Replay<'a> {
        match self {
            Self::Muster(seed) => Replay::Drawn(Draw::new(logits, counts, parameters, *seed, position)),
            Self::Vllm(seed) => {
                let last = (prompt as u64).saturating_sub(1) + u64::from(position);
                let noise = Noise::Vllm(*seed, last);
                Replay::Drawn(Draw::with_noise(logits, counts, parameters, noise))
            }
            Self::LlamaCpp(uniforms) => match uniforms.get(position) {
                Some(uniform) => Replay::LlamaCpp {
                    logits,
                    parameters,
                    uniform,
                },
                None => Replay::Beyond,
            },
        }
    }
}

impl Replay<'_> {
    /// The token that the sampler chooses; none where all are masked, or beyond the numbers that were drawn.
    pub(crate) fn choose(&self) -> Option<u32> {
        match self {
            Self::Drawn(draw) => draw.choose(),
            Self::LlamaCpp {
                logits,
                parameters,
                uniform,
            } => llama_cpp::choose(logits, parameters, *uniform),
            Self::Beyond => None,
        }
    }

    /// The margin of a token in Q24; none where the sampler cannot have chosen it.
    pub(crate) fn margin(&self, token: u32, slack: Slack) -> Option<i64> {
        match self {
            Self::Drawn(draw) => draw.margin(token, slack),
            Self::LlamaCpp {
                logits,
                parameters,
                uniform,
            } => llama_cpp::margin(logits, parameters, *uniform, token, slack),
            Self::Beyond => None,
        }
    }
}

/// A replay of another engine's sampler does not give the numbers that the engine gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the replay of {0}'s sampler does not give its known numbers; this build cannot be believed")]
pub struct FailedSelfTest(&'static str);

/// Computes known numbers of both engines again.
///
/// # Errors
/// A number differs.
pub fn self_test() -> Result<(), FailedSelfTest> {
    if !llama_cpp::self_test() {
        return Err(FailedSelfTest("llama.cpp"));
    }
    if !noise::vllm_self_test() {
        return Err(FailedSelfTest("vLLM"));
    }
    Ok(())
}
