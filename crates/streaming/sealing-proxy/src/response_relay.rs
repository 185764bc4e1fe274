//! The body of a streamed response: passed on as it arrives, hashed, and signed when it ends, however it ends.
//!
//! Nothing is read ahead: the engine's next bytes are read only when the client's connection has taken the last ones.
//! At most one piece of the engine's waits here, cut only around Muster's comment lines.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use muster_openai::usage_report::{FilteredPart, UsageFilter};
use muster_response_proof::StreamEnd;
use muster_response_proof::comment::{CommentScanner, PREFIX, StreamPart, comment_line, proof_line};
use muster_response_proof::headers::{PROOF, remove_hop_by_hop};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::pending_response::PendingResponse;

/// The kind of a relayed body, and its limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelayTerms {
    /// Whether the body is an event stream. Muster's comment lines are then removed, and the proof is the last line.
    pub(crate) events: bool,
    /// Whether the event with the engine's report of its tokens becomes a comment line.
    pub(crate) hides_usage: bool,
    /// The number of bytes that may still pass.
    pub(crate) budget: u64,
    /// The longest time for which the engine may send nothing.
    pub(crate) silence: Duration,
}

/// The body of a streamed response.
pub(crate) struct Relay<B> {
    /// Dropped as soon as the end is known, so that the engine stops working.
    engine: Option<B>,
    response: PendingResponse,
    terms: RelayTerms,
    scanner: CommentScanner,
    usage: Option<UsageFilter>,
    /// Pieces to be sent before the engine is read again.
    ready: VecDeque<Bytes>,
    trailers: HeaderMap,
    /// The time at which the engine last sent something.
    last_read: Instant,
    wait: Option<Box<EngineWait>>,
}

/// The events that may end a response while its engine is silent.
struct EngineWait {
    silence: Pin<Box<Sleep>>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<B> Relay<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    pub(crate) fn new(engine: B, response: PendingResponse, terms: RelayTerms) -> Self {
        let mut relay = Self {
            engine: Some(engine),
            response,
            terms,
            scanner: CommentScanner::default(),
            usage: (terms.events && terms.hides_usage).then(UsageFilter::default),
            ready: VecDeque::new(),
            trailers: HeaderMap::new(),
            last_read: Instant::now(),
            wait: None,
        };
        relay.end_if_over();
        relay
    }

    fn take(&mut self, mut data: Bytes) {
        self.last_read = Instant::now();
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let is_whole = length <= self.terms.budget;
        if !is_whole {
            data.truncate(usize::try_from(self.terms.budget).unwrap_or(usize::MAX));
        }
        self.terms.budget = self.terms.budget.saturating_sub(length);
        if self.terms.events {
            let (response, ready, usage) = (&mut self.response, &mut self.ready, &mut self.usage);
            self.scanner.scan(&data, |piece| match piece {
                StreamPart::Held(length) => pass_events(response, ready, usage, held_bytes(length)),
                StreamPart::Body(range) => pass_events(response, ready, usage, data.slice(range)),
                StreamPart::Comment(_) => {}
                StreamPart::CommentEnd => {
                    tracing::debug!("an engine sent a comment line with Muster's prefix; it was removed")
                }
            });
        } else {
            pass(&mut self.response, &mut self.ready, data);
        }
        if is_whole {
            self.end_if_over();
        } else {
            self.end(StreamEnd::Oversize);
        }
    }

    /// Ends a response of known length with its last byte, as its client may not read on.
    fn end_if_over(&mut self) {
        if self.engine.as_ref().is_some_and(Body::is_end_stream) {
            self.end(StreamEnd::Completed);
        }
    }

    fn end(&mut self, end: StreamEnd) {
        self.engine = None;
        self.wait = None;
        let rest = self.scanner.finish();
        let (response, ready, usage) = (&mut self.response, &mut self.ready, &mut self.usage);
        if rest > 0 {
            pass_events(response, ready, usage, held_bytes(rest));
        }
        if let Some(usage) = usage {
            pass(response, ready, usage.finish().into());
        }
        let Some(proof) = self.response.finish(end) else {
            return;
        };
        if self.terms.events {
            self.ready.push_back(proof_line(&proof));
        }
        // Base64 is a valid header value.
        if let Ok(proof) = HeaderValue::from_str(&proof) {
            self.trailers.insert(PROOF, proof);
        }
    }

    /// Ready with the reason if the response ends while its engine sends nothing.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<StreamEnd> {
        let deadline = self.last_read + self.terms.silence;
        let wait = self.wait.get_or_insert_with(|| {
            let closing = self.response.signer().closing().clone();
            Box::new(EngineWait {
                silence: Box::pin(sleep_until(deadline)),
                closing: Box::pin(closing.cancelled_owned()),
            })
        });
        if wait.closing.as_mut().poll(cx).is_ready() {
            return Poll::Ready(StreamEnd::SessionClosed);
        }
        // The timer is moved when it fires, not with every piece.
        while wait.silence.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(StreamEnd::EngineSilent);
            }
            wait.silence.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// The first bytes of the prefix, which the scanner held back.
fn held_bytes(length: usize) -> Bytes {
    Bytes::from_static(PREFIX.get(..length).unwrap_or_default())
}

/// Passes a piece of an event stream. The engine's report of its tokens, if the client did not ask for it, follows as a
/// comment line, which is not hashed.
fn pass_events(
    response: &mut PendingResponse,
    ready: &mut VecDeque<Bytes>,
    usage: &mut Option<UsageFilter>,
    piece: Bytes,
) {
    let Some(usage) = usage else {
        return pass(response, ready, piece);
    };
    usage.push(&piece, |part| match part {
        // Most parts are of this piece, and not copied.
        FilteredPart::Body(bytes) if is_within(bytes, &piece) => {
            pass(response, ready, piece.slice_ref(bytes))
        }
        FilteredPart::Body(bytes) => pass(response, ready, Bytes::copy_from_slice(bytes)),
        FilteredPart::Usage(report) => ready.push_back(comment_line(&format!("usage {report}"))),
    });
}

/// Whether a part is borrowed from a piece, not from what was held back before it.
fn is_within(part: &[u8], piece: &[u8]) -> bool {
    let (part, piece) = (part.as_ptr_range(), piece.as_ptr_range());
    piece.start <= part.start && part.end <= piece.end
}

/// Hashes a piece of the body and queues it for the client.
fn pass(response: &mut PendingResponse, ready: &mut VecDeque<Bytes>, piece: Bytes) {
    if !piece.is_empty() {
        response.pass(&piece);
        ready.push_back(piece);
    }
}

impl<B> Body for Relay<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let relay = self.get_mut();
        loop {
            if let Some(piece) = relay.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            let Some(engine) = &mut relay.engine else {
                let trailers = std::mem::take(&mut relay.trailers);
                let last = (!trailers.is_empty()).then(|| Ok(Frame::trailers(trailers)));
                return Poll::Ready(last);
            };
            match Pin::new(engine).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => relay.take(data),
                    Err(frame) => {
                        let mut trailers = frame.into_trailers().unwrap_or_default();
                        remove_hop_by_hop(&mut trailers);
                        relay.trailers = trailers;
                    }
                },
                Poll::Ready(Some(Err(_))) => relay.end(StreamEnd::EngineFailed),
                Poll::Ready(None) => relay.end(StreamEnd::Completed),
                Poll::Pending => match relay.poll_wait(cx) {
                    Poll::Ready(end) => relay.end(end),
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.engine.is_none() && self.ready.is_empty() && self.trailers.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        // Comment lines are removed and the proof is added, so the engine's length does not hold.
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests;
