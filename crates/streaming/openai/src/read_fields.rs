//! The fields of a response that audits read, taken out of its body while it passes, and a short body that has the same
//! fields.
//!
//! A response can be as long as its engine, its user or its miner likes: `logprobs`, comments and white space between
//! fields say nothing that an audit looks at. [`FieldReader`] keeps the ids of tokens, the text that clients of the
//! path are shown and the reason of the end, and [`ReadFields::to_body`] writes them as one event or document. Reading
//! that body gives the same fields again, since both are read by the code below.

use std::fmt;

use serde::de::{DeserializeOwned, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::stream::BodyKind;

/// The event that ends a stream, which is no JSON.
const DONE: &[u8] = b"[DONE]";
/// An event or document that nobody can read.
const UNREADABLE: &str = "!";
/// The beginning of a line of an event stream with data.
const DATA: &[u8] = b"data:";

/// The most bytes by which [`ReadFields::to_body`] is longer than the ids and the text in the body that was read, as
/// JSON, however many events that body had.
pub const FRAME_BYTES: usize = 128;

/// The fields of a response that audits read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFields {
    /// The ids of the prompt, as the response states them first.
    pub prompt_ids: Option<Vec<u32>>,
    /// The ids of the output, of all events and choices.
    pub output_ids: Vec<u32>,
    /// The text that clients of the path are shown, joined.
    pub text: String,
    /// Why the answer ended, as the engine reported it.
    pub finish_reason: Option<String>,
    /// Whether every event could be read. A client may read what this program cannot.
    pub is_readable: bool,
    /// Whether the engine shows its whole output in the text: there are no errors, no other choices, no reasoning and
    /// no calls of tools.
    pub is_whole: bool,
}

/// Bounds of the memory that a reader uses, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldBounds {
    /// The longest event or document.
    pub event: usize,
    /// All text and all ids together, an id counting as four bytes.
    pub kept: usize,
}

/// Reads the fields of one response while it passes.
#[derive(Debug)]
pub struct FieldReader {
    kind: BodyKind,
    is_chat: bool,
    bounds: FieldBounds,
    /// The line or document that has not ended yet.
    open: OpenEvent,
    fields: ReadFields,
    is_too_long: bool,
}

/// The part of a line or document that has arrived.
#[derive(Debug, Default)]
struct OpenEvent {
    bytes: Vec<u8>,
    /// The line has no data, so the rest of it is passed over.
    is_other: bool,
}

// === impl FieldReader ===

impl FieldReader {
    /// For a response of this kind; `is_chat` states whether its path is that of chats. A body of another kind has no
    /// fields.
    pub fn new(kind: BodyKind, is_chat: bool, bounds: FieldBounds) -> Self {
        Self {
            kind,
            is_chat,
            bounds,
            open: OpenEvent::default(),
            fields: ReadFields {
                prompt_ids: None,
                output_ids: Vec::new(),
                text: String::new(),
                finish_reason: None,
                is_readable: true,
                is_whole: true,
            },
            is_too_long: false,
        }
    }

