//! The output of a job of which only live pieces are left, as one text. Pure.

use muster_protocol::wire::executor::LogStream;

use crate::event_cursor::LogTextJoiner;

/// Joins the pieces of a job's live output, oldest first, to its standard output and standard error.
///
/// Pieces may be missing: a line in the text states how many bytes. Where an attempt on another miner began anew, only
/// its own output is left.
#[derive(Debug, Default)]
pub struct LiveRemains {
    joiner: LogTextJoiner,
    stdout: RemainingText,
    stderr: RemainingText,
}

#[derive(Debug, Default)]
struct RemainingText {
    text: String,
    /// The offset at which the next piece begins if none is missing.
    end: u64,
}

impl LiveRemains {
    /// Adds the next piece.
    pub fn add(&mut self, stream: LogStream, offset: u64, piece: &[u8]) {
        let (_, text) = self.joiner.join(stream, offset, piece);
        let remaining = match stream {
            LogStream::Stderr => &mut self.stderr,
            LogStream::Stdout | LogStream::Unknown => &mut self.stdout,
        };
        if offset < remaining.end {
            // Another attempt printed this.
            remaining.text.clear();
            remaining.end = 0;
        }
        let missing = offset.saturating_sub(remaining.end);
        if missing > 0 {
            remaining
                .text
                .push_str(&format!("[muster: {missing} bytes did not come live]\n"));
        }
        remaining.text.push_str(&text);
        let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        remaining.end = offset.saturating_add(length);
    }

    /// The texts of standard output and standard error.
    pub fn into_texts(self) -> (String, String) {
        (self.stdout.text, self.stderr.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gaps_are_named_and_an_earlier_attempt_is_forgotten() {
        let mut remains = LiveRemains::default();
        remains.add(LogStream::Stdout, 0, b"old ");
        remains.add(LogStream::Stderr, 0, b"warning");
        remains.add(LogStream::Stdout, 0, b"one ");
        remains.add(LogStream::Stdout, 4, b"two\n");
        remains.add(LogStream::Stdout, 100, b"three");
        let (stdout, stderr) = remains.into_texts();
        assert_eq!(stdout, "one two\n[muster: 92 bytes did not come live]\nthree");
        assert_eq!(stderr, "warning");
    }

    proptest! {
        #[test]
        fn no_pieces_panic(pieces in proptest::collection::vec((any::<u64>(), proptest::collection::vec(any::<u8>(), 0..9)), 0..20)) {
            let mut remains = LiveRemains::default();
            for (offset, piece) in pieces {
                remains.add(LogStream::Stdout, offset, &piece);
            }
            remains.into_texts();
        }
    }
}
