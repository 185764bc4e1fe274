//! The hash scheme `text`: digests over the text of a request and of its response, independent of the JSON around it.
//!
//! Input: SHA-256 over each message's role and text, or over each prompt, each preceded by its length in four bytes.
//! Output: SHA-256 over each choice's index in four bytes and the SHA-256 of its text, in the order of the indices. A
//! body without such text has neither digest; it is hashed byte by byte instead.
//!
//! A document that is not valid JSON, is longer than [`MAX_JSON`], or has a field of another type than OpenAI's, holds
//! no text. The executor and the validator read the same bytes with this code, so they agree on malformed bodies too.

use std::collections::BTreeMap;

use muster_protocol::Digest;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::stream::{BodyKind, JsonReader};

/// Bytes of the longest event, and of the longest response in one document, whose text is read.
pub const MAX_JSON: usize = 4 * 1024 * 1024;
/// Choices of one response whose text is read; further ones are ignored.
const MAX_CHOICES: usize = 128;

// === requests ===

#[derive(Deserialize)]
struct RequestText<'a> {
    #[serde(borrow, default)]
    messages: Option<Vec<RequestMessage<'a>>>,
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RequestMessage<'a> {
    #[serde(default)]
    role: String,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ContentPart {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
}

/// The digest of a request's text; `None` if the body has none.
pub fn digest_input(body: &[u8]) -> Option<Digest> {
    let read: RequestText<'_> = serde_json::from_slice(body).ok()?;
    let mut hash = Sha256::new();
    if let Some(messages) = read.messages {
        for message in &messages {
            hash_with_length(&mut hash, message.role.as_bytes());
            hash_with_length(&mut hash, content_text(message.content).as_bytes());
        }
        return Some(Digest::from_bytes(hash.finalize().into()));
    }
    let prompt = read.prompt.or(read.input)?.get();
    if let Ok(one) = serde_json::from_str::<String>(prompt) {
        hash_with_length(&mut hash, one.as_bytes());
    } else {
        for each in serde_json::from_str::<Vec<&RawValue>>(prompt).ok()? {
            hash_with_length(&mut hash, prompt_text(each).as_bytes());
        }
    }
    Some(Digest::from_bytes(hash.finalize().into()))
}

/// A message's text, or the texts of its parts one after another. Content of any other type is taken as its JSON, so
/// that nothing is left unsigned.
fn content_text(content: Option<&RawValue>) -> String {
    let Some(content) = content.map(RawValue::get) else {
        return String::new();
    };
    if let Ok(text) = serde_json::from_str::<String>(content) {
        return text;
    }
    let parts = serde_json::from_str::<Vec<&RawValue>>(content).ok();
    let is_part = |part: &&RawValue| part.get().starts_with('{');
    let Some(parts) = parts.filter(|parts| parts.iter().all(is_part)) else {
        return content.to_owned();
    };
    let part = |part: &&RawValue| match serde_json::from_str::<ContentPart>(part.get()) {
        Ok(ContentPart {
            kind,
            text: Some(text),
        }) if kind == "text" => text,
        Ok(_) | Err(_) => part.get().to_owned(),
    };
    parts.iter().map(part).collect()
}

/// A prompt's text; a prompt of token numbers is taken as its JSON.
fn prompt_text(prompt: &RawValue) -> String {
    serde_json::from_str(prompt.get()).unwrap_or_else(|_| prompt.get().to_owned())
}

fn hash_with_length(hash: &mut Sha256, bytes: &[u8]) {
    hash.update(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    hash.update(bytes);
}

// === responses ===

#[derive(Deserialize)]
struct ResponseText {
    #[serde(default)]
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    delta: Option<ResponseMessage>,
    #[serde(default)]
    message: Option<ResponseMessage>,
}

#[derive(Default, Deserialize)]
struct ResponseMessage {
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Deserialize)]
struct ToolCall {
    #[serde(default)]
    function: Option<CalledFunction>,
}

#[derive(Deserialize)]
struct CalledFunction {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
}

/// Hashes a response's text while it passes. It holds one event, or one whole document: [`MAX_JSON`] bytes at most.
#[derive(Debug)]
pub struct TextDigest {
    reader: JsonReader,
    choices: ChoiceDigests,
}

