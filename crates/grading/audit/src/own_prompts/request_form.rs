//! The form of a request: everything by which it looks like others, without a word that its user wrote.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::measured_request::is_measured_field;

/// The most messages of a form.
const MAX_MESSAGES: usize = 64;
/// The most fields of a form.
const MAX_FIELDS: usize = 16;

/// Fields whose numbers decide how an answer is sampled.
const NUMBERS: [&str; 5] = [
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
];
/// Fields that are left at null by clients that write all of them.
const OFTEN_NULL: [&str; 12] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "stop",
    "n",
    "stream",
];

/// The form of a request for one chat or completion.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestForm {
    /// The fields in their order.
    pub fields: Vec<FormField>,
    /// The blanks between the parts of the JSON text.
    pub spacing: Spacing,
    /// Whether the client names a nonce of its own.
    pub has_nonce: bool,
}

impl RequestForm {
    /// Whether answers to requests of this form are like those of a calibration. Others convict nobody elsewhere.
    pub fn is_measured(&self) -> bool {
        self.fields.iter().all(|field| match field {
            FormField::Model | FormField::Messages(_) | FormField::Prompt(_) => true,
            FormField::Kept(name, value) => {
                serde_json::from_str(value).is_ok_and(|value| is_measured_field(name, &value))
            }
        })
    }
}

/// One field of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FormField {
    /// The model's name.
    Model,
    /// The messages of a chat, the last of which is a user's.
    Messages(Vec<MessageForm>),
    /// The text of a completion's prompt, with its length in bytes.
    Prompt(u64),
    /// A field of this name, and its value as JSON text: a number, a truth value, null, or the options of a stream.
    Kept(String, String),
}

/// One message of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MessageForm {
    /// The speaker, as the request names it.
    pub role: Role,
    /// The length of the text in bytes.
    pub bytes: u64,
}

/// The speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions before a chat.
    System,
    /// The person who asks.
    User,
    /// The model, in an earlier turn.
    Assistant,
}

impl Role {
    /// The name in a request.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        [Self::System, Self::User, Self::Assistant]
            .into_iter()
            .find(|role| role.name() == name)
    }
}

/// The blanks between the parts of a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    /// None, as JavaScript and OpenAI's clients write it.
    Compact,
    /// One after each colon and comma, as Python's `json.dumps` writes it by itself.
    Spaced,
}

impl Spacing {
    const fn blank(self) -> &'static str {
        match self {
            Self::Compact => "",
            Self::Spaced => " ",
        }
    }
}

impl RequestForm {
    /// The form of a user's request; `None` if an own prompt cannot look like it: the body is not JSON as a usual
    /// client writes it, a field is unknown here, or a field holds words (`stop`, `tools`, `user`) or a seed.
    pub fn read(body: &[u8], has_nonce: bool) -> Option<Self> {
        let asked: Map<String, Value> = serde_json::from_slice(body).ok()?;
        if asked.len() > MAX_FIELDS {
            return None;
        }
        let fields: Vec<FormField> = asked
            .iter()
            .map(|(name, value)| field_of(name, value))
            .collect::<Option<_>>()?;
        let asks = fields
            .iter()
            .filter(|field| matches!(field, FormField::Messages(_) | FormField::Prompt(_)));
        if asks.count() != 1 || !fields.contains(&FormField::Model) {
            return None;
        }
        let whole = Value::Object(asked);
        let spacing = [Spacing::Compact, Spacing::Spaced].into_iter().find(|spacing| {
            let written = json_text(&whole, *spacing);
            body == written.as_bytes() || body == escaped(&written).as_bytes()
        })?;
        Some(Self {
            fields,
            spacing,
            has_nonce,
        })
    }

    /// Whether the request is for a chat; otherwise it is for a completion.
    pub fn is_chat(&self) -> bool {
        let is_messages = |field: &FormField| matches!(field, FormField::Messages(_));
        self.fields.iter().any(is_messages)
    }
}

fn field_of(name: &str, value: &Value) -> Option<FormField> {
    let kept = || Some(FormField::Kept(name.to_owned(), value.to_string()));
    match (name, value) {
        ("model", Value::String(_)) => Some(FormField::Model),
        ("messages", Value::Array(messages)) => message_forms(messages).map(FormField::Messages),
        ("prompt", Value::String(prompt)) => Some(FormField::Prompt(length(prompt))),
        ("n", Value::Number(n)) if n.as_u64() == Some(1) => kept(),
        ("top_k" | "max_tokens" | "max_completion_tokens", Value::Number(n)) if n.is_u64() => kept(),
        ("stream" | "return_token_ids", Value::Bool(_)) => kept(),
        ("stream_options", Value::Object(options)) => {
            let usage = options.get("include_usage").filter(|_| options.len() == 1)?;
            usage.is_boolean().then(kept)?
        }
        (name, Value::Number(number)) if NUMBERS.contains(&name) => {
            number.as_f64().filter(|number| number.is_finite())?;
            kept()
        }
        (name, Value::Null) if OFTEN_NULL.contains(&name) => kept(),
        _ => None,
    }
}

