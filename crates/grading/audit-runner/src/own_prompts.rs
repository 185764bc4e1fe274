//! The validator's own prompts: requests as users send them, in an order that is drawn anew for each list.

use bytes::Bytes;
use muster_audit::{Canary, CanaryList, SeededNumbers};
use serde_json::json;

/// Prompts for each model in one list. A list that is used up is followed by another one.
pub(crate) const LIST_PROMPTS: Repeats = Repeats(256);

/// The number of prompts for each model in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeats(pub(crate) usize);

/// The temperatures of own prompts, in turns: at lower ones a model has less to choose, as in most chats.
const TEMPERATURES: [f64; 3] = [1.0, 0.7, 0.3];

const OPENINGS: [&str; 8] = [
    "Explain in a few sentences",
    "Write a short story about",
    "Give me three facts about",
    "Tell a beginner the most important things about",
    "Summarise the history of",
    "Describe to a child",
    "List the advantages and disadvantages of",
    "Write a polite letter about",
];
const SUBJECTS: [&str; 24] = [
    "the tides",
    "a lighthouse",
    "bread",
    "the moon",
    "tax returns",
    "old bridges",
    "bees",
    "chess",
    "rain on a tent",
    "public libraries",
    "the bicycle",
    "volcanoes",
    "a lost key",
    "sailing ships",
    "compost",
    "mountain railways",
    "the number zero",
    "city gardens",
    "salt",
    "a broken clock",
    "wind power",
    "printing",
    "ice skating",
    "maps",
];

/// The built-in prompts.
pub(crate) fn built_in() -> Vec<String> {
    let subjects = SUBJECTS.iter();
    subjects
        .flat_map(|subject| {
            OPENINGS
                .iter()
                .map(move |opening| format!("{opening} {subject}."))
        })
        .collect()
}

/// A list of prompts for these models, and each prompt's model. `seed` orders it: 32 bytes that nobody else knows,
/// which give every prompt its salt, too.
pub(crate) fn make_list(
    models: &[String],
    texts: &[String],
    tokens: u32,
    Repeats(rounds): Repeats,
    seed: &[u8; 32],
) -> CanaryList {
    let mut numbers = SeededNumbers::new("muster/own-prompts/1", seed);
    let mut canaries = Vec::new();
    for round in 0..rounds {
        for model in models {
            let Some(text) = texts.get(numbers.below(texts.len())) else {
                continue;
            };
            let temperature = TEMPERATURES
                .get(round % TEMPERATURES.len())
                .copied()
                .unwrap_or(1.0);
            let body = json!({
                "model": model,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": tokens,
                "temperature": temperature,
                "stream": true,
                "return_token_ids": true,
            });
            let salt = std::array::from_fn(|_| u8::try_from(numbers.below(256)).unwrap_or(0));
            canaries.push(Canary {
                salt,
                request: body.to_string().into_bytes(),
            });
        }
    }
    CanaryList::new(canaries)
}

/// The body of a request for another answer to a prompt of this list.
pub(crate) fn body_of(canary: &Canary) -> Bytes {
    Bytes::from(canary.request.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_a_function_of_its_seed_and_names_every_model_in_turn() {
        let models = ["a".to_owned(), "b".to_owned()];
        let texts = built_in();
        let list = |seed| make_list(&models, &texts, 16, LIST_PROMPTS, &[seed; 32]);
        assert_eq!(list(1), list(1));
        assert_ne!(list(1).root(), list(2).root());
        for position in 0..4 {
            let list = list(1);
            let body: serde_json::Value =
                serde_json::from_slice(&list.next(position).unwrap().request).unwrap();
            assert_eq!(body["model"], models[usize::try_from(position).unwrap() % 2]);
            assert_eq!(body["return_token_ids"], true);
        }
        assert_eq!(list(1).next(2 * 256), None);
        assert_eq!(make_list(&models, &[], 16, LIST_PROMPTS, &[1; 32]).next(0), None);
    }
}