impl TextDigest {
    /// `None` for a body whose text is never read.
    pub fn new(kind: BodyKind) -> Option<Self> {
        Some(Self {
            reader: JsonReader::new(kind, MAX_JSON)?,
            choices: ChoiceDigests::default(),
        })
    }

    /// Takes the next bytes of the body.
    pub fn update(&mut self, bytes: &[u8]) {
        self.reader.update(bytes, |json| self.choices.read(json));
    }

    /// The digest of the whole body; `None` if it had no text.
    pub fn finish(mut self) -> Option<Digest> {
        self.reader.end(|json| self.choices.read(json));
        if self.choices.by_index.is_empty() {
            return None;
        }
        let mut hash = Sha256::new();
        for (index, text) in self.choices.by_index {
            hash.update(index.to_be_bytes());
            hash.update(text.finalize());
        }
        Some(Digest::from_bytes(hash.finalize().into()))
    }
}

#[derive(Debug, Default)]
struct ChoiceDigests {
    by_index: BTreeMap<u32, Sha256>,
}

impl ChoiceDigests {
    fn read(&mut self, json: &[u8]) {
        let Ok(read) = serde_json::from_slice::<ResponseText>(json) else {
            return;
        };
        for choice in read.choices {
            if self.by_index.len() >= MAX_CHOICES && !self.by_index.contains_key(&choice.index) {
                continue;
            }
            let hash = self.by_index.entry(choice.index).or_default();
            choice.each_text(|text| hash.update(text));
        }
    }
}

impl Choice {
    fn each_text(&self, mut each: impl FnMut(&str)) {
        let messages = [&self.delta, &self.message].into_iter().flatten();
        for text in self
            .text
            .iter()
            .map(String::as_str)
            .chain(messages.flat_map(ResponseMessage::texts))
        {
            each(text);
        }
    }
}

impl ResponseMessage {
    fn texts(&self) -> impl Iterator<Item = &str> {
        let calls = self
            .tool_calls
            .iter()
            .flatten()
            .filter_map(|call| call.function.as_ref());
        let called = calls.flat_map(|call| call.name.iter().chain(&call.arguments));
        let plain = self
            .reasoning_content
            .iter()
            .chain(&self.content)
            .chain(&self.refusal);
        plain.chain(called).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn output<'a>(kind: BodyKind, parts: impl IntoIterator<Item = &'a [u8]>) -> Option<Digest> {
        let mut output = TextDigest::new(kind).unwrap();
        for part in parts {
            output.update(part);
        }
        output.finish()
    }

    fn expected(choices: &[(u32, &str)]) -> Option<Digest> {
        let bytes = choices.iter().flat_map(|(index, text)| {
            let mut entry = index.to_be_bytes().to_vec();
            entry.extend_from_slice(Digest::of(text.as_bytes()).as_bytes());
            entry
        });
        Some(Digest::of(&bytes.collect::<Vec<u8>>()))
    }

