//! A reference: the whitelisted image on a machine of the validator's own, which exists only while it scores.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt as _, Limited};
use muster_audit::{FalseIds, KnownAnswer, Margin, ReferenceMachine, TokenScore, UnusableReason};
use muster_gateway::miner_sessions::{MinerSession, SessionTimes};
use muster_process::error::Causes;
use muster_response_proof::{Attestation, Envelope};
use muster_sealed_client::{SealedRequest, draw_nonce};
use muster_session_pool::Service;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::phases::AuditPhase;
use crate::reference::plan::ReferencePlan;
use crate::reference::sampler_fields::of_engine;
use crate::reference::score_request::{ScoreFailure, ScoreRequest, check_text_scores, read_scores};
use crate::reference::scoring_engine::Sampling;
use crate::runner_state::RunnerState;

/// The longest reply of a reference, in bytes.
const MAX_REPLY: usize = 32 * 1024 * 1024;
/// The tokens that a reference writes and scores before it scores anything else.
const SELF_TEST_TOKENS: usize = 32;
/// A reference that misses its own choice more often than once in this many tokens is not asked.
const SELF_TEST_ONE_IN: usize = 8;

/// A running reference. Its machine is released when this is dropped, and at its deadline.
pub(crate) struct Reference {
    session: MinerSession,
    service: Service,
}

impl Reference {
    /// Starts a reference by this plan on the trusted miner, and tests it.
    ///
    /// # Errors
    /// The reason why there is no reference, as text.
    pub(crate) async fn start(state: &RunnerState, plan: &ReferencePlan) -> Result<Self, String> {
        let service = &plan.service;
        let trusted = state.trusted.as_ref();
        let trusted = trusted.ok_or("this validator has no miner of its own: [trusted_miner] names one")?;
        let times = SessionTimes {
            start: Duration::from_secs(state.settings.start_s),
            lifetime: Duration::from_secs(state.settings.run_s),
        };
        state.enter(AuditPhase::AskingForMachine).await;
        // The phase begins once the machine was asked for.
        let (session, ()) = tokio::join!(
            trusted.open(service, times),
            state.enter(AuditPhase::StartingReference)
        );
        let session = session?;
        state.enter(AuditPhase::TestingReference).await;
        let reference = Self {
            session,
            service: service.clone(),
        };
        let mut tested = reference.test_itself(state).await;
        if tested.is_ok() && !plan.known_answers.is_empty() {
            tested = reference.test_replay(state, plan).await;
        }
        tested.map_err(|reason| format!("it failed its test: {reason}"))?;
        Ok(reference)
    }

    /// The machine as a bundle names it: by its executor, the class, and the image.
    pub(crate) fn machine(&self) -> ReferenceMachine {
        let attested = Envelope::<Attestation>::from_text(self.session.sealed().attestation());
        let stated = attested.ok().and_then(|envelope| envelope.statement().ok());
        ReferenceMachine {
            machine: stated.map_or_else(String::new, |stated| stated.executor.to_string()),
            gpu: self.service.class.to_string(),
            engine: self.service.image.0,
        }
    }

    /// Asks for the scores of one answer.
    ///
    /// # Errors
    /// The reason why the answer has no score.
    pub(crate) async fn score(
        &self,
        state: &RunnerState,
        asked: &ScoreRequest,
    ) -> Result<Vec<TokenScore>, ScoreFailure> {
        let limit = Duration::from_secs(state.settings.score_s);
        match timeout(limit, self.post("/v1/score", asked.body.clone().into())).await {
            Err(_) => Err(UnusableReason::ReferenceStalled.into()),
            Ok(Err(error)) => {
                tracing::warn!(error, "a reference did not answer");
                Err(UnusableReason::ReferenceDied.into())
            }
            Ok(Ok((status, reply))) if (200..300).contains(&status) => {
                if asked.is_compared && !has_compared(&reply) {
                    tracing::warn!("a reference scored ids without a comparison with request and text");
                    return Err(UnusableReason::ReferenceRefused.into());
                }
                let scores = read_scores(&reply, asked.is_unseeded)?;
                match asked.is_text {
                    true => Ok(check_text_scores(scores)?),
                    false => Ok(scores),
                }
            }
            Ok(Ok((status, reply))) => Err(refusal(status, &reply, asked.is_compared)),
        }
    }

    /// The reply to a chat; `None` if there is none in time.
    pub(crate) async fn write_chat(&self, state: &RunnerState, body: Vec<u8>) -> Option<Bytes> {
        let limit = Duration::from_secs(state.settings.score_s);
        match timeout(limit, self.post("/v1/chat/completions", body.into())).await {
            Ok(Ok((status, reply))) if (200..300).contains(&status) => Some(reply),
            Ok(_) | Err(_) => None,
        }
    }

