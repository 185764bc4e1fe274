//! Framing of HTTP/1.1 bodies: which of the bytes that arrive are the body's. No IO.
//!
//! All bytes of one read are taken at once, and the body's are handed on as one piece. A chunk's size must be plain
//! hexadecimal digits: a hostile peer could otherwise make two readers see two bodies.

use bytes::{BufMut as _, BytesMut};
use http::HeaderMap;
use memchr::memchr;

use super::header_lines::{MAX_HEAD, MAX_HEADERS, MalformedResponse, to_header_map};

/// The most digits of a chunk's size: sixteen may not fit into 64 bits.
const MAX_DIGITS: u8 = 15;

/// How the rest of a body is framed.
#[derive(Debug)]
pub(super) enum Framing {
    /// This many bytes are still to come.
    Length(u64),
    /// Chunks, and perhaps trailers.
    Chunked(Chunks),
    /// Everything until the peer closes the connection.
    UntilClose,
    /// The body is over.
    Over,
}

/// A position in a chunked body.
#[derive(Debug)]
pub(super) struct Chunks {
    position: ChunkPosition,
    /// Bytes of framing that may still come before the next chunk's data.
    framing_left: usize,
    /// The trailers, once the body is over; `None` too if it has none.
    trailers: Option<HeaderMap>,
}

#[derive(Debug)]
enum ChunkPosition {
    /// In a chunk's size; the value and the number of its digits so far.
    Size { size: u64, digits: u8 },
    /// In the extension after a size, which is ignored.
    Extension { size: u64 },
    /// Before the line feed after a size.
    SizeEnd { size: u64 },
    /// In a chunk's data, of which this many bytes are still to come.
    Data(u64),
    /// Before the carriage return after a chunk.
    DataReturn,
    /// Before the line feed after a chunk.
    DataEnd,
    /// In the lines after the last chunk.
    Trailers(Vec<u8>),
}

// === impl Framing ===

impl Framing {
    /// Takes the next bytes of the connection and appends those of the body to `to`. Returns how many bytes belonged to
    /// the body or its framing: fewer than all only if the body is over.
    pub(super) fn read(&mut self, input: &[u8], to: &mut BytesMut) -> Result<usize, MalformedResponse> {
        match self {
            Self::Over => Ok(0),
            Self::Chunked(chunks) if chunks.trailers.is_some() => Ok(0),
            Self::UntilClose => {
                to.put_slice(input);
                Ok(input.len())
            }
            Self::Length(left) => {
                let own = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                to.put_slice(input.get(..own).unwrap_or_default());
                *left = left.saturating_sub(u64::try_from(own).unwrap_or(u64::MAX));
                if *left == 0 {
                    *self = Self::Over;
                }
                Ok(own)
            }
            Self::Chunked(chunks) => {
                let (own, over) = chunks.read(input, to)?;
                if over && chunks.trailers.is_none() {
                    *self = Self::Over;
                }
                Ok(own)
            }
        }
    }

    /// Whether the whole body has arrived.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Over => true,
            Self::Chunked(chunks) => chunks.trailers.is_some(),
            Self::Length(_) | Self::UntilClose => false,
        }
    }

    /// The trailers after the body. They are returned once.
    pub(super) fn take_trailers(&mut self) -> Option<HeaderMap> {
        let Self::Chunked(chunks) = self else {
            return None;
        };
        let trailers = chunks.trailers.take();
        if trailers.is_some() {
            *self = Self::Over;
        }
        trailers
    }

    /// Whether [`Self::take_trailers`] returns any.
    pub(super) fn has_trailers(&self) -> bool {
        matches!(self, Self::Chunked(chunks) if chunks.trailers.is_some())
    }

    /// Notes that the peer has closed the connection. Returns whether the body is whole.
    pub(super) fn end_by_close(&mut self) -> bool {
        if matches!(self, Self::UntilClose) {
            *self = Self::Over;
        }
        self.is_over()
    }

    /// The number of bytes still to come, if it is known.
    pub(super) fn left(&self) -> Option<u64> {
        match self {
            Self::Length(left) => Some(*left),
            Self::Over => Some(0),
            Self::Chunked(_) | Self::UntilClose => None,
        }
    }
}

