//! Scores answers of another validator's bundle again, by the whitelisted image on a machine of the validator's own.

use muster_audit::{AnswerFinding, RescorablePair, UnusableReason};
use muster_gateway::store::{AnswerText, BodyForm};
use muster_response_proof::Text;

use crate::answer_text::AnswerIds;
use crate::reference::plan::ReferencePlan;
use crate::reference::plan::calibrated_service;
use crate::reference::reference_machine::Reference;
use crate::reference::score_request::{ScoreFailure, ScoreRequest, ask_about, score_request};
use crate::reference::scoring_engine::Sampling;
use crate::runner_state::RunnerState;

/// The findings of one reference, in the order of the pairs; `None` for a pair that it did not score.
///
/// # Errors
/// The reason why there is no reference, as text.
pub(crate) async fn rescore(
    state: &RunnerState,
    model: &str,
    pairs: &[RescorablePair],
) -> Result<Vec<Option<AnswerFinding>>, String> {
    let (service, calibration) = calibrated_service(state, model)?;
    let plan = ReferencePlan::new(&state.settings, &service, &calibration)?;
    // One pair at a time: the own miner may have room for one only.
    let _machines = state.machines.lock().await;
    let reference = Reference::start(state, &plan).await?;
    let mut scores = Vec::with_capacity(pairs.len());
    for pair in pairs {
        scores.push(score_pair(state, &reference, (model, &plan.sampling), pair).await);
    }
    Ok(scores)
}

async fn score_pair(
    state: &RunnerState,
    reference: &Reference,
    (model, sampling): (&str, &Sampling),
    pair: &RescorablePair,
) -> Option<AnswerFinding> {
    let scored = match request_about(model, sampling, pair) {
        Ok(asked) if asked.is_unseeded => Err(UnusableReason::NoSeed.into()),
        Ok(asked) => reference.score(state, &asked).await,
        Err(failure) => Err(failure),
    };
    match scored {
        Ok(tokens) => Some(AnswerFinding::Tokens(tokens)),
        Err(ScoreFailure::FalseIds(_)) => Some(AnswerFinding::FalseIds),
        Err(ScoreFailure::Unusable(reason)) => {
            tracing::info!(pair = %pair.digest, ?reason, "a pair of another validator's bundle was not scored");
            None
        }
    }
}

/// The question about a pair: as about an answer of the validator's own if the bundle shows the response, and else
/// without its text, which proves less against the miner.
fn request_about(
    model: &str,
    sampling: &Sampling,
    pair: &RescorablePair,
) -> Result<ScoreRequest, ScoreFailure> {
    let Some(response) = &pair.response else {
        let ids = AnswerIds {
            prompt: pair.prompt.clone(),
            output: pair.output.clone(),
        };
        return score_request(model, &pair.proof, &pair.request, &ids, None, sampling);
    };
    let words = AnswerText {
        form: BodyForm::Whole,
        request: pair.request.clone(),
        response: response.clone(),
        content_type: pair.proof.content_type.as_ref().map(Text::to_string),
    };
    ask_about(model, &pair.proof, &words, sampling)
}