    /// Whether the reference still serves.
    pub(crate) async fn is_healthy(&self) -> bool {
        self.session.sealed().check_health().await.is_ok()
    }

    /// Lets the reference write an answer and score it: it has to make its own choices again, and to refuse other ids
    /// and another text.
    async fn test_itself(&self, state: &RunnerState) -> Result<(), String> {
        let sampled =
            json!({ "model": self.service.model, "temperature": 1.0, "muster_seed": "5a".repeat(32) });
        let mut answered = sampled.clone();
        merge(
            &mut answered,
            json!({ "prompt": "The", "max_tokens": SELF_TEST_TOKENS, "return_token_ids": true }),
        );
        let limit = Duration::from_secs(state.settings.score_s);
        let writing = self.post("/v1/completions", answered.to_string().into());
        let (status, reply) = timeout(limit, writing)
            .await
            .map_err(|_| "it did not write an answer in time".to_owned())??;
        let written: Value = serde_json::from_slice(&reply).unwrap_or_default();
        let choice = written.pointer("/choices/0").cloned().unwrap_or_default();
        let ids = |name: &str| choice.get(name).or(written.get(name)).cloned();
        let (Some(prompt), Some(output)) = (ids("prompt_token_ids"), ids("token_ids")) else {
            return Err(format!("it wrote no answer with token ids (HTTP {status})"));
        };
        let own = OwnAnswer {
            sampled,
            request: answered,
            prompt,
            output,
            text: choice.get("text").cloned().unwrap_or_default(),
            finish_reason: choice.get("finish_reason").cloned().unwrap_or_default(),
        };
        let scores = self
            .score(state, &own.score_request())
            .await
            .map_err(|failure| format!("it did not score its own answer: {failure}"))?;
        for (altered, falsehood) in own.altered() {
            let found = self.score(state, &altered.score_request()).await;
            if found != Err(ScoreFailure::FalseIds(falsehood)) {
                return Err(format!(
                    "it does not compare the ids of an answer with its {}",
                    falsehood.name()
                ));
            }
        }
        match off_of(&scores) {
            (off, all) if off.saturating_mul(SELF_TEST_ONE_IN) > all => {
                Err(format!("{off} of its own {all} tokens are not its choice"))
            }
            (_, _) => Ok(()),
        }
    }

    /// Lets the reference score answers that the whitelisted engine gave under known seeds: it has to find that
    /// engine's choices.
    async fn test_replay(&self, state: &RunnerState, plan: &ReferencePlan) -> Result<(), String> {
        let (mut off, mut all) = (0_usize, 0_usize);
        for known in &plan.known_answers {
            let asked = known_request(&self.service.model, &plan.sampling, known)
                .ok_or("the calibration has a known answer without a seed")?;
            let scores = self
                .score(state, &asked)
                .await
                .map_err(|failure| format!("it did not score a known answer: {failure}"))?;
            let found = off_of(&scores);
            off = off.saturating_add(found.0);
            all = all.saturating_add(found.1);
        }
        if off.saturating_mul(SELF_TEST_ONE_IN) > all {
            return Err(format!(
                "{off} of {all} tokens of the known answers are not the choice that it replays: the engine is of \
                 another version, or the weights are others"
            ));
        }
        Ok(())
    }

    /// One request and its whole reply: the HTTP status and the body.
    async fn post(&self, path: &str, body: Bytes) -> Result<(u16, Bytes), String> {
        let question = SealedRequest {
            method: Method::POST,
            path: path.to_owned(),
            body,
            client: None,
            client_nonce: None,
            gateway_nonce: draw_nonce().map_err(|error| error.to_string())?,
        };
        let answer = self.session.sealed().send(&question).await;
        let answer = answer.map_err(|error| Causes(&error).to_string())?;
        let status = answer.response.status().as_u16();
        let body = Limited::new(answer.response.into_body(), MAX_REPLY);
        let whole = body.collect().await.map_err(|error| error.to_string())?;
        Ok((status, whole.to_bytes()))
    }
}

/// An answer that a reference wrote.
#[derive(Clone)]
struct OwnAnswer {
    /// The parameters of the sampler.
    sampled: Value,
    request: Value,
    prompt: Value,
    output: Value,
    text: Value,
    finish_reason: Value,
}

impl OwnAnswer {
    fn score_request(&self) -> ScoreRequest {
        let mut body = self.sampled.clone();
        let stated = json!({
            "prompt_token_ids": self.prompt, "token_ids": self.output, "request": self.request, "text": self.text,
            "finish_reason": self.finish_reason,
        });
        merge(&mut body, stated);
        ScoreRequest {
            body: body.to_string().into_bytes(),
            is_text: false,
            is_unseeded: false,
            is_compared: true,
        }
    }

