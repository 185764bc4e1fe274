//! Hashes the ids of tokens that an engine returns beside its text, while a response passes.
//!
//! Engines return them if a request has `return_token_ids`: `prompt_token_ids` once, in a choice or beside the choices,
//! and `token_ids` in each choice.

use muster_protocol::Digest;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::stream::{BodyKind, JsonReader};

/// Bytes of the longest response whose ids are read. The ids of a longer one are not stated.
const MAX_BODY: u64 = 8 * 1024 * 1024;

/// The field by which a request asks for ids.
const ASKING_FIELD: &[u8] = b"\"return_token_ids\"";

/// The ids that a response with one choice states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatedTokenIds {
    /// SHA-256 over the prompt's ids, each as four bytes, big-endian.
    pub prompt: Digest,
    /// The number of the prompt's tokens.
    pub prompt_count: u32,
    /// SHA-256 over the output's ids, each as four bytes, big-endian.
    pub output: Digest,
    /// The number of the output's tokens.
    pub output_count: u32,
}

/// Whether the body of a request asks for ids. Bodies that only quote the field are read for nothing.
pub fn asks_for_token_ids(request: &[u8]) -> bool {
    request
        .windows(ASKING_FIELD.len())
        .any(|window| window == ASKING_FIELD)
}

/// Reads the ids of one response while it passes.
#[derive(Debug)]
pub struct TokenIdReader {
    reader: JsonReader,
    bytes: u64,
    ids: CollectedIds,
}

#[derive(Debug, Default)]
struct CollectedIds {
    prompt: Option<(Digest, u32)>,
    output: Sha256,
    output_count: u32,
    /// The event with the reason of the end has passed.
    is_finished: bool,
    /// The response has several choices, text without ids, or two prompts.
    is_unclear: bool,
}

#[derive(Deserialize)]
struct ResponseIds {
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    choices: Vec<ChoiceIds>,
}

#[derive(Deserialize)]
struct ChoiceIds {
    #[serde(default)]
    index: u32,
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    delta: Option<ChoiceText>,
    #[serde(default)]
    message: Option<ChoiceText>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ChoiceText {
    #[serde(default)]
    content: Option<String>,
}

impl TokenIdReader {
    /// `None` for a body that is not read.
    pub fn new(kind: BodyKind) -> Option<Self> {
        Some(Self {
            reader: JsonReader::new(kind, usize::try_from(MAX_BODY).ok()?)?,
            bytes: 0,
            ids: CollectedIds::default(),
        })
    }

    /// Takes the next bytes of the body, which may end anywhere.
    pub fn update(&mut self, bytes: &[u8]) {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(length);
        if self.bytes <= MAX_BODY {
            self.reader.update(bytes, |json| self.ids.read(json));
        }
    }

    /// The ids of the whole response; `None` if it states none, or not those of all its text.
    pub fn finish(mut self) -> Option<StatedTokenIds> {
        self.reader.end(|json| self.ids.read(json));
        let (prompt, prompt_count) = self.ids.prompt?;
        let is_clear = !self.ids.is_unclear && self.bytes <= MAX_BODY;
        is_clear.then(|| StatedTokenIds {
            prompt,
            prompt_count,
            output: Digest::from_bytes(self.ids.output.finalize().into()),
            output_count: self.ids.output_count,
        })
    }
}

impl CollectedIds {
    fn read(&mut self, json: &[u8]) {
        // An event that is no JSON, such as `[DONE]`, states nothing.
        let Ok(read) = serde_json::from_slice::<ResponseIds>(json) else {
            return;
        };
        self.read_prompt(read.prompt_token_ids);
        for choice in read.choices {
            self.read_choice(choice);
        }
    }

    fn read_prompt(&mut self, ids: Option<Vec<u32>>) {
        if let Some(ids) = ids {
            let mut hash = Sha256::new();
            hash_ids(&mut hash, &ids);
            let stated = (Digest::from_bytes(hash.finalize().into()), count(&ids));
            self.is_unclear |= self.prompt.replace(stated).is_some_and(|before| before != stated);
        }
    }

