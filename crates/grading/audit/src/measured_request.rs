//! The requests whose answers calibrations measure. Honest rounding shows more where a request bends the distribution:
//! at low temperatures, and at the edge of what `top_p` leaves. An author that chose such requests would convict by
//! them.

use serde_json::{Map, Value};

/// The temperatures at which `images/llm/measure` asks; without one an engine's own is taken, as there.
const TEMPERATURES: std::ops::RangeInclusive<f64> = 0.3..=1.0;
/// Fields that bend nothing, whatever they say: the text, the length, the form of the answer, and the seed, which the
/// position of an own prompt gives.
const FREE: [&str; 12] = [
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "stream_options",
    "seed",
    "return_token_ids",
    "logprobs",
    "top_logprobs",
    "user",
];
/// Fields that choose no token at this number.
const NEUTRAL: [(&str, f64); 5] = [
    ("n", 1.0),
    ("top_p", 1.0),
    ("min_p", 0.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
];

/// Whether answers to a request of this body are like those of a calibration.
pub(crate) fn is_measured(body: &[u8]) -> bool {
    let read: Option<Map<String, Value>> = serde_json::from_slice(body).ok();
    read.is_some_and(|fields| fields.iter().all(|(name, value)| is_measured_field(name, value)))
}

/// Whether this field leaves the answers like those of a calibration.
pub(crate) fn is_measured_field(name: &str, value: &Value) -> bool {
    if value.is_null() || FREE.contains(&name) {
        return true;
    }
    let Some(number) = value.as_f64() else {
        return false;
    };
    let neutral = NEUTRAL.iter().find(|(neutral, _)| *neutral == name);
    match (name, neutral) {
        ("temperature", _) => TEMPERATURES.contains(&number),
        #[expect(clippy::float_cmp, reason = "the numbers are whole")]
        (_, Some((_, neutral))) => number == *neutral,
        (_, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_measured_whose_answers_a_calibration_has_seen() {
        for measured in [
            r#"{"prompt":"a"}"#,
            r#"{"prompt":"a","temperature":0.3,"max_tokens":7}"#,
            r#"{"prompt":"a","temperature":1,"top_p":1.0,"n":1,"presence_penalty":0}"#,
            r#"{"messages":[],"top_k":null,"stop":null,"stream":true}"#,
        ] {
            assert!(is_measured(measured.as_bytes()), "{measured}");
        }
        for bent in [
            r#"{"prompt":"a","temperature":0.29}"#,
            r#"{"prompt":"a","temperature":1.01}"#,
            r#"{"prompt":"a","temperature":"1"}"#,
            r#"{"prompt":"a","temperature":true}"#,
            r#"{"prompt":"a","top_p":0.9}"#,
            r#"{"prompt":"a","top_k":4}"#,
            r#"{"prompt":"a","logit_bias":{}}"#,
            r#"{"prompt":"a","n":2}"#,
            r#"["prompt"]"#,
            "",
        ] {
            assert!(!is_measured(bent.as_bytes()), "{bent}");
        }
    }
}