// === impl Chunks ===

impl Default for Chunks {
    fn default() -> Self {
        Self {
            position: ChunkPosition::Size { size: 0, digits: 0 },
            framing_left: MAX_HEAD,
            trailers: None,
        }
    }
}

impl Chunks {
    /// Returns how many bytes were taken, and whether the body is over.
    fn read(&mut self, input: &[u8], to: &mut BytesMut) -> Result<(usize, bool), MalformedResponse> {
        let mut at = 0;
        while let Some((&byte, rest)) = input.get(at..).and_then(<[u8]>::split_first) {
            if let ChunkPosition::Data(left) = &mut self.position {
                let whole = input.get(at..).unwrap_or_default();
                let own = whole.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                to.put_slice(whole.get(..own).unwrap_or_default());
                *left = left.saturating_sub(u64::try_from(own).unwrap_or(u64::MAX));
                at += own;
                if *left == 0 {
                    self.position = ChunkPosition::DataReturn;
                    // The bound holds between two chunks: an honest body may have any number of them.
                    self.framing_left = MAX_HEAD;
                }
                continue;
            }
            self.framing_left = self
                .framing_left
                .checked_sub(1)
                .ok_or(MalformedResponse::TooLong)?;
            at += 1;
            if let ChunkPosition::Trailers(lines) = &mut self.position {
                lines.push(byte);
                if byte != b'\n' {
                    // The rest of the line, or of the input.
                    let more = memchr(b'\n', rest).unwrap_or(rest.len());
                    self.framing_left = self
                        .framing_left
                        .checked_sub(more)
                        .ok_or(MalformedResponse::TooLong)?;
                    lines.extend_from_slice(rest.get(..more).unwrap_or_default());
                    at += more;
                } else if lines == b"\r\n" || lines.ends_with(b"\r\n\r\n") {
                    self.trailers = read_trailers(lines)?;
                    return Ok((at, true));
                }
                continue;
            }
            self.step(byte)?;
        }
        Ok((at, false))
    }

