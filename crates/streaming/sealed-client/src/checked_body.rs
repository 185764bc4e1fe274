//! The receiving side: hashes what passes, takes the proof from wherever it stands, and says what it is worth.
//!
//! [`CheckedBody`] changes nothing of what passes. When the answer is over, or its reader has gone, it hands on what it saw,
//! exactly once; [`Checked::verdict`] then asks the session's ledger. The two are apart because a proof that did not come may
//! still be fetched.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use muster_process::SharedClock;
use muster_protocol::{Digest, Timestamp};
use muster_response_proof::{
    Bounds, Envelope, EnvelopeError, Exchange, Forgery, HashScheme, Ledger, Nonce, ResponseProof,
};

use crate::comment::{MAX_LINE, PREFIX, Piece, Scanner, proof_of};
use crate::digest::{BodyDigest, BodyHash, input_digest};
use crate::headers::{PROOF, body_kind, content_type};
use muster_openai::BodyKind;

/// What was asked, as the checker keeps it until the answer is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What the client drew.
    pub client_nonce: Option<Nonce>,
    /// What the gateway drew.
    pub gateway_nonce: Option<Nonce>,
    /// As asked.
    pub method: String,
    /// Path and query, as asked.
    pub path: String,
    /// Of the body, by the session's scheme: [`Asked::input_of`].
    pub input: Digest,
    /// When.
    pub at: Timestamp,
}

/// What was seen of an answer.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The proof that came with it, if one did.
    pub proof: Option<Result<Envelope<ResponseProof>, EnvelopeError>>,
    /// Its status.
    pub status: u16,
    /// Its type.
    pub content_type: Option<String>,
    /// Digests over what came; the holder of a beginning can check it by the root over chunks.
    pub body: BodyDigest,
    /// Whether its end came.
    pub whole: bool,
    /// When that was, or when its reader went away.
    pub ended: Timestamp,
}

