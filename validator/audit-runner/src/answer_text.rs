//! The text of an answer that a validator keeps, and what it states: the ids of its tokens, the text that its client is
//! shown, and its signed body. Pure, over bytes of strangers.

mod answer_ids;
mod shown_text;
mod signed_body;

pub(crate) use answer_ids::{AnswerIds, FoundIds, find_ids};
pub(crate) use shown_text::{ShownText, is_chat, read_text};
pub(crate) use signed_body::signed_body;
