//! Cuts pieces of a stream into lines of a bounded length.

/// The longest line that is read, in bytes. A longer one is passed over as a whole.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// The beginning of a line whose end has not come yet.
#[derive(Clone, Debug, Default)]
pub struct LineSplitter {
    begun: Vec<u8>,
    /// The line that has begun is longer than the bound, or a part of it was passed over.
    is_skipping: bool,
}

impl LineSplitter {
    /// Takes the next piece of the stream, and passes every line that ends in it to `each`, without its line feed and
    /// a carriage return before that. Returns how many lines ended that were longer than the bound.
    pub fn push(&mut self, piece: &[u8], mut each: impl FnMut(&[u8])) -> u64 {
        let mut skipped = 0_u64;
        let mut parts = piece.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let fits = self.begun.len().saturating_add(part.len()) <= MAX_LINE_BYTES;
            if self.is_skipping || !fits {
                self.is_skipping = true;
                self.begun.clear();
            } else {
                self.begun.extend_from_slice(part);
            }
            if parts.peek().is_none() {
                // Its end has not come yet.
                break;
            }
            if self.is_skipping {
                skipped = skipped.saturating_add(1);
            } else {
                each(self.begun.strip_suffix(b"\r").unwrap_or(&self.begun));
            }
            self.begun.clear();
            self.is_skipping = false;
        }
        skipped
    }

    /// Passes over the next piece of the stream, and with it the lines of which it has a part: what comes before it and
    /// what comes after it are never one line.
    pub fn pass_over(&mut self, piece: &[u8]) {
        if let Some(last) = piece.last() {
            self.begun.clear();
            self.is_skipping = *last != b'\n';
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, u64) {
        let (mut splitter, mut lines, mut skipped) = (LineSplitter::default(), Vec::new(), 0);
        for piece in pieces {
            skipped += splitter.push(piece, |line| lines.push(line.to_vec()));
        }
        (lines, skipped)
    }

    #[test]
    fn a_line_of_ten_megabytes_is_passed_over_and_takes_no_memory() {
        let mut splitter = LineSplitter::default();
        for _ in 0..160 {
            assert_eq!(
                splitter.push(&[b'x'; MAX_LINE_BYTES], |_| panic!("no line ended")),
                0
            );
            assert!(splitter.begun.capacity() <= 2 * MAX_LINE_BYTES);
        }
        let mut seen = Vec::new();
        assert_eq!(
            splitter.push(b"end\r\nnext\n", |line| seen.push(line.to_vec())),
            1
        );
        assert_eq!(seen, [b"next"]);
        let longest = [vec![b'y'; MAX_LINE_BYTES], b"\n".to_vec()].concat();
        assert_eq!(lines(&[&longest]).0.len(), 1, "the bound itself fits");
    }

    #[test]
    fn a_line_with_a_part_that_is_passed_over_is_no_line() {
        let (mut splitter, mut seen) = (LineSplitter::default(), Vec::new());
        let mut push = |splitter: &mut LineSplitter, piece: &[u8]| {
            splitter.push(piece, |line| seen.push(line.to_vec()));
        };
        push(&mut splitter, b"a\nb");
        splitter.pass_over(b"c\nd");
        splitter.pass_over(b"");
        push(&mut splitter, b"e\nf\ng");
        splitter.pass_over(b"h\n");
        push(&mut splitter, b"i\n");
        assert_eq!(seen, [b"a", b"f", b"i"]);
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_the_pieces(text in "[a-c\n\r]{0,60}", cuts in proptest::collection::vec(0_usize..60, 0..8)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let (mut pieces, mut begin) = (Vec::new(), 0);
            for cut in cuts.into_iter().chain([bytes.len()]) {
                pieces.push(&bytes[begin..cut]);
                begin = cut;
            }
            prop_assert_eq!(lines(&pieces), lines(&[bytes]));
        }
    }
}