    /// Takes one byte of framing.
    fn step(&mut self, byte: u8) -> Result<(), MalformedResponse> {
        self.position = match (&self.position, byte) {
            (ChunkPosition::Size { size, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F')
                if *digits < MAX_DIGITS =>
            {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                ChunkPosition::Size {
                    size: size << 4 | u64::from(digit),
                    digits: digits + 1,
                }
            }
            (ChunkPosition::Size { size, digits: 1.. }, b'\r') => ChunkPosition::SizeEnd { size: *size },
            (ChunkPosition::Size { size, digits: 1.. }, b';' | b' ' | b'\t') => {
                ChunkPosition::Extension { size: *size }
            }
            (ChunkPosition::Extension { size }, b'\r') => ChunkPosition::SizeEnd { size: *size },
            (ChunkPosition::Extension { size }, byte) if byte != b'\n' => {
                ChunkPosition::Extension { size: *size }
            }
            (ChunkPosition::SizeEnd { size: 0 }, b'\n') => ChunkPosition::Trailers(Vec::new()),
            (ChunkPosition::SizeEnd { size }, b'\n') => ChunkPosition::Data(*size),
            (ChunkPosition::DataReturn, b'\r') => ChunkPosition::DataEnd,
            (ChunkPosition::DataEnd, b'\n') => ChunkPosition::Size { size: 0, digits: 0 },
            (
                ChunkPosition::Size { .. }
                | ChunkPosition::Extension { .. }
                | ChunkPosition::SizeEnd { .. }
                | ChunkPosition::Data(_)
                | ChunkPosition::DataReturn
                | ChunkPosition::DataEnd
                | ChunkPosition::Trailers(_),
                _,
            ) => return Err(MalformedResponse::Chunk),
        };
        Ok(())
    }
}

/// Parses the lines after the last chunk; `None` if there are no trailers.
fn read_trailers(lines: &[u8]) -> Result<Option<HeaderMap>, MalformedResponse> {
    let mut read = [httparse::EMPTY_HEADER; MAX_HEADERS];
    match httparse::parse_headers(lines, &mut read) {
        Ok(httparse::Status::Complete((_, []))) => Ok(None),
        Ok(httparse::Status::Complete((_, found))) => to_header_map(found).map(Some),
        Ok(httparse::Status::Partial) | Err(_) => Err(MalformedResponse::Chunk),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a body in these pieces: its bytes, its trailers, the number of bytes left over, and whether it is over.
    fn body<'a>(
        mut framing: Framing,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(Vec<u8>, Option<HeaderMap>, usize, bool), MalformedResponse> {
        let (mut to, mut left) = (BytesMut::new(), 0);
        for piece in pieces {
            let own = framing.read(piece, &mut to)?;
            assert!(own == piece.len() || framing.is_over());
            left += piece.len() - own;
        }
        let over = framing.is_over();
        Ok((to.to_vec(), framing.take_trailers(), left, over))
    }

    fn chunked() -> Framing {
        Framing::Chunked(Chunks::default())
    }

    #[test]
    fn bodies_end_where_they_are_framed_to() {
        let (read, trailers, left, over) = body(Framing::Length(5), [&b"hel"[..], b"lo, then"]).unwrap();
        assert_eq!(
            (read.as_slice(), trailers, left, over),
            (&b"hello"[..], None, 6, true)
        );
        let mut open = Framing::UntilClose;
        assert!(!open.is_over() && open.end_by_close() && open.is_over());
        assert!(!Framing::Length(1).end_by_close() && !chunked().end_by_close());
        let text = b"5\r\nhello\r\n00;x=y\r\na: 1\r\nA: 2\r\n\r\nHTTP/1.1";
        let (read, trailers, left, _) = body(chunked(), [&text[..]]).unwrap();
        assert_eq!((read.as_slice(), left), (&b"hello"[..], 8));
        assert_eq!(trailers.unwrap().get_all("a").iter().count(), 2);
    }

    #[test]
    fn chunks_that_are_none_are_refused() {
        for text in [
            &b"\r\n"[..],
            b"g\r\n",
            b"-1\r\n",
            b"0x5\r\nhello",
            b"5\nhello",
            b"5\r\nhello!",
            b"5\r\nhello\n",
            b"5;a\nb\r\nhello",
            b"1234567890abcdef0\r\n",
            b"0\r\na b: c\r\n\r\n",
        ] {
            let refused = body(chunked(), [text]);
            assert_eq!(
                refused.unwrap_err(),
                MalformedResponse::Chunk,
                "{}",
                String::from_utf8_lossy(text)
            );
        }
        let endless = [b"5;".to_vec(), vec![b'x'; MAX_HEAD]].concat();
        assert_eq!(
            body(chunked(), [&endless[..]]).unwrap_err(),
            MalformedResponse::TooLong
        );
        let endless = [b"0\r\nx: ".to_vec(), vec![b'x'; MAX_HEAD]].concat();
        assert_eq!(
            body(chunked(), [&endless[..]]).unwrap_err(),
            MalformedResponse::TooLong
        );
    }

    proptest! {
        #[test]
        fn chunks_are_read_the_same_however_they_are_cut(
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..20),
            cuts in proptest::collection::vec(1_usize..30, 0..60),
            trailer in any::<bool>(),
        ) {
            let mut wire = Vec::new();
            for part in &parts {
                wire.extend_from_slice(format!("{:X}\r\n", part.len()).as_bytes());
                wire.extend_from_slice(part);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(if trailer { b"0\r\nx: 1\r\n\r\n" } else { b"0\r\n\r\n" });
            let mut pieces = Vec::new();
            let mut rest = wire.as_slice();
            for length in cuts {
                let (piece, more) = rest.split_at(length.min(rest.len()));
                pieces.push(piece);
                rest = more;
            }
            pieces.push(rest);
            let (read, trailers, left, over) = body(chunked(), pieces).unwrap();
            prop_assert_eq!(read, parts.concat());
            prop_assert_eq!((trailers.is_some(), left, over), (trailer, 0, true));
        }
    }
}