    /// Takes the next bytes of the body, which may end anywhere.
    pub fn update(&mut self, bytes: &[u8]) {
        match self.kind {
            BodyKind::Other => return,
            BodyKind::Json => return self.hold(bytes),
            BodyKind::Events => {}
        }
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, after) = rest.split_at(end);
            self.hold(line);
            self.end_line();
            rest = after.get(1..).unwrap_or_default();
        }
        self.hold(rest);
    }

    /// The fields of the whole body; `None` if an event or the fields are longer than the bounds.
    pub fn finish(mut self) -> Option<ReadFields> {
        match self.kind {
            BodyKind::Json => {
                let document = std::mem::take(&mut self.open.bytes);
                self.read(&document);
            }
            BodyKind::Events => self.end_line(),
            BodyKind::Other => {}
        }
        (!self.is_too_long).then_some(self.fields)
    }

    /// Holds a part of a line or document. Nothing of a line without data is held.
    fn hold(&mut self, part: &[u8]) {
        if self.open.is_other || self.is_too_long {
            return;
        }
        // The held part of a line begins as data does.
        let missing = DATA.get(self.open.bytes.len()..).unwrap_or_default();
        if self.kind == BodyKind::Events && part.iter().zip(missing).any(|(byte, wanted)| byte != wanted) {
            self.open = OpenEvent {
                bytes: Vec::new(),
                is_other: true,
            };
            return;
        }
        let length = self.open.bytes.len().saturating_add(part.len());
        if length > self.bounds.event {
            self.give_up();
        } else {
            self.open.bytes.extend_from_slice(part);
        }
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.open.bytes);
        self.open.is_other = false;
        if let Some(data) = line.strip_prefix(DATA) {
            self.read(data);
        }
        // The buffer serves the next line: a stream has thousands.
        line.clear();
        self.open.bytes = line;
    }

    fn read(&mut self, json: &[u8]) {
        if let Some(ids) = parse::<ResponseIds>(json) {
            let prompt = ids.prompt_token_ids.or(ids.choices.prompt);
            self.fields.prompt_ids = self.fields.prompt_ids.take().or(prompt);
            self.fields.output_ids.extend(ids.choices.output);
        }
        match parse::<ResponseText>(json) {
            Some(read) => self.read_text(read),
            None => self.fields.is_readable &= json.trim_ascii() == DONE,
        }
        if self.fields.size() > self.bounds.kept {
            self.give_up();
        }
    }

    fn read_text(&mut self, read: ResponseText) {
        let choices = read.choices;
        let message = match self.kind {
            BodyKind::Events => choices.delta,
            BodyKind::Json | BodyKind::Other => choices.message,
        };
        let fields = &mut self.fields;
        fields.is_whole &= read.error.is_none() && !choices.has_others && !message.has_others;
        fields.text.push_str(match self.is_chat {
            true => &message.text,
            false => &choices.completion,
        });
        fields.finish_reason = fields.finish_reason.take().or(choices.finish_reason);
    }

    fn give_up(&mut self) {
        self.is_too_long = true;
        self.open = OpenEvent::default();
        self.fields.text = String::new();
        self.fields.output_ids = Vec::new();
        self.fields.prompt_ids = None;
    }
}

/// A document, if it is JSON of this form.
fn parse<T: DeserializeOwned>(json: &[u8]) -> Option<T> {
    serde_json::from_slice(json).ok()
}

// === impl ReadFields ===

impl ReadFields {
    /// Bytes in memory.
    fn size(&self) -> usize {
        let prompt = self.prompt_ids.as_ref().map_or(0, Vec::len);
        let ids = prompt.saturating_add(self.output_ids.len());
        let reason = self.finish_reason.as_ref().map_or(0, String::len);
        ids.saturating_mul(4)
            .saturating_add(self.text.len())
            .saturating_add(reason)
    }

    /// A body with these fields and nothing else, of the kind and for the path that they were read from.
    pub fn to_body(&self, kind: BodyKind, is_chat: bool) -> Vec<u8> {
        let shown = ShownMessage { content: &self.text };
        let shown = (is_chat && !self.text.is_empty()).then_some(shown);
        let choice = ReducedChoice {
            // A document is read as a whole or not at all, and no text is read of a choice with such an index.
            index: (kind == BodyKind::Json && !self.is_readable).then_some(UNREADABLE),
            text: Some(self.text.as_str()).filter(|text| !is_chat && !text.is_empty()),
            delta: shown.filter(|_| kind == BodyKind::Events),
            message: shown.filter(|_| kind == BodyKind::Json),
            finish_reason: self.finish_reason.as_deref(),
            token_ids: Some(self.output_ids.as_slice()).filter(|ids| !ids.is_empty()),
        };
        let event = ReducedEvent {
            prompt_token_ids: self.prompt_ids.as_deref(),
            choices: [choice],
            error: (!self.is_whole).then_some(0),
        };
        // Lists and texts are always JSON.
        let json = serde_json::to_string(&event).unwrap_or_default();
        let body = match kind {
            BodyKind::Events if self.is_readable => format!("data:{json}\n"),
            BodyKind::Events => format!("data:{json}\ndata:{UNREADABLE}\n"),
            BodyKind::Json if !self.is_readable && self.has_no_ids() => UNREADABLE.to_owned(),
            BodyKind::Json => json,
            BodyKind::Other => String::new(),
        };
        body.into_bytes()
    }

    fn has_no_ids(&self) -> bool {
        self.prompt_ids.is_none() && self.output_ids.is_empty()
    }
}

#[derive(Serialize)]
struct ReducedEvent<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    choices: [ReducedChoice<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<u8>,
}

#[derive(Serialize)]
struct ReducedChoice<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<ShownMessage<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<ShownMessage<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

