//! The parts of an answer on their way from a session to a client.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use muster_openai::{BodyKind, OpenAiError};
use muster_response_proof::RequestNonce;

/// The header with the id under which a client finds the proof of its answer later.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// One part of an answer. They come in the order head, data, trailers, or as one `Refused`.
#[derive(Debug)]
pub(crate) enum AnswerPart {
    Head(StatusCode, HeaderMap),
    Data(Bytes),
    Trailers(HeaderMap),
    /// The request failed before any part of an answer was sent.
    Refused(OpenAiError),
    /// The answer broke off, and its content type has no way to say so.
    Cut,
}

/// Whether an answer of this content type is an event stream, into which comments and errors can be inserted.
pub(crate) fn is_event_stream(content_type: Option<&str>) -> bool {
    BodyKind::of(content_type) == BodyKind::Events
}

/// The value of [`REQUEST_ID`].
pub(crate) fn request_id(nonce: &RequestNonce) -> HeaderValue {
    // Hex digits are always a valid header value.
    HeaderValue::from_str(&nonce.hex()).unwrap_or_else(|_| HeaderValue::from_static(""))
}
