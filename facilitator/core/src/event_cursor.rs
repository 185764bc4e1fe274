//! A job's event stream: the position of a client in it, and the output's bytes as text. Pure.

use std::fmt;
use std::str::FromStr;

use muster_protocol::wire::executor::LogStream;

/// A client's position: the id of an event, which the client sends back in `Last-Event-ID`. Text form: `STATUSES-LOGS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCursor {
    /// The number of history entries that have been sent.
    pub statuses: u64,
    /// The sequence number of the last piece of output that has been sent.
    pub logs: i64,
}

/// The text is no event id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Last-Event-ID is not valid: two numbers joined by a hyphen are expected")]
pub struct EventCursorError;

/// Joins the pieces of one job's outputs into text. The bytes of a character that is split between two pieces wait
/// for the second piece.
#[derive(Debug, Default)]
pub struct LogTextJoiner {
    stdout: SplitCharacter,
    stderr: SplitCharacter,
}

#[derive(Debug, Default)]
struct SplitCharacter {
    /// The offset of the next piece if none is missing.
    next: u64,
    /// The bytes that wait, at most three.
    cut: Vec<u8>,
}

// === impl EventCursor ===

impl fmt::Display for EventCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.statuses, self.logs)
    }
}

impl FromStr for EventCursor {
    type Err = EventCursorError;

    fn from_str(text: &str) -> Result<Self, EventCursorError> {
        let (statuses, logs) = text.split_once('-').ok_or(EventCursorError)?;
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then_some(());
        number(statuses).and(number(logs)).ok_or(EventCursorError)?;
        Ok(Self {
            statuses: statuses.parse().map_err(|_| EventCursorError)?,
            logs: logs.parse().map_err(|_| EventCursorError)?,
        })
    }
}

// === impl LogTextJoiner ===

impl LogTextJoiner {
    /// The text of the piece at `offset` of `stream`, and the offset at which the text begins.
    pub fn join(&mut self, stream: LogStream, offset: u64, piece: &[u8]) -> (u64, String) {
        let tail = match stream {
            LogStream::Stderr => &mut self.stderr,
            LogStream::Stdout | LogStream::Unknown => &mut self.stdout,
        };
        let mut bytes = std::mem::take(&mut tail.cut);
        if tail.next != offset {
            bytes.clear();
        }
        let start = offset.saturating_sub(bytes.len() as u64);
        bytes.extend_from_slice(piece);
        tail.next = offset.saturating_add(piece.len() as u64);
        let whole = whole_characters(&bytes);
        tail.cut = bytes.split_off(whole);
        (start, String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The number of bytes before a character that is split by the end of `bytes`.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(_) => {
            let mut start = bytes.len();
            for back in 1..=bytes.len().min(3) {
                let at = bytes.len() - back;
                let lead = bytes.get(at).copied().unwrap_or_default();
                let length = match lead {
                    0xC2..=0xDF => 2,
                    0xE0..=0xEF => 3,
                    0xF0..=0xF4 => 4,
                    0x80..=0xBF => continue,
                    0x00..=0x7F | 0xC0 | 0xC1 | 0xF5..=0xFF => break,
                };
                let cut = bytes.get(at..).unwrap_or_default();
                // Only bytes that can still become a character wait for the rest.
                let hopeful = std::str::from_utf8(cut).is_err_and(|error| error.error_len().is_none());
                if back < length && hopeful {
                    start = at;
                }
                break;
            }
            start
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cursor_is_two_numbers_and_nothing_else() {
        let cursor = EventCursor {
            statuses: 3,
            logs: 17,
        };
        assert_eq!(cursor.to_string(), "3-17");
        assert_eq!("3-17".parse(), Ok(cursor));
        for bad in [
            "",
            "3",
            "-",
            "3-",
            "-17",
            "+3-17",
            "3-+17",
            "3--17",
            "a-b",
            "99999999999999999999-1",
        ] {
            assert_eq!(bad.parse::<EventCursor>(), Err(EventCursorError), "{bad}");
        }
    }

    #[test]
    fn a_character_that_is_cut_waits_and_garbage_does_not() {
        let mut joiner = LogTextJoiner::default();
        assert_eq!(joiner.join(LogStream::Stdout, 0, b"a\xc5"), (0, "a".to_owned()));
        assert_eq!(
            joiner.join(LogStream::Stderr, 0, b"\xbcx"),
            (0, "\u{fffd}x".to_owned())
        );
        assert_eq!(joiner.join(LogStream::Stdout, 2, b"\xbcx"), (1, "żx".to_owned()));
        // A piece is missing, so the waiting bytes are dropped.
        assert_eq!(joiner.join(LogStream::Stdout, 4, b"\xf0\x9f"), (4, String::new()));
        assert_eq!(
            joiner.join(LogStream::Stdout, 90, b"b\xff"),
            (90, "b\u{fffd}".to_owned())
        );
    }

    proptest! {
        #[test]
        fn text_survives_any_cutting(text in ".{0,60}", cuts in proptest::collection::vec(1_usize..5, 0..200)) {
            let mut joiner = LogTextJoiner::default();
            let (mut rest, mut offset, mut joined) = (text.as_bytes(), 0_u64, String::new());
            let mut cuts = cuts.into_iter();
            while !rest.is_empty() {
                let (piece, left) = rest.split_at(cuts.next().unwrap_or(7).min(rest.len()));
                let (start, text) = joiner.join(LogStream::Stdout, offset, piece);
                prop_assert_eq!(start, joined.len() as u64);
                joined.push_str(&text);
                offset += piece.len() as u64;
                rest = left;
            }
            prop_assert_eq!(joined, text);
        }

        #[test]
        fn no_bytes_panic(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..9), 0..20)) {
            let (mut joiner, mut offset) = (LogTextJoiner::default(), 0);
            for piece in pieces {
                joiner.join(LogStream::Stderr, offset, &piece);
                prop_assert!(joiner.stderr.cut.len() <= 3);
                offset += piece.len() as u64;
            }
        }
    }
}
