//! The text of an answer with one choice, as its client sees it. Pure, over bytes of strangers.

use muster_gateway::store::AnswerText;
use muster_openai::BodyKind;
use muster_openai::stream::JsonReader;
use muster_response_proof::ResponseProof;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// The largest body of a response that is read, in bytes.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// The event that ends a stream, which is no JSON.
const DONE: &[u8] = b"[DONE]";

/// The text of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShownText {
    /// The parts of the one choice that its client is shown, joined.
    pub text: String,
    /// Why the answer ended, as the engine reported it.
    pub finish_reason: Option<String>,
    /// Whether every event could be read. A client may read what this program cannot.
    pub is_readable: bool,
    /// Whether the engine shows its whole output in the text.
    is_whole: bool,
}

impl ShownText {
    /// Whether the text is there, and shows all that the engine wrote.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_whole && self.is_readable && !self.text.is_empty()
    }
}

/// Whether a response is a chat's, by its path.
pub(crate) fn is_chat(proof: &ResponseProof) -> bool {
    proof.path.as_str().contains("/chat/")
}

#[derive(Deserialize)]
struct ResponseText {
    #[serde(default)]
    choices: Vec<ChoiceText>,
    #[serde(default)]
    error: Option<IgnoredAny>,
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

impl MessageText {
    /// Whether the engine shows no part of its output elsewhere than in the text.
    fn is_whole(&self) -> bool {
        is_nothing(self.reasoning_content.as_ref()) && is_nothing(self.tool_calls.as_ref())
    }
}

impl ChoiceText {
    /// Adds the text in the one field that clients read. Text in another field is not shown to anybody.
    fn read_into(self, answer: &mut ShownText, is_chat: bool, kind: BodyKind) {
        let message = match kind {
            BodyKind::Events => self.delta,
            BodyKind::Json | BodyKind::Other => self.message,
        };
        answer.is_whole &= self.index == 0 && message.as_ref().is_none_or(MessageText::is_whole);
        let text = match is_chat {
            true => message.and_then(|message| message.content),
            false => self.text,
        };
        answer.text.push_str(text.as_deref().unwrap_or_default());
        answer.finish_reason = answer.finish_reason.take().or(self.finish_reason);
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

/// The text of a chat's or a completion's response; `None` if the response is of a kind that is not read.
pub(crate) fn read_text(words: &AnswerText, is_chat: bool) -> Option<ShownText> {
    let kind = BodyKind::of(words.content_type.as_deref());
    let mut reader = JsonReader::new(kind, MAX_BODY)?;
    let mut answer = ShownText {
        text: String::new(),
        finish_reason: None,
        is_readable: true,
        is_whole: true,
    };
    let mut read = |json: &[u8]| {
        let Ok(read) = serde_json::from_slice::<ResponseText>(json) else {
            answer.is_readable &= json.trim_ascii() == DONE;
            return;
        };
        answer.is_whole &= read.error.is_none();
        for choice in read.choices {
            choice.read_into(&mut answer, is_chat, kind);
        }
    };
    reader.update(&words.response, &mut read);
    reader.end(&mut read);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(response: &str, kind: &str, is_chat: bool) -> ShownText {
        let words = AnswerText {
            request: Vec::new(),
            response: response.into(),
            content_type: Some(kind.to_owned()),
        };
        read_text(&words, is_chat).unwrap()
    }

    fn events(choices: &[Value]) -> String {
        let event = |choice: &Value| format!("data: {}\n\n", json!({ "choices": [choice] }));
        let events: String = choices.iter().map(event).collect();
        format!("{events}data: [DONE]\n\n")
    }

    #[test]
    fn the_text_is_the_one_that_clients_of_the_path_read() {
        let chat = [
            json!({"delta": {"role": "assistant", "content": "a"}}),
            json!({"delta": {"content": "b"}, "text": "hidden", "message": {"content": "hidden"}}),
            json!({"delta": {}, "finish_reason": "stop"}),
        ];
        let found = read(&events(&chat), "text/event-stream", true);
        assert_eq!(
            (found.text.as_str(), found.finish_reason.as_deref()),
            ("ab", Some("stop"))
        );
        assert!(found.is_plain());
        let completion = [json!({"text": "a", "delta": {"content": "hidden"}})];
        assert_eq!(read(&events(&completion), "text/event-stream", false).text, "a");
        let document = json!({"choices": [{"message": {"content": "a"}, "delta": {"content": "hidden"}}]});
        assert_eq!(read(&document.to_string(), "application/json", true).text, "a");
    }

    #[test]
    fn an_event_that_this_program_cannot_read_is_noticed() {
        let shown = events(&[json!({"text": "a"})]);
        let is_readable =
            |more: &str| read(&format!("{shown}{more}"), "text/event-stream", false).is_readable;
        assert!(is_readable("") && is_readable(": a comment\n\n") && is_readable("data:[DONE]\n\n"));
        // A client takes the second of two fields with one name, and joins the lines of an event.
        assert!(!is_readable(
            "data: {\"choices\":[],\"choices\":[{\"text\":\"b\"}]}\n\n"
        ));
        assert!(!is_readable("data: {\"choices\":\ndata: [{\"text\":\"b\"}]}\n\n"));
        assert!(!read(&shown, "application/json", false).is_readable);
    }
}
