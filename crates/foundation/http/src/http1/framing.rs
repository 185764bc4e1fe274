//! HTTP/1.1 as its client speaks it, without IO: a request's head is written, an answer's head is read, and its body told from
//! what frames it, all of it that one read brought at once.
//!
//! Whoever answers may be hostile. What two readers could understand in two ways is no answer: two lengths, a transfer coding
//! that is not exactly `chunked`, a chunk's size that is not plain hexadecimal digits.

use bytes::{Buf as _, BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use memchr::memchr;

/// The most that all heads before one body may take, and that what stands around its chunks may.
pub(crate) const MAX_HEAD: usize = 64 * 1024;
/// With what every answer begins.
const BEGINNING: &[u8] = b"HTTP/1.";
/// Headers of one head.
const MAX_HEADERS: usize = 100;
/// Digits of a chunk's size: more would not fit into a number.
const MAX_DIGITS: u8 = 15;

/// What came is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It does not begin as an answer does.
    #[error("its head is not HTTP")]
    Head,
    /// A head or what stands around chunks is too long.
    #[error("it has a head without end")]
    Long,
    /// It is not clear how long its body is.
    #[error("the length of its body is not stated, or twice")]
    Length,
    /// What stands around its chunks is nonsense.
    #[error("its chunks are broken")]
    Chunk,
}

/// An answer's head.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// What follows.
    pub(crate) body: Framing,
    /// Whether its connection can be asked again once the body is over.
    pub(crate) keeps: bool,
}

/// Heads as they come, in pieces however small: every byte is looked at once, and a head is parsed once its end is there.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    come: BytesMut,
    /// No head ends before this.
    looked: usize,
    /// What has been before: heads that only promise an answer, empty lines.
    passed: usize,
}

/// How a body is framed, as far as it has come.
#[derive(Debug)]
pub(crate) enum Framing {
    /// That much is still to come.
    Length(u64),
    /// Chunks, and perhaps trailers.
    Chunked(Chunks),
    /// Everything until the other side hangs up.
    UntilClose,
    /// Nothing more comes.
    Over,
}

/// Between two bytes of a chunked body.
#[derive(Debug)]
pub(crate) struct Chunks {
    at: At,
    /// Bytes that may still stand around chunks.
    around: usize,
    trailers: Option<HeaderMap>,
}

#[derive(Debug)]
enum At {
    /// In a chunk's size, of which so many digits have come.
    Size { size: u64, digits: u8 },
    /// In what follows a size and means nothing.
    Extension { size: u64 },
    /// Before the line feed after a size.
    SizeEnd { size: u64 },
    /// In a chunk.
    Data(u64),
    /// Before the carriage return after a chunk.
    DataReturn,
    /// Before the line feed after a chunk.
    DataEnd,
    /// In the lines after the last chunk.
    Trailers(Vec<u8>),
}

impl Head {
    /// Whether it only promises an answer.
    pub(crate) fn is_interim(&self) -> bool {
        self.status.is_informational() && self.status != StatusCode::SWITCHING_PROTOCOLS
    }
}

/// Writes a request's head. Whatever its headers say of its length, it is this.
pub(crate) fn write_head(head: &Parts, length: usize, to: &mut Vec<u8>) {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    for part in [head.method.as_str(), " ", path, " HTTP/1.1\r\n"] {
        to.extend_from_slice(part.as_bytes());
    }
    for (name, value) in &head.headers {
        if name != CONTENT_LENGTH && name != TRANSFER_ENCODING {
            line(name, value.as_bytes(), to);
        }
    }
    let has_body = [Method::POST, Method::PUT, Method::PATCH].contains(&head.method);
    if length > 0 || has_body {
        line(&CONTENT_LENGTH, length.to_string().as_bytes(), to);
    }
    to.extend_from_slice(b"\r\n");
}

fn line(name: &HeaderName, value: &[u8], to: &mut Vec<u8>) {
    for part in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
        to.extend_from_slice(part);
    }
}

