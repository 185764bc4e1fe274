//! How many bytes a response may have for its tokens.
//!
//! An engine decides how much it writes around its text, and users choose a part of it (`logprobs`, tools, streams). So
//! the measure is the whitelisted engine itself: the most bytes a token that it wrote on the validator's own miner for
//! a request of the same form. A response of a miner's that has eight times as many is padded by its miner, and ends
//! there. This says nothing about the model. A form that the own miner never answered is not bounded.

use std::collections::HashMap;

use muster_openai::without_mark;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// How many times the bytes of the own miner's tokens a miner's may have.
const MARGIN: u64 = 8;
/// Tokens that a response may have beside those that its text shows: the ends of turns, and parts of characters.
const MORE_TOKENS: u64 = 64;
/// Bytes of an event or document whose text may not be read yet.
const UNREAD_BYTES: u64 = 1024 * 1024;
/// The most alternatives of a token that an engine returns; a request for more is none that a bound is learnt for.
const MAX_LOGPROBS: u64 = 20;

/// The form of a request: what decides how much an engine writes around its text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestShape {
    model: String,
    is_stream: bool,
    /// The alternatives of each token that are asked for; `None` without `logprobs`.
    logprobs: Option<u64>,
    has_tools: bool,
}

/// The fields of a request that decide about its shape.
#[derive(Deserialize)]
struct ShapeFields<'a> {
    #[serde(default)]
    stream: Option<bool>,
    /// A switch in chats, a number in completions.
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
    #[serde(default)]
    top_logprobs: Option<u64>,
    #[serde(default)]
    tools: Option<IgnoredAny>,
    #[serde(default)]
    prompt_logprobs: Option<IgnoredAny>,
    #[serde(default)]
    echo: Option<bool>,
}

/// The bytes a token of the own miner's responses, by the form of their requests.
#[derive(Debug, Default)]
pub(crate) struct PaddingLimits(Mutex<HashMap<RequestShape, u64>>);

/// The bound on one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PaddingLimit {
    bytes_of_token: u64,
    is_stream: bool,
    /// Bytes of the request, whose tokens the response may repeat as ids.
    request: u64,
    /// Tokens that the request allows, if it sets a limit.
    max_tokens: Option<u64>,
}

impl RequestShape {
    /// The shape of a request to a model; `None` if it asks for its prompt back, so that its length says nothing, or if
    /// its fields have other types than OpenAI's.
    pub(crate) fn of(model: &str, body: &[u8]) -> Option<Self> {
        let fields: ShapeFields<'_> = serde_json::from_slice(without_mark(body)).ok()?;
        if fields.prompt_logprobs.is_some() || fields.echo == Some(true) {
            return None;
        }
        let logprobs = match fields.logprobs.map(RawValue::get) {
            None | Some("null" | "false") => None,
            Some("true") => Some(fields.top_logprobs.unwrap_or(0)),
            Some(number) => Some(number.parse().ok()?),
        };
        let shape = Self {
            model: model.to_owned(),
            is_stream: fields.stream == Some(true),
            logprobs,
            has_tools: fields.tools.is_some(),
        };
        (shape.logprobs <= Some(MAX_LOGPROBS)).then_some(shape)
    }
}

impl PaddingLimits {
    /// Notes a whole response of the own miner, with this number of tokens, counted exactly.
    pub(crate) fn learn(&self, shape: RequestShape, bytes: u64, tokens: u64) {
        if tokens > 0 {
            let mut learnt = self.0.lock();
            let most = learnt.entry(shape).or_default();
            *most = bytes.div_ceil(tokens).max(*most);
        }
    }

    /// The bound on a response to a request of this shape, length and limit; `None` if the own miner answered none.
    pub(crate) fn limit(
        &self,
        shape: &RequestShape,
        request: usize,
        max_tokens: Option<u64>,
    ) -> Option<PaddingLimit> {
        Some(PaddingLimit {
            bytes_of_token: *self.0.lock().get(shape)?,
            is_stream: shape.is_stream,
            request: u64::try_from(request).unwrap_or(u64::MAX),
            max_tokens,
        })
    }
}

