//! Prompts that the audited model itself writes, on a machine of the validator's own: nobody else has seen them.

use serde_json::{Value, json};

use crate::SeededNumbers;
use crate::own_prompts::texts::built_in;

/// The longest prompt that a model writes, in tokens.
pub const MAX_AUTHORED_TOKENS: u32 = 96;
/// The shortest and the longest prompt that is used, in bytes.
const SIZES: std::ops::RangeInclusive<usize> = 12..=1_024;

/// The orders by which a model writes a prompt; the example that follows gives the subject.
const ORDERS: [&str; 4] = [
    "Write one message that a person might send to an assistant. It should be of this kind, but about something else: ",
    "Write a question that somebody might ask an assistant at work. Write the question only. One that was asked before: ",
    "Somebody asked an assistant this. Write the next thing that the same person might ask: ",
    "Make up a request to an assistant, in one or two sentences, in the words of a person in a hurry. An example: ",
];

/// The body of a chat in which a model writes a prompt. The numbers choose what about.
pub fn author_request(model: &str, numbers: &mut SeededNumbers) -> Vec<u8> {
    let examples = built_in();
    let order = ORDERS
        .get(numbers.below(ORDERS.len()))
        .copied()
        .unwrap_or_default();
    let example = examples.get(numbers.below(examples.len()));
    let content = format!("{order}{}", example.map_or("", String::as_str));
    json!({
        "model": model,
        "messages": [{ "role": "user", "content": content }],
        "max_tokens": MAX_AUTHORED_TOKENS,
        "temperature": 1.0,
    })
    .to_string()
    .into_bytes()
}

/// The prompt in a model's reply; `None` if it wrote none that can be used: too short, too long, or with letters that
/// clients would write in several ways.
pub fn read_authored(reply: &[u8]) -> Option<String> {
    let reply: Value = serde_json::from_slice(reply).ok()?;
    let written = reply.pointer("/choices/0/message/content")?.as_str()?;
    let text = written.trim().trim_matches('"').trim();
    let is_plain = text
        .chars()
        .all(|letter| letter == '\n' || (letter.is_ascii() && !letter.is_ascii_control()));
    (is_plain && SIZES.contains(&text.len())).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_asked_for_different_prompts_and_its_words_are_taken_from_the_reply() {
        let mut numbers = SeededNumbers::new("muster/test/1", b"seed");
        let first = author_request("tiny", &mut numbers);
        assert_ne!(author_request("tiny", &mut numbers), first);
        let asked: Value = serde_json::from_slice(&first).unwrap();
        assert_eq!(
            (&asked["model"], asked["messages"].as_array().unwrap().len()),
            (&json!("tiny"), 1)
        );
        let reply = |content: &str| {
            json!({"choices": [{"message": {"role": "assistant", "content": content}}]}).to_string()
        };
        let read = |content: &str| read_authored(reply(content).as_bytes());
        assert_eq!(
            read(" \"How do tides work at night?\"\n").as_deref(),
            Some("How do tides work at night?")
        );
        for unusable in [
            "short",
            "",
            "caf\u{e9} and its opening hours",
            "a bell \u{7} rings in the night",
            &"x".repeat(2_000),
        ] {
            assert_eq!(read(unusable), None, "{unusable}");
        }
        assert_eq!(read_authored(b"no JSON"), None);
        assert_eq!(read_authored(b"{\"choices\":[]}"), None);
    }
}
