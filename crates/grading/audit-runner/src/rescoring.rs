//! Scores answers of another validator's bundle again, by the whitelisted image on a machine of the validator's own.

use muster_audit::{RescorablePair, TokenScore};

use crate::RunnerState;
use crate::reference::Reference;
use crate::score_request::{AnswerIds, score_request};

/// The scores of one reference, in the order of the pairs; `None` for a pair that it did not score.
///
/// # Errors
/// The reason why there is no reference, in words.
pub(crate) async fn rescore(
    state: &RunnerState,
    model: &str,
    pairs: &[RescorablePair],
) -> Result<Vec<Option<Vec<TokenScore>>>, String> {
    let services = state.backend.services();
    let service = services.into_iter().find(|service| service.model == model);
    let service = service.ok_or("the whitelist has no such model")?;
    // One bench at a time: the own miner may have room for one only.
    let _machines = state.machines.lock().await;
    let reference = Reference::start(state, &service).await?;
    let mut scores = Vec::with_capacity(pairs.len());
    for pair in pairs {
        scores.push(score_pair(state, &reference, model, pair).await);
    }
    Ok(scores)
}

async fn score_pair(
    state: &RunnerState,
    reference: &Reference,
    model: &str,
    pair: &RescorablePair,
) -> Option<Vec<TokenScore>> {
    let ids = AnswerIds {
        prompt: pair.prompt.clone(),
        output: pair.output.clone(),
    };
    let scored = match score_request(model, &pair.proof, &pair.request, &ids) {
        Ok(asked) => reference.score(state, asked.body).await,
        Err(reason) => Err(reason),
    };
    match scored {
        Ok(tokens) => Some(tokens),
        Err(reason) => {
            tracing::info!(pair = %pair.digest, ?reason, "a pair of another validator's bundle was not scored");
            None
        }
    }
}
