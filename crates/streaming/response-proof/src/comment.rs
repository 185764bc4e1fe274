//! Muster's comment lines in an event stream, found while the stream passes, wherever the network cuts it.
//!
//! A comment line of an event stream begins with a colon, and its readers ignore it. Lines that begin with [`PREFIX`]
//! are Muster's: the sealing proxy removes such lines from the engine's response, so that a reader may trust that the
//! line with the proof is the proxy's. While it is not clear whether a line begins with the prefix, at most eight bytes
//! are held back.

use std::ops::Range;
use std::sync::LazyLock;

use bytes::Bytes;
use memchr::{memchr2, memmem, memrchr};

/// The first bytes of Muster's comment lines.
pub const PREFIX: &[u8] = b": muster-";
/// Built once, as building it costs more than searching a chunk.
static FINDER: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(PREFIX));
/// The name of the line that carries the proof.
pub const PROOF: &str = "proof";
/// The longest comment line of Muster's that a reader keeps, in bytes: twice a proof with the longest texts.
pub const MAX_LINE: usize = 64 * 1024;

/// A part of the scanned stream. The parts come in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamPart {
    /// This many bytes of [`PREFIX`], which were held back and belong to the body after all.
    Held(usize),
    /// Bytes of the body, as a range of the input.
    Body(Range<usize>),
    /// Bytes of a comment line of Muster's, without [`PREFIX`] and the line's end, as a range of the input.
    Comment(Range<usize>),
    /// A comment line of Muster's has ended.
    CommentEnd,
}

/// Tells the body from Muster's comment lines.
#[derive(Clone, Debug)]
pub struct CommentScanner {
    state: ScannerState,
}

#[derive(Clone, Copy, Debug)]
enum ScannerState {
    /// At the beginning of a line, of which this many bytes are held back.
    Start(usize),
    /// Within a line of the body.
    BodyLine,
    /// Within a comment line of Muster's.
    Comment,
    /// After the carriage return that ended a comment line of Muster's: a line feed would belong to it.
    CommentReturn,
}

// === impl CommentScanner ===

impl Default for CommentScanner {
    fn default() -> Self {
        Self {
            state: ScannerState::Start(0),
        }
    }
}

impl CommentScanner {
    /// Takes the next bytes of the stream and calls `each` with their parts. Ranges are of `input`.
    pub fn scan(&mut self, input: &[u8], mut each: impl FnMut(StreamPart)) {
        let mut at = 0;
        while let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty()) {
            at = match self.state {
                ScannerState::Start(held) => self.scan_start(held, rest, at, &mut each),
                ScannerState::BodyLine => self.scan_body(input, at, at, &mut each),
                ScannerState::Comment => self.scan_comment(rest, at, &mut each),
                ScannerState::CommentReturn => {
                    self.state = ScannerState::Start(0);
                    at + usize::from(rest.first() == Some(&b'\n'))
                }
            };
        }
    }

    /// Ends the stream. Returns how many bytes of [`PREFIX`] were held back and belong to the body.
    pub fn finish(&mut self) -> usize {
        match std::mem::replace(&mut self.state, ScannerState::BodyLine) {
            ScannerState::Start(held) => held,
            ScannerState::BodyLine | ScannerState::Comment | ScannerState::CommentReturn => 0,
        }
    }

    fn scan_start(
        &mut self,
        held: usize,
        rest: &[u8],
        at: usize,
        each: &mut impl FnMut(StreamPart),
    ) -> usize {
        let wanted = PREFIX.get(held..).unwrap_or_default();
        let same = rest.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        if same == wanted.len() {
            self.state = ScannerState::Comment;
            return at + same;
        }
        if same == rest.len() {
            self.state = ScannerState::Start(held + same);
            return at + same;
        }
        if held > 0 {
            each(StreamPart::Held(held));
        }
        self.state = ScannerState::BodyLine;
        at
    }

    /// Scans the body from `from` on, up to the next comment line of Muster's or the end. The search for one begins at
    /// `at`.
    fn scan_body(
        &mut self,
        input: &[u8],
        from: usize,
        mut at: usize,
        each: &mut impl FnMut(StreamPart),
    ) -> usize {
        while let Some(found) = input.get(at..).and_then(|rest| FINDER.find(rest)) {
            let place = at + found;
            if place > from && ends_line(input, place) {
                each(StreamPart::Body(from..place));
                self.state = ScannerState::Comment;
                return place + PREFIX.len();
            }
            at = place + 1;
        }
        let end = input.len();
        // Only the last bytes can be the beginning of a comment line, and only if its one colon is among them.
        let tail = end.saturating_sub(PREFIX.len() - 1).max(from);
        let colon = input.get(tail..).and_then(|rest| memrchr(b':', rest));
        let place = colon.map_or(end, |colon| tail + colon);
        let held = input.get(place..).unwrap_or_default();
        if !held.is_empty() && place > from && PREFIX.starts_with(held) && ends_line(input, place) {
            each(StreamPart::Body(from..place));
            self.state = ScannerState::Start(held.len());
            return end;
        }
        each(StreamPart::Body(from..end));
        self.state = if ends_line(input, end) {
            ScannerState::Start(0)
        } else {
            ScannerState::BodyLine
        };
        end
    }

    fn scan_comment(&mut self, rest: &[u8], at: usize, each: &mut impl FnMut(StreamPart)) -> usize {
        let Some(length) = memchr2(b'\n', b'\r', rest) else {
            each(StreamPart::Comment(at..at + rest.len()));
            return at + rest.len();
        };
        if length > 0 {
            each(StreamPart::Comment(at..at + length));
        }
        each(StreamPart::CommentEnd);
        self.state = if rest.get(length) == Some(&b'\r') {
            ScannerState::CommentReturn
        } else {
            ScannerState::Start(0)
        };
        at + length + 1
    }
}

