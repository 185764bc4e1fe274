//! The text of an answer that a validator keeps, and what it states: the ids of its tokens, the text that its client is
//! shown, and its signed body. Pure, over bytes of strangers.

mod answer_ids;
mod shown_text;
mod signed_body;

pub(crate) use answer_ids::{AnswerIds, FoundIds, find_ids};
pub(crate) use shown_text::{ShownText, is_chat, read_text};
pub(crate) use signed_body::signed_body;

use muster_gateway::store::AnswerText;
use muster_openai::{BodyKind, FieldBounds, FieldReader, ReadFields};

/// Bounds of what is read of a stored response. Gateways store far less.
const BOUNDS: FieldBounds = FieldBounds {
    event: 16 * 1024 * 1024,
    kept: 64 * 1024 * 1024,
};

/// The fields of a response; `None` if it is of a kind that is not read, or too long.
fn read_fields(words: &AnswerText, is_chat: bool) -> Option<ReadFields> {
    let kind = BodyKind::of(words.content_type.as_deref());
    if kind == BodyKind::Other {
        return None;
    }
    let mut reader = FieldReader::new(kind, is_chat, BOUNDS);
    reader.update(&words.response);
    reader.finish()
}
