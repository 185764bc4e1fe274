//! Counts tokens by a model's own tokenizer, so that an engine is not paid for tokens that its answer does not have.
//!
//! [`ModelTokenizer`] is a tokenizer whose file was checked; [`count_exchange`] counts a request and its answer. Both
//! are bounded by the length of the text: a longer one has no count.

mod exchange;
mod tokenizer;

pub use exchange::{ANSWER_END, CountedExchange, count_exchange};
pub use tokenizer::{MAX_FILE, MAX_TEXT, ModelTokenizer, TokenizerError};
