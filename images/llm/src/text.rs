//! Between tokens and words: the tokenizer, the chat template, stop sequences. It shows whole letters only, nothing
//! that might become a stop sequence, and nothing after one.

mod template;
mod tokenizer;

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

/// Sequences that end an answer. They are compared as bytes: the mark shown for bytes that make no letter (U+FFFD) is
/// none of the answer's text, so a stop sequence of it meets only a model that writes that letter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stops(pub Vec<String>);

/// Writes one answer.
#[derive(Default)]
pub struct Writer {
    stops: Stops,
    held: Vec<u8>,
    stopped: bool,
}

impl Writer {
    /// An empty answer.
    #[must_use]
    pub fn new(stops: Stops) -> Self {
        Self {
            stops,
            ..Self::default()
        }
    }

    /// Whether a stop sequence was met.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Takes a token's bytes; gives what can be shown now.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.extend_from_slice(bytes);
        let met = self
            .stops
            .0
            .iter()
            .filter_map(|stop| find(&self.held, stop.as_bytes()))
            .min();
        if let Some(at) = met {
            self.stopped = true;
            self.held.truncate(at);
            return self.give(at);
        }
        let begun = self
            .stops
            .0
            .iter()
            .map(|stop| overlap(&self.held, stop.as_bytes()))
            .max()
            .unwrap_or(0);
        let free = self.held.len() - begun;
        let whole = free - unfinished(self.held.get(..free).unwrap_or_default());
        self.give(whole)
    }

    /// The answer is over: the rest, with a mark for letters that never became whole.
    pub fn finish(&mut self) -> String {
        let all = self.held.len();
        if self.stopped {
            String::new()
        } else {
            self.give(all)
        }
    }

    fn give(&mut self, count: usize) -> String {
        let given: Vec<u8> = self.held.drain(..count).collect();
        String::from_utf8_lossy(&given).into_owned()
    }
}

fn find(text: &[u8], stop: &[u8]) -> Option<usize> {
    text.windows(stop.len().max(1)).position(|window| window == stop)
}

/// How many of the last bytes begin the stop sequence.
fn overlap(text: &[u8], stop: &[u8]) -> usize {
    (1..stop.len().min(text.len() + 1))
        .rev()
        .find(|count| text.ends_with(stop.get(..*count).unwrap_or_default()))
        .unwrap_or(0)
}

/// How many of the last bytes begin a letter without ending it.
fn unfinished(text: &[u8]) -> usize {
    for back in 1..=text.len().min(3) {
        match text.get(text.len() - back).copied().unwrap_or(0) {
            0x80..=0xBF => {}
            0xC0..=0xDF if back < 2 => return back,
            0xE0..=0xEF if back < 3 => return back,
            0xF0..=0xF7 if back < 4 => return back,
            _ => return 0,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(stops: &[&str], pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let mut writer = Writer::new(Stops(stops.iter().map(|stop| (*stop).to_owned()).collect()));
        let mut out: Vec<String> = pieces.iter().map(|piece| writer.push(piece)).collect();
        out.push(writer.finish());
        (out, writer.stopped())
    }

    #[test]
    fn letters_come_whole() {
        let (out, _) = written(&[], &[b"a\xC3", b"\xA9b", b"\xF0\x9F", b"\x98\x80"]);
        assert_eq!(out, ["a", "éb", "", "😀", ""]);
        assert_eq!(written(&[], &[b"a\xE2\x82"]).0.concat(), "a\u{FFFD}");
    }

    #[test]
    fn text_that_may_become_a_stop_is_held_back() {
        let (out, stopped) = written(
            &["END", "\n\n"],
            &[b"aE", b"N", b"x\n", b"b", b"c EN", b"D never"],
        );
        assert_eq!(out, ["a", "", "ENx", "\nb", "c ", "", ""]);
        assert!(stopped);
        let (out, stopped) = written(&["END"], &[b"the E"]);
        assert_eq!((out.concat().as_str(), stopped), ("the E", false));
    }

    #[test]
    fn the_first_of_several_stops_counts() {
        assert_eq!(written(&["zz", "b"], &[b"abzz"]).0.concat(), "a");
    }

    #[test]
    fn the_mark_for_broken_letters_is_no_stop_but_the_letter_is() {
        let (out, stopped) = written(&["\u{FFFD}"], &[b"a\xFF", b"b"]);
        assert_eq!((out.concat().as_str(), stopped), ("a\u{FFFD}b", false));
        let (out, stopped) = written(&["\u{FFFD}"], &[b"a\xEF\xBF", b"\xBDb"]);
        assert_eq!((out.concat().as_str(), stopped), ("a", true));
        // A letter that the stop cuts off is marked.
        assert_eq!(written(&["b"], &[b"a\xE2\x82", b"b"]).0.concat(), "a\u{FFFD}");
    }
}
