//! A reference: the whitelisted image on a machine of the validator's own, which exists only while it scores.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt as _, Limited};
use muster_audit::{Margin, ReferenceMachine, TokenScore, UnusableReason};
use muster_gateway::trusted_sessions::{SessionTimes, TrustedSession};
use muster_process::error::Causes;
use muster_response_proof::{Attestation, Envelope};
use muster_sealed_client::{SealedRequest, draw_nonce};
use muster_session_pool::Service;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::RunnerState;
use crate::score_request::read_scores;

/// The longest reply of a reference, in bytes.
const MAX_REPLY: usize = 32 * 1024 * 1024;
/// The tokens that a reference writes and scores before it scores anything else.
const SELF_TEST_TOKENS: usize = 32;
/// A reference that misses its own choice more often than once in so many tokens is not asked.
const SELF_TEST_ONE_IN: usize = 8;

/// A running reference. Its machine is released when this is dropped, and at its deadline.
pub(crate) struct Reference {
    session: TrustedSession,
    service: Service,
}

impl Reference {
    /// Starts a reference with this service on the trusted miner, and tests it.
    ///
    /// # Errors
    /// The reason why there is no reference, in words.
    pub(crate) async fn start(state: &RunnerState, service: &Service) -> Result<Self, String> {
        let trusted = state.trusted.as_ref();
        let trusted = trusted.ok_or("this validator has no miner of its own: [trusted_miner] names one")?;
        let times = SessionTimes {
            start: Duration::from_secs(state.settings.start_s),
            lifetime: Duration::from_secs(state.settings.run_s),
        };
        let session = trusted.open(service, times).await?;
        let reference = Self {
            session,
            service: service.clone(),
        };
        let tested = reference.test_itself(state).await;
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
        body: Vec<u8>,
    ) -> Result<Vec<TokenScore>, UnusableReason> {
        let limit = Duration::from_secs(state.settings.score_s);
        match timeout(limit, self.post("/v1/score", body.into())).await {
            Err(_) => Err(UnusableReason::ReferenceStalled),
            Ok(Err(error)) => {
                tracing::warn!(error, "a reference did not answer");
                Err(UnusableReason::ReferenceDied)
            }
            Ok(Ok((status, reply))) if (200..300).contains(&status) => read_scores(&reply),
            Ok(Ok((status, reply))) => Err(refusal(status, &reply)),
        }
    }

    /// Whether the reference still serves.
    pub(crate) async fn is_healthy(&self) -> bool {
        self.session.sealed().check_health().await.is_ok()
    }

    /// Lets the reference write an answer and score it: it has to make its own choices again.
    async fn test_itself(&self, state: &RunnerState) -> Result<(), String> {
        let sampled =
            json!({ "model": self.service.model, "temperature": 1.0, "muster_seed": "5a".repeat(32) });
        let mut asked = sampled.clone();
        merge(
            &mut asked,
            json!({ "prompt": "The", "max_tokens": SELF_TEST_TOKENS, "return_token_ids": true }),
        );
        let limit = Duration::from_secs(state.settings.score_s);
        let writing = self.post("/v1/completions", asked.to_string().into());
        let (status, reply) = timeout(limit, writing)
            .await
            .map_err(|_| "it did not write an answer in time".to_owned())??;
        let written: Value = serde_json::from_slice(&reply).unwrap_or_default();
        let choice = written.pointer("/choices/0").cloned().unwrap_or_default();
        let ids = |name: &str| choice.get(name).or(written.get(name)).cloned();
        let (Some(prompt), Some(output)) = (ids("prompt_token_ids"), ids("token_ids")) else {
            return Err(format!("it wrote no answer with token ids (HTTP {status})"));
        };
        let mut scored = sampled;
        merge(
            &mut scored,
            json!({ "prompt_token_ids": prompt, "token_ids": output }),
        );
        let scores = self
            .score(state, scored.to_string().into_bytes())
            .await
            .map_err(|reason| format!("it did not score its own answer: {reason:?}"))?;
        let is_off = |score: &&TokenScore| score.margin != Margin::Micronats(0);
        let off = scores.iter().filter(is_off).count();
        if off.saturating_mul(SELF_TEST_ONE_IN) > scores.len() {
            return Err(format!(
                "{off} of its own {} tokens are not its choice",
                scores.len()
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

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

/// The reason that a reference gives for an answer that it does not score.
fn refusal(status: u16, reply: &[u8]) -> UnusableReason {
    let said = String::from_utf8_lossy(reply);
    tracing::info!(status, reply = %said.chars().take(300).collect::<String>(), "a reference refused an answer");
    if said.contains("vocabulary") {
        UnusableReason::OtherTokenizer
    } else if said.contains("context") {
        UnusableReason::BeyondContext
    } else {
        UnusableReason::ReferenceRefused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_apart_by_its_words() {
        let of = |said: &str| refusal(400, said.as_bytes());
        assert_eq!(
            of("tokens outside the vocabulary"),
            UnusableReason::OtherTokenizer
        );
        assert_eq!(of("the context is 4096 tokens"), UnusableReason::BeyondContext);
        assert_eq!(of("no"), UnusableReason::ReferenceRefused);
    }
}