/// Why an answer is not proven.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// No proof came with it. The session may still have it.
    #[error("no proof came with the answer")]
    Absent,
    /// What came is no proof.
    #[error("what came in the place of a proof is none")]
    Unreadable(#[from] EnvelopeError),
    /// It proves something else.
    #[error(transparent)]
    Forged(#[from] Forgery),
}

/// An answer's body on its way to its reader.
pub struct CheckedBody<B, F: FnOnce(Checked)> {
    inner: B,
    seen: Option<Seen<F>>,
}

struct Seen<F> {
    report: F,
    clock: SharedClock,
    status: u16,
    content_type: Option<String>,
    proof: Option<Result<Envelope<ResponseProof>, EnvelopeError>>,
    hash: BodyHash,
    /// For streams of events.
    lines: Option<Lines>,
}

#[derive(Default)]
struct Lines {
    scanner: Scanner,
    /// A line of ours, as far as it has come.
    line: Vec<u8>,
    /// A line feed has come that is not hashed yet: it may be the first byte of the proof's line.
    feed: bool,
}

impl Asked {
    /// The digest of a request's body.
    pub fn input_of(scheme: HashScheme, body: &[u8]) -> Digest {
        input_digest(scheme, body)
    }
}

impl Checked {
    /// What the answer's proof is worth. `verify` says whether a key signed bytes: [`muster_identity::verify`].
    ///
    /// # Errors
    /// There is none, or it proves something else. The ledger is then as it was.
    pub fn verdict(
        &self,
        asked: &Asked,
        ledger: &mut Ledger,
        bounds: Bounds,
    ) -> Result<(ResponseProof, Envelope<ResponseProof>), Unproven> {
        let envelope = match &self.proof {
            None => return Err(Unproven::Absent),
            Some(Err(unreadable)) => return Err(Unproven::Unreadable(*unreadable)),
            Some(Ok(envelope)) => envelope,
        };
        let proof = self.judge(envelope, asked, ledger, bounds)?;
        Ok((proof, envelope.clone()))
    }

    /// What a proof that came by another way is worth for this answer.
    ///
    /// # Errors
    /// It proves something else.
    pub fn judge(
        &self,
        envelope: &Envelope<ResponseProof>,
        asked: &Asked,
        ledger: &mut Ledger,
        bounds: Bounds,
    ) -> Result<ResponseProof, Forgery> {
        let seen = Exchange {
            client_nonce: asked.client_nonce,
            gateway_nonce: asked.gateway_nonce,
            method: &asked.method,
            path: &asked.path,
            input: asked.input,
            status: self.status,
            content_type: self.content_type.as_deref(),
            output: self.whole.then_some(self.body.digest),
            output_bytes: self.body.bytes,
            asked: asked.at,
            ended: self.ended,
        };
        ledger.accept(envelope, &seen, bounds, muster_identity::verify)
    }
}

impl<B, F> CheckedBody<B, F>
where
    B: Body<Data = Bytes> + Unpin,
    F: FnOnce(Checked),
{
    /// Takes an answer of a session with this scheme. `report` is called once, when it is over.
    pub fn over(response: Response<B>, scheme: HashScheme, clock: SharedClock, report: F) -> Response<Self> {
        let (head, inner) = response.into_parts();
        let content_type = content_type(&head.headers).map(str::to_owned);
        let kind = body_kind(&head.headers);
        let seen = Seen {
            report,
            clock,
            status: head.status.as_u16(),
            proof: proof_in(&head.headers),
            hash: BodyHash::new(scheme, kind),
            lines: (kind == BodyKind::Events).then(Lines::default),
            content_type,
        };
        let mut body = Self {
            inner,
            seen: Some(seen),
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

impl<B, F: FnOnce(Checked)> CheckedBody<B, F> {
    fn end(&mut self, whole: bool) {
        if let Some(seen) = self.seen.take() {
            seen.end(whole);
        }
    }
}

impl<F: FnOnce(Checked)> Seen<F> {
    fn pass(&mut self, data: &[u8]) {
        let Some(lines) = &mut self.lines else {
            self.hash.update(data);
            return;
        };
        let Lines { scanner, line, feed } = lines;
        let (hash, proof) = (&mut self.hash, &mut self.proof);
        scanner.scan(data, |piece| match piece {
            Piece::Held(length) => {
                body(hash, feed, PREFIX.get(..length).unwrap_or_default());
            }
            Piece::Body(range) => body(hash, feed, data.get(range).unwrap_or_default()),
            Piece::Ours(range) => {
                let bytes = data.get(range).unwrap_or_default();
                if line.len() + bytes.len() <= MAX_LINE {
                    line.extend_from_slice(bytes);
                }
            }
            Piece::OursEnd => {
                if let Some(text) = proof_of(line) {
                    // The seal's own, with the line feed before it.
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
            body(
                &mut self.hash,
                &mut lines.feed,
                PREFIX.get(..held).unwrap_or_default(),
            );
            if lines.feed {
                self.hash.update(b"\n");
            }
        }
        (self.report)(Checked {
            proof: self.proof,
            status: self.status,
            content_type: self.content_type,
            body: self.hash.finish(),
            whole,
            ended: self.clock.now(),
        });
    }
}

/// Hashes a piece of the body but for a line feed at its very end, which waits.
fn body(hash: &mut BodyHash, feed: &mut bool, piece: &[u8]) {
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

fn proof_in(headers: &HeaderMap) -> Option<Result<Envelope<ResponseProof>, EnvelopeError>> {
    let text = headers.get(PROOF)?.to_str();
    Some(
        text.map_err(|_| EnvelopeError::Text)
            .and_then(Envelope::from_text),
    )
}

impl<B, F> Body for CheckedBody<B, F>
where
    B: Body<Data = Bytes> + Unpin,
    F: FnOnce(Checked) + Unpin,
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
                if let Some(seen) = &mut this.seen {
                    if let Some(data) = frame.data_ref() {
                        seen.pass(data);
                    } else if let Some(proof) = frame.trailers_ref().and_then(proof_in) {
                        // The same as in the last line, where there was one.
                        seen.proof = Some(proof);
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

impl<B, F: FnOnce(Checked)> Drop for CheckedBody<B, F> {
    fn drop(&mut self) {
        self.end(false);
    }
}

impl<B, F: FnOnce(Checked)> fmt::Debug for CheckedBody<B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.seen.is_some() {
            "CheckedBody(passing)"
        } else {
            "CheckedBody(over)"
        })
    }
}
