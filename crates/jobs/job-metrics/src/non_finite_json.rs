//! Numbers that JSON does not have, in lines that programs write as JSON.

use std::borrow::Cow;

use muster_protocol::job::{MetricValue, NonFiniteValue};

/// The line with `NaN`, `Infinity`, `-Infinity` and numbers beyond the largest one as texts, as Protocol Buffers write
/// them in JSON. Python, R and C print such numbers in spellings that a parser of JSON refuses; the case of the letters
/// and the short forms `nan` and `inf` are all taken. Texts within quotes stay as they are.
pub(crate) fn quote_non_finite(line: &[u8]) -> Cow<'_, [u8]> {
    let mut quoted: Option<Vec<u8>> = None;
    let mut at = 0;
    while let Some(rest) = line.get(at..).filter(|rest| !rest.is_empty()) {
        let (length, value) = next_token(rest);
        let (token, _) = rest.split_at(length.min(rest.len()));
        match (value, &mut quoted) {
            (Some(value), _) => {
                let begun = quoted.get_or_insert_with(|| line.get(..at).unwrap_or_default().to_vec());
                begun.extend_from_slice(format!("\"{value}\"").as_bytes());
            }
            (None, Some(begun)) => begun.extend_from_slice(token),
            (None, None) => {}
        }
        at = at.saturating_add(token.len());
    }
    quoted.map_or(Cow::Borrowed(line), Cow::Owned)
}

/// The length of the token at the head of a text that is not empty, at least 1, and the value of a number that is not
/// finite.
fn next_token(text: &[u8]) -> (usize, Option<NonFiniteValue>) {
    let belongs = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.' | b'_');
    match text.first() {
        Some(b'"') => (quoted_length(text), None),
        Some(first) if belongs(first) => {
            let length = text.iter().position(|byte| !belongs(byte)).unwrap_or(text.len());
            let token = text
                .get(..length)
                .and_then(|token| std::str::from_utf8(token).ok());
            let number = token.and_then(|token| token.parse::<f64>().ok());
            (
                length,
                number.and_then(|number| MetricValue::classify(number).err()),
            )
        }
        Some(_) | None => (1, None),
    }
}

/// The length of the text in quotes at the head, with both quotes; of one without an end, everything.
fn quoted_length(text: &[u8]) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.iter().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at.saturating_add(1),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quote(line: &str) -> String {
        String::from_utf8(quote_non_finite(line.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn numbers_outside_of_texts_alone_are_quoted() {
        for (line, quoted) in [
            (r#"{"a":NaN}"#, r#"{"a":"NaN"}"#),
            (
                r#"{"a":[nan,-inf, 1e400 ,1e40]}"#,
                r#"{"a":["NaN","-Infinity", "Infinity" ,1e40]}"#,
            ),
            (r#"{"NaN \" NaN":-Infinity}"#, r#"{"NaN \" NaN":"-Infinity"}"#),
            (
                r#"{"a":nano,"b":info,"c":x.inf}"#,
                r#"{"a":nano,"b":info,"c":x.inf}"#,
            ),
            (r#"{"a":"NaN"#, r#"{"a":"NaN"#),
        ] {
            assert_eq!(quote(line), quoted);
        }
    }

    proptest! {
        #[test]
        fn json_stays_as_it_is(parts in proptest::collection::btree_map("NaN|inf|[a\"\\\\: ]{0,6}", any::<(f64, String)>(), 0..6)) {
            let line = serde_json::to_string(&parts).unwrap();
            prop_assert_eq!(quote(&line), line);
        }

        #[test]
        fn any_bytes_are_quoted_once(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let once = quote_non_finite(&line).into_owned();
            prop_assert_eq!(quote_non_finite(&once).into_owned(), once);
        }
    }
}
