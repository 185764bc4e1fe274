//! Settles an answer once it has ended: judges its proof, computes its price and stores both.

use bytes::Bytes;
use http::StatusCode;
use muster_openai::{TokenBounds, TokenMeter, TokenUsage};
use muster_protocol::Timestamp;
use muster_response_proof::StreamEnd;
use muster_sealed_client::{ProofError, ReceivedResponse, SentRequest};
use tokio::sync::oneshot;

use muster_sealed_client::SealedSession;

use crate::request::RelayedRequest;
use crate::session::keep_other_proofs;
use crate::state::GatewayState;
use crate::store::{AnswerText, ResponseRow, SealedText, TextConsent};
use crate::token_count::MAX_TEXT;

/// Bytes of the largest answer whose words are kept for an audit.
const MAX_WORDS: usize = 2 * 1024 * 1024;
/// The stored verdict on an answer whose proof is valid. The store's sums of earnings compare with it.
const PROVEN: &str = "proven";

/// Observes an answer while it passes.
pub(crate) struct AnswerObservation {
    meter: TokenMeter,
    /// The body until now, unless the client declined or the answer is too large to be kept.
    body: Option<Vec<u8>>,
    pub(crate) first_byte_at: Option<Timestamp>,
}

/// The gateway's own observation of an answer that has ended.
pub(crate) struct ObservedEnd {
    pub(crate) asked_at: Timestamp,
    pub(crate) status: StatusCode,
    pub(crate) content_type: Option<String>,
    /// `None` if the body came to its end.
    pub(crate) end: Option<StreamEnd>,
}

impl AnswerObservation {
    /// `counts_tokens` states whether the texts of the answer are to be counted by the model's tokenizer.
    pub(crate) fn new(request: &RelayedRequest, content_type: Option<&str>, counts_tokens: bool) -> Self {
        let meter = TokenMeter::new(content_type, TokenBounds::of(&request.body));
        Self {
            meter: match counts_tokens {
                true => meter.keeping_texts(MAX_TEXT),
                false => meter,
            },
            body: (request.consent != TextConsent::Declined).then(Vec::new),
            first_byte_at: None,
        }
    }

    pub(crate) fn update(&mut self, data: &Bytes) {
        self.meter.update(data);
        if let Some(body) = &mut self.body {
            if body.len().saturating_add(data.len()) > MAX_WORDS {
                self.body = None;
            } else {
                body.extend_from_slice(data);
            }
        }
    }

    /// Judges the proof and stores the answer, with its words if it is proven and successful: until the draw nobody
    /// knows whether they will be needed.
    pub(crate) async fn settle(
        mut self,
        state: &GatewayState,
        line: &SealedSession,
        request: &RelayedRequest,
        asked: &SentRequest,
        seen: oneshot::Receiver<ReceivedResponse>,
        observed: ObservedEnd,
    ) {
        let judged = JudgedAnswer::judge(line, asked, seen, observed.end).await;
        let is_proven = judged.sequence.is_some();
        let is_paid = is_proven && observed.status.is_success();
        if is_proven && !observed.status.is_server_error() {
            line.note_healthy_answer();
        }
        let usage = self.count(state, line, request, is_paid).await;
        let earned = if is_paid { line.service().cost(usage) } else { 0 };
        let row = ResponseRow {
            id: request.id.hex(),
            session: line.id(),
            client: request.client.name(),
            client_key: Some(request.client.admitted.key),
            pseudonym_nonce: request.client.told_nonce().map(|nonce| nonce.hex()),
            model: line.service().model.clone(),
            asked_at: observed.asked_at,
            first_byte_at: self.first_byte_at,
            ended_at: state.clock.now(),
            status: observed.status.as_u16(),
            end: judged.end.to_owned(),
            // The session may state that the client went away: here it stayed.
            cut: matches!(
                observed.end,
                Some(StreamEnd::EngineFailed | StreamEnd::EngineSilent)
            ),
            verdict: judged.verdict,
            proof: judged.proof,
            sequence: judged.sequence,
            bytes: self.meter.bytes(),
            usage,
            earned,
        };
        let words = self.body.filter(|_| is_paid).map(|response| AnswerText {
            request: request.body.to_vec(),
            response,
            content_type: observed.content_type,
        });
        let sealed = words.and_then(|words| seal_text(state, &row.id, &words));
        measure(&row);
        // An audit shows the proofs before this one, too: they are durable first.
        keep_other_proofs(state, line).await;
        if let Err(error) = state
            .store
            .insert_response(&row, request.consent, sealed.as_ref())
            .await
        {
            state.fail(error);
        }
    }
}

