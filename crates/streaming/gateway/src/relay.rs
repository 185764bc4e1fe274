//! One request on its way to a session, and its answer on its way back, as it arrives.
//!
//! Until the first byte of an answer has come, the request may be given to another session; after that the client has it, and
//! whatever happens is told inside the stream. However it ends, what was seen is judged and kept, before the client sees
//! the end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::OptionFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use muster_openai::{OpenAiError, TokenMeter, TokenUsage};
use muster_process::error::Causes;
use muster_protocol::{Digest, Timestamp};
use muster_response_proof::{Nonce, StreamEnd};
use muster_sealing_proxy::headers::{PROOF, end_to_end};
use muster_sealing_proxy::{Asked, Checked, Unproven};
use muster_session_pool::SessionNo;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::desk::{Ticket, Turn};
use crate::gateway::Core;
use crate::line::{Answer, Line, Question};
use crate::store::{Pair, ResponseRow};

/// By what a client finds the proof of its answer later.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// How long an answer may be silent whose session is taken for dead: one that goes on is let go on.
const LAST_SILENCE: Duration = Duration::from_secs(5);
/// How long a client may take nothing of what waits for it.
const STALL: Duration = Duration::from_secs(120);
/// The largest answer that is kept for a later check.
const MAX_PAIR: usize = 2 * 1024 * 1024;

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub(crate) path: &'static str,
    pub(crate) body: Bytes,
    pub(crate) client: Digest,
    pub(crate) client_nonce: Option<Nonce>,
    /// Also the name of its proof.
    pub(crate) nonce: Nonce,
}

/// A piece of an answer.
#[derive(Debug)]
pub(crate) enum Part {
    /// Its head.
    Head(StatusCode, HeaderMap),
    /// Bytes of its body.
    Data(Bytes),
    /// What follows on its body.
    Trailers(HeaderMap),
    /// There is no answer; nothing has been sent.
    Refused(OpenAiError),
    /// It broke off, and nothing can be said about it inside the body.
    Cut,
}

/// How one try ended.
enum Tried {
    /// Somebody else may try.
    Again,
    /// It was taken for dead before it answered, and this is what the desk says instead.
    Moved(Turn),
    /// The client has its answer, or is gone.
    Over,
}

/// The way to the client.
struct Client(mpsc::Sender<Part>);

/// The client is gone, or takes nothing.
struct Gone;

