//! Parses the headers of untrusted servers. Pure.

use std::time::Duration;

/// Upper bound on the pause that a server can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A strong entity tag, which guarantees equal bytes; `None` if it is weak, unquoted or too long to be sent back.
pub(crate) fn strong_etag(value: &str) -> Option<&str> {
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    let plain = inner.bytes().all(|c| matches!(c, 0x21 | 0x23..=0x7E));
    (plain && !inner.is_empty() && value.len() <= 512).then_some(value)
}

/// `Retry-After` in seconds, up to [`LONGEST_PAUSE`]. `None` for a date.
pub(crate) fn retry_after(value: &str) -> Option<Duration> {
    number(value.trim()).map(|secs| Duration::from_secs(secs).min(LONGEST_PAUSE))
}

/// The URL of `Link: <…>; rel="next"`.
pub(crate) fn next_link(value: &str) -> Option<&str> {
    let mut rest = value;
    loop {
        let (_, after) = rest.split_once('<')?;
        let (url, parameters) = after.split_once('>')?;
        let own = parameters.split('<').next().unwrap_or_default();
        let is_next = own.split([';', ',']).any(|parameter| {
            let Some((name, value)) = parameter.split_once('=') else {
                return false;
            };
            name.trim().eq_ignore_ascii_case("rel") && value.trim().trim_matches('"') == "next"
        });
        if is_next {
            return Some(url);
        }
        rest = parameters;
    }
}

/// Parses digits only; `parse` would accept a sign too.
fn number(text: &str) -> Option<u64> {
    text.bytes()
        .all(|c| c.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use muster_http::range::ContentRange;

    use super::*;
    use crate::mutation::Mutator;

    #[test]
    fn only_strong_tags_promise_equal_bytes() {
        assert_eq!(strong_etag("\"abc\""), Some("\"abc\""));
        for weak in [
            "W/\"abc\"",
            "abc",
            "\"\"",
            "\"a\"b\"",
            "\"a\nb\"",
            "\"",
            &format!("\"{}\"", "x".repeat(600)),
        ] {
            assert_eq!(strong_etag(weak), None, "{weak}");
        }
    }

    #[test]
    fn pauses_are_bounded_and_links_are_found() {
        assert_eq!(retry_after(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("99999999"), Some(LONGEST_PAUSE));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), None);
        assert_eq!(
            next_link(r#"<https://x/?c=1>; rel="next""#),
            Some("https://x/?c=1")
        );
        assert_eq!(next_link(r#"<a>; rel="prev", <b>; title=x; rel=next"#), Some("b"));
        for none in ["", "<a", "<a>; rel=\"prev\"", "next", "<a>; rel=\"nextish\""] {
            assert_eq!(next_link(none), None, "{none}");
        }
    }

    #[test]
    fn damaged_headers_are_read_or_refused() {
        let samples = [
            "bytes 5-9/10",
            "\"etag\"",
            "120",
            r#"<https://x/?c=1>; rel="next", <b>; rel=prev"#,
        ]
        .map(|text| text.as_bytes().to_vec());
        let mut mutator = Mutator::seeded(13);
        for _ in 0..20_000 {
            let text = String::from_utf8_lossy(&mutator.next_from(&samples)).into_owned();
            if let Ok(range) = ContentRange::parse(&text) {
                assert!(range.first <= range.last && range.total.is_none_or(|total| range.last < total));
            }
            assert!(strong_etag(&text).is_none_or(|tag| tag.len() >= 3));
            assert!(retry_after(&text).is_none_or(|pause| pause <= LONGEST_PAUSE));
            assert!(next_link(&text).is_none_or(|link| text.contains(link)));
        }
    }
}