#[derive(Clone, Copy, Serialize)]
struct ShownMessage<'a> {
    content: &'a str,
}

// === the fields of one event ===

#[derive(Deserialize)]
struct ResponseIds {
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    choices: IdsOfChoices,
}

/// The ids in the choices of one event, joined.
#[derive(Default)]
struct IdsOfChoices {
    prompt: Option<Vec<u32>>,
    output: Vec<u32>,
}

#[derive(Deserialize)]
struct ChoiceIds {
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct ResponseText {
    #[serde(default)]
    choices: TextOfChoices,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

/// The texts in the choices of one event, joined.
#[derive(Default)]
struct TextOfChoices {
    completion: String,
    delta: JoinedMessages,
    message: JoinedMessages,
    finish_reason: Option<String>,
    /// There are others than the first choice.
    has_others: bool,
}

#[derive(Default)]
struct JoinedMessages {
    text: String,
    /// There is output beside the text.
    has_others: bool,
}

#[derive(Deserialize)]
struct ChoiceText {
    #[serde(default)]
    index: u32,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    delta: Option<MessageText>,
    #[serde(default)]
    message: Option<MessageText>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct MessageText {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<Value>,
    #[serde(default)]
    tool_calls: Option<Value>,
}

/// Choices that are read one after the other: a hostile event has a million of them.
trait JoinChoices: Default {
    type Choice: DeserializeOwned;

    fn join(&mut self, choice: Self::Choice);
}

impl JoinChoices for IdsOfChoices {
    type Choice = ChoiceIds;

    fn join(&mut self, choice: ChoiceIds) {
        self.prompt = self.prompt.take().or(choice.prompt_token_ids);
        self.output.extend(choice.token_ids.unwrap_or_default());
    }
}

impl JoinChoices for TextOfChoices {
    type Choice = ChoiceText;

    fn join(&mut self, choice: ChoiceText) {
        self.has_others |= choice.index != 0;
        self.completion.push_str(&choice.text.unwrap_or_default());
        self.delta.join(choice.delta);
        self.message.join(choice.message);
        self.finish_reason = self.finish_reason.take().or(choice.finish_reason);
    }
}

impl JoinedMessages {
    fn join(&mut self, message: Option<MessageText>) {
        if let Some(message) = message {
            let is_whole =
                is_nothing(message.reasoning_content.as_ref()) && is_nothing(message.tool_calls.as_ref());
            self.has_others |= !is_whole;
            self.text.push_str(&message.content.unwrap_or_default());
        }
    }
}

/// Whether a field is absent or empty.
fn is_nothing(field: Option<&Value>) -> bool {
    match field {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => false,
    }
}

struct ChoicesVisitor<T>(T);

impl<'de, T: JoinChoices> Visitor<'de> for ChoicesVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of choices")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut choices: A) -> Result<T, A::Error> {
        while let Some(choice) = choices.next_element()? {
            self.0.join(choice);
        }
        Ok(self.0)
    }
}

impl<'de> Deserialize<'de> for IdsOfChoices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ChoicesVisitor(Self::default()))
    }
}

