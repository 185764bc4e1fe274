//! The hash scheme `text`: the words that went in and the words that came out, whatever JSON carried them.
//!
//! Input: SHA-256 over each message's role and text, or over each prompt, each behind its length in four bytes. Output:
//! SHA-256 over each choice's index in four bytes and the SHA-256 of its text, in the order of their indices. A body that
//! holds no such words has none of these digests: it is hashed as it is.
//!
//! In a stream of events each line that begins with `data:` is an event of its own, as the engines write it. A line that is no
//! JSON, or too long, holds no words. Both ends read the same bytes by this code, so they agree on what they do not
//! understand.

use std::collections::BTreeMap;

use memchr::memchr2;
use muster_protocol::Digest;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// The longest event, and the longest answer in one piece, whose words are read.
pub const MAX_JSON: usize = 4 * 1024 * 1024;
/// Choices beyond that many are not read.
const MAX_CHOICES: usize = 128;

/// What a body is, as far as anybody here looks into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// A stream of events, which takes comments of ours.
    Events,
    /// One JSON document.
    Json,
    /// Anything else.
    Other,
}

impl BodyKind {
    /// By the type that stands in the answer's head.
    pub fn of(content_type: Option<&str>) -> Self {
        let essence = content_type
            .and_then(|value| value.split(';').next())
            .map(str::trim);
        match essence {
            Some(essence) if essence.eq_ignore_ascii_case("text/event-stream") => Self::Events,
            Some(essence) if essence.eq_ignore_ascii_case("application/json") => Self::Json,
            Some(_) | None => Self::Other,
        }
    }
}

// === what goes in ===

#[derive(Deserialize)]
struct Input<'a> {
    #[serde(borrow, default)]
    messages: Option<Vec<Message<'a>>>,
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(default)]
    role: String,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Part {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
}

/// The digest of a request's words; `None` if there are none.
pub fn input(body: &[u8]) -> Option<Digest> {
    let read: Input<'_> = serde_json::from_slice(body).ok()?;
    let mut hash = Sha256::new();
    if let Some(messages) = read.messages {
        for message in &messages {
            counted(&mut hash, message.role.as_bytes());
            counted(&mut hash, words(message.content).as_bytes());
        }
        return Some(Digest::from_bytes(hash.finalize().into()));
    }
    let prompt = read.prompt.or(read.input)?.get();
    if let Ok(one) = serde_json::from_str::<String>(prompt) {
        counted(&mut hash, one.as_bytes());
    } else {
        for each in serde_json::from_str::<Vec<&RawValue>>(prompt).ok()? {
            counted(&mut hash, prompt_text(each).as_bytes());
        }
    }
    Some(Digest::from_bytes(hash.finalize().into()))
}

/// A text, or the texts of parts one after another. What is no text stands as its JSON, so that nothing goes unsigned.
fn words(content: Option<&RawValue>) -> String {
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
    let part = |part: &&RawValue| match serde_json::from_str::<Part>(part.get()) {
        Ok(Part {
            kind,
            text: Some(text),
        }) if kind == "text" => text,
        Ok(_) | Err(_) => part.get().to_owned(),
    };
    parts.iter().map(part).collect()
}

/// A prompt's text, or its tokens as their JSON.
fn prompt_text(prompt: &RawValue) -> String {
    serde_json::from_str(prompt.get()).unwrap_or_else(|_| prompt.get().to_owned())
}

