//! The tokens of a request and of its answer.

use muster_openai::{RequestText, TokenUsage};

use crate::token_count::tokenizer::{MAX_TEXT, ModelTokenizer};

/// Tokens of an answer that have no text: the one that ends it.
pub const ANSWER_END: u64 = 1;

/// The tokens of a request and of its answer, by the model's tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedExchange {
    /// The tokens of the texts.
    pub usage: TokenUsage,
    /// Tokens that a chat template may add to the request.
    pub template: u64,
}

/// The tokens of a request with this body and of the answers' texts, one for each choice. `None` if a text is too long,
/// or the body is no request.
pub fn count_exchange(
    tokenizer: &ModelTokenizer,
    request: &[u8],
    answers: &[String],
) -> Option<CountedExchange> {
    let mut asked = RequestText::of(request)?;
    let template = asked.template();
    asked.texts.append(&mut asked.others);
    let count = |texts: &[String]| -> Option<u64> {
        let total: usize = texts.iter().map(String::len).sum();
        if total > MAX_TEXT {
            return None;
        }
        texts.iter().map(|text| tokenizer.count(text)).sum()
    };
    let choices = u64::try_from(answers.len()).ok()?;
    let usage = TokenUsage {
        input: count(&asked.texts)?.saturating_add(asked.ids),
        output: count(answers)?.saturating_add(choices.saturating_mul(ANSWER_END)),
    };
    Some(CountedExchange { usage, template })
}
