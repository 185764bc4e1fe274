//! Cuts the bytes of a page into lines.

/// The longest line that is read, in bytes. A receipt with ten thousand block numbers has a hundred thousand bytes.
pub const MAX_LINE: usize = 256 * 1024;

/// The lines of a piece of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutLines {
    /// Complete lines without their ends; empty lines are left out.
    pub lines: Vec<Vec<u8>>,
    /// Bytes of these lines, ends included. The bytes after them are fetched again.
    pub used: u64,
    /// Number of lines longer than [`MAX_LINE`].
    pub too_long: u32,
    /// Whether the piece is longer than [`MAX_LINE`] and holds no end of a line, so that this page cannot be read
    /// further.
    pub endless: bool,
}

/// Cuts `bytes` into lines. A last line without its end is left for the next time.
pub fn cut_lines(bytes: &[u8]) -> CutLines {
    let mut cut = CutLines::default();
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = rest.split_at(end);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > MAX_LINE {
            cut.too_long = cut.too_long.saturating_add(1);
        } else if !line.is_empty() {
            cut.lines.push(line.to_vec());
        }
        cut.used = cut
            .used
            .saturating_add(u64::try_from(end).unwrap_or(u64::MAX))
            .saturating_add(1);
        rest = after.get(1..).unwrap_or_default();
    }
    cut.endless = cut.used == 0 && rest.len() > MAX_LINE;
    cut
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_torn_line_waits_for_its_end() {
        let cut = cut_lines(b"one\r\n\ntwo\nthr");
        assert_eq!(cut.lines, [b"one".to_vec(), b"two".to_vec()]);
        assert_eq!((cut.used, cut.too_long, cut.endless), (10, 0, false));
        assert_eq!(super::cut_lines(b"").used, 0);
    }

    #[test]
    fn lines_without_end_are_passed_over_or_end_the_page() {
        let mut long = vec![b'x'; MAX_LINE + 1];
        assert!(cut_lines(&long).endless);
        long.extend(b"\nnext\n");
        let cut = cut_lines(&long);
        assert_eq!((cut.lines.len(), cut.too_long, cut.endless), (1, 1, false));
    }

    proptest! {
        #[test]
        fn however_a_page_arrives_its_lines_are_the_same(
            page in "[a-z\n]{0,60}", pieces in proptest::collection::vec(1usize..9, 1..30),
        ) {
            let bytes = page.as_bytes();
            let whole = cut_lines(bytes);
            let (mut offset, mut have, mut lines) = (0usize, 0usize, Vec::new());
            for piece in pieces.into_iter().cycle().take(bytes.len() + 1) {
                have = (have + piece).min(bytes.len());
                let part = cut_lines(&bytes[offset..have]);
                offset += usize::try_from(part.used).unwrap();
                lines.extend(part.lines);
            }
            prop_assert_eq!(lines, whole.lines);
            prop_assert_eq!(u64::try_from(offset).unwrap(), whole.used);
        }
    }
}
