//! The header lines of a response's head and of a body's trailers: their bounds, their fault, and the map made of them.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The most bytes of all heads before one body, and of the framing between two of its chunks.
pub(super) const MAX_HEAD: usize = 64 * 1024;

/// The most headers of one head.
pub(super) const MAX_HEADERS: usize = 100;

/// Why the bytes of a peer are not a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedResponse {
    /// The head does not begin or continue as HTTP/1.1 prescribes.
    #[error("the message's head is not HTTP")]
    Head,
    /// The heads, or the framing between two chunks, are longer than 64 KiB.
    #[error("the message's head or framing is too long")]
    TooLong,
    /// The length of the body is stated twice, in an unknown coding, or as something else than a number.
    #[error("the length of its body is not clear")]
    Length,
    /// A chunk's size or end, or the trailers, are not as HTTP/1.1 prescribes.
    #[error("the message's chunks are broken")]
    Chunk,
}

pub(super) fn to_header_map(lines: &[httparse::Header<'_>]) -> Result<HeaderMap, MalformedResponse> {
    let mut headers = HeaderMap::with_capacity(lines.len());
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| MalformedResponse::Head)?;
        let value = HeaderValue::from_bytes(line.value).map_err(|_| MalformedResponse::Head)?;
        headers.append(name, value);
    }
    Ok(headers)
}
