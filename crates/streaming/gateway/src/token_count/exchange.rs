//! The tokens of a request and of its answer.

use muster_openai::TokenUsage;
use serde_json::Value;

use crate::token_count::tokenizer::{MAX_TEXT, ModelTokenizer};

/// Tokens that a chat template may add to each message: marks and the name of the role.
pub const PER_MESSAGE: u64 = 16;
/// Tokens that a chat template may add to a request: its beginning, a message of its own, the mark of the answer.
pub const PER_REQUEST: u64 = 64;
/// Tokens of an answer that have no text: the one that ends it.
pub const ANSWER_END: u64 = 1;

/// The text of a request, as far as the model reads it.
#[derive(Debug, Default)]
struct RequestText {
    texts: Vec<String>,
    /// Tokens that the request states as ids.
    ids: u64,
    messages: u64,
}

/// The tokens of a request with this body and of the answers' texts, one for each choice. Of the request it is the most
/// that a template can make of it. `None` if a text is too long, or the body is no request.
pub fn count_exchange(tokenizer: &ModelTokenizer, request: &[u8], answers: &[String]) -> Option<TokenUsage> {
    let asked = RequestText::of(request)?;
    let count = |texts: &[String]| -> Option<u64> {
        let total: usize = texts.iter().map(String::len).sum();
        if total > MAX_TEXT {
            return None;
        }
        texts.iter().map(|text| tokenizer.count(text)).sum()
    };
    let template = asked
        .messages
        .saturating_mul(PER_MESSAGE)
        .saturating_add(PER_REQUEST);
    let choices = u64::try_from(answers.len()).ok()?;
    Some(TokenUsage {
        input: count(&asked.texts)?
            .saturating_add(asked.ids)
            .saturating_add(template),
        output: count(answers)?.saturating_add(choices.saturating_mul(ANSWER_END)),
    })
}

impl RequestText {
    fn of(body: &[u8]) -> Option<Self> {
        let Value::Object(asked) = serde_json::from_slice(body).ok()? else {
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
        // Templates write these into the prompt.
        for name in ["tools", "functions", "response_format"] {
            if let Some(given) = asked.get(name).filter(|given| !given.is_null()) {
                read.texts.push(given.to_string());
            }
        }
        Some(read)
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

    fn part(&mut self, part: &Value) {
        match part.get("text").and_then(Value::as_str) {
            Some(text) => self.texts.push(text.to_owned()),
            None => self.texts.push(part.to_string()),
        }
    }

    fn prompt(&mut self, prompt: &Value) {
        match prompt {
            Value::Null | Value::Bool(_) | Value::Object(_) => {}
            Value::Number(_) => self.ids = self.ids.saturating_add(1),
            Value::String(text) => self.texts.push(text.clone()),
            Value::Array(several) => several.iter().for_each(|one| match one {
                Value::Array(ids) => {
                    let count = u64::try_from(ids.len()).unwrap_or(u64::MAX);
                    self.ids = self.ids.saturating_add(count);
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                    self.prompt(one);
                }
            }),
        }
    }
}