/// The head at the beginning of `bytes`, if all of it is there, and how long it is. `method` is what was asked.
fn read_head(bytes: &[u8], method: &Method) -> Result<Option<(Head, usize)>, Malformed> {
    let mut lines = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut read = httparse::Response::new(&mut lines);
    let length = match read.parse(bytes).map_err(|_| Malformed::Head)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial if bytes.len() < MAX_HEAD => return Ok(None),
        httparse::Status::Partial => return Err(Malformed::Long),
    };
    let status = read.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(Malformed::Head)?;
    let mut headers = map(read.headers)?;
    let modern = read.version == Some(1);
    let mut keeps = modern && !says_close(&headers);
    let bodiless = status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
        || method == Method::HEAD;
    let body = if bodiless {
        Framing::Over
    } else if headers.contains_key(TRANSFER_ENCODING) {
        if !modern || !is_chunked(&headers) {
            return Err(Malformed::Length);
        }
        // The coding rules, but who says both is not to be believed about where the next answer begins.
        keeps &= headers.remove(CONTENT_LENGTH).is_none();
        Framing::Chunked(Chunks::default())
    } else {
        match length_in(&headers)? {
            Some(0) => Framing::Over,
            Some(length) => Framing::Length(length),
            None => Framing::UntilClose,
        }
    };
    keeps &= !matches!(body, Framing::UntilClose) && status != StatusCode::SWITCHING_PROTOCOLS;
    let head = Head {
        status,
        headers,
        body,
        keeps,
    };
    Ok(Some((head, length)))
}

fn map(lines: &[httparse::Header<'_>]) -> Result<HeaderMap, Malformed> {
    let mut headers = HeaderMap::with_capacity(lines.len());
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| Malformed::Head)?;
        let value = HeaderValue::from_bytes(line.value).map_err(|_| Malformed::Head)?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// Whether whoever sent these hangs up behind them.
pub(crate) fn says_close(headers: &HeaderMap) -> bool {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|item| item.trim().eq_ignore_ascii_case("close"))
}

fn is_chunked(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let only = codings.next().filter(|_| codings.next().is_none());
    only.is_some_and(|coding| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"))
}

fn length_in(headers: &HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else {
        return Ok(None);
    };
    let digits = first.to_str().ok();
    let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    match length {
        Some(length) if lengths.next().is_none() => Ok(Some(length)),
        Some(_) | None => Err(Malformed::Length),
    }
}

// === impl Heads ===

impl Heads {
    /// Takes what one read brought. The answer's head, and what came behind it, once it is there.
    pub(crate) fn read(&mut self, piece: &[u8], method: &Method) -> Result<Option<(Head, Bytes)>, Malformed> {
        self.come.extend_from_slice(piece);
        loop {
            if self.looked == 0 {
                let empty = self.come.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
                let empty = empty.count();
                self.come.advance(empty);
                self.passed += empty;
            }
            let common = self.come.len().min(BEGINNING.len());
            if self.come.get(..common) != BEGINNING.get(..common) {
                return Err(Malformed::Head);
            }
            let Some(end) = self.end() else {
                let endless = self.passed + self.come.len() >= MAX_HEAD;
                return if endless { Err(Malformed::Long) } else { Ok(None) };
            };
            let whole = self.come.get(..end).unwrap_or_default();
            let (head, length) = read_head(whole, method)?.ok_or(Malformed::Head)?;
            self.come.advance(length);
            self.looked = 0;
            if !head.is_interim() {
                return Ok(Some((head, self.come.split().freeze())));
            }
            self.passed += length;
            if self.passed > MAX_HEAD {
                return Err(Malformed::Long);
            }
        }
    }

    /// Where the head ends that has come: behind its first empty line.
    fn end(&mut self) -> Option<usize> {
        loop {
            let rest = self.come.get(self.looked..).unwrap_or_default();
            let Some(line) = memchr(b'\n', rest) else {
                self.looked = self.come.len();
                return None;
            };
            self.looked += line;
            match rest.get(line + 1..).unwrap_or_default() {
                [b'\n', ..] => return Some(self.looked + 2),
                [b'\r', b'\n', ..] => return Some(self.looked + 3),
                // What this line's end is followed by is still to come.
                [] | [b'\r'] => return None,
                [_, ..] => self.looked += 1,
            }
        }
    }
}

// === impl Framing ===

impl Framing {
    /// Takes the next bytes of the connection and puts what is the body's behind `to`. How many of them were its own: fewer
    /// than all only where it is over.
    pub(crate) fn read(&mut self, input: &[u8], to: &mut BytesMut) -> Result<usize, Malformed> {
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

    /// Whether all of the body has come.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Over => true,
            Self::Chunked(chunks) => chunks.trailers.is_some(),
            Self::Length(_) | Self::UntilClose => false,
        }
    }

    /// What followed on the body, once.
    pub(crate) fn trailers(&mut self) -> Option<HeaderMap> {
        let Self::Chunked(chunks) = self else {
            return None;
        };
        let trailers = chunks.trailers.take();
        if trailers.is_some() {
            *self = Self::Over;
        }
        trailers
    }

    /// Whether [`Self::trailers`] has any.
    pub(crate) fn has_trailers(&self) -> bool {
        matches!(self, Self::Chunked(chunks) if chunks.trailers.is_some())
    }

    /// The other side has hung up: whether that was the end.
    pub(crate) fn hung_up(&mut self) -> bool {
        if matches!(self, Self::UntilClose) {
            *self = Self::Over;
        }
        self.is_over()
    }

    /// Bytes that are still to come, where that is known.
    pub(crate) fn left(&self) -> Option<u64> {
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
            at: At::Size { size: 0, digits: 0 },
            around: MAX_HEAD,
            trailers: None,
        }
    }
}

