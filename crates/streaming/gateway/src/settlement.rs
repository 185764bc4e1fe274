//! Settles an answer once it has ended: judges its proof, computes its price and stores both.
//!
//! While an answer passes, the fields that audits read are taken out of it, and its text is kept by these. The whole
//! body is kept beside them only where it may be opened with its signed bytes: of own prompts, and of clients who
//! consent.

use bytes::Bytes;
use http::StatusCode;
use muster_openai::{BodyKind, FieldBounds, FieldReader, TokenBounds, TokenMeter, TokenUsage};
use muster_protocol::Timestamp;
use muster_response_proof::StreamEnd;
use muster_sealed_client::{ProofError, ReceivedResponse, SentRequest};
use tokio::sync::oneshot;

use muster_sealed_client::SealedSession;

use crate::padding::{PaddingLimit, RequestShape};
use crate::request::{RelayedRequest, RequestOrigin};
use crate::session::keep_other_proofs;
use crate::state::GatewayState;
use crate::store::{AnswerText, BodyForm, ResponseRow, TextChange, TextConsent};
use crate::text_budget::AnswerParties;
use crate::token_count::MAX_TEXT;

/// Bytes of the longest fields that are kept of one answer for an audit, and of the longest event that they are read
/// from.
const MAX_WORDS: usize = 2 * 1024 * 1024;
/// Bytes of the longest answer that is kept whole. No bundle opens a longer one.
const MAX_WHOLE: usize = 1024 * 1024;
/// The stored verdict on an answer whose proof is valid. The store's sums of earnings compare with it.
const PROVEN: &str = "proven";

/// Observes an answer while it passes.
pub(crate) struct AnswerObservation {
    meter: TokenMeter,
    kind: BodyKind,
    is_chat: bool,
    /// The fields of the body until now, unless the client declined.
    fields: Option<FieldReader>,
    /// The body until now, if it may be opened and is not too long for that.
    whole: Option<Vec<u8>>,
    shape: Option<RequestShape>,
    padding: Option<PaddingLimit>,
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
    /// For the answer of this session to a request.
    pub(crate) fn new(
        state: &GatewayState,
        line: &SealedSession,
        request: &RelayedRequest,
        content_type: Option<&str>,
    ) -> Self {
        let model = &line.service().model;
        let bounds = TokenBounds::of(&request.body);
        let meter = TokenMeter::new(content_type, bounds);
        let (kind, is_chat) = (BodyKind::of(content_type), request.path.contains("/chat/"));
        let fields = FieldReader::new(
            kind,
            is_chat,
            FieldBounds {
                event: MAX_WORDS,
                kept: MAX_WORDS,
            },
        );
        let shape = RequestShape::of(model, &request.body);
        let limit = |shape| state.padding.limit(shape, request.body.len(), bounds.output);
        Self {
            meter: match state.counters.knows(model) {
                true => meter.keeping_texts(MAX_TEXT),
                false => meter,
            },
            kind,
            is_chat,
            fields: (request.consent != TextConsent::Declined).then_some(fields),
            whole: (request.consent == TextConsent::Publish).then(Vec::new),
            padding: shape
                .as_ref()
                .filter(|_| request.origin != RequestOrigin::TrustedTest)
                .and_then(limit),
            shape,
            first_byte_at: None,
        }
    }

    pub(crate) fn update(&mut self, data: &Bytes) {
        self.meter.update(data);
        if let Some(fields) = &mut self.fields {
            fields.update(data);
        }
        if let Some(whole) = &mut self.whole {
            if whole.len().saturating_add(data.len()) > MAX_WHOLE {
                self.whole = None;
            } else {
                whole.extend_from_slice(data);
            }
        }
    }

    /// Whether the answer has far more bytes than the whitelisted engine writes for its tokens.
    pub(crate) fn is_padded(&self) -> bool {
        let limit = self.padding.as_ref();
        limit.is_some_and(|limit| limit.is_exceeded(self.meter.bytes(), self.meter.text_bytes()))
    }

    /// Judges the proof and stores the answer, with its words if it is proven and successful: until the draw nobody
    /// knows whether they will be needed. Returns how the answer ended, as the session states it in a proof.
    pub(crate) async fn settle(
        mut self,
        state: &GatewayState,
        line: &SealedSession,
        request: &RelayedRequest,
        asked: &SentRequest,
        seen: oneshot::Receiver<ReceivedResponse>,
        observed: ObservedEnd,
    ) -> Option<StreamEnd> {
        let judged = JudgedAnswer::judge(line, asked, seen, observed.end).await;
        let is_proven = judged.sequence.is_some();
        let is_paid = is_proven && observed.status.is_success();
        if is_proven && !observed.status.is_server_error() {
            line.note_healthy_answer();
        }
        let texts = self.take_texts(request, observed.content_type.as_deref(), judged.is_whole);
        let (usage, is_exact) = match observed.status.is_success() {
            true => self.count(state, line, request, is_paid).await,
            // A refused request costs nothing, so none of it is counted.
            false => (TokenUsage::default(), false),
        };
        if request.origin == RequestOrigin::TrustedTest && is_paid && observed.end.is_none() {
            let by_ids = texts.as_ref().map_or(0, |texts| texts.ids);
            let by_tokenizer = if is_exact { usage.output } else { 0 };
            self.learn_padding(state, by_ids.max(by_tokenizer));
        }
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
            end: judged.end.name().to_owned(),
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
        let texts = texts.filter(|_| is_paid);
        let change = texts.map(|texts| texts.seal(state, line, request, &row.id));
        let change = change.unwrap_or_default();
        measure(&row);
        // An audit shows the proofs before this one, too: they are durable first.
        keep_other_proofs(state, line).await;
        if let Err(error) = state.store.insert_response(&row, request.consent, &change).await {
            state.fail(error);
        }
        // Another answer may have taken its room before it was stored.
        if change.kept.is_some()
            && state.words.is_let_go(&row.id)
            && let Err(error) = state.store.drop_text(&row.id).await
        {
            state.fail(error);
        }
        judged.stated
    }
}