    fn read_choice(&mut self, choice: ChoiceIds) {
        let is_text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let mut messages = choice.delta.iter().chain(&choice.message);
        let has_text = is_text(&choice.text) || messages.any(|message| is_text(&message.content));
        let has_ids = choice.token_ids.as_ref().is_some_and(|ids| !ids.is_empty());
        // The end of an answer brings the text that was held back for a stop sequence; its tokens came before.
        let is_held_back = choice.finish_reason.is_some() && self.output_count > 0;
        let is_unexplained = has_text && !has_ids && !is_held_back;
        let is_after_end = self.is_finished && (has_text || has_ids);
        self.is_unclear |= choice.index != 0 || is_unexplained || is_after_end;
        self.is_finished |= choice.finish_reason.is_some();
        self.read_prompt(choice.prompt_token_ids);
        if let Some(ids) = choice.token_ids {
            hash_ids(&mut self.output, &ids);
            self.output_count = self.output_count.saturating_add(count(&ids));
        }
    }
}

fn hash_ids(hash: &mut Sha256, ids: &[u32]) {
    for id in ids {
        hash.update(id.to_be_bytes());
    }
}

fn count(ids: &[u32]) -> u32 {
    u32::try_from(ids.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVENTS: &str = concat!(
        "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"prompt_token_ids\":[5,6],\"token_ids\":[7]}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"text\":\"b\",\"token_ids\":[8,70000]}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n",
        "data: [DONE]\n\n",
    );

    fn stated(kind: BodyKind, body: &str) -> Option<StatedTokenIds> {
        let mut reader = TokenIdReader::new(kind).unwrap();
        reader.update(body.as_bytes());
        reader.finish()
    }

    fn expected() -> StatedTokenIds {
        StatedTokenIds {
            prompt: Digest::of(&[0, 0, 0, 5, 0, 0, 0, 6]),
            prompt_count: 2,
            output: Digest::of(&[0, 0, 0, 7, 0, 0, 0, 8, 0, 1, 0x11, 0x70]),
            output_count: 3,
        }
    }

    #[test]
    fn ids_are_read_from_events_and_documents() {
        assert_eq!(stated(BodyKind::Events, EVENTS), Some(expected()));
        let chat =
            r#"{"prompt_token_ids":[5,6],"choices":[{"message":{"content":"ab"},"token_ids":[7,8,70000]}]}"#;
        assert_eq!(stated(BodyKind::Json, chat), Some(expected()));
        assert!(TokenIdReader::new(BodyKind::Other).is_none());
        assert!(asks_for_token_ids(br#"{"prompt":"x", "return_token_ids": true}"#));
        assert!(!asks_for_token_ids(br#"{"prompt":"x"}"#));
    }

    /// An event with this choice, after one that states prompt and a first token.
    fn after_first(events: &[&str]) -> String {
        let first = r#"{"index":0,"text":"a","prompt_token_ids":[5,6],"token_ids":[7]}"#;
        let event = |choice: &&str| format!("data: {{\"choices\":[{choice}]}}\n\n");
        std::iter::once(&first).chain(events).map(event).collect()
    }

    #[test]
    fn text_without_ids_is_only_what_was_held_back_until_the_end() {
        let counted = |events: &[&str]| {
            let body = after_first(events);
            stated(BodyKind::Events, &body).map(|stated| stated.output_count)
        };
        let second = r#"{"index":0,"text":"b","token_ids":[8]}"#;
        assert_eq!(
            counted(&[second, r#"{"text":"c","finish_reason":"stop"}"#]),
            Some(2)
        );
        assert_eq!(
            counted(&[r#"{"text":"c","token_ids":[],"finish_reason":"stop"}"#]),
            Some(1)
        );
        // Without its ids nobody can check whether the text is that of the tokens before it.
        assert_eq!(counted(&[r#"{"text":"b"}"#]), None);
        assert_eq!(counted(&[r#"{"text":"b","token_ids":[]}"#]), None);
        assert_eq!(
            counted(&[r#"{"text":"b","finish_reason":null}"#, second]),
            None,
            "ids in the first event alone"
        );
        let end = r#"{"text":"","finish_reason":"stop"}"#;
        assert_eq!(counted(&[end, r#"{"text":"more","finish_reason":"stop"}"#]), None);
        assert_eq!(counted(&[end, second]), None);
        assert_eq!(counted(&[end, r#"{"text":""}"#]), Some(1));
        let whole = r#"{"choices":[{"text":"ab","prompt_token_ids":[5],"finish_reason":"stop"}]}"#;
        assert_eq!(stated(BodyKind::Json, whole), None);
    }

    #[test]
    fn ids_that_are_not_those_of_the_whole_answer_are_not_stated() {
        let unclear = [
            r#"{"choices":[{"text":"ab","token_ids":[7]}]}"#,
            r#"{"choices":[{"text":"ab","prompt_token_ids":[5]}]}"#,
            r#"{"choices":[{"prompt_token_ids":[5],"token_ids":[7]},{"index":1,"prompt_token_ids":[5],"token_ids":[7]}]}"#,
            r#"{"prompt_token_ids":[6],"choices":[{"prompt_token_ids":[5],"token_ids":[7]}]}"#,
            r#"{"choices":[{"prompt_token_ids":[-5],"token_ids":[7]}]}"#,
            "{}",
            "no JSON",
        ];
        for body in unclear {
            assert_eq!(stated(BodyKind::Json, body), None, "{body}");
        }
        let padded = format!("{}: {}\n", EVENTS, "x".repeat(8 * 1024 * 1024));
        assert_eq!(
            stated(BodyKind::Events, &padded),
            None,
            "a response that is too long"
        );
    }

    proptest! {
        #[test]
        fn cuts_change_nothing_and_no_bytes_bring_it_down(
            cuts in proptest::collection::vec(1_usize..40, 0..60), other in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut reader = TokenIdReader::new(BodyKind::Events).unwrap();
            let mut rest = EVENTS.as_bytes();
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                reader.update(head);
                rest = tail;
            }
            reader.update(rest);
            prop_assert_eq!(reader.finish(), Some(expected()));
            let mut reader = TokenIdReader::new(BodyKind::Json).unwrap();
            reader.update(&other);
            reader.finish();
        }
    }
}
