//! Comment lines of ours in a stream of events, found while it passes, wherever the network cuts it.
//!
//! A comment of an event stream begins with a colon and means nothing to its reader. Lines that begin with [`PREFIX`] are
//! ours: the seal takes those that an engine sends out of its answer, so that a reader may believe that the one with the
//! proof is the seal's. Until it is known whether a line is one, at most eight bytes of it are held back, and none where the
//! line begins otherwise.

use std::ops::Range;
use std::sync::LazyLock;

use bytes::Bytes;
use memchr::{memchr2, memmem, memrchr};

/// How our lines begin.
pub const PREFIX: &[u8] = b": muster-";
/// Built once: finding it in a chunk costs less than building it would.
static FINDER: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(PREFIX));
/// What the line with the proof is called.
pub const PROOF: &str = "proof";
/// The longest line of ours that a reader keeps: twice a proof with the longest texts.
pub const MAX_LINE: usize = 64 * 1024;

/// A part of what was scanned, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The first bytes of [`PREFIX`], which had been held back and are the engine's after all.
    Held(usize),
    /// Bytes of the body.
    Body(Range<usize>),
    /// Bytes of a line of ours, [`PREFIX`] and the line's end not among them.
    Ours(Range<usize>),
    /// A line of ours is over.
    OursEnd,
}

/// Tells the body and our lines apart.
#[derive(Clone, Debug)]
pub struct Scanner {
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// At the beginning of a line of which that much is held back.
    Start(usize),
    /// Within a line of the body.
    Line,
    /// Within a line of ours.
    Ours,
    /// After the carriage return that ended a line of ours: a line feed would belong to it.
    OursReturn,
}

// === impl Scanner ===

impl Default for Scanner {
    fn default() -> Self {
        Self {
            state: State::Start(0),
        }
    }
}

impl Scanner {
    /// Takes the next bytes and hands them on in pieces. Ranges are of `input`.
    pub fn scan(&mut self, input: &[u8], mut each: impl FnMut(Piece)) {
        let mut at = 0;
        while let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty()) {
            at = match self.state {
                State::Start(held) => self.start(held, rest, at, &mut each),
                State::Line => self.line(input, at, at, &mut each),
                State::Ours => self.ours(rest, at, &mut each),
                State::OursReturn => {
                    self.state = State::Start(0);
                    at + usize::from(rest.first() == Some(&b'\n'))
                }
            };
        }
    }

    /// Nothing follows: how many bytes of [`PREFIX`] were held back and are the body's.
    pub fn finish(&mut self) -> usize {
        match std::mem::replace(&mut self.state, State::Line) {
            State::Start(held) => held,
            State::Line | State::Ours | State::OursReturn => 0,
        }
    }

    fn start(&mut self, held: usize, rest: &[u8], at: usize, each: &mut impl FnMut(Piece)) -> usize {
        let wanted = PREFIX.get(held..).unwrap_or_default();
        let same = rest.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        if same == wanted.len() {
            self.state = State::Ours;
            return at + same;
        }
        if same == rest.len() {
            self.state = State::Start(held + same);
            return at + same;
        }
        if held > 0 {
            each(Piece::Held(held));
        }
        self.state = State::Line;
        at
    }

    /// Body from `from` on, up to the next line of ours or the end. `at` is where such a line is first looked for.
    fn line(&mut self, input: &[u8], from: usize, mut at: usize, each: &mut impl FnMut(Piece)) -> usize {
        while let Some(found) = input.get(at..).and_then(|rest| FINDER.find(rest)) {
            let place = at + found;
            if place > from && ends_line(input, place) {
                each(Piece::Body(from..place));
                self.state = State::Ours;
                return place + PREFIX.len();
            }
            at = place + 1;
        }
        let end = input.len();
        // Only the last bytes can be the beginning of a line of ours, and only if its one colon is among them.
        let tail = end.saturating_sub(PREFIX.len() - 1).max(from);
        let colon = input.get(tail..).and_then(|rest| memrchr(b':', rest));
        let place = colon.map_or(end, |colon| tail + colon);
        let held = input.get(place..).unwrap_or_default();
        if !held.is_empty() && place > from && PREFIX.starts_with(held) && ends_line(input, place) {
            each(Piece::Body(from..place));
            self.state = State::Start(held.len());
            return end;
        }
        each(Piece::Body(from..end));
        self.state = if ends_line(input, end) {
            State::Start(0)
        } else {
            State::Line
        };
        end
    }

    fn ours(&mut self, rest: &[u8], at: usize, each: &mut impl FnMut(Piece)) -> usize {
        let Some(length) = memchr2(b'\n', b'\r', rest) else {
            each(Piece::Ours(at..at + rest.len()));
            return at + rest.len();
        };
        if length > 0 {
            each(Piece::Ours(at..at + length));
        }
        each(Piece::OursEnd);
        self.state = if rest.get(length) == Some(&b'\r') {
            State::OursReturn
        } else {
            State::Start(0)
        };
        at + length + 1
    }
}

