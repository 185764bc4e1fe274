//! The body of a response on its way to its reader: it is hashed, and its proof is found.
//!
//! [`CheckedBody`] passes the body on unchanged. Once the response is over or its reader has gone, it reports a
//! [`ReceivedResponse`], exactly once, which [`ReceivedResponse::check_proof`] compares with the session's ledger. The
//! two steps are apart because a proof that did not arrive with the response may still be fetched.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use muster_openai::BodyKind;
use muster_process::SharedClock;
use muster_protocol::{Digest, Timestamp};
use muster_response_proof::body_digest::digest_input;
use muster_response_proof::comment::{CommentScanner, MAX_LINE, PREFIX, StreamPart, proof_of};
use muster_response_proof::headers::{PROOF, body_kind, content_type};
use muster_response_proof::{
    BodyDigest, BodyHasher, ClockTolerance, Envelope, EnvelopeError, Forgery, HashScheme, ObservedExchange,
    ProofLedger, RequestNonce, ResponseProof,
};

/// A request as it was sent, kept until its response is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentRequest {
    /// The client's pseudonym that the request carried, if it carried one.
    pub client: Option<Digest>,
    /// The nonce that the client drew, if it sent one.
    pub client_nonce: Option<RequestNonce>,
    /// The nonce that the gateway drew.
    pub gateway_nonce: Option<RequestNonce>,
    /// The request's method.
    pub method: String,
    /// Path and query of the request.
    pub path: String,
    /// Digest of the request's body, by the session's scheme; see [`SentRequest::digest_body`].
    pub input: Digest,
    /// The time of sending, by this side's clock.
    pub at: Timestamp,
}

/// A response as it was received.
#[derive(Clone, Debug)]
pub struct ReceivedResponse {
    /// The proof that came with the response, if one did.
    pub proof: Option<Result<Envelope<ResponseProof>, EnvelopeError>>,
    /// The HTTP status.
    pub status: u16,
    /// The value of `Content-Type`, if it fits into a statement.
    pub content_type: Option<String>,
    /// Digests of the body as far as it came. If only its beginning came, the root over its chunks can be checked.
    pub body: BodyDigest,
    /// Whether the end of the body came.
    pub whole: bool,
    /// The time at which the body ended or its reader went away.
    pub ended: Timestamp,
}