impl Chunks {
    /// How many bytes were the body's, and whether it is over.
    fn read(&mut self, input: &[u8], to: &mut BytesMut) -> Result<(usize, bool), Malformed> {
        let mut at = 0;
        while let Some((&byte, rest)) = input.get(at..).and_then(<[u8]>::split_first) {
            if let At::Data(left) = &mut self.at {
                let whole = input.get(at..).unwrap_or_default();
                let own = whole.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                to.put_slice(whole.get(..own).unwrap_or_default());
                *left = left.saturating_sub(u64::try_from(own).unwrap_or(u64::MAX));
                at += own;
                if *left == 0 {
                    self.at = At::DataReturn;
                    // An honest body may have any number of chunks.
                    self.around = MAX_HEAD;
                }
                continue;
            }
            self.around = self.around.checked_sub(1).ok_or(Malformed::Long)?;
            at += 1;
            if let At::Trailers(lines) = &mut self.at {
                lines.push(byte);
                if byte != b'\n' {
                    // To the end of the line, or of what is there.
                    let more = memchr(b'\n', rest).unwrap_or(rest.len());
                    self.around = self.around.checked_sub(more).ok_or(Malformed::Long)?;
                    lines.extend_from_slice(rest.get(..more).unwrap_or_default());
                    at += more;
                } else if lines == b"\r\n" || lines.ends_with(b"\r\n\r\n") {
                    self.trailers = trailers(lines)?;
                    return Ok((at, true));
                }
                continue;
            }
            self.step(byte)?;
        }
        Ok((at, false))
    }

    /// One byte of what stands around chunks.
    fn step(&mut self, byte: u8) -> Result<(), Malformed> {
        self.at = match (&self.at, byte) {
            (At::Size { size, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') if *digits < MAX_DIGITS => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                At::Size {
                    size: size << 4 | u64::from(digit),
                    digits: digits + 1,
                }
            }
            (At::Size { size, digits: 1.. }, b'\r') => At::SizeEnd { size: *size },
            (At::Size { size, digits: 1.. }, b';' | b' ' | b'\t') => At::Extension { size: *size },
            (At::Extension { size }, b'\r') => At::SizeEnd { size: *size },
            (At::Extension { size }, byte) if byte != b'\n' => At::Extension { size: *size },
            (At::SizeEnd { size: 0 }, b'\n') => At::Trailers(Vec::new()),
            (At::SizeEnd { size }, b'\n') => At::Data(*size),
            (At::DataReturn, b'\r') => At::DataEnd,
            (At::DataEnd, b'\n') => At::Size { size: 0, digits: 0 },
            (
                At::Size { .. }
                | At::Extension { .. }
                | At::SizeEnd { .. }
                | At::Data(_)
                | At::DataReturn
                | At::DataEnd
                | At::Trailers(_),
                _,
            ) => return Err(Malformed::Chunk),
        };
        Ok(())
    }
}