impl Client {
    async fn give(&self, part: Part) -> Result<(), Gone> {
        match timeout(STALL, self.0.send(part)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }
}

/// Sees one request through.
pub(crate) async fn run(core: Arc<Core>, mut ticket: Ticket, asking: Asking, to: mpsc::Sender<Part>) {
    let client = Client(to);
    let mut told = None;
    loop {
        let turn = match told.take() {
            Some(turn) => turn,
            None => tokio::select! {
                turn = ticket.next() => turn,
                // Dropping the ticket gives its place up.
                () = client.0.closed() => return,
            },
        };
        match turn {
            Turn::Refused(refusal) => {
                // A client that is gone needs no refusal.
                let _ = client.give(Part::Refused(refusal)).await;
                return;
            }
            Turn::Broken => {
                let refusal = OpenAiError::UpstreamFailed("the session is gone".to_owned());
                let _ = client.give(Part::Refused(refusal)).await;
                return;
            }
            Turn::Yours(session, line) => {
                match attempt(&core, &mut ticket, &asking, &client, session, &line).await {
                    Tried::Again => ticket.broke(session),
                    Tried::Moved(turn) => told = Some(turn),
                    Tried::Over => return ticket.served(session),
                }
            }
        }
    }
}

async fn attempt(
    core: &Core,
    ticket: &mut Ticket,
    asking: &Asking,
    client: &Client,
    session: SessionNo,
    line: &Line,
) -> Tried {
    let question = Question {
        method: Method::POST,
        path: asking.path.to_owned(),
        body: asking.body.clone(),
        client: Some(asking.client),
        client_nonce: asking.client_nonce,
        gateway_nonce: asking.nonce,
    };
    let silence = Duration::from_secs(core.settings.silence_s);
    let _passing = line.passing();
    let asked_at = core.clock.now();
    let answer = tokio::select! {
        biased;
        answer = timeout(silence, line.ask(&question)) => answer,
        turn = ticket.next() => return Tried::Moved(turn),
        // Nothing was seen of it: the session will have signed an answer that nobody got.
        () = client.0.closed() => return Tried::Over,
    };
    let Answer {
        asked,
        response,
        seen,
    } = match answer {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            tracing::info!(session = %line.session, error = %Causes(&error), "a session did not answer");
            return Tried::Again;
        }
        Err(_) => return Tried::Again,
    };
    let (mut head, mut body) = response.into_parts();
    let proof = head.headers.remove(PROOF);
    if proof.is_none() && head.status == StatusCode::SERVICE_UNAVAILABLE {
        // The seal's own refusal: it is full, or closing. Nothing was asked of the engine.
        return Tried::Again;
    }
    let content_type = content_type(&head.headers);
    let events = is_events(content_type.as_deref());
    end_to_end(&mut head.headers);
    if let Some(proof) = proof {
        head.headers.insert(PROOF, proof);
    }
    head.headers.insert(REQUEST_ID, id(&asking.nonce));
    let mut passage = Passage {
        meter: TokenMeter::new(content_type.as_deref(), asking.body.len()),
        kept: drawn(&asking.nonce, core.settings.sample_percent).then(Vec::new),
        first_byte: None,
    };
    // Nothing is given before there is something to give: until then another session may take over.
    let mut next = tokio::select! {
        biased;
        next = timeout(silence, body.frame()) => match next {
            Ok(Some(Err(_))) | Err(_) => return Tried::Again,
            Ok(next) => next,
        },
        turn = ticket.next() => return Tried::Moved(turn),
        () = client.0.closed() => None,
    };
    ticket.first_byte(session);
    passage.first_byte = Some(core.clock.now());
    let mut end = match client.give(Part::Head(head.status, head.headers)).await {
        Ok(()) => None,
        Err(Gone) => Some(StreamEnd::ClientGone),
    };
    let mut doomed = false;
    while end.is_none() {
        let frame = match next.take() {
            Some(Ok(frame)) => frame,
            None => break,
            Some(Err(_)) => {
                end = Some(StreamEnd::EngineFailed);
                break;
            }
        };
        let part = match frame.into_data() {
            Ok(data) => {
                passage.pass(&data);
                Part::Data(data)
            }
            Err(frame) => Part::Trailers(frame.into_trailers().unwrap_or_default()),
        };
        if client.give(part).await.is_err() {
            end = Some(StreamEnd::ClientGone);
            break;
        }
        next = loop {
            let last_silence = OptionFuture::from(doomed.then(|| core.clock.sleep(LAST_SILENCE)));
            tokio::select! {
                biased;
                frame = body.frame() => break frame,
                () = client.0.closed() => {
                    end = Some(StreamEnd::ClientGone);
                    break None;
                }
                turn = ticket.next(), if !doomed => {
                    // Its machine may be gone, or only the word of it: what flows is not broken by that.
                    tracing::info!(session = %line.session, ?turn, "a session is taken for dead in the middle of an answer");
                    doomed = true;
                }
                Some(()) = last_silence => {
                    end = Some(StreamEnd::EngineFailed);
                    break None;
                }
                () = sleep(silence) => {
                    end = Some(StreamEnd::EngineSilent);
                    break None;
                }
            }
        };
    }
    drop(body);
    let judged = Judged {
        asked_at,
        status: head.status,
        content_type,
        end,
    };
    passage.settle(core, line, asking, &asked, seen, judged).await;
    if let Some(end) = end {
        let told = match end {
            StreamEnd::ClientGone => return Tried::Over,
            StreamEnd::Completed
            | StreamEnd::EngineFailed
            | StreamEnd::EngineSilent
            | StreamEnd::Oversize
            | StreamEnd::SessionClosed => OpenAiError::UpstreamFailed(format!(
                "the answer broke off: {}; what came is proven as such",
                end.name()
            )),
        };
        let last = if events {
            // The engine may have stopped within a line.
            Part::Data(format!("\n\n{}", told.event()).into())
        } else {
            Part::Cut
        };
        // A client that is gone needs no explanation.
        let _ = client.give(last).await;
    }
    Tried::Over
}