/// Why a response is not proven.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// No proof came with the response. The session may still hold it.
    #[error("no proof came with the answer")]
    Absent,
    /// The text in the place of the proof cannot be read.
    #[error("the text in the place of the proof is not a proof")]
    Unreadable(#[from] EnvelopeError),
    /// The proof does not match the exchange.
    #[error(transparent)]
    Forged(#[from] Forgery),
}

/// The body of a response on its way to its reader.
pub struct CheckedBody<B, F: FnOnce(ReceivedResponse)> {
    inner: B,
    /// `None` once it was reported.
    observer: Option<ResponseObserver<F>>,
}

struct ResponseObserver<F> {
    report: F,
    clock: SharedClock,
    status: u16,
    content_type: Option<String>,
    proof: Option<Result<Envelope<ResponseProof>, EnvelopeError>>,
    hash: BodyHasher,
    /// For event streams.
    lines: Option<CommentLines>,
}

/// The comment lines of an event stream.
#[derive(Default)]
struct CommentLines {
    scanner: CommentScanner,
    /// A comment line of Muster's, as far as it has come.
    line: Vec<u8>,
    /// Whether a line feed has come that is not hashed yet, as it may be the one before the line with the proof.
    feed: bool,
}

impl SentRequest {
    /// Computes the digest of a request's body.
    pub fn digest_body(scheme: HashScheme, body: &[u8]) -> Digest {
        digest_input(scheme, body)
    }
}

impl ReceivedResponse {
    /// Checks the proof that came with the response and adds it to the ledger.
    ///
    /// # Errors
    /// No proof came, it cannot be read, or it does not match the exchange. The ledger is then unchanged.
    pub fn check_proof(
        &self,
        sent: &SentRequest,
        ledger: &mut ProofLedger,
        tolerance: ClockTolerance,
    ) -> Result<(ResponseProof, Envelope<ResponseProof>), ProofError> {
        let envelope = match &self.proof {
            None => return Err(ProofError::Absent),
            Some(Err(unreadable)) => return Err(ProofError::Unreadable(*unreadable)),
            Some(Ok(envelope)) => envelope,
        };
        let proof = self.check_other_proof(envelope, sent, ledger, tolerance)?;
        Ok((proof, envelope.clone()))
    }

    /// Checks a proof that was fetched otherwise and adds it to the ledger.
    ///
    /// # Errors
    /// The proof does not match the exchange. The ledger is then unchanged.
    pub fn check_other_proof(
        &self,
        envelope: &Envelope<ResponseProof>,
        sent: &SentRequest,
        ledger: &mut ProofLedger,
        tolerance: ClockTolerance,
    ) -> Result<ResponseProof, Forgery> {
        let seen = ObservedExchange {
            client: sent.client,
            client_nonce: sent.client_nonce,
            gateway_nonce: sent.gateway_nonce,
            method: &sent.method,
            path: &sent.path,
            input: sent.input,
            status: self.status,
            content_type: self.content_type.as_deref(),
            output: self.whole.then_some(self.body.digest),
            output_bytes: self.body.bytes,
            asked: sent.at,
            ended: self.ended,
        };
        ledger.accept(envelope, &seen, tolerance, muster_identity::verify)
    }
}

impl<B, F> CheckedBody<B, F>
where
    B: Body<Data = Bytes> + Unpin,
    F: FnOnce(ReceivedResponse),
{
    /// Wraps the response of a session with this scheme. `report` is called once, when the response is over.
    pub fn wrap(response: Response<B>, scheme: HashScheme, clock: SharedClock, report: F) -> Response<Self> {
        let (head, inner) = response.into_parts();
        let content_type = content_type(&head.headers).map(str::to_owned);
        let kind = body_kind(&head.headers);
        let observer = ResponseObserver {
            report,
            clock,
            status: head.status.as_u16(),
            proof: find_proof(&head.headers),
            hash: BodyHasher::new(scheme, kind),
            lines: (kind == BodyKind::Events).then(CommentLines::default),
            content_type,
        };
        let mut body = Self {
            inner,
            observer: Some(observer),
        };
        body.end_if_over();
        Response::from_parts(head, body)
    }

    fn end_if_over(&mut self) {
        if self.inner.is_end_stream() {
            self.end(true);
        }
    }
}

impl<B, F: FnOnce(ReceivedResponse)> CheckedBody<B, F> {
    fn end(&mut self, whole: bool) {
        if let Some(observer) = self.observer.take() {
            observer.end(whole);
        }
    }
}

impl<F: FnOnce(ReceivedResponse)> ResponseObserver<F> {
    fn pass(&mut self, data: &[u8]) {
        let Some(lines) = &mut self.lines else {
            self.hash.update(data);
            return;
        };
        let CommentLines { scanner, line, feed } = lines;
        let (hash, proof) = (&mut self.hash, &mut self.proof);
        scanner.scan(data, |piece| match piece {
            StreamPart::Held(length) => {
                hash_body(hash, feed, PREFIX.get(..length).unwrap_or_default());
            }
            StreamPart::Body(range) => hash_body(hash, feed, data.get(range).unwrap_or_default()),
            StreamPart::Comment(range) => {
                let bytes = data.get(range).unwrap_or_default();
                if line.len() + bytes.len() <= MAX_LINE {
                    line.extend_from_slice(bytes);
                }
            }
            StreamPart::CommentEnd => {
                if let Some(text) = proof_of(line) {
                    // The line feed before the proof's line belongs to that line.
                    *feed = false;
                    *proof = Some(Envelope::from_text(text));
                }
                line.clear();
            }
        });
    }

    fn end(mut self, whole: bool) {
        if let Some(mut lines) = self.lines.take() {
            let held = lines.scanner.finish();
            if let Some(text) = proof_of(&lines.line) {
                lines.feed = false;
                self.proof = Some(Envelope::from_text(text));
            }
            hash_body(
                &mut self.hash,
                &mut lines.feed,
                PREFIX.get(..held).unwrap_or_default(),
            );
            if lines.feed {
                self.hash.update(b"\n");
            }
        }
        (self.report)(ReceivedResponse {
            proof: self.proof,
            status: self.status,
            content_type: self.content_type,
            body: self.hash.finish(),
            whole,
            ended: self.clock.now(),
        });
    }
}

/// Hashes a piece of the body, except a line feed at its very end, which waits.
fn hash_body(hash: &mut BodyHasher, feed: &mut bool, piece: &[u8]) {
    if piece.is_empty() {
        return;
    }
    if std::mem::take(feed) {
        hash.update(b"\n");
    }
    match piece.strip_suffix(b"\n") {
        Some(rest) => {
            hash.update(rest);
            *feed = true;
        }
        None => hash.update(piece),
    }
}

fn find_proof(headers: &HeaderMap) -> Option<Result<Envelope<ResponseProof>, EnvelopeError>> {
    let text = headers.get(PROOF)?.to_str();
    Some(
        text.map_err(|_| EnvelopeError::Text)
            .and_then(Envelope::from_text),
    )
}

impl<B, F> Body for CheckedBody<B, F>
where
    B: Body<Data = Bytes> + Unpin,
    F: FnOnce(ReceivedResponse) + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_frame(cx);
        match &polled {
            Poll::Pending => {}
            Poll::Ready(None) => this.end(true),
            Poll::Ready(Some(Err(_))) => this.end(false),
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(observer) = &mut this.observer {
                    if let Some(data) = frame.data_ref() {
                        observer.pass(data);
                    } else if let Some(proof) = frame.trailers_ref().and_then(find_proof) {
                        // If the last line carried a proof, this is the same one.
                        observer.proof = Some(proof);
                    }
                }
                this.end_if_over();
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B, F: FnOnce(ReceivedResponse)> Drop for CheckedBody<B, F> {
    fn drop(&mut self) {
        self.end(false);
    }
}

impl<B, F: FnOnce(ReceivedResponse)> fmt::Debug for CheckedBody<B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.observer.is_some() {
            "CheckedBody(passing)"
        } else {
            "CheckedBody(over)"
        })
    }
}