impl AnswerObservation {
    /// The tokens of the answer: counted if it is paid for and the model's tokenizer is at hand, bounded otherwise.
    async fn count(
        &mut self,
        state: &GatewayState,
        line: &SealedSession,
        request: &RelayedRequest,
        is_paid: bool,
    ) -> TokenUsage {
        let texts = self.meter.texts().filter(|_| is_paid);
        let model = &line.service().model;
        let counted = match texts {
            Some(texts) => {
                let body = request.body.clone();
                state
                    .counters
                    .count(model, request.client.name(), body, texts)
                    .await
            }
            None => None,
        };
        match counted {
            Some(counted) => self.meter.usage_by_count(counted),
            None => self.meter.usage(),
        }
    }
}

/// The verdict on an answer, in the store's form.
struct JudgedAnswer {
    /// As the session signed it, or as it was observed.
    end: &'static str,
    /// [`PROVEN`], or why the answer is not proven.
    verdict: String,
    proof: Option<String>,
    /// The proof's number in its session, if the answer is proven.
    sequence: Option<u64>,
}

impl JudgedAnswer {
    async fn judge(
        line: &SealedSession,
        asked: &SentRequest,
        seen: oneshot::Receiver<ReceivedResponse>,
        end: Option<StreamEnd>,
    ) -> Self {
        let checked = seen.await.ok();
        let verdict = match &checked {
            Some(checked) => line.check_proof(checked, asked).await,
            None => Err(ProofError::Absent),
        };
        match verdict {
            Ok((stated, envelope)) => Self {
                end: stated.end.name(),
                verdict: PROVEN.to_owned(),
                proof: Some(envelope.to_text()),
                sequence: Some(stated.sequence),
            },
            Err(unproven) => {
                tracing::warn!(session = %line.id(), miner = %line.miner(), %unproven, "an answer is not proven");
                let arrived = checked.and_then(|checked| checked.proof).and_then(Result::ok);
                Self {
                    end: end.unwrap_or(StreamEnd::Completed).name(),
                    verdict: unproven.to_string(),
                    proof: arrived.map(|envelope| envelope.to_text()),
                    sequence: None,
                }
            }
        }
    }
}

fn measure(row: &ResponseRow) {
    let model = row.model.clone();
    let verdict = if row.sequence.is_some() {
        PROVEN
    } else {
        "unproven"
    };
    metrics::counter!("muster_gateway_responses_total", "model" => model.clone(), "verdict" => verdict, "end" => row.end.clone())
        .increment(1);
    metrics::counter!("muster_gateway_tokens_total", "model" => model.clone(), "of" => "input")
        .increment(row.usage.input);
    metrics::counter!("muster_gateway_tokens_total", "model" => model.clone(), "of" => "output")
        .increment(row.usage.output);
    if let Some(first) = row.first_byte_at {
        metrics::histogram!("muster_gateway_first_byte_seconds", "model" => model)
            .record(first.since(row.asked_at).as_secs_f64());
    }
}

/// The sealed words of an answer. Without them the answer can be drawn and not be scored, which counts for the miner.
fn seal_text(state: &GatewayState, id: &str, words: &AnswerText) -> Option<SealedText> {
    match state.words.seal(id, words) {
        Ok(sealed) => Some(sealed),
        Err(error) => {
            tracing::warn!(%error, answer = id, "the words of an answer are not kept");
            None
        }
    }
}