impl PaddingLimit {
    /// Whether a response of so many bytes is too long, of which `text` bytes of text were read until now.
    pub(crate) fn is_exceeded(&self, bytes: u64, text: u64) -> bool {
        let by_text = self.is_stream.then_some(text);
        // The text of a document is known at its end only.
        let Some(tokens) = by_text.into_iter().chain(self.max_tokens).min() else {
            return false;
        };
        let of_tokens = tokens
            .saturating_add(MORE_TOKENS)
            .saturating_mul(self.bytes_of_token)
            .saturating_add(self.request)
            .saturating_mul(MARGIN);
        bytes > of_tokens.saturating_add(UNREAD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(body: &str) -> Option<RequestShape> {
        RequestShape::of("tiny", body.as_bytes())
    }

    #[test]
    fn requests_of_one_form_have_one_shape() {
        let stream = shape(r#"{"stream":true,"messages":[],"max_tokens":7}"#).unwrap();
        assert_eq!(
            shape(r#"{"messages":[{}],"stream":true,"seed":1}"#).as_ref(),
            Some(&stream)
        );
        for other in [
            r#"{"stream":false}"#,
            r#"{"stream":true,"logprobs":true}"#,
            r#"{"stream":true,"logprobs":true,"top_logprobs":5}"#,
            r#"{"stream":true,"tools":[]}"#,
        ] {
            assert_ne!(shape(other).as_ref(), Some(&stream), "{other}");
        }
        assert_eq!(
            shape(r#"{"logprobs":5}"#),
            shape(r#"{"logprobs":true,"top_logprobs":5}"#)
        );
        for none in [
            "[",
            r#"{"echo":true}"#,
            r#"{"prompt_logprobs":1}"#,
            r#"{"logprobs":21}"#,
            r#"{"logprobs":"x"}"#,
        ] {
            assert_eq!(shape(none), None, "{none}");
        }
    }

    #[test]
    fn a_response_may_be_eight_times_as_long_as_the_own_miners_and_a_form_without_one_is_not_bounded() {
        let limits = PaddingLimits::default();
        let asked = shape(r#"{"stream":true}"#).unwrap();
        assert_eq!(limits.limit(&asked, 100, None), None);
        limits.learn(asked.clone(), 2_000, 10);
        limits.learn(asked.clone(), 100, 10);
        limits.learn(asked.clone(), 100, 0);
        let limit = limits.limit(&asked, 100, Some(50)).unwrap();
        let most = |tokens: u64| 8 * ((tokens + 64) * 200 + 100) + UNREAD_BYTES;
        assert!(!limit.is_exceeded(most(7), 7) && limit.is_exceeded(most(7) + 1, 7));
        assert!(
            limit.is_exceeded(most(50) + 1, 9_999),
            "the request allows 50 tokens"
        );
        assert!(
            !limits
                .limit(&asked, 100, None)
                .unwrap()
                .is_exceeded(most(9_999), 9_999)
        );
        assert_eq!(
            limits.limit(&shape("{}").unwrap(), 100, None),
            None,
            "another form"
        );
    }

    #[test]
    fn a_document_is_bounded_by_the_requests_limit_alone() {
        let limits = PaddingLimits::default();
        let asked = shape("{}").unwrap();
        limits.learn(asked.clone(), 2_000, 10);
        assert!(!limits.limit(&asked, 0, None).unwrap().is_exceeded(u64::MAX, 0));
        let limit = limits.limit(&asked, 0, Some(10)).unwrap();
        assert!(!limit.is_exceeded(UNREAD_BYTES, 0) && limit.is_exceeded(2 * UNREAD_BYTES, 0));
    }
}
