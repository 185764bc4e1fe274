//! The text of a request, as far as its model reads it.

use serde_json::{Map, Value};

use crate::request_body::without_mark;

/// Tokens that a chat template may add to each message: marks and the name of the role.
pub const PER_MESSAGE: u64 = 16;
/// Tokens that a chat template may add to a request: its beginning, a message of its own, the mark of the answer.
pub const PER_REQUEST: u64 = 64;

/// The fields that templates write into the prompt, or are made of.
const TEMPLATE_INPUTS: [&str; 7] = [
    "tools",
    "functions",
    "response_format",
    "documents",
    "suffix",
    "chat_template",
    "chat_template_kwargs",
];

/// The parts of a request that become its model's input. Every other field is none, however long it is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RequestText {
    /// The texts of messages, prompts and inputs, and the JSON of tools and forms that templates write into the prompt.
    pub texts: Vec<String>,
    /// The JSON of the parts of messages that are no text, such as pictures.
    pub others: Vec<String>,
    /// Tokens that the request states as ids.
    pub ids: u64,
    /// The number of messages.
    pub messages: u64,
}

// === impl RequestText ===

impl RequestText {
    /// The text of a request with this body; `None` if it is no JSON object.
    pub fn of(body: &[u8]) -> Option<Self> {
        let Value::Object(asked) = serde_json::from_slice(without_mark(body)).ok()? else {
            return None;
        };
        let mut read = Self::default();
        if let Some(Value::Array(messages)) = asked.get("messages") {
            for message in messages {
                read.messages = read.messages.saturating_add(1);
                read.message(message);
            }
        }
        for name in ["prompt", "input"] {
            read.prompt(asked.get(name).unwrap_or(&Value::Null));
        }
        for name in TEMPLATE_INPUTS {
            if let Some(given) = asked.get(name).filter(|given| !given.is_null()) {
                read.texts.push(given.to_string());
            }
        }
        Some(read)
    }

    /// Tokens that a chat template may add to this request.
    pub fn template(&self) -> u64 {
        self.messages
            .saturating_mul(PER_MESSAGE)
            .saturating_add(PER_REQUEST)
    }

    fn message(&mut self, message: &Value) {
        let Value::Object(fields) = message else {
            return self.texts.push(message.to_string());
        };
        for (name, value) in fields {
            match value {
                Value::String(text) => self.texts.push(text.clone()),
                Value::Array(parts) if name == "content" => parts.iter().for_each(|part| self.part(part)),
                Value::Null => {}
                Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                    self.texts.push(value.to_string());
                }
            }
        }
    }

    /// Adds a part of a message. Its text is a text whatever stands beside it, and what stands beside it is no text.
    fn part(&mut self, part: &Value) {
        let fields = match part {
            Value::String(text) => return self.texts.push(text.clone()),
            Value::Object(fields) => fields,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                return self.others.push(part.to_string());
            }
        };
        let text = fields.get("text").and_then(Value::as_str);
        if let Some(text) = text {
            self.texts.push(text.to_owned());
        }
        let others = fields.iter().filter(|(name, value)| match name.as_str() {
            "text" => text.is_none(),
            "type" => value.as_str() != Some("text"),
            _ => true,
        });
        let others: Map<String, Value> = others
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !others.is_empty() {
            self.others.push(Value::Object(others).to_string());
        }
    }

    /// Adds a prompt, or several. A number is an id wherever it stands, and so is `true`, which engines read as one.
    fn prompt(&mut self, prompt: &Value) {
        match prompt {
            Value::Null => {}
            Value::Bool(_) | Value::Number(_) => self.ids = self.ids.saturating_add(1),
            Value::String(text) => self.texts.push(text.clone()),
            Value::Array(several) => several.iter().for_each(|one| self.prompt(one)),
            Value::Object(_) => self.texts.push(prompt.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(body: &Value) -> RequestText {
        RequestText::of(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn metadata_is_no_text_however_long_it_is() {
        let plain = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        let mut more = plain.clone();
        for name in ["user", "metadata", "safety_identifier", "model"] {
            more[name] = json!("x".repeat(10_000));
        }
        more["stream"] = json!(true);
        assert_eq!(of(&more), of(&plain));
        assert_eq!(of(&plain).texts, ["user", "hi"]);
        assert_eq!(of(&plain).template(), PER_REQUEST + PER_MESSAGE);
    }

    #[test]
    fn pictures_are_apart_from_texts_and_ids_are_counted() {
        let picture = json!({"type": "image_url", "image_url": {"url": "data:x"}});
        let parts = json!([{"type": "text", "text": "a"}, picture]);
        let read = of(&json!({"messages": [{"content": parts}]}));
        assert_eq!(
            (read.texts, read.others),
            (vec!["a".to_owned()], vec![picture.to_string()])
        );
        let hidden = json!({"messages": [], "chat_template_kwargs": {"note": "x".repeat(90)}});
        assert!(
            of(&hidden).texts[0].len() > 90,
            "text that a template reads is no metadata"
        );
        assert_eq!(of(&json!({"prompt": [[1, 2], [3]]})).ids, 3);
        assert_eq!(of(&json!({"input": [7, 8]})).ids, 2);
        assert_eq!(RequestText::of(b"[1]"), None);
        assert!(
            RequestText::of(b"\xef\xbb\xbf{}").is_some(),
            "a byte order mark is skipped"
        );
    }

    #[test]
    fn no_form_of_a_prompt_or_a_part_hides_its_text() {
        let long = "x".repeat(900);
        let mixed = of(&json!({"prompt": [[long, 1], [2, true]]}));
        assert_eq!((mixed.texts, mixed.ids), (vec![long.clone()], 3));
        let object = json!({"prompt_string": long});
        for prompt in [json!({"prompt": object}), json!({"prompt": [object]})] {
            assert_eq!(of(&prompt).texts, [object.to_string()], "{prompt}");
        }
        let said = |part: &Value| of(&json!({"messages": [{"content": [part]}]}));
        let picture = said(&json!({"type": "image_url", "text": "", "image_url": {"url": long}}));
        assert_eq!(picture.others.len(), 1);
        assert!(picture.others[0].contains(&long), "{:?}", picture.others);
        let cached = said(&json!({"type": "text", "text": long, "cache_control": {"type": "ephemeral"}}));
        assert_eq!(
            cached.texts,
            std::slice::from_ref(&long),
            "a field beside a text does not hide it"
        );
        assert_eq!(cached.others, [r#"{"cache_control":{"type":"ephemeral"}}"#]);
        assert_eq!(said(&json!(long)).texts, [long]);
    }
}