fn counted(hash: &mut Sha256, bytes: &[u8]) {
    hash.update(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    hash.update(bytes);
}

// === what comes out ===

#[derive(Deserialize)]
struct Output {
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
    delta: Option<Said>,
    #[serde(default)]
    message: Option<Said>,
}

#[derive(Default, Deserialize)]
struct Said {
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
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
}

/// Reads an answer's words while it passes. Its memory is one event, or one answer in one piece: [`MAX_JSON`] at most.
#[derive(Debug)]
pub struct TextOutput {
    events: bool,
    /// The line or document that has not ended yet.
    open: Vec<u8>,
    /// It is longer than is read.
    too_long: bool,
    choices: BTreeMap<u32, Sha256>,
}

impl TextOutput {
    /// `None` for a body that is never looked into.
    pub fn new(kind: BodyKind) -> Option<Self> {
        let events = match kind {
            BodyKind::Events => true,
            BodyKind::Json => false,
            BodyKind::Other => return None,
        };
        Some(Self {
            events,
            open: Vec::new(),
            too_long: false,
            choices: BTreeMap::new(),
        })
    }

    /// The next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while self.events {
            let Some(end) = memchr2(b'\n', b'\r', bytes) else {
                break;
            };
            let (line, rest) = bytes.split_at(end);
            if self.open.is_empty() && !self.too_long {
                // Whole in what came: nothing is copied.
                self.read(line);
            } else {
                self.keep(line);
                self.read_open();
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.keep(bytes);
    }

    /// That was all. `None` if there were no words.
    pub fn finish(mut self) -> Option<Digest> {
        self.read_open();
        if self.choices.is_empty() {
            return None;
        }
        let mut hash = Sha256::new();
        for (index, text) in self.choices {
            hash.update(index.to_be_bytes());
            hash.update(text.finalize());
        }
        Some(Digest::from_bytes(hash.finalize().into()))
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.open.len() + bytes.len() > MAX_JSON {
            self.too_long = true;
            self.open = Vec::new();
        } else if !self.too_long {
            self.open.extend_from_slice(bytes);
        }
    }

    fn read_open(&mut self) {
        let mut open = std::mem::take(&mut self.open);
        if !std::mem::take(&mut self.too_long) {
            self.read(&open);
        }
        // Its room serves the next line.
        open.clear();
        if self.events {
            self.open = open;
        }
    }

    /// One line, or the one document.
    fn read(&mut self, text: &[u8]) {
        if text.len() > MAX_JSON {
            return;
        }
        let json = if self.events {
            text.strip_prefix(b"data:")
        } else {
            Some(text)
        };
        let Some(read) = json.and_then(|json| serde_json::from_slice::<Output>(json).ok()) else {
            return;
        };
        for choice in read.choices {
            if self.choices.len() >= MAX_CHOICES && !self.choices.contains_key(&choice.index) {
                continue;
            }
            let hash = self.choices.entry(choice.index).or_default();
            choice.each_text(|text| hash.update(text));
        }
    }
}

impl Choice {
    fn each_text(&self, mut each: impl FnMut(&str)) {
        let said = [&self.delta, &self.message].into_iter().flatten();
        for text in self
            .text
            .iter()
            .map(String::as_str)
            .chain(said.flat_map(Said::texts))
        {
            each(text);
        }
    }
}

impl Said {
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
        let mut output = TextOutput::new(kind).unwrap();
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
            assert_eq!(input(body.as_bytes()), None, "{body}");
        }
        assert!(TextOutput::new(BodyKind::Other).is_none());
    }

    #[test]
    fn what_goes_in_is_roles_and_texts_or_prompts() {
        let expected = |parts: &[&str]| {
            let mut bytes = Vec::new();
            for part in parts {
                bytes.extend_from_slice(&u32::try_from(part.len()).unwrap().to_be_bytes());
                bytes.extend_from_slice(part.as_bytes());
            }
            Some(Digest::of(&bytes))
        };
        let chat = r#"{"model":"m","messages":[{"role":"user","content":"Hi é"}],"stream":true}"#;
        assert_eq!(input(chat.as_bytes()), expected(&["user", "Hi é"]));
        let parts = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
        let image = r#"{"type":"image_url","image_url":{"url":"x"}}"#;
        assert_eq!(input(parts.as_bytes()), expected(&["user", &format!("a{image}")]));
        assert_eq!(input(br#"{"prompt":"one"}"#), expected(&["one"]));
        assert_eq!(input(br#"{"prompt":["one","two"]}"#), expected(&["one", "two"]));
        assert_eq!(input(br#"{"prompt":[[1,2]]}"#), expected(&["[1,2]"]));
        assert_eq!(input(br#"{"input":"embed"}"#), expected(&["embed"]));
        assert_ne!(input(br#"{"prompt":["ab"]}"#), input(br#"{"prompt":["a","b"]}"#));
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
            let _ = (input(&body), output(BodyKind::Json, [body.as_slice()]));
        }
    }
}
