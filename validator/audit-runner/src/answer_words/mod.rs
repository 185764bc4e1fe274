//! The ids of the tokens of an answer, its text and its signed body, from the words that a validator keeps of it. Pure,
//! over bytes of strangers.

mod answer_ids;
mod answer_text;
mod signed_body;

pub(crate) use answer_ids::{AnswerIds, FoundIds, find_ids};
pub(crate) use answer_text::{AnswerText, is_chat, read_text};
pub(crate) use signed_body::signed_body;
