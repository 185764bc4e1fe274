//! The built-in words of own prompts. They are public, so prompts that the model itself has written, or that an
//! operator brings, go before them.

/// Instructions before a chat, as clients send them.
pub(crate) const SYSTEMS: [&str; 5] = [
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "Answer in plain language.",
    "You are an expert who explains things clearly and step by step. If you are not sure, say so.",
    "You are a friendly assistant. Keep the conversation polite, answer what was asked, and do not repeat the question.",
];

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
pub fn built_in() -> Vec<String> {
    let subjects = SUBJECTS.iter();
    subjects
        .flat_map(|subject| {
            OPENINGS
                .iter()
                .map(move |opening| format!("{opening} {subject}."))
        })
        .collect()
}