/// Whether a line ends right before `place`.
fn ends_line(input: &[u8], place: usize) -> bool {
    let before = place.checked_sub(1).and_then(|before| input.get(before));
    matches!(before, Some(b'\n' | b'\r'))
}

/// The end of a sealed event stream: a line feed, so that a line that the engine left open ends, and the line with the
/// proof. The line feed does not belong to the body.
pub fn proof_line(proof: &str) -> Bytes {
    let mut line = Vec::with_capacity(proof.len() + 24);
    line.push(b'\n');
    line.extend_from_slice(PREFIX);
    line.extend_from_slice(PROOF.as_bytes());
    line.push(b' ');
    line.extend_from_slice(proof.as_bytes());
    line.push(b'\n');
    line.into()
}

/// A comment line with another name, for a gateway that passes a sealed stream on: `wait` while a session starts, for
/// example. It is not signed. It may be inserted where a line begins.
pub fn comment_line(name: &str) -> Bytes {
    let mut line = PREFIX.to_vec();
    line.extend(name.bytes().filter(|byte| !matches!(byte, b'\n' | b'\r')));
    line.push(b'\n');
    line.into()
}

/// The proof in a comment line, given without prefix and end; `None` if the line has another name.
pub fn proof_of(line: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(line).ok()?;
    line.strip_prefix(PROOF)?.strip_prefix(' ').map(str::trim)
}

/// The bytes of a whole event stream that its session has hashed: without Muster's comment lines, and without the line
/// feed before the line that carries the proof.
pub fn strip_comments(stream: &[u8]) -> Vec<u8> {
    let (mut scanner, mut line) = (CommentScanner::default(), Vec::new());
    let mut body = Vec::with_capacity(stream.len());
    scanner.scan(stream, |part| match part {
        StreamPart::Held(length) => body.extend_from_slice(PREFIX.get(..length).unwrap_or_default()),
        StreamPart::Body(range) => body.extend_from_slice(stream.get(range).unwrap_or_default()),
        StreamPart::Comment(range) => {
            let comment = stream.get(range).unwrap_or_default();
            if line.len().saturating_add(comment.len()) <= MAX_LINE {
                line.extend_from_slice(comment);
            }
        }
        StreamPart::CommentEnd => {
            drop_feed(&line, &mut body);
            line.clear();
        }
    });
    let held = scanner.finish();
    // The last line may have no end.
    drop_feed(&line, &mut body);
    body.extend_from_slice(PREFIX.get(..held).unwrap_or_default());
    body
}

