//! The headers of Muster, and the rules by which other headers are passed on.

use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST,
    HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RETRY_AFTER, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue};
use muster_openai::BodyKind;

use crate::codec::{MAX_TEXT, Text};

/// The proof of a response, in base64: a header if the response was held back until it was signed, a trailer otherwise.
pub const PROOF: HeaderName = HeaderName::from_static("muster-proof");
/// On a request: the nonce that the client drew, 64 hex digits.
pub const CLIENT_NONCE: HeaderName = HeaderName::from_static("muster-client-nonce");
/// On a request: the nonce that the gateway drew once it had the request, 64 hex digits.
pub const GATEWAY_NONCE: HeaderName = HeaderName::from_static("muster-gateway-nonce");
/// On a request: the pseudonym of the request, which only its client, the client's facilitator and the gateway can
/// resolve, 64 hex digits.
pub const CLIENT: HeaderName = HeaderName::from_static("muster-client");
/// On a facilitator's request to a gateway: the client's key at this validator, 64 hex digits. It says that the
/// facilitator opens pseudonyms of requests; without it the client has one pseudonym. No miner sees it.
pub const CLIENT_KEY: HeaderName = HeaderName::from_static("muster-client-key");
/// On a client's request to the gateway: what is allowed to be done with the words. `private` (without the header too):
/// a drawn answer is scored and its words are shown to nobody; `publish`: they may be evidence; `decline`: they are not
/// kept. No miner sees it.
pub const AUDIT_CONSENT: HeaderName = HeaderName::from_static("muster-audit-consent");
/// On a request to an engine: the seed of its sampler, 64 hex digits. The seal sets it; engines that do not know it
/// ignore it.
pub const SEED: HeaderName = HeaderName::from_static("muster-seed");

/// The prefix of Muster's headers. No other party's header with this prefix is passed on.
const MUSTER_PREFIX: &str = "muster-";
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers that concern one connection only (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 9] = [
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

/// The headers of an engine's or a gateway's response that its client gets. Every other one may speak for the server
/// that the client has called: `Set-Cookie`, `Location`, `Alt-Svc`, `Strict-Transport-Security`.
pub const PASSED_TO_CLIENTS: [HeaderName; 7] = [
    CONTENT_TYPE,
    CONTENT_LENGTH,
    CONTENT_ENCODING,
    RETRY_AFTER,
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("openai-model"),
    HeaderName::from_static("openai-processing-ms"),
];

/// Keeps the headers of a response that a client may get from a server that it has not chosen itself, and the proof.
/// The client is told to keep no copy, and to take the body for no other type than the named one.
pub fn keep_response_headers(headers: &mut HeaderMap) {
    let mut kept = HeaderMap::new();
    for name in PASSED_TO_CLIENTS.into_iter().chain([PROOF]) {
        if let Some(value) = headers.remove(&name) {
            kept.insert(name, value);
        }
    }
    kept.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    kept.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    *headers = kept;
}

/// Keeps the proof alone of a response's trailers.
pub fn keep_proof_trailer(trailers: &mut HeaderMap) {
    let proof = trailers.remove(PROOF);
    trailers.clear();
    if let Some(proof) = proof {
        trailers.insert(PROOF, proof);
    }
}

/// Removes headers that concern one connection only, and headers with Muster's prefix.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
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
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    remove_muster_headers(headers);
}

/// Removes headers with Muster's prefix.
pub fn remove_muster_headers(headers: &mut HeaderMap) {
    let names: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_muster_header(name))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}

/// Prepares a request's headers for the engine. The response must not be compressed, as a compressed one has no room
/// for the comment line with the proof.
pub fn prepare_for_engine(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    for name in [EXPECT, ACCEPT_ENCODING, CONTENT_LENGTH] {
        headers.remove(name);
    }
    headers.insert(HOST, HeaderValue::from_static("localhost"));
}

/// Whether a name has Muster's prefix.
pub fn is_muster_header(name: &HeaderName) -> bool {
    name.as_str().starts_with(MUSTER_PREFIX)
}

/// Whether a request accepts trailers.
pub fn takes_trailers(headers: &HeaderMap) -> bool {
    list_contains(headers, &TE, "trailers")
}

/// Whether a request asks for another protocol by this name.
pub fn upgrades_to(headers: &HeaderMap, protocol: &str) -> bool {
    list_contains(headers, &CONNECTION, "upgrade") && list_contains(headers, &UPGRADE, protocol)
}

/// Whether a header, read as a list, contains this item.
fn list_contains(headers: &HeaderMap, name: &HeaderName, item: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|found| found.trim().eq_ignore_ascii_case(item))
}

/// The value of `Content-Type`, if it fits into a statement. Both ends of a sealed connection read it by this function.
pub fn content_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    (value.len() <= MAX_TEXT).then_some(value)
}

/// The kind of a body. A compressed body is not read, whatever its type.
pub fn body_kind(headers: &HeaderMap) -> BodyKind {
    if headers.contains_key(CONTENT_ENCODING) {
        BodyKind::Other
    } else {
        BodyKind::of(content_type(headers))
    }
}

/// The content type as it is signed. A value that does not fit into a statement is removed from the headers, so that
/// both ends agree that there is none.
pub fn take_signed_content_type(headers: &mut HeaderMap) -> Option<Text> {
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
    fn headers_of_one_hop_are_removed() {
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
        remove_hop_by_hop(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "authorization"]);
    }

    #[test]
    fn a_connection_header_may_list_more_than_once_and_nonsense() {
        let mut headers = map(&[("connection", "a"), ("b", "1"), ("a", "1"), ("c", "1")]);
        headers.append(CONNECTION, HeaderValue::from_static("B, , (bad"));
        remove_hop_by_hop(&mut headers);
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn a_response_speaks_for_itself_and_not_for_the_server_that_passes_it_on() {
        let mut headers = map(&[
            ("content-type", "application/json"),
            ("content-length", "2"),
            ("retry-after", "5"),
            ("x-request-id", "a1"),
            ("muster-proof", "QUJD"),
            ("set-cookie", "session=stolen"),
            ("location", "http://169.254.169.254/"),
            ("alt-svc", "h3=\":443\""),
            ("strict-transport-security", "max-age=31536000"),
            ("access-control-allow-origin", "https://evil.example"),
            ("cache-control", "public, max-age=31536000"),
            ("www-authenticate", "Basic"),
            ("muster-anything", "1"),
            ("connection", "close"),
        ]);
        headers.append("set-cookie", HeaderValue::from_static("second=1"));
        keep_response_headers(&mut headers);
        let mut left: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [
                ("cache-control", "no-store"),
                ("content-length", "2"),
                ("content-type", "application/json"),
                ("muster-proof", "QUJD"),
                ("retry-after", "5"),
                ("x-content-type-options", "nosniff"),
                ("x-request-id", "a1"),
            ]
        );
        let mut trailers = map(&[("muster-proof", "QUJD"), ("set-cookie", "a=b")]);
        keep_proof_trailer(&mut trailers);
        assert_eq!(trailers, map(&[("muster-proof", "QUJD")]));
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
        assert_eq!(
            take_signed_content_type(&mut headers).unwrap().as_str(),
            "text/plain"
        );
        let long = "x".repeat(MAX_TEXT + 1);
        headers.insert(CONTENT_TYPE, long.parse().unwrap());
        assert_eq!(take_signed_content_type(&mut headers), None);
        assert!(headers.is_empty());
    }
}