    #[test]
    fn a_stream_and_one_piece_of_the_same_words_agree() {
        let stream = concat!(
            ": ping\n\n",
            "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"b\"}}]}\r\n\r\n",
            "data:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"}}]}\n\n",
            "data: not json\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo \\u00e9\"}}],\"usage\":null}\n\n",
            "data: [DONE]\n\n",
        );
        let json = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Hello é"}},{"index":1,"message":{"content":"b"}}],"created":7}"#;
        let words = expected(&[(0, "Hello é"), (1, "b")]);
        assert_eq!(output(BodyKind::Events, [stream.as_bytes()]), words);
        assert_eq!(output(BodyKind::Json, [json.as_bytes()]), words);
        let old = r#"{"choices":[{"text":"Hello é","index":0},{"text":"b","index":1}]}"#;
        assert_eq!(output(BodyKind::Json, [old.as_bytes()]), words);
    }

    #[test]
    fn tool_calls_and_reasoning_are_words() {
        let json = r#"{"choices":[{"message":{"content":null,"reasoning_content":"r","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}]}"#;
        assert_eq!(
            output(BodyKind::Json, [json.as_bytes()]),
            expected(&[(0, "rf{}")])
        );
    }

    #[test]
    fn where_there_are_no_words_there_is_no_digest_of_them() {
        for body in [
            "",
            "{}",
            "[]",
            "{\"choices\":[]}",
            "{\"choices\":7}",
            "{\"data\":[]}",
            "\u{0}",
        ] {
            assert_eq!(output(BodyKind::Json, [body.as_bytes()]), None, "{body}");
            assert_eq!(output(BodyKind::Events, [body.as_bytes()]), None, "{body}");
        }
        for body in [
            "",
            "{}",
            "[1]",
            "{\"messages\":{}}",
            "{\"prompt\":{}}",
            "nonsense",
        ] {
            assert_eq!(digest_input(body.as_bytes()), None, "{body}");
        }
        assert!(TextDigest::new(BodyKind::Other).is_none());
    }

    #[test]
    fn the_input_digest_covers_roles_and_texts_or_prompts() {
        let expected = |parts: &[&str]| {
            let mut bytes = Vec::new();
            for part in parts {
                bytes.extend_from_slice(&u32::try_from(part.len()).unwrap().to_be_bytes());
                bytes.extend_from_slice(part.as_bytes());
            }
            Some(Digest::of(&bytes))
        };
        let chat = r#"{"model":"m","messages":[{"role":"user","content":"Hi é"}],"stream":true}"#;
        assert_eq!(digest_input(chat.as_bytes()), expected(&["user", "Hi é"]));
        let parts = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
        let image = r#"{"type":"image_url","image_url":{"url":"x"}}"#;
        assert_eq!(
            digest_input(parts.as_bytes()),
            expected(&["user", &format!("a{image}")])
        );
        assert_eq!(digest_input(br#"{"prompt":"one"}"#), expected(&["one"]));
        assert_eq!(
            digest_input(br#"{"prompt":["one","two"]}"#),
            expected(&["one", "two"])
        );
        assert_eq!(digest_input(br#"{"prompt":[[1,2]]}"#), expected(&["[1,2]"]));
        assert_eq!(digest_input(br#"{"input":"embed"}"#), expected(&["embed"]));
        assert_ne!(
            digest_input(br#"{"prompt":["ab"]}"#),
            digest_input(br#"{"prompt":["a","b"]}"#)
        );
    }

    #[test]
    fn an_event_that_is_too_long_holds_no_words_and_the_next_one_does() {
        let long = format!(
            "data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n",
            "x".repeat(MAX_JSON)
        );
        let after = "data: {\"choices\":[{\"text\":\"y\"}]}\n";
        let body = [long.as_bytes(), after.as_bytes()].concat();
        let words = expected(&[(0, "y")]);
        assert_eq!(output(BodyKind::Events, [body.as_slice()]), words);
        assert_eq!(output(BodyKind::Events, body.chunks(100_000)), words);
        assert_eq!(output(BodyKind::Json, long.as_bytes().chunks(100_000)), None);
    }

    /// Pieces that an engine might send, whole and broken.
    fn pieces() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            "[a-zé\"\\\\]{0,12}".prop_map(|text| {
                let text = serde_json::to_string(&text).unwrap();
                format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{text}}}}}]}}\n\n")
                    .into_bytes()
            }),
            Just(b"data: [DONE]\n\n".to_vec()),
            Just(b": ping\r\n\r\n".to_vec()),
            Just(b"data: {\"choices\":[{\"index\":".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..30),
        ];
        proptest::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn cuts_change_no_words_and_nothing_panics(
            body in pieces(),
            cuts in proptest::collection::vec(1_usize..50, 0..40),
        ) {
            let mut parts = Vec::new();
            let mut rest = body.as_slice();
            for length in cuts {
                let (head, tail) = rest.split_at(length.min(rest.len()));
                parts.push(head);
                rest = tail;
            }
            parts.push(rest);
            prop_assert_eq!(output(BodyKind::Events, parts), output(BodyKind::Events, [body.as_slice()]));
            let _ = (digest_input(&body), output(BodyKind::Json, [body.as_slice()]));
        }
    }
}