    /// The answer with another prompt, and with another text.
    fn altered(&self) -> [(Self, FalseIds); 2] {
        let mut other_prompt = self.clone();
        if let Some(ids) = other_prompt.prompt.as_array_mut() {
            ids.extend(ids.first().cloned());
        }
        let text = format!("{} more", self.text.as_str().unwrap_or_default());
        let other_text = Self {
            text: text.into(),
            ..self.clone()
        };
        [(other_prompt, FalseIds::Prompt), (other_text, FalseIds::Text)]
    }
}

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

/// The tokens that are off, and all of them.
fn off_of(scores: &[TokenScore]) -> (usize, usize) {
    let is_off = |score: &&TokenScore| score.margin != Margin::Micronats(0);
    (scores.iter().filter(is_off).count(), scores.len())
}

/// The request about a known answer; `None` if it names no seed.
fn known_request(model: &str, sampling: &Sampling, known: &KnownAnswer) -> Option<ScoreRequest> {
    let Sampling::Engine(sampler) = sampling else {
        return None;
    };
    let asked: Map<String, Value> = serde_json::from_str(&known.request).ok()?;
    let fields = of_engine(sampler, &asked)
        .ok()
        .filter(|fields| !fields.is_unseeded)?;
    let mut body = fields.parameters;
    body.extend(fields.beside);
    body.extend(fields.seed.map(|seed| ("seed".to_owned(), seed)));
    body.insert("model".to_owned(), model.into());
    body.insert("prompt_token_ids".to_owned(), json!(known.prompt));
    body.insert("token_ids".to_owned(), json!(known.output));
    Some(ScoreRequest {
        body: serde_json::to_vec(&body).ok()?,
        is_text: false,
        is_unseeded: false,
        is_compared: false,
    })
}

/// Whether a reply states that the ids were compared with the request.
fn has_compared(reply: &[u8]) -> bool {
    let reply: Value = serde_json::from_slice(reply).unwrap_or_default();
    reply.get("compared") == Some(&Value::Bool(true))
}

/// The reason that a reference gives for an answer that it does not score.
fn refusal(status: u16, reply: &[u8], is_compared: bool) -> ScoreFailure {
    let said = String::from_utf8_lossy(reply);
    tracing::info!(status, reply = %said.chars().take(300).collect::<String>(), "a reference refused an answer");
    let document: Value = serde_json::from_slice(reply).unwrap_or_default();
    let code = document.pointer("/error/code").and_then(Value::as_str);
    let falsehood = match code {
        Some("prompt_ids_differ") => Some(FalseIds::Prompt),
        Some("text_differs") => Some(FalseIds::Text),
        Some("end_differs") => Some(FalseIds::End),
        Some(_) | None => None,
    };
    if let Some(falsehood) = falsehood.filter(|_| is_compared) {
        return ScoreFailure::FalseIds(falsehood);
    }
    let reason = if said.contains("vocabulary") {
        UnusableReason::OtherTokenizer
    } else if said.contains("context") {
        UnusableReason::BeyondContext
    } else {
        UnusableReason::ReferenceRefused
    };
    reason.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_apart_by_its_code_and_its_words() {
        let of = |said: &str| refusal(400, said.as_bytes(), true);
        assert_eq!(
            of("tokens outside the vocabulary"),
            UnusableReason::OtherTokenizer.into()
        );
        assert_eq!(
            of("the context is 4096 tokens"),
            UnusableReason::BeyondContext.into()
        );
        assert_eq!(of("no"), UnusableReason::ReferenceRefused.into());
        let coded = |code: &str| json!({"error": {"code": code, "message": "vocabulary"}}).to_string();
        for (code, falsehood) in [
            ("prompt_ids_differ", FalseIds::Prompt),
            ("text_differs", FalseIds::Text),
            ("end_differs", FalseIds::End),
        ] {
            assert_eq!(of(&coded(code)), ScoreFailure::FalseIds(falsehood));
            // It was not asked to compare.
            let other = refusal(400, coded(code).as_bytes(), false);
            assert_eq!(other, UnusableReason::OtherTokenizer.into());
        }
        assert_eq!(of(&coded("other")), UnusableReason::OtherTokenizer.into());
    }

    #[test]
    fn a_reply_says_that_the_ids_were_compared() {
        assert!(has_compared(br#"{"compared":true,"tokens":[]}"#));
        for other in [r#"{"tokens":[]}"#, r#"{"compared":1}"#, "[]", "no JSON"] {
            assert!(!has_compared(other.as_bytes()), "{other}");
        }
    }
}