fn message_forms(messages: &[Value]) -> Option<Vec<MessageForm>> {
    if messages.len() > MAX_MESSAGES {
        return None;
    }
    let forms: Vec<MessageForm> = messages.iter().map(message_form).collect::<Option<_>>()?;
    (forms.last()?.role == Role::User).then_some(forms)
}

fn message_form(message: &Value) -> Option<MessageForm> {
    let fields = message.as_object()?;
    let mut names = fields.keys();
    // The order of the two is that of every client that was looked at.
    if (names.next()?.as_str(), names.next()?.as_str(), names.next()) != ("role", "content", None) {
        return None;
    }
    Some(MessageForm {
        role: Role::of_name(fields.get("role")?.as_str()?)?,
        bytes: length(fields.get("content")?.as_str()?),
    })
}

fn length(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

/// A JSON text with all letters beyond ASCII as escapes, as Python writes it by itself.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if letter.is_ascii() {
            escaped.push(letter);
        } else {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    escaped
}

/// JSON with these blanks.
pub(crate) fn json_text(value: &Value, spacing: Spacing) -> String {
    let mut text = String::new();
    write_json(value, spacing, &mut text);
    text
}

/// Numbers and texts are as `serde_json` writes them.
fn write_json(value: &Value, spacing: Spacing, into: &mut String) {
    let blank = spacing.blank();
    match value {
        Value::Array(items) => {
            into.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    into.push(',');
                    into.push_str(blank);
                }
                write_json(item, spacing, into);
            }
            into.push(']');
        }
        Value::Object(fields) => {
            into.push('{');
            for (place, (name, item)) in fields.iter().enumerate() {
                if place > 0 {
                    into.push(',');
                    into.push_str(blank);
                }
                into.push_str(&Value::from(name.as_str()).to_string());
                into.push(':');
                into.push_str(blank);
                write_json(item, spacing, into);
            }
            into.push('}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            into.push_str(&value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn form(body: &str) -> Option<RequestForm> {
        RequestForm::read(body.as_bytes(), false)
    }

    #[test]
    fn a_form_has_no_word_of_its_user() {
        let body = r#"{"model":"tiny","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"my secret"}],"max_tokens":64,"temperature":0.7,"stream":true,"stream_options":{"include_usage":true},"seed":null}"#;
        let read = form(body).unwrap();
        let text = serde_json::to_string(&read).unwrap();
        for word in ["secret", "brief", "tiny"] {
            assert!(!text.contains(word), "{text}");
        }
        assert_eq!(serde_json::from_str::<RequestForm>(&text).unwrap(), read);
        let message = |role, bytes| MessageForm { role, bytes };
        assert_eq!(
            read.fields[1],
            FormField::Messages(vec![message(Role::System, 9), message(Role::User, 9)])
        );
        assert!(read.is_chat() && read.spacing == Spacing::Compact && !read.has_nonce);
        let spaced = form(r#"{"model": "tiny", "prompt": "caf\u00e9", "max_tokens": 5}"#).unwrap();
        assert!(!spaced.is_chat() && spaced.spacing == Spacing::Spaced);
        assert_eq!(spaced.fields[1], FormField::Prompt(5));
    }

    #[test]
    fn a_request_with_words_in_its_fields_or_by_an_unusual_client_has_no_form() {
        let chat =
            |more: &str| format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"x"}}]{more}}}"#);
        assert!(form(&chat("")).is_some());
        for more in [
            r#","stop":"word""#,
            r#","user":"me""#,
            r#","tools":[]"#,
            r#","seed":7"#,
            r#","n":2"#,
            r#","watermark":1"#,
            r#","stream_options":{"include_usage":true,"word":"w"}"#,
            r#","prompt":"x""#,
            r#","max_tokens":-1"#,
            " ",
        ] {
            assert_eq!(form(&chat(more)), None, "{more}");
        }
        for body in [
            "no JSON",
            "[]",
            r#"{"model":"tiny"}"#,
            r#"{"messages":[{"role":"user","content":"x"}]}"#,
            r#"{"model":"tiny","messages":[]}"#,
            r#"{"model":"tiny","messages":[{"role":"assistant","content":"x"}]}"#,
            r#"{"model":"tiny","messages":[{"role":"poet","content":"x"}]}"#,
            r#"{"model":"tiny","messages":[{"role":"user","content":"x","name":"me"}]}"#,
            r#"{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}"#,
        ] {
            assert_eq!(form(body), None, "{body}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_user_end_the_reading(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,60}") {
            let _ = RequestForm::read(&bytes, false);
            let chat = serde_json::json!({"model": "tiny", "messages": [{"role": "user", "content": text}]});
            let read = RequestForm::read(chat.to_string().as_bytes(), true).unwrap();
            prop_assert_eq!(read.spacing, Spacing::Compact);
            prop_assert!(read.has_nonce);
        }
    }
}
