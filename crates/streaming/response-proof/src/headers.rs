//! Which headers pass, in either direction, and the names of ours.

use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderName,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};
use muster_response_proof::{MAX_TEXT, Text};

use muster_openai::BodyKind;

/// On an answer that was held back until it was signed, and in the trailer of one that was not: the proof, base64.
pub const PROOF: HeaderName = HeaderName::from_static("muster-proof");
/// On a request: 64 hex digits that the client drew.
pub const CLIENT_NONCE: HeaderName = HeaderName::from_static("muster-client-nonce");
/// On a request: 64 hex digits that the gateway drew once it had it.
pub const GATEWAY_NONCE: HeaderName = HeaderName::from_static("muster-gateway-nonce");
/// On a request: 64 hex digits, the name under which only the gateway knows its client.
pub const CLIENT: HeaderName = HeaderName::from_static("muster-client");

/// Names that begin so are ours alone.
const OURS: &str = "muster-";
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers of one hop.
const HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Takes out what belongs to one connection only, and what carries our prefix.
pub fn end_to_end(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in listed {
        headers.remove(name);
    }
    for name in HOP {
        headers.remove(name);
    }
    strip_ours(headers);
}

/// Takes out what carries our prefix.
pub fn strip_ours(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> = headers.keys().filter(|name| is_ours(name)).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

/// What an engine gets to see of a request's headers. Its answer must not be compressed: our comment would not fit in.
pub fn to_engine(headers: &mut HeaderMap) {
    end_to_end(headers);
    for name in [EXPECT, ACCEPT_ENCODING, CONTENT_LENGTH] {
        headers.remove(name);
    }
    headers.insert(HOST, HeaderValue::from_static("localhost"));
}

/// Whether a name carries our prefix.
pub fn is_ours(name: &HeaderName) -> bool {
    name.as_str().starts_with(OURS)
}

/// Whether a request says that it takes trailers.
pub fn takes_trailers(headers: &HeaderMap) -> bool {
    lists(headers, &TE, "trailers")
}

/// Whether a request asks for another protocol by this name.
pub fn upgrades_to(headers: &HeaderMap, protocol: &str) -> bool {
    lists(headers, &CONNECTION, "upgrade") && lists(headers, &UPGRADE, protocol)
}

/// Whether a header that is a list has this item.
fn lists(headers: &HeaderMap, name: &HeaderName, item: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|found| found.trim().eq_ignore_ascii_case(item))
}

/// The type of a body, if it fits into a statement. Both ends read it by this function.
pub fn content_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    (value.len() <= MAX_TEXT).then_some(value)
}

/// What a body is. One that is encoded is not looked into.
pub fn body_kind(headers: &HeaderMap) -> BodyKind {
    if headers.contains_key(CONTENT_ENCODING) {
        BodyKind::Other
    } else {
        BodyKind::of(content_type(headers))
    }
}

/// The same as it is signed. One that does not fit is taken out of the headers, so that both ends agree that there is none.
pub fn signed_content_type(headers: &mut HeaderMap) -> Option<Text> {
    let text = content_type(headers).and_then(|value| Text::new(value).ok());
    if text.is_none() {
        headers.remove(CONTENT_TYPE);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn what_belongs_to_one_hop_stays_there() {
        let mut headers = map(&[
            ("connection", "close, X-Secret"),
            ("keep-alive", "timeout=5"),
            ("x-secret", "1"),
            ("te", "trailers"),
            ("trailer", "muster-proof"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "Basic x"),
            ("muster-proof", "forged"),
            ("muster-anything", "1"),
            ("authorization", "Bearer x"),
            ("accept", "*/*"),
        ]);
        end_to_end(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "authorization"]);
    }

    #[test]
    fn a_connection_header_may_list_more_than_once_and_nonsense() {
        let mut headers = map(&[("connection", "a"), ("b", "1"), ("a", "1"), ("c", "1")]);
        headers.append(CONNECTION, HeaderValue::from_static("B, , (bad"));
        end_to_end(&mut headers);
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn lists_are_read_without_regard_to_case() {
        assert!(takes_trailers(&map(&[("te", "gzip, Trailers")])));
        assert!(!takes_trailers(&map(&[("te", "gzip")])));
        let upgrade = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")]);
        assert!(upgrades_to(&upgrade, "websocket"));
        assert!(!upgrades_to(&map(&[("upgrade", "websocket")]), "websocket"));
    }

    #[test]
    fn a_type_that_cannot_be_signed_is_not_sent() {
        let mut headers = map(&[("content-type", "text/plain")]);
        assert_eq!(signed_content_type(&mut headers).unwrap().as_str(), "text/plain");
        let long = "x".repeat(MAX_TEXT + 1);
        headers.insert(CONTENT_TYPE, long.parse().unwrap());
        assert_eq!(signed_content_type(&mut headers), None);
        assert!(headers.is_empty());
    }
}