/// Whether a line ends right before `place`.
fn ends_line(input: &[u8], place: usize) -> bool {
    let before = place.checked_sub(1).and_then(|before| input.get(before));
    matches!(before, Some(b'\n' | b'\r'))
}

/// What the seal ends a stream of events with: a line feed, so that it stands on a line of its own whatever the engine left
/// open, and the line with the proof. The line feed before it belongs to it, and not to the body.
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

/// A line of ours of another name, for whoever passes a sealed stream on: `wait` while a session starts, say. It is no part
/// of what was signed. It may stand where a line begins.
pub fn other_line(name: &str) -> Bytes {
    let mut line = PREFIX.to_vec();
    line.extend(name.bytes().filter(|byte| !matches!(byte, b'\n' | b'\r')));
    line.push(b'\n');
    line.into()
}

/// The proof in a line of ours without prefix and end, if it is the one that has it.
pub fn proof_of(line: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(line).ok()?;
    line.strip_prefix(PROOF)?.strip_prefix(' ').map(str::trim)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Line by line, with everything at hand.
    fn reference(input: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let (mut body, mut ours) = (Vec::new(), Vec::new());
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
                Some(content) => ours.push(content.to_vec()),
                None => body.extend_from_slice(whole),
            }
            rest = &rest[whole.len()..];
        }
        (body, ours)
    }

    fn scanned<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Vec<Vec<u8>>, usize) {
        let (mut body, mut ours, mut line, mut open) = (Vec::new(), Vec::new(), Vec::new(), false);
        let mut scanner = Scanner::default();
        for part in parts {
            scanner.scan(part, |piece| match piece {
                Piece::Held(length) => body.extend_from_slice(&PREFIX[..length]),
                Piece::Body(range) => body.extend_from_slice(&part[range]),
                Piece::Ours(range) => {
                    open = true;
                    line.extend_from_slice(&part[range]);
                }
                Piece::OursEnd => {
                    open = false;
                    ours.push(std::mem::take(&mut line));
                }
            });
            let held = match scanner.state {
                State::Start(length) => length,
                State::Line | State::Ours | State::OursReturn => 0,
            };
            assert!(held < PREFIX.len(), "{held} bytes held back");
        }
        let in_ours = matches!(scanner.state, State::Ours);
        let rest = scanner.finish();
        body.extend_from_slice(&PREFIX[..rest]);
        if open || in_ours {
            ours.push(line);
        }
        (body, ours, rest)
    }

    #[test]
    fn lines_of_ours_go_and_everything_else_stays() {
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
            let (body, ours, _) = scanned([head, tail]);
            assert_eq!(body, b"data: 1\n\ndata: 2\n\n: mustang\n", "cut at {cut}");
            assert_eq!(ours, [b"proof abc".to_vec()], "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        let (body, ours, _) = scanned(bytes);
        assert_eq!(body, b"data: 1\n\ndata: 2\n\n: mustang\n");
        assert_eq!(ours.len(), 1);
    }

    #[test]
    fn an_event_that_is_whole_is_never_held_back() {
        let mut scanner = Scanner::default();
        for event in [
            &b"data: {\"a\":1}\n\n"[..],
            b": ping\n\n",
            b":\n",
            b"data: x: muster-\n",
        ] {
            let mut passed = 0;
            scanner.scan(event, |piece| match piece {
                Piece::Body(range) => passed += range.len(),
                Piece::Held(_) | Piece::Ours(_) | Piece::OursEnd => panic!("{piece:?}"),
            });
            assert_eq!(passed, event.len());
        }
    }

    #[test]
    fn the_proof_is_read_back() {
        let line = proof_line("QUJD");
        let (body, ours, _) = scanned([&line[..]]);
        assert_eq!(body, b"\n");
        assert_eq!(proof_of(&ours[0]), Some("QUJD"));
        assert_eq!(proof_of(b"proofs x"), None);
        assert_eq!(proof_of(b"wait"), None);
        let (body, ours, _) = scanned([&other_line("wait\nx")[..]]);
        assert_eq!((body.as_slice(), ours[0].as_slice()), (&b""[..], &b"waitx"[..]));
    }

    /// Bytes that are likely to be near our prefix.
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
            let (body, ours, _) = scanned(parts);
            let (expected, lines) = reference(&input);
            prop_assert_eq!(body, expected);
            prop_assert_eq!(ours, lines);
        }
    }
}
