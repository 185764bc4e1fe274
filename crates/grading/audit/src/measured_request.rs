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

/// The speakers of messages that every engine reads alike.
const SPEAKERS: [&str; 3] = ["system", "user", "assistant"];

/// Whether answers to a request of this body at this path are like those of a calibration, and every engine reads it
/// alike: one prompt as a text, or messages of texts whose last one is a user's. A body that had both would have two
/// answers, one at each path.
pub(crate) fn is_measured(path: &str, body: &[u8]) -> bool {
    let read: Option<Map<String, Value>> = serde_json::from_slice(body).ok();
    read.is_some_and(|fields| {
        let stated = |name: &str| fields.get(name).filter(|value| !value.is_null());
        let has_words = match (path, stated("prompt"), stated("messages")) {
            ("/v1/completions", Some(Value::String(_)), None) => true,
            ("/v1/chat/completions", None, Some(Value::Array(messages))) => {
                let speaker = |message: &Value| message.get("role").cloned();
                messages.iter().all(is_plain_message)
                    && messages.last().and_then(speaker) == Some(Value::from("user"))
            }
            (_, _, _) => false,
        };
        has_words && fields.iter().all(|(name, value)| is_measured_field(name, value))
    })
}

/// Whether a message has a known speaker, a text, and nothing else.
fn is_plain_message(message: &Value) -> bool {
    let Value::Object(fields) = message else {
        return false;
    };
    let speaker = fields.get("role").and_then(Value::as_str);
    fields.len() == 2
        && speaker.is_some_and(|speaker| SPEAKERS.contains(&speaker))
        && fields.get("content").is_some_and(Value::is_string)
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
        let (completion, chat) = ("/v1/completions", "/v1/chat/completions");
        for (path, measured) in [
            (completion, r#"{"prompt":"a"}"#),
            (
                completion,
                r#"{"prompt":"a","messages":null,"temperature":0.3,"max_tokens":7}"#,
            ),
            (
                completion,
                r#"{"prompt":"a","temperature":1,"top_p":1.0,"n":1,"presence_penalty":0}"#,
            ),
            (
                chat,
                r#"{"messages":[{"role":"user","content":"a"}],"top_k":null,"stop":null,"stream":true}"#,
            ),
        ] {
            assert!(is_measured(path, measured.as_bytes()), "{measured}");
        }
        for (path, other) in [
            (completion, r#"{"prompt":"a","temperature":0.29}"#),
            (completion, r#"{"prompt":"a","temperature":1.01}"#),
            (completion, r#"{"prompt":"a","temperature":"1"}"#),
            (completion, r#"{"prompt":"a","temperature":true}"#),
            (completion, r#"{"prompt":"a","top_p":0.9}"#),
            (completion, r#"{"prompt":"a","top_k":4}"#),
            (completion, r#"{"prompt":"a","logit_bias":{}}"#),
            (completion, r#"{"prompt":"a","n":2}"#),
            (completion, r#"["prompt"]"#),
            (completion, ""),
            // Two answers, or one that engines read in two ways.
            ("/v1/completions?/chat/", r#"{"prompt":"a"}"#),
            (chat, r#"{"prompt":"a"}"#),
            (completion, r#"{"messages":[{"role":"user","content":"a"}]}"#),
            (
                completion,
                r#"{"prompt":"a","messages":[{"role":"user","content":"a"}]}"#,
            ),
            (completion, r#"{"prompt":["a"]}"#),
            (chat, r#"{"messages":[]}"#),
            (chat, r#"{"messages":[{"role":"assistant","content":"a"}]}"#),
            (
                chat,
                r#"{"messages":[{"role":"developer","content":"a"},{"role":"user","content":"a"}]}"#,
            ),
            (
                chat,
                r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}"#,
            ),
            (chat, r#"{"messages":[{"role":"user","content":"a","name":"b"}]}"#),
        ] {
            assert!(!is_measured(path, other.as_bytes()), "{path} {other}");
        }
    }
}
