//! Between tokens and words: the tokenizer, the chat template, stop sequences.

mod stops;
mod template;
mod tokenizer;

pub use stops::{Stops, Writer};
pub use template::{Message, Template};
pub use tokenizer::Tokenizer;

/// A tokenizer or template that cannot be used. Its file is at fault.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// tokenizer.json is broken, or tokenizes another vocabulary.
    #[error("tokenizer.json is broken or does not fit the model: {0}")]
    Tokenizer(String),
    /// The chat template is broken, or refused the messages.
    #[error("the chat template failed: {0}")]
    Template(String),
}