/// Removes the line feed before a line, which belongs to it if it carries the proof.
fn drop_feed(line: &[u8], body: &mut Vec<u8>) {
    if proof_of(line).is_some() && body.last() == Some(&b'\n') {
        body.pop();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same result, computed line by line from the whole stream.
    fn reference(input: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let (mut body, mut comments) = (Vec::new(), Vec::new());
        let mut rest = input;
        while !rest.is_empty() {
            let end = memchr2(b'\n', b'\r', rest);
            let (line, end_length) = match end {
                Some(at) if rest[at..].starts_with(b"\r\n") => (&rest[..at], 2),
                Some(at) => (&rest[..at], 1),
                None => (rest, 0),
            };
            let whole = &rest[..line.len() + end_length];
            match line.strip_prefix(PREFIX) {
                Some(content) => comments.push(content.to_vec()),
                None => body.extend_from_slice(whole),
            }
            rest = &rest[whole.len()..];
        }
        (body, comments)
    }

    fn scanned<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Vec<Vec<u8>>, usize) {
        let (mut body, mut comments, mut line, mut open) = (Vec::new(), Vec::new(), Vec::new(), false);
        let mut scanner = CommentScanner::default();
        for part in parts {
            scanner.scan(part, |piece| match piece {
                StreamPart::Held(length) => body.extend_from_slice(&PREFIX[..length]),
                StreamPart::Body(range) => body.extend_from_slice(&part[range]),
                StreamPart::Comment(range) => {
                    open = true;
                    line.extend_from_slice(&part[range]);
                }
                StreamPart::CommentEnd => {
                    open = false;
                    comments.push(std::mem::take(&mut line));
                }
            });
            let held = match scanner.state {
                ScannerState::Start(length) => length,
                ScannerState::BodyLine | ScannerState::Comment | ScannerState::CommentReturn => 0,
            };
            assert!(held < PREFIX.len(), "{held} bytes held back");
        }
        let in_comment = matches!(scanner.state, ScannerState::Comment);
        let rest = scanner.finish();
        body.extend_from_slice(&PREFIX[..rest]);
        if open || in_comment {
            comments.push(line);
        }
        (body, comments, rest)
    }

    #[test]
    fn comment_lines_go_and_everything_else_stays() {
        for (input, body) in [
            (&b"data: 1\n\n: muster-proof x\n\n"[..], &b"data: 1\n\n\n"[..]),
            (b": muster-a\ndata: 1\n", b"data: 1\n"),
            (b": muster-a\r\ndata: 1\r\n", b"data: 1\r\n"),
            (b": muster-a\rdata: 1\r", b"data: 1\r"),
            (b": muster-a\n: muster-b\n: muster-c", b""),
            (b"data: : muster-x\n", b"data: : muster-x\n"),
            (b":muster-a\n: Muster-a\n", b":muster-a\n: Muster-a\n"),
            (b": must", b": must"),
            (b": ping\n\n", b": ping\n\n"),
            (b"\n: muster", b"\n: muster"),
            (b"", b""),
        ] {
            let (found, ..) = scanned([input]);
            assert_eq!(found, body, "{}", String::from_utf8_lossy(input));
        }
    }

    #[test]
    fn a_line_is_known_however_it_is_cut() {
        let input = b"data: 1\n\n: muster-proof abc\ndata: 2\n\n: mustang\n";
        for cut in 0..=input.len() {
            let (head, tail) = input.split_at(cut);
            let (body, comments, _) = scanned([head, tail]);
            assert_eq!(body, b"data: 1\n\ndata: 2\n\n: mustang\n", "cut at {cut}");
            assert_eq!(comments, [b"proof abc".to_vec()], "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        let (body, comments, _) = scanned(bytes);
        assert_eq!(body, b"data: 1\n\ndata: 2\n\n: mustang\n");
        assert_eq!(comments.len(), 1);
    }

    #[test]
    fn an_event_that_is_whole_is_never_held_back() {
        let mut scanner = CommentScanner::default();
        for event in [
            &b"data: {\"a\":1}\n\n"[..],
            b": ping\n\n",
            b":\n",
            b"data: x: muster-\n",
        ] {
            let mut passed = 0;
            scanner.scan(event, |piece| match piece {
                StreamPart::Body(range) => passed += range.len(),
                StreamPart::Held(_) | StreamPart::Comment(_) | StreamPart::CommentEnd => panic!("{piece:?}"),
            });
            assert_eq!(passed, event.len());
        }
    }

    #[test]
    fn the_proof_is_read_back() {
        let line = proof_line("QUJD");
        let (body, comments, _) = scanned([&line[..]]);
        assert_eq!(body, b"\n");
        assert_eq!(proof_of(&comments[0]), Some("QUJD"));
        assert_eq!(proof_of(b"proofs x"), None);
        assert_eq!(proof_of(b"wait"), None);
        let (body, comments, _) = scanned([&comment_line("wait\nx")[..]]);
        assert_eq!(
            (body.as_slice(), comments[0].as_slice()),
            (&b""[..], &b"waitx"[..])
        );
    }

    #[test]
    fn a_stream_with_comments_and_its_proof_has_the_body_that_was_hashed() {
        for body in [
            &b"data: {}\n\ndata: [DONE]\n\n"[..],
            b"data: {}\r\n\r\n",
            b"data: unfinished",
            b": muster",
            b"",
        ] {
            let mut whole = comment_line("wait").to_vec();
            whole.extend_from_slice(body);
            assert_eq!(strip_comments(&whole), body);
            whole.extend_from_slice(&proof_line("AAAA"));
            assert_eq!(strip_comments(&whole), body, "{body:?}");
            // Cut within the end of its last line.
            assert_eq!(strip_comments(&whole[..whole.len() - 1]), body, "{body:?}");
        }
        assert_eq!(
            strip_comments(b"data: 1\n\n: muster-wait\n"),
            b"data: 1\n\n",
            "no proof"
        );
    }

    /// Bytes that are likely to resemble the prefix.
    fn nearly() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            Just(b": muster-".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\r\n".to_vec()),
            (0_usize..9).prop_map(|length| PREFIX[..length].to_vec()),
            (0_usize..9).prop_map(|from| PREFIX[from..].to_vec()),
            proptest::collection::vec(any::<u8>(), 0..6),
        ];
        proptest::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn cuts_change_nothing_and_the_reference_agrees(
            input in nearly(),
            cuts in proptest::collection::vec(1_usize..20, 0..60),
        ) {
            let mut parts = Vec::new();
            let mut rest = input.as_slice();
            for length in cuts {
                let (head, tail) = rest.split_at(length.min(rest.len()));
                parts.push(head);
                rest = tail;
            }
            parts.push(rest);
            let (body, comments, _) = scanned(parts);
            let (expected, lines) = reference(&input);
            prop_assert_eq!(body, expected);
            prop_assert_eq!(comments, lines);
        }
    }
}
