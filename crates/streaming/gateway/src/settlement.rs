//! Settles an answer once it has ended: judges its proof, computes its price and stores both.

use bytes::Bytes;
use http::StatusCode;
use muster_openai::{TokenBounds, TokenMeter};
use muster_protocol::{Digest, Timestamp};
use muster_response_proof::{RequestNonce, StreamEnd};
use muster_sealed_client::{ProofError, ReceivedResponse, SentRequest};
use tokio::sync::oneshot;

use crate::request::RelayedRequest;
use crate::state::GatewayState;
use crate::store::{ResponseRow, SampledPair};
use muster_sealed_client::SealedSession;

/// Bytes of the largest answer that is kept as a sample.
const MAX_SAMPLE: usize = 2 * 1024 * 1024;
/// The stored verdict on an answer whose proof is valid. The store's sums of earnings compare with it.
const PROVEN: &str = "proven";

/// Observes an answer while it passes.
pub(crate) struct AnswerObservation {
    meter: TokenMeter,
    /// The body until now, if the answer was drawn as a sample and is not too large for one.
    sample: Option<Vec<u8>>,
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
    /// `percent` of all answers are drawn as samples.
    pub(crate) fn new(request: &RelayedRequest, content_type: Option<&str>, percent: u8) -> Self {
        Self {
            meter: TokenMeter::new(content_type, TokenBounds::of(&request.body)),
            sample: is_sampled(&request.nonce, percent).then(Vec::new),
            first_byte_at: None,
        }
    }

    pub(crate) fn update(&mut self, data: &Bytes) {
        self.meter.update(data);
        if let Some(sample) = &mut self.sample {
            if sample.len().saturating_add(data.len()) > MAX_SAMPLE {
                self.sample = None;
            } else {
                sample.extend_from_slice(data);
            }
        }
    }

    /// Judges the proof and stores the answer, with its sample if it is proven.
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
        let usage = self.meter.usage();
        let earned = if is_proven && observed.status.is_success() {
            line.service().cost(usage)
        } else {
            0
        };
        let row = ResponseRow {
            id: request.nonce.hex(),
            session: line.id(),
            client: request.client,
            model: line.service().model.clone(),
            asked_at: observed.asked_at,
            first_byte_at: self.first_byte_at,
            ended_at: state.clock.now(),
            status: observed.status.as_u16(),
            end: judged.end.to_owned(),
            verdict: judged.verdict,
            proof: judged.proof,
            sequence: judged.sequence,
            bytes: self.meter.bytes(),
            usage,
            earned,
        };
        let sample = self.sample.filter(|_| is_proven).map(|response| SampledPair {
            request: request.body.to_vec(),
            response,
            content_type: observed.content_type,
        });
        measure(&row);
        if let Err(error) = state.store.insert_response(&row, sample.as_ref()).await {
            state.fail(error);
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

/// Whether an answer is drawn as a sample. The gateway drew the nonce, so neither client nor miner can foresee it.
fn is_sampled(nonce: &RequestNonce, percent: u8) -> bool {
    let [first, second, ..] = Digest::of(nonce.as_bytes()).as_bytes().to_owned();
    u16::from_be_bytes([first, second]) % 100 < u16::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_as_many_answers_are_sampled_as_the_percentage_says() {
        let sampled = |percent| {
            (0..2_000_u32)
                .filter(|seed| {
                    let mut bytes = [0; 32];
                    bytes[..4].copy_from_slice(&seed.to_be_bytes());
                    is_sampled(&RequestNonce::from_bytes(bytes), percent)
                })
                .count()
        };
        assert_eq!((sampled(0), sampled(100)), (0, 2_000));
        assert!((120..280).contains(&sampled(10)), "{}", sampled(10));
    }
}
