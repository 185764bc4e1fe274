//! Streams of server-sent events: how a body is recognised as one, and its lines. Pure.

use memchr::memchr2;

/// The media type of a stream of events.
pub const EVENT_STREAM: &str = "text/event-stream";

/// The media type of a `Content-Type` header without its parameters: `text/html` of `text/html; charset=utf-8`.
///
/// Media types are compared without regard to case (RFC 9110, 8.3.1), which is left to the caller.
pub fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Whether a body of this `Content-Type` is a stream of events. Parameters and case do not matter; anything else in the
/// type does: `text/event-streams` is another type.
pub fn is_event_stream(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|value| media_type(value).eq_ignore_ascii_case(EVENT_STREAM))
}

/// The data of a line of an event stream; `None` for comments and other fields. A space after the colon is left in
/// place.
pub fn data(line: &[u8]) -> Option<&[u8]> {
    line.strip_prefix(b"data:")
}

/// Splits bytes that arrive in pieces into lines, which end with a line feed or a carriage return.
///
/// A line feed after a carriage return ends an empty line, which no reader of `data:` lines notices. At most the
/// longest allowed line is held in memory; a longer line is left out.
#[derive(Clone, Debug)]
pub struct LineSplitter {
    max_line: usize,
    /// The bytes of the line that has not ended yet.
    open: Vec<u8>,
    /// The line that has not ended yet is already longer than `max_line`.
    is_too_long: bool,
}

// === impl LineSplitter ===

impl LineSplitter {
    /// A splitter that leaves out lines longer than `max_line` bytes.
    pub const fn new(max_line: usize) -> Self {
        Self {
            max_line,
            open: Vec::new(),
            is_too_long: false,
        }
    }

    /// Takes the next bytes, wherever they were cut, and calls `read` with each line that they complete.
    pub fn push(&mut self, mut bytes: &[u8], mut read: impl FnMut(&[u8])) {
        while let Some(end) = memchr2(b'\n', b'\r', bytes) {
            let (line, rest) = bytes.split_at(end);
            if self.open.is_empty() && !self.is_too_long {
                // The whole line arrived in one piece: nothing is copied.
                if line.len() <= self.max_line {
                    read(line);
                }
            } else {
                self.keep(line);
                self.finish(&mut read);
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.keep(bytes);
    }

    /// Calls `read` with the line that has not ended, as at the end of the body.
    pub fn finish(&mut self, mut read: impl FnMut(&[u8])) {
        if !std::mem::take(&mut self.is_too_long) {
            read(&self.open);
        }
        // The buffer serves the next line: a stream has thousands.
        self.open.clear();
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.open.len().saturating_add(bytes.len()) > self.max_line {
            self.is_too_long = true;
            self.open = Vec::new();
        } else if !self.is_too_long {
            self.open.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(splitter: &mut LineSplitter, pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut read = |line: &[u8]| lines.push(String::from_utf8_lossy(line).into_owned());
        for piece in pieces {
            splitter.push(piece, &mut read);
        }
        splitter.finish(&mut read);
        lines
    }

    #[test]
    fn an_event_stream_is_known_by_its_media_type_alone() {
        for yes in [
            "text/event-stream",
            "Text/Event-Stream",
            "text/event-stream; charset=utf-8",
            " text/event-stream ;charset=utf-8",
        ] {
            assert!(is_event_stream(Some(yes)), "{yes}");
        }
        for no in [
            "",
            "text/plain",
            "text/event-streamX",
            "text/event-streams; charset=utf-8",
            "text/event-stream+json",
            "application/json; text/event-stream",
            "xtext/event-stream",
        ] {
            assert!(!is_event_stream(Some(no)), "{no}");
        }
        assert!(!is_event_stream(None));
    }

    #[test]
    fn lines_end_with_either_character_and_long_ones_are_left_out() {
        let mut splitter = LineSplitter::new(6);
        assert_eq!(
            lines(
                &mut splitter,
                &[b"abc\nd", b"ef\rtoo lo", b"ng\nx\n", b"123456\n1234567\nlast"]
            ),
            ["abc", "def", "x", "123456", "last"]
        );
        assert_eq!(lines(&mut splitter, &[b"again\n"]), ["again", ""]);
    }

    #[test]
    fn only_data_lines_have_data() {
        assert_eq!(data(b"data: {}"), Some(&b" {}"[..]));
        assert_eq!(data(b"data:{}"), Some(&b"{}"[..]));
        for other in [&b": data:"[..], b"event: data", b"data", b""] {
            assert_eq!(data(other), None);
        }
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(text in "[a-c\n\r]{0,40}", cut in 0_usize..40, max in 0_usize..8) {
            let whole = lines(&mut LineSplitter::new(max), &[text.as_bytes()]);
            let (head, tail) = text.as_bytes().split_at(cut.min(text.len()));
            prop_assert_eq!(lines(&mut LineSplitter::new(max), &[head, tail]), whole);
        }
    }
}
