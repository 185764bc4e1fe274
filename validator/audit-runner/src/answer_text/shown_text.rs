//! The text of an answer with one choice, as its client sees it. Pure, over bytes of strangers.

use muster_gateway::store::AnswerText;
use muster_response_proof::ResponseProof;

use super::read_fields;

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

/// Whether a response is a chat's, by its path. A query changes nothing about that.
pub(crate) fn is_chat(proof: &ResponseProof) -> bool {
    let path = proof.path.as_str().split('?').next();
    path == Some("/v1/chat/completions")
}

/// The text of a chat's or a completion's response; `None` if the response is of a kind that is not read.
pub(crate) fn read_text(words: &AnswerText, is_chat: bool) -> Option<ShownText> {
    let read = read_fields(words, is_chat)?;
    Some(ShownText {
        text: read.text,
        finish_reason: read.finish_reason,
        is_readable: read.is_readable,
        is_whole: read.is_whole,
    })
}

#[cfg(test)]
mod tests {
    use muster_gateway::store::BodyForm;
    use serde_json::{Value, json};

    use super::*;

    fn read(response: &str, kind: &str, is_chat: bool) -> ShownText {
        let words = AnswerText {
            request: Vec::new(),
            response: response.into(),
            form: BodyForm::Whole,
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