impl AnswerObservation {
    /// The texts of the answer that may be kept; `None` if its client declined, or if they are too long. An answer that
    /// did not arrive whole is kept without its body: the session signed more than can be read of it, so an audit must
    /// not compare them.
    fn take_texts(
        &mut self,
        request: &RelayedRequest,
        content_type: Option<&str>,
        is_whole: bool,
    ) -> Option<AnswerTexts> {
        let fields = self.fields.take()?;
        let text = |form, response| AnswerText {
            request: request.body.to_vec(),
            response,
            form,
            content_type: content_type.map(str::to_owned),
        };
        if !is_whole {
            return Some(AnswerTexts {
                ids: 0,
                whole: None,
                read: text(BodyForm::Whole, Vec::new()),
            });
        }
        let fields = fields.finish()?;
        let read = fields.to_body(self.kind, self.is_chat);
        let whole = self.whole.take();
        (read.len() <= MAX_WORDS).then(|| AnswerTexts {
            ids: u64::try_from(fields.output_ids.len()).unwrap_or(u64::MAX),
            whole: whole.map(|whole| text(BodyForm::Whole, whole)),
            read: text(BodyForm::Read, read),
        })
    }

    /// Notes how long the own miner's answer is for its tokens.
    fn learn_padding(&mut self, state: &GatewayState, tokens: u64) {
        if let Some(shape) = self.shape.take() {
            state.padding.learn(shape, self.meter.bytes(), tokens);
        }
    }

    /// The tokens of the answer, and whether they were counted: they are if it is paid for and the model's tokenizer is
    /// at hand, and bounded otherwise.
    async fn count(
        &mut self,
        state: &GatewayState,
        line: &SealedSession,
        request: &RelayedRequest,
        is_paid: bool,
    ) -> (TokenUsage, bool) {
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
            Some(counted) => (self.meter.usage_by_count(counted.usage, counted.template), true),
            None => (self.meter.usage(), false),
        }
    }
}

/// The verdict on an answer, in the store's form.
struct JudgedAnswer {
    /// As the session signed it, or as it was observed.
    end: StreamEnd,
    /// As the session states it, whether its proof holds or not.
    stated: Option<StreamEnd>,
    /// [`PROVEN`], or why the answer is not proven.
    verdict: String,
    proof: Option<String>,
    /// The proof's number in its session, if the answer is proven.
    sequence: Option<u64>,
    /// Whether the end of the answer's body arrived.
    is_whole: bool,
}

impl JudgedAnswer {
    async fn judge(
        line: &SealedSession,
        asked: &SentRequest,
        seen: oneshot::Receiver<ReceivedResponse>,
        end: Option<StreamEnd>,
    ) -> Self {
        let checked = seen.await.ok();
        let is_whole = checked.as_ref().is_some_and(|checked| checked.whole);
        let verdict = match &checked {
            Some(checked) => line.check_proof(checked, asked).await,
            None => Err(ProofError::Absent),
        };
        match verdict {
            Ok((stated, envelope)) => Self {
                end: stated.end,
                stated: Some(stated.end),
                verdict: PROVEN.to_owned(),
                proof: Some(envelope.to_text()),
                sequence: Some(stated.sequence),
                is_whole,
            },
            Err(unproven) => {
                tracing::warn!(session = %line.id(), miner = %line.miner(), %unproven, "an answer is not proven");
                let arrived = checked.and_then(|checked| checked.proof).and_then(Result::ok);
                let stated = arrived.as_ref().and_then(|envelope| envelope.statement().ok());
                Self {
                    end: end.unwrap_or(StreamEnd::Completed),
                    stated: stated.map(|stated| stated.end),
                    verdict: unproven.to_string(),
                    proof: arrived.map(|envelope| envelope.to_text()),
                    sequence: None,
                    is_whole,
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

/// The texts of one answer that may be kept.
struct AnswerTexts {
    /// The number of the output's ids that the answer states.
    ids: u64,
    /// With the whole body, if it may be opened.
    whole: Option<AnswerText>,
    /// With the fields that audits read, or without a body if that did not arrive whole.
    read: AnswerText,
}

impl AnswerTexts {
    /// The sealed text of an answer, and what is let go for it. Without its text an answer can be drawn and not be
    /// scored, which counts for the miner.
    fn seal(
        &self,
        state: &GatewayState,
        line: &SealedSession,
        request: &RelayedRequest,
        id: &str,
    ) -> TextChange {
        let sealed = match request.origin {
            RequestOrigin::User => {
                let parties = AnswerParties {
                    session: line.id(),
                    client: request.client.name(),
                    coldkey: state.backend.owner_of(line.miner()),
                };
                let text = self.whole.as_ref().unwrap_or(&self.read);
                state.words.seal(id, text, parties)
            }
            RequestOrigin::OwnPrompt | RequestOrigin::TrustedTest => {
                state.words.seal_own(id, self.whole.as_ref(), &self.read)
            }
        };
        sealed.unwrap_or_else(|error| {
            tracing::warn!(%error, answer = id, "the text of an answer is not kept");
            TextChange::default()
        })
    }
}
