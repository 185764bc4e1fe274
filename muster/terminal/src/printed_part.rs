//! The part of a program's stream that was printed here without a gap, byte for byte. Pure.

use muster_protocol::Digest;
use muster_protocol::rest::LogEvent;
use sha2::{Digest as _, Sha256};

/// The first bytes of a stream, which were printed here.
#[derive(Clone, Debug, Default)]
pub struct PrintedPart {
    /// The number of bytes from the beginning of the stream.
    end: u64,
    hasher: Sha256,
    /// Live pieces are printed no more: one was missing, or held bytes that are no text.
    is_broken: bool,
}

impl PrintedPart {
    /// The number of bytes that were printed.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Whether live pieces can no longer be printed.
    pub const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// The SHA-256 of what was printed.
    pub fn digest(&self) -> Digest {
        Digest::from_bytes(self.hasher.clone().finalize().into())
    }

    /// The part of a live piece that follows what was printed; it counts as printed from then on. A live piece is a
    /// text, in which bytes that are no text have become replacement characters: none of these is printed.
    pub fn take<'a>(&mut self, piece: &'a LogEvent) -> &'a str {
        if self.is_broken {
            return "";
        }
        let known = self.end.checked_sub(piece.offset);
        let rest = known
            .and_then(|known| usize::try_from(known).ok())
            .map(|known| piece.text.get(known.min(piece.text.len())..));
        match rest {
            Some(Some(rest)) if !piece.text.contains(char::REPLACEMENT_CHARACTER) => {
                self.add(rest.as_bytes());
                rest
            }
            Some(_) | None => {
                self.is_broken = true;
                ""
            }
        }
    }

    /// Notes bytes that are printed now.
    pub fn add(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.end = self.end.saturating_add(bytes.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Timestamp;
    use muster_protocol::wire::executor::LogStream;

    use super::*;

    fn piece(offset: u64, text: &str) -> LogEvent {
        LogEvent {
            stream: LogStream::Stdout,
            text: text.to_owned(),
            at: Timestamp::from_secs(0),
            offset,
        }
    }

    #[test]
    fn pieces_are_printed_once_each_up_to_the_first_gap() {
        let mut part = PrintedPart::default();
        assert_eq!(part.take(&piece(0, "one ")), "one ");
        assert_eq!(part.take(&piece(0, "one ")), "", "sent again");
        assert_eq!(part.take(&piece(2, "e two ")), "two ");
        assert_eq!(part.take(&piece(11, "four")), "", "a byte is missing");
        assert_eq!(part.take(&piece(8, "three")), "", "the rest comes from the store");
        assert!(part.is_broken());
        assert_eq!((part.end(), part.digest()), (8, Digest::of(b"one two ")));
        part.add(b"three");
        assert_eq!((part.end(), part.digest()), (13, Digest::of(b"one two three")));
    }

    #[test]
    fn bytes_that_are_no_text_are_left_to_the_store() {
        let mut part = PrintedPart::default();
        assert_eq!(part.take(&piece(0, "a")), "a");
        assert_eq!(part.take(&piece(1, "b\u{FFFD}c")), "");
        assert!(part.is_broken());
        assert_eq!(part.end(), 1);
        let mut split = PrintedPart::default();
        assert_eq!(split.take(&piece(0, "ä")), "ä");
        assert_eq!(split.take(&piece(1, "ä")), "", "an offset within a character");
        assert!(split.is_broken());
    }
}
