//! The bytes of a request's body before they are read as JSON.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use muster_http::event_stream::media_type;

use crate::error::OpenAiError;

/// The mark that some editors write before a text in UTF-8. RFC 8259 lets readers of JSON skip it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The first bytes of a gzip stream (RFC 1952).
const GZIP: &[u8] = b"\x1f\x8b";
/// The characters of a header that are repeated in an error.
const MAX_SHOWN: usize = 100;

/// The body without the byte order mark before its JSON.
pub fn without_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body)
}

/// Refuses a body that cannot be JSON because of its encoding or its type, which the error names. JSON under another
/// type is taken, since engines and OpenAI take it too: `curl -d` names a form unless it is told otherwise.
///
/// # Errors
/// The body is compressed, or it is of a type other than JSON and begins as no JSON object does.
pub fn check_media(headers: &HeaderMap, body: &[u8]) -> Result<(), OpenAiError> {
    let unsupported = |what: &str| {
        let message =
            format!("the request's body {what}; send plain JSON as `content-type: application/json`");
        Err(OpenAiError::UnsupportedMedia(message))
    };
    for encoding in headers.get_all(CONTENT_ENCODING) {
        let encoding = shown(encoding.as_bytes());
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
            return unsupported(&format!(
                "has the content encoding `{encoding}`, which is not taken"
            ));
        }
    }
    if body.starts_with(GZIP) {
        return unsupported("is a gzip stream, which is not taken");
    }
    let Some(stated) = headers.get(CONTENT_TYPE) else {
        return Ok(());
    };
    let stated = shown(stated.as_bytes());
    let text = without_mark(body).trim_ascii_start();
    if media_type(&stated).eq_ignore_ascii_case("application/json")
        || text.is_empty()
        || text.starts_with(b"{")
    {
        return Ok(());
    }
    unsupported(&format!("is of the type `{stated}` and is no JSON object"))
}

/// A header's value, as far as an error repeats it.
fn shown(value: &[u8]) -> String {
    String::from_utf8_lossy(value)
        .trim()
        .chars()
        .take(MAX_SHOWN)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(headers: &[(&'static str, &'static str)], body: &[u8]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let error = check_media(&map, body).err()?;
        assert_eq!(
            (error.status().as_u16(), error.code()),
            (415, "unsupported_media_type")
        );
        Some(error.to_string())
    }

    #[test]
    fn a_compressed_body_is_refused_by_the_name_of_its_encoding() {
        for name in ["gzip", "br", "zstd", "deflate, gzip"] {
            let named = refusal(&[("content-encoding", name)], b"{}").unwrap();
            assert!(named.contains(&format!("`{name}`")), "{named}");
        }
        let later = [("content-encoding", "identity"), ("content-encoding", "br")];
        assert!(refusal(&later, b"{}").unwrap().contains("`br`"));
        assert!(refusal(&[], b"\x1f\x8b\x08\0").unwrap().contains("gzip"));
        assert_eq!(refusal(&[("content-encoding", "identity")], b"{}"), None);
    }

    #[test]
    fn a_type_that_is_no_json_is_named_unless_the_body_is_json() {
        let of_type = |stated, body: &[u8]| refusal(&[("content-type", stated)], body);
        for (stated, body) in [
            ("application/x-www-form-urlencoded", &b"model=parrot"[..]),
            ("multipart/form-data; boundary=x", b"--x\r\n"),
            ("application/xml", b"<model/>"),
            ("application/msgpack", b"\x81\xa5model"),
        ] {
            let named = of_type(stated, body).unwrap();
            assert!(named.contains(&format!("`{stated}`")), "{named}");
        }
        for (stated, body) in [
            ("application/x-www-form-urlencoded", &b" {\"model\":\"m\"}"[..]),
            ("text/plain", b"\xef\xbb\xbf{}"),
            ("Application/JSON; charset=utf-8", b"no object"),
            ("text/plain", b""),
        ] {
            assert_eq!(of_type(stated, body), None, "{stated}");
        }
        assert_eq!(
            refusal(&[], b"no object"),
            None,
            "its reader says what is wrong with it"
        );
    }

    #[test]
    fn a_byte_order_mark_is_skipped_once() {
        assert_eq!(without_mark(b"\xef\xbb\xbf{}"), b"{}");
        assert_eq!(without_mark(b"{}"), b"{}");
        assert_eq!(without_mark(b"\xef\xbb\xbf\xef\xbb\xbf{}"), b"\xef\xbb\xbf{}");
    }
}