impl<'de> Deserialize<'de> for TextOfChoices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ChoicesVisitor(Self::default()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const BOUNDS: FieldBounds = FieldBounds {
        event: 64 * 1024,
        kept: 64 * 1024,
    };

    fn read(kind: BodyKind, is_chat: bool, pieces: &[&[u8]]) -> Option<ReadFields> {
        let mut reader = FieldReader::new(kind, is_chat, BOUNDS);
        for piece in pieces {
            reader.update(piece);
        }
        reader.finish()
    }

    fn events(choices: &[Value]) -> String {
        let event = |choice: &Value| format!("data: {}\n\n", json!({ "choices": [choice] }));
        let events: String = choices.iter().map(event).collect();
        format!("{events}data: [DONE]\n\n")
    }

    #[test]
    fn the_reduced_body_has_the_ids_and_the_text_and_nothing_else() {
        let body = events(&[
            json!({"delta": {"role": "assistant", "content": "Hel"}, "prompt_token_ids": [5, 6], "token_ids": [7],
                "logprobs": {"content": vec![json!({"token": "Hel", "logprob": -0.5}); 20]}}),
            json!({"delta": {"content": "lo \"é\""}, "token_ids": [8, 70_000], "text": "hidden"}),
            json!({"delta": {}, "finish_reason": "stop"}),
        ]);
        let fields = read(BodyKind::Events, true, &[body.as_bytes()]).unwrap();
        let reduced = fields.to_body(BodyKind::Events, true);
        assert_eq!(
            String::from_utf8(reduced.clone()).unwrap(),
            "data:{\"prompt_token_ids\":[5,6],\"choices\":[{\"delta\":{\"content\":\"Hello \\\"é\\\"\"},\
             \"finish_reason\":\"stop\",\"token_ids\":[7,8,70000]}]}\n"
        );
        assert_eq!(read(BodyKind::Events, true, &[&reduced]), Some(fields));
    }

    #[test]
    fn padding_adds_nothing_to_the_reduced_body() {
        let choice = r#"{"delta":{"content":"a"},"token_ids":[7],"prompt_token_ids":[5]"#;
        let plain = format!("data: {{\"choices\":[{choice}}}]}}\n");
        let (spaces, comment) = (" ".repeat(9_000), "x".repeat(100_000));
        let padded = format!(
            "data: {{\"choices\":{spaces}[{choice},\"logprobs\":\"{spaces}\"}}],\"more\":[{spaces}]}}\n\n: {comment}\n\
             id: {comment}\ndata: {{}}\ndata: {{}}\ndata: [DONE]\n{}",
            "data: {\"choices\":[]}\n".repeat(5_000)
        );
        let reduced = |body: &str| {
            let fields = read(BodyKind::Events, true, &[body.as_bytes()]).unwrap();
            fields.to_body(BodyKind::Events, true)
        };
        assert_eq!(reduced(&padded), reduced(&plain));
        assert!(padded.len() > 300_000 && reduced(&padded).len() < FRAME_BYTES);
    }

    #[test]
    fn events_that_cannot_be_read_leave_a_short_trace() {
        let shown = events(&[json!({"text": "a", "token_ids": [1]})]);
        let is_readable = |more: &str| {
            let body = format!("{shown}{more}");
            let fields = read(BodyKind::Events, false, &[body.as_bytes()]).unwrap();
            let reduced = fields.to_body(BodyKind::Events, false);
            assert_eq!(
                read(BodyKind::Events, false, &[&reduced]),
                Some(fields.clone()),
                "{more}"
            );
            assert!(reduced.len() < FRAME_BYTES, "{more}");
            fields.is_readable
        };
        assert!(is_readable("") && is_readable(": a comment\n") && is_readable("data:[DONE]\n"));
        assert!(!is_readable("data: no JSON\n") && !is_readable(&"data: no JSON\n".repeat(1_000)));
        assert!(!is_readable(
            "data: {\"choices\":[],\"choices\":[{\"text\":\"b\"}]}\n"
        ));
        assert!(!is_readable("data: {\"choices\":\ndata: [{\"text\":\"b\"}]}\n"));
        assert!(is_readable("data: {\"error\":{\"message\":\"no\"}}\n"));
    }

    #[test]
    fn the_frame_of_a_reduced_body_is_bounded() {
        let fields = ReadFields {
            prompt_ids: Some(Vec::new()),
            output_ids: vec![1],
            text: "a".to_owned(),
            finish_reason: Some(String::new()),
            is_readable: false,
            is_whole: false,
        };
        let length = |kind, is_chat| fields.to_body(kind, is_chat).len();
        let both = [BodyKind::Events, BodyKind::Json];
        let longest = both
            .iter()
            .flat_map(|kind| [length(*kind, true), length(*kind, false)])
            .max();
        assert!(longest <= Some(FRAME_BYTES), "{longest:?}");
    }

    #[test]
    fn a_document_without_readable_text_keeps_its_ids() {
        let body = r#"{"choices":[{"text":5,"prompt_token_ids":[1],"token_ids":[2]}]}"#;
        let fields = read(BodyKind::Json, false, &[body.as_bytes()]).unwrap();
        assert_eq!(
            (fields.is_readable, fields.output_ids.as_slice()),
            (false, &[2][..])
        );
        let reduced = fields.to_body(BodyKind::Json, false);
        assert_eq!(read(BodyKind::Json, false, &[&reduced]), Some(fields));
    }

    #[test]
    fn an_event_or_text_beyond_the_bounds_is_not_kept() {
        let long = "x".repeat(BOUNDS.event);
        let event = |text: &str| format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}\n");
        assert_eq!(read(BodyKind::Events, false, &[event(&long).as_bytes()]), None);
        let half = event(&long[..BOUNDS.kept / 2]);
        assert!(read(BodyKind::Events, false, &[half.as_bytes()]).is_some());
        assert_eq!(read(BodyKind::Events, false, &[half.as_bytes(); 3]), None);
        assert_eq!(read(BodyKind::Json, false, &[long.as_bytes(), b" "]), None);
        let other = read(BodyKind::Other, false, &[long.as_bytes(), b" "]).unwrap();
        assert!(
            other.is_readable && other.text.is_empty() && other.to_body(BodyKind::Other, false).is_empty()
        );
    }

    /// Values at every place that a reader looks at, right and wrong ones.
    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            4 => "[a-c\"\\\\\n\u{1}é ]{0,4}".prop_map(Value::from),
            3 => proptest::collection::vec(0_u32..70_000, 0..4).prop_map(Value::from),
            1 => Just(Value::Null),
            1 => Just(json!(7)),
            1 => Just(json!(-1)),
            1 => Just(json!([{"a": []}])),
        ]
    }

    fn message() -> impl Strategy<Value = Value> {
        let name = prop_oneof![
            4 => Just("content"),
            1 => Just("reasoning_content"),
            1 => Just("tool_calls"),
            1 => Just("role"),
        ];
        let fields = proptest::collection::hash_map(name, value(), 0..3);
        prop_oneof![6 => fields.prop_map(|fields| json!(fields)), 1 => value()]
    }

    fn choice() -> impl Strategy<Value = Value> {
        let named = prop_oneof![
            4 => ("text|finish_reason|logprobs|index", value()),
            3 => ("token_ids|prompt_token_ids", proptest::collection::vec(0_u32..9, 0..4).prop_map(Value::from)),
            5 => ("delta|message", message()),
            1 => Just(("index".to_owned(), json!(0))),
        ];
        let fields = proptest::collection::vec(named, 0..5);
        let object = fields.prop_map(|fields| json!(fields.into_iter().collect::<serde_json::Map<_, _>>()));
        prop_oneof![8 => object, 1 => value()]
    }

    fn document() -> impl Strategy<Value = String> {
        let choices = proptest::collection::vec(choice(), 0..3);
        let of_choices = (
            choices,
            proptest::option::of(value()),
            proptest::option::of(value()),
            " {0,9}",
        );
        let json = of_choices.prop_map(|(choices, prompt, error, space)| {
            let mut fields = serde_json::Map::new();
            fields.extend([("choices".to_owned(), json!(choices))]);
            fields.extend(prompt.map(|prompt| ("prompt_token_ids".to_owned(), prompt)));
            fields.extend(error.map(|error| ("error".to_owned(), error)));
            format!("{}{space}", json!(fields))
        });
        prop_oneof![
            8 => json,
            1 => Just("[DONE]".to_owned()),
            1 => "[{}\\[\\]\",:a0 ]{0,12}",
            1 => Just("{\"choices\":[],\"choices\":[]}".to_owned()),
            1 => Just("[[1,2],[[[3],[4]]]]".to_owned()),
        ]
    }

    fn body() -> impl Strategy<Value = Vec<u8>> {
        let line = prop_oneof![
            8 => document().prop_map(|json| format!("data: {json}\n\n")),
            1 => Just(": comment\n".to_owned()),
            1 => Just("dat: x\rdata".to_owned()),
        ];
        let events = proptest::collection::vec(line, 0..6).prop_map(|lines| lines.concat().into_bytes());
        let alone = document().prop_map(String::into_bytes);
        prop_oneof![3 => events, 2 => alone, 1 => proptest::collection::vec(any::<u8>(), 0..200)]
    }

    proptest! {
        /// The reduced body has the same fields, wherever the network cut the whole one, and is no longer than it.
        #[test]
        fn the_reduced_body_reads_as_the_whole_one(
            body in body(), is_chat in any::<bool>(), is_stream in any::<bool>(), cut in 0_usize..300,
        ) {
            let kind = if is_stream { BodyKind::Events } else { BodyKind::Json };
            let (head, tail) = body.split_at(cut.min(body.len()));
            let fields = read(kind, is_chat, &[&body]).unwrap();
            prop_assert_eq!(read(kind, is_chat, &[head, tail]), Some(fields.clone()));
            let reduced = fields.to_body(kind, is_chat);
            prop_assert!(reduced.len() <= body.len() + FRAME_BYTES);
            prop_assert_eq!(read(kind, is_chat, &[&reduced]), Some(fields));
        }
    }
}
