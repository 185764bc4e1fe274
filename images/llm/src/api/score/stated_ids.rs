//! Whether the ids that an answer states are those of its request and of its text. Margins of other ids show nothing
//! about the answer.

use serde_json::{Map, Value};

use super::{BROKEN_LETTER, is_named, read_plan};
use crate::api::request::Plan;
use crate::api::{ApiError, Service};
use crate::text::{Stops, Writer};

/// An answer that states its ids.
pub(super) struct StatedAnswer<'a> {
    /// The request that it answers.
    pub(super) request: &'a Map<String, Value>,
    /// The stated ids of the prompt.
    pub(super) prompt: &'a [u32],
    /// The stated ids of the answer, the token that ended it included.
    pub(super) ids: &'a [u32],
    /// The text that was sent, if it is known.
    pub(super) text: Option<&'a str>,
    /// Why the answer ended, as the engine reported.
    pub(super) finish_reason: Option<&'a str>,
}

/// The text of ids, as this engine writes it.
struct WrittenText {
    /// The text that a stream has sent before the end.
    sent: String,
    /// The rest, which a stream holds back until the end.
    held_back: String,
    /// A stop sequence or an ending token came.
    is_ended: bool,
    /// No id stands behind the end.
    is_last: bool,
}

impl StatedAnswer<'_> {
    /// Compares the ids with the request and the text.
    ///
    /// # Errors
    /// They differ, and `code` names the difference; or the request is none that this engine answers.
    pub(super) fn compare(&self, service: &Service) -> Result<(), ApiError> {
        let plan = read_plan(service, self.request, None)?;
        let ([prompt], 1) = (plan.prompts.as_slice(), plan.choices) else {
            return Err(ApiError::param("request", "an answer is scored alone"));
        };
        if prompt != self.prompt {
            return Err(ApiError::differs(
                "prompt_ids_differ",
                "the prompt's ids are not those of the request",
            ));
        }
        let is_known = |id: &u32| (*id as usize) < service.shape.vocabulary;
        if !self.ids.iter().all(is_known) {
            return Err(ApiError::differs(
                "text_differs",
                "the answer has ids outside the vocabulary",
            ));
        }
        let written = WrittenText::of(service, self.ids, &plan.stops);
        if !self.has_end_of(
            &written,
            &plan,
            service.shape.context.saturating_sub(prompt.len()),
        ) {
            return Err(ApiError::differs(
                "end_differs",
                "the answer's ids do not end where this engine ends an answer",
            ));
        }
        match self.text.is_none_or(|text| self.is_text_of(text, &written)) {
            true => Ok(()),
            false => Err(ApiError::differs(
                "text_differs",
                "the answer's ids do not give the text that was sent",
            )),
        }
    }

    /// Whether the ids end as the answer states. An answer without a reason was broken off, and may end anywhere.
    fn has_end_of(&self, written: &WrittenText, plan: &Plan, room: usize) -> bool {
        let most = plan.max_tokens.unwrap_or(room).clamp(1, room.max(1));
        let names_most =
            is_named(self.request, "max_tokens") || is_named(self.request, "max_completion_tokens");
        let fits = match self.finish_reason {
            Some("stop") => written.is_ended,
            // The usual length is each engine's own.
            Some("length") => !names_most || self.ids.len() == most,
            Some(_) | None => true,
        };
        fits && written.is_last && self.ids.len() <= most
    }

    fn is_text_of(&self, text: &str, written: &WrittenText) -> bool {
        let is_ended = matches!(self.finish_reason, Some("stop" | "length"));
        let whole = [written.sent.as_str(), &written.held_back].concat();
        let sent = without_repeated_marks(text);
        // An answer that was broken off lacks what was held back.
        sent == without_repeated_marks(&whole) || (!is_ended && sent == without_repeated_marks(&written.sent))
    }
}

impl WrittenText {
    fn of(service: &Service, ids: &[u32], stops: &Stops) -> Self {
        let mut writer = Writer::new(stops.clone());
        let mut written = Self {
            sent: String::new(),
            held_back: String::new(),
            is_ended: false,
            is_last: true,
        };
        for id in ids {
            written.is_last &= !written.is_ended;
            if service.shape.ends.contains(id) {
                written.is_ended = true;
            } else {
                let text = writer.push(service.tokenizer.bytes(*id));
                written.sent.push_str(&text);
                written.is_ended |= writer.stopped();
            }
        }
        written.held_back = writer.finish();
        written
    }
}

/// The text with one mark in the place of several, and none at its end.
fn without_repeated_marks(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut is_marked = false;
    for letter in text.chars() {
        let is_mark = letter == BROKEN_LETTER;
        if !is_mark || !is_marked {
            plain.push(letter);
        }
        is_marked = is_mark;
    }
    plain.truncate(plain.trim_end_matches(BROKEN_LETTER).len());
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_for_broken_letters_count_once_and_never_at_the_end() {
        let plain = without_repeated_marks;
        assert_eq!(plain("a\u{FFFD}\u{FFFD}b\u{FFFD}c"), "a\u{FFFD}b\u{FFFD}c");
        assert_eq!(plain("a\u{FFFD}\u{FFFD}"), "a");
        assert_eq!(plain("\u{FFFD}"), "");
        assert_ne!(plain("ab"), plain("a\u{FFFD}b"));
    }
}
