//! JSON as Python's `json.dumps` prints it, for the texts that ComputeHorde signs.

mod writer;

use serde::Serialize;
use serde_json::Value;

pub use writer::CanonicalError;
use writer::CanonicalWriter;

/// The separators of a rendering: between items, and between a key and its value.
#[derive(Clone, Copy, Debug)]
struct Separators {
    item: &'static str,
    key: &'static str,
}

const SPACED: Separators = Separators {
    item: ", ",
    key: ": ",
};
const COMPACT: Separators = Separators { item: ",", key: ":" };

/// `json.dumps(value, sort_keys=True)`: receipts and system events sign this.
pub fn sorted_spaced(value: &Value) -> String {
    CanonicalWriter::write_tree(value, SPACED)
}

/// `json.dumps(value, sort_keys=True, separators=(",", ":"))`: `validator_signature` signs this.
pub fn sorted_compact(value: &Value) -> String {
    CanonicalWriter::write_tree(value, COMPACT)
}

/// The same text as [`sorted_compact`] of the value's JSON, written without a tree of values in memory.
///
/// # Errors
/// The value has no JSON form: a map's key is no text.
pub fn sorted_compact_of<T: Serialize + ?Sized>(value: &T) -> Result<String, CanonicalError> {
    CanonicalWriter::write(value, COMPACT)
}

/// An object to be signed, of fields that always have a JSON form.
pub fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let named = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
    Value::Object(named.collect())
}

/// A field whose JSON is its text.
pub fn text(value: &impl std::fmt::Display) -> Value {
    Value::String(value.to_string())
}

/// `json.dumps(text)`: a JSON string literal in ASCII.
pub fn ascii_literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    write_string(&mut out, text);
    out
}

fn write_string(out: &mut String, text: &str) {
    use std::fmt::Write as _;
    out.push('"');
    if text
        .bytes()
        .all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\')
    {
        out.push_str(text);
        out.push('"');
        return;
    }
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// Python's `repr` of a float: the shortest digits that read back, an exponent below 1e-4 and from 1e16.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') {
            plain
        } else {
            format!("{plain}.0")
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Fuzzing found these digits: read as the next double but one, they would be signed as other text than Python's.
    #[test]
    fn a_number_is_read_as_the_nearest_double() {
        for text in ["1.1111111111111111e+33", "1e+23", "9007199254740993.0"] {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            let again: serde_json::Value = serde_json::from_str(&sorted_compact(&value)).unwrap();
            assert_eq!(value.as_f64(), text.parse().ok(), "{text}");
            assert_eq!(again, value, "{text}");
        }
    }

    /// Each right-hand side was printed by CPython 3.11.
    #[test]
    fn prints_what_python_prints() {
        let value = json!({"b": [1, 2.5, null], "a": {"é": "ż😀\u{7f}\u{1}\n"}, "A": true});
        assert_eq!(
            sorted_spaced(&value),
            r#"{"A": true, "a": {"\u00e9": "\u017c\ud83d\ude00\u007f\u0001\n"}, "b": [1, 2.5, null]}"#
        );
        assert_eq!(sorted_compact(&json!({"b": [], "a": {}})), r#"{"a":{},"b":[]}"#);
        for (float, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e300, "1.5e+300"),
        ] {
            assert_eq!(python_float(float), text);
        }
    }
}
