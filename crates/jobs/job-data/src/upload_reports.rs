//! Formats the servers' answers to uploads for a job's result: `{"headers": {…}, "body": "…"}` as a JSON text for
//! each, bounded so that the result still fits into its frame. Pure.

use indexmap::IndexMap;
use muster_protocol::canonical::ascii_literal;

/// Upper bound on all results in the frame, where each is a JSON text inside a JSON text, in bytes.
pub const MAX_RESULTS: usize = 4 << 20;
/// Upper bound on one answer's body, in bytes. ComputeHorde's limit of ten megabytes would not fit into a frame for
/// many uploads.
pub(crate) const MAX_BODY: usize = 256 << 10;
const MAX_HEADERS: usize = 64;
const MAX_HEADER: usize = 4 << 10;

/// A server's answer to an upload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UploadAnswer {
    /// Lower-case names in order; a repeated header appears once with its values joined.
    pub(crate) headers: IndexMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// The text of each result. An answer that does not fit loses its body first, then its headers.
pub(crate) fn format_results(answers: Vec<(String, UploadAnswer)>) -> IndexMap<String, String> {
    let mut left = MAX_RESULTS;
    let mut results = IndexMap::new();
    for (key, answer) in answers {
        let named = framed_len(&key);
        let none = IndexMap::new();
        // A body is never shorter in the frame, so one that cannot fit is not even formatted.
        let bodies = [
            Some(answer.body.as_slice()).filter(|body| body.len() < left),
            Some(&[]),
        ];
        let chosen = bodies
            .into_iter()
            .flatten()
            .map(|body| format_result(&answer.headers, &String::from_utf8_lossy(body)))
            .find(|text| named + framed_len(text) <= left)
            .unwrap_or_else(|| format_result(&none, ""));
        left = left.saturating_sub(named + framed_len(&chosen));
        results.insert(key, chosen);
    }
    results
}

/// Formats as Python's `json.dumps` does.
fn format_result(headers: &IndexMap<String, String>, body: &str) -> String {
    let headers: Vec<_> = headers
        .iter()
        .take(MAX_HEADERS)
        .filter(|(name, value)| name.len() + value.len() <= MAX_HEADER)
        .map(|(name, value)| format!("{}: {}", ascii_literal(name), ascii_literal(value)))
        .collect();
    format!(
        "{{\"headers\": {{{}}}, \"body\": {}}}",
        headers.join(", "),
        ascii_literal(body)
    )
}

/// Upper bound on the bytes of a text inside a frame, with its quotes and separators.
fn framed_len(text: &str) -> usize {
    let of = |letter: char| match letter {
        '"' | '\\' => 2,
        control if u32::from(control) < 0x20 => 6,
        other => other.len_utf8(),
    };
    text.chars().map(of).sum::<usize>() + 4
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn answer(headers: &[(&str, &str)], body: &[u8]) -> UploadAnswer {
        UploadAnswer {
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            body: body.to_vec(),
        }
    }

    #[test]
    fn as_python_writes_it() {
        let results = format_results(vec![
            ("o.bin".to_owned(), answer(&[], b"")),
            (
                "p".to_owned(),
                answer(&[("etag", "\"a\""), ("x", "ä")], "é\"\n".as_bytes()),
            ),
        ]);
        assert_eq!(results["o.bin"], r#"{"headers": {}, "body": ""}"#);
        assert_eq!(
            results["p"],
            "{\"headers\": {\"etag\": \"\\\"a\\\"\", \"x\": \"\\u00e4\"}, \"body\": \"\\u00e9\\\"\\n\"}"
        );
        let value: Value = serde_json::from_str(&results["p"]).unwrap();
        assert_eq!(
            value,
            json!({"headers": {"etag": "\"a\"", "x": "ä"}, "body": "é\"\n"})
        );
    }

    #[test]
    fn upload_results_fit_whatever_servers_answer() {
        let body = vec![1_u8; MAX_BODY];
        let header = "\u{7f}".repeat(3_000);
        let many: Vec<_> = (0..100)
            .map(|number| (format!("file-{number}"), answer(&[("h", &header)], &body)))
            .collect();
        let results = format_results(many);
        assert_eq!(results.len(), 100);
        let frame = serde_json::to_string(&results).unwrap();
        // Empty results may exceed the counted size a little.
        assert!(frame.len() <= MAX_RESULTS + 10_000, "{}", frame.len());
        assert!(results["file-0"].contains("\\u0001"), "the first is whole");
        assert!(
            results
                .values()
                .all(|text| serde_json::from_str::<Value>(text).is_ok())
        );
    }

    #[test]
    fn too_many_and_too_long_headers_are_left_out() {
        let mut headers = IndexMap::from([("long".to_owned(), "x".repeat(5_000))]);
        headers.extend((0..100).map(|number| (format!("h{number}"), String::new())));
        let results = format_results(vec![(
            "k".to_owned(),
            UploadAnswer {
                headers,
                body: vec![],
            },
        )]);
        let value: Value = serde_json::from_str(&results["k"]).unwrap();
        assert_eq!(value["headers"].as_object().unwrap().len(), MAX_HEADERS - 1);
    }
}