/// What is noted while an answer passes.
struct Passage {
    meter: TokenMeter,
    /// What has passed, if it was drawn for a later check and is not too large for one.
    kept: Option<Vec<u8>>,
    first_byte: Option<Timestamp>,
}

/// What is known once it is over.
struct Judged {
    asked_at: Timestamp,
    status: StatusCode,
    content_type: Option<String>,
    /// As it was seen to end; `None` if the end came.
    end: Option<StreamEnd>,
}

impl Passage {
    fn pass(&mut self, data: &[u8]) {
        self.meter.update(data);
        if let Some(kept) = &mut self.kept {
            if kept.len().saturating_add(data.len()) > MAX_PAIR {
                self.kept = None;
            } else {
                kept.extend_from_slice(data);
            }
        }
    }

    /// Judges the proof and keeps what is to be kept.
    async fn settle(
        mut self,
        core: &Core,
        line: &Line,
        asking: &Asking,
        asked: &Asked,
        seen: oneshot::Receiver<Checked>,
        judged: Judged,
    ) {
        let checked = seen.await.ok();
        let verdict = match &checked {
            Some(checked) => line.verdict(checked, asked).await,
            None => Err(Unproven::Absent),
        };
        let usage: TokenUsage = self.meter.usage();
        let (end, words, proof, sequence) = match verdict {
            Ok((stated, envelope)) => (
                stated.end.name(),
                PROVEN.to_owned(),
                Some(envelope.to_text()),
                Some(stated.sequence),
            ),
            Err(unproven) => {
                tracing::warn!(session = %line.session, miner = %line.miner, %unproven, "an answer is not proven");
                let came = checked.and_then(|checked| checked.proof).and_then(Result::ok);
                let end = judged.end.unwrap_or(StreamEnd::Completed).name();
                (
                    end,
                    unproven.to_string(),
                    came.map(|envelope| envelope.to_text()),
                    None,
                )
            }
        };
        let proven = sequence.is_some();
        let earned = if proven && judged.status.is_success() {
            line.service.cost(usage)
        } else {
            0
        };
        let row = ResponseRow {
            id: asking.nonce.hex(),
            session: line.session,
            client: asking.client,
            model: line.service.model.clone(),
            asked_at: judged.asked_at,
            first_byte_at: self.first_byte,
            ended_at: core.clock.now(),
            status: judged.status.as_u16(),
            end: end.to_owned(),
            verdict: words,
            proof,
            sequence,
            bytes: self.meter.bytes(),
            usage,
            earned,
        };
        let pair = self.kept.filter(|_| proven).map(|response| Pair {
            request: asking.body.to_vec(),
            response,
            content_type: judged.content_type,
        });
        measure(&row);
        if let Err(error) = core.book.keep(&row, pair.as_ref()).await {
            core.fail(error);
        }
    }
}

/// The verdict on an answer whose proof holds.
pub(crate) const PROVEN: &str = "proven";

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

/// Whether an answer is kept for a later check. The nonce was drawn here, so nobody knows beforehand.
fn drawn(nonce: &Nonce, percent: u8) -> bool {
    let [first, second, ..] = Digest::of(nonce.as_bytes()).as_bytes().to_owned();
    u16::from_be_bytes([first, second]) % 100 < u16::from(percent)
}

fn content_type(headers: &HeaderMap) -> Option<String> {
    headers.get(CONTENT_TYPE)?.to_str().ok().map(str::to_owned)
}

pub(crate) fn is_events(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|kind| {
        kind.trim_start()
            .to_ascii_lowercase()
            .starts_with("text/event-stream")
    })
}

pub(crate) fn id(nonce: &Nonce) -> HeaderValue {
    // Hex digits are a header's value.
    HeaderValue::from_str(&nonce.hex()).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_as_many_are_drawn_as_were_asked_for() {
        let drawn = |percent| {
            (0..2_000_u32)
                .filter(|seed| {
                    let mut bytes = [0; 32];
                    bytes[..4].copy_from_slice(&seed.to_be_bytes());
                    drawn(&Nonce::from_bytes(bytes), percent)
                })
                .count()
        };
        assert_eq!((drawn(0), drawn(100)), (0, 2_000));
        assert!((120..280).contains(&drawn(10)), "{}", drawn(10));
    }
}
