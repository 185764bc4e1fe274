//! The parts of an answer on their way from a session to a client.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use muster_openai::{BodyKind, OpenAiError};

/// The header with the id under which a client finds the proof of its answer later.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// One part of an answer. They come in the order head, data, trailers, end, or as one `Refused`. An answer without its
/// end broke off: the task that passes it on was ended.
#[derive(Debug)]
pub(crate) enum AnswerPart {
    Head(StatusCode, HeaderMap),
    Data(Bytes),
    Trailers(HeaderMap),
    End,
    /// The request failed before any part of an answer was sent.
    Refused(OpenAiError),
    /// The answer broke off, and its content type has no way to show it.
    Cut,
}

/// Whether an answer of this content type is an event stream, into which comments and errors can be inserted.
pub(crate) fn is_event_stream(content_type: Option<&str>) -> bool {
    BodyKind::of(content_type) == BodyKind::Events
}

/// The id of one answer and of its proof: 32 random bytes. It is sent to the client before any session has the request,
/// so it is not the nonce that the session signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerId([u8; 32]);

impl AnswerId {
    /// Draws an id.
    ///
    /// # Errors
    /// The operating system has no randomness.
    pub(crate) fn draw() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The 64 hex digits by which the answer is found.
    pub(crate) fn hex(&self) -> String {
        hex::encode(self.0)
    }

    /// The value of [`REQUEST_ID`].
    pub(crate) fn header(&self) -> HeaderValue {
        // Hex digits are always a valid header value.
        HeaderValue::from_str(&self.hex()).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}