/// The trailers in these lines, if there are any.
fn trailers(lines: &[u8]) -> Result<Option<HeaderMap>, Malformed> {
    let mut read = [httparse::EMPTY_HEADER; MAX_HEADERS];
    match httparse::parse_headers(lines, &mut read) {
        Ok(httparse::Status::Complete((_, []))) => Ok(None),
        Ok(httparse::Status::Complete((_, found))) => map(found).map(Some),
        Ok(httparse::Status::Partial) | Err(_) => Err(Malformed::Chunk),
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    fn head(text: &str) -> Result<Option<(Head, usize)>, Malformed> {
        read_head(text.as_bytes(), &Method::GET)
    }

    /// A body and its trailers, read in these pieces, and how many bytes were left over.
    fn body<'a>(
        mut framing: Framing,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(Vec<u8>, Option<HeaderMap>, usize, bool), Malformed> {
        let (mut to, mut left) = (BytesMut::new(), 0);
        for piece in pieces {
            let own = framing.read(piece, &mut to)?;
            assert!(own == piece.len() || framing.is_over());
            left += piece.len() - own;
        }
        let over = framing.is_over();
        Ok((to.to_vec(), framing.trailers(), left, over))
    }

    fn chunked() -> Framing {
        Framing::Chunked(Chunks::default())
    }

    #[test]
    fn a_request_has_one_length_whatever_its_headers_say() {
        let written = |method: &str, length| {
            let request = Request::builder()
                .method(method)
                .uri("http://engine/v1/x?y=1")
                .header("host", "localhost")
                .header("content-length", "9")
                .header("transfer-encoding", "chunked");
            let mut bytes = Vec::new();
            write_head(&request.body(()).unwrap().into_parts().0, length, &mut bytes);
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(
            written("POST", 2),
            "POST /v1/x?y=1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n"
        );
        assert!(written("POST", 0).contains("content-length: 0\r\n"));
        assert!(!written("GET", 0).contains("length"));
    }

    #[test]
    fn a_head_says_how_long_its_body_is_and_whether_its_connection_stays() {
        for (text, left, keeps) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Some(5), true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Some(0), true),
            ("HTTP/1.1 204 No Content\r\n\r\n", Some(0), true),
            (
                "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
                Some(0),
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: x, Close\r\n\r\n",
                Some(5),
                false,
            ),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n", Some(5), false),
            ("HTTP/1.1 200 OK\r\n\r\n", None, false),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n",
                None,
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
                None,
                false,
            ),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", Some(0), false),
        ] {
            let (read, length) = head(text).unwrap().unwrap();
            assert_eq!((read.body.left(), read.keeps), (left, keeps), "{text}");
            assert_eq!(length, text.len());
        }
        let (asked, _) = read_head(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", &Method::HEAD)
            .unwrap()
            .unwrap();
        assert_eq!(asked.body.left(), Some(0));
        assert_eq!(asked.headers[CONTENT_LENGTH], "5");
        assert!(head("HTTP/1.1 200 OK\r\ncontent-le").unwrap().is_none());
    }

    #[test]
    fn what_two_readers_may_read_in_two_ways_is_no_answer() {
        for (text, expected) in [
            ("nonsense without end", Malformed::Head),
            ("HTTP/2.0 200 OK\r\n\r\n", Malformed::Head),
            ("HTTP/1.1 99 Low\r\n\r\n", Malformed::Head),
            ("HTTP/1.1 200 OK\r\na b: c\r\n\r\n", Malformed::Head),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: ten\r\n\r\n",
                Malformed::Length,
            ),
            ("HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n", Malformed::Length),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n",
                Malformed::Length,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
                Malformed::Length,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
                Malformed::Length,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\n\r\n",
                Malformed::Length,
            ),
            (
                "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                Malformed::Length,
            ),
        ] {
            assert_eq!(head(text).unwrap_err(), expected, "{text}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD));
        assert_eq!(head(&endless).unwrap_err(), Malformed::Long);
    }

    #[test]
    fn a_head_that_comes_byte_by_byte_is_looked_at_once() {
        let filler = "y".repeat(60_000);
        let text = format!("\r\nHTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\nx: {filler}\r\na: 1\r\n\r\nhello");
        let body = text.len() - 5;
        let mut heads = Heads::default();
        for (at, byte) in text.as_bytes()[..body - 1].iter().enumerate() {
            assert!(heads.read(&[*byte], &Method::GET).unwrap().is_none(), "{at}");
            // The rest of a line's end may be still to come.
            assert!(heads.looked + 2 >= heads.come.len(), "{at}");
        }
        let (head, rest) = heads
            .read(&text.as_bytes()[body - 1..], &Method::GET)
            .unwrap()
            .unwrap();
        assert_eq!((head.status.as_u16(), rest.as_ref()), (200, &b"hello"[..]));
        assert_eq!(head.headers["a"], "1");
    }

    #[test]
    fn what_is_no_head_is_refused_before_its_end() {
        for (text, expected) in [
            ("HTTX", Malformed::Head),
            ("HTTP/2.0 200", Malformed::Head),
            ("nonsense without end", Malformed::Head),
        ] {
            let refused = Heads::default().read(text.as_bytes(), &Method::GET);
            assert_eq!(refused.unwrap_err(), expected, "{text}");
        }
        for endless in [
            "\r\n".repeat(MAX_HEAD / 2),
            "HTTP/1.1 103 Early\r\n\r\n".repeat(MAX_HEAD / 20),
        ] {
            let refused = Heads::default().read(endless.as_bytes(), &Method::GET);
            assert_eq!(refused.unwrap_err(), Malformed::Long);
        }
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD));
        let refused = Heads::default().read(endless.as_bytes(), &Method::GET);
        assert_eq!(refused.unwrap_err(), Malformed::Long);
    }

    #[test]
    fn bodies_end_where_they_are_framed_to() {
        let (read, trailers, left, over) = body(Framing::Length(5), [&b"hel"[..], b"lo, then"]).unwrap();
        assert_eq!(
            (read.as_slice(), trailers, left, over),
            (&b"hello"[..], None, 6, true)
        );
        let mut open = Framing::UntilClose;
        assert!(!open.is_over() && open.hung_up() && open.is_over());
        assert!(!Framing::Length(1).hung_up() && !chunked().hung_up());
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
                Malformed::Chunk,
                "{}",
                String::from_utf8_lossy(text)
            );
        }
        let endless = [b"5;".to_vec(), vec![b'x'; MAX_HEAD]].concat();
        assert_eq!(body(chunked(), [&endless[..]]).unwrap_err(), Malformed::Long);
        let endless = [b"0\r\nx: ".to_vec(), vec![b'x'; MAX_HEAD]].concat();
        assert_eq!(body(chunked(), [&endless[..]]).unwrap_err(), Malformed::Long);
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

        /// As if all of it had come at once, and as httparse finds the end of it.
        #[test]
        fn heads_are_read_the_same_however_they_are_cut(
            lines in proptest::collection::vec(("[\r\n]{0,3}", "[a-z:\r\n ]{0,12}"), 0..6), cuts in proptest::collection::vec(1_usize..9, 0..30),
        ) {
            let mut text = b"HTTP/1.1 200 OK\r\n".to_vec();
            for (end, line) in lines {
                text.extend_from_slice(line.as_bytes());
                text.extend_from_slice(end.as_bytes());
            }
            let whole = read_head(&text, &Method::GET).map(|found| found.map(|(_, length)| text.len() - length));
            let mut heads = Heads::default();
            let mut rest = text.as_slice();
            let mut found = Ok(None);
            let lengths = cuts.into_iter().chain(std::iter::repeat(7));
            for length in lengths {
                if rest.is_empty() || !matches!(found, Ok(None)) {
                    break;
                }
                let (piece, more) = rest.split_at(length.min(rest.len()));
                found = heads.read(piece, &Method::GET).map(|found| found.map(|(_, behind)| behind.len() + more.len()));
                rest = more;
            }
            match (found, whole) {
                // It waits for the end of what is refused already.
                (Ok(None), Err(_)) => {}
                (found, whole) => prop_assert_eq!(found, whole),
            }
        }

        #[test]
        fn nothing_that_comes_is_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_head(&bytes, &Method::GET);
            let _ = Heads::default().read(&[b"HTTP/1.1 ", &bytes[..]].concat(), &Method::GET);
            let _ = body(chunked(), [&bytes[..]]);
        }
    }
}
