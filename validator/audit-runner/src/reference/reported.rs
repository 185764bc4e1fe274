//! An answer that its client reports and shows to the validator: a reference scores it by itself. It is chosen by its
//! client, so it is no step of any test; the client is notified of what the reference found.

use muster_audit::{AnswerJudge, AnswerJudgement, TokenScore, UnusableReason, false_scores};
use muster_gateway::store::{AnswerText, BodyForm};
use muster_response_proof::{CheckedWords, ResponseProof};

use crate::reference::plan::ReferencePlan;
use crate::reference::plan::calibrated_service;
use crate::reference::reference_machine::Reference;
use crate::reference::score_request::{ScoreFailure, ask_about};
use crate::runner_state::RunnerState;

/// Scores the answer of this proof, whose text its client shows.
///
/// # Errors
/// The reason why it is not judged, as text.
pub(crate) async fn judge_answer(
    state: &RunnerState,
    model: &str,
    proof: &ResponseProof,
    words: CheckedWords,
) -> Result<AnswerJudgement, String> {
    let (service, calibration) = calibrated_service(state, model)?;
    let plan = ReferencePlan::new(&state.settings, &service, &calibration)?;
    let words = AnswerText {
        form: BodyForm::Whole,
        request: words.request,
        response: words.response,
        content_type: words.content_type,
    };
    // The test of the premise takes a moment.
    let judge = tokio::task::spawn_blocking(move || AnswerJudge::new(&calibration));
    let judge = judge.await.map_err(|_| "the validator is stopping")?;
    let judge = judge.ok_or("the calibration says nothing about single answers")?;
    let asked = match ask_about(model, proof, &words, &plan.sampling) {
        Ok(asked) if asked.is_unseeded => Err(UnusableReason::NoSeed.into()),
        other => other,
    };
    let scored = match asked {
        Ok(asked) => {
            // One reference at a time: the own miner may have room for one only.
            let _machines = state.machines.lock().await;
            let reference = Reference::start(state, &plan).await?;
            reference.score(state, &asked).await
        }
        Err(failure) => Err(failure),
    };
    judge_scores(&judge, scored)
}

/// The judgement about the scores of an answer. False ids count as they do in a bundle.
///
/// # Errors
/// Nobody can score the answer: the reason as text.
fn judge_scores(
    judge: &AnswerJudge,
    scored: Result<Vec<TokenScore>, ScoreFailure>,
) -> Result<AnswerJudgement, String> {
    match scored {
        Ok(tokens) => Ok(judge.judge(&tokens)),
        Err(ScoreFailure::FalseIds(_)) => Ok(judge.judge(&false_scores())),
        Err(failure @ ScoreFailure::Unusable(_)) => Err(format!("the answer cannot be judged: {failure}")),
    }
}

#[cfg(test)]
mod tests {
    use muster_audit::{Calibration, FalseIds};

    use super::*;

    #[test]
    fn false_ids_speak_against_the_miner_and_an_answer_without_scores_says_nothing() {
        let measured = include_str!("../../../../tests/vectors/audit-calibration.json");
        let judge = AnswerJudge::new(&Calibration::parse(measured).unwrap()).unwrap();
        let found = judge_scores(&judge, Err(ScoreFailure::FalseIds(FalseIds::Text))).unwrap();
        assert!(found.speaks_against(), "{found:?}");
        assert_eq!(found.off, found.tokens);
        let failure = Err(UnusableReason::NoSeed.into());
        let reason = judge_scores(&judge, failure).unwrap_err();
        assert!(reason.contains("the request names none"), "{reason}");
        assert!(!reason.contains("NoSeed"), "{reason}");
    }
}
