//! Heads of HTTP/1.1: a request's is written, a response's is read. No IO.
//!
//! The peer may be hostile. A response that two readers could understand in two ways is refused: a head with two
//! lengths, a transfer coding that is not exactly `chunked`, a length that is not plain digits.

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, StatusCode};
use memchr::memchr;

use super::framing::{Chunks, Framing};
use super::header_lines::{MAX_HEAD, MAX_HEADERS, MalformedResponse, to_header_map};

/// The first bytes of every response.
const VERSION_PREFIX: &[u8] = b"HTTP/1.";

/// The head of a response.
#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// How the body is framed that follows.
    pub(super) body: Framing,
    /// Whether the connection takes another request after the body.
    pub(super) keep_alive: bool,
}

impl ResponseHead {
    /// Whether another head follows, as after `100 Continue`.
    fn is_interim(&self) -> bool {
        self.status.is_informational() && self.status != StatusCode::SWITCHING_PROTOCOLS
    }
}

/// Reads response heads that arrive in pieces. Every byte is searched once; a head is parsed once its end has arrived.
#[derive(Debug, Default)]
pub(super) struct HeadReader {
    received: BytesMut,
    /// No head ends before this position in `received`.
    searched: usize,
    /// Bytes of interim heads and empty lines so far.
    skipped: usize,
}

// === writing ===

/// Writes a request's head. `length` is the body's; length headers of `head` are left out.
pub(super) fn write_request_head(head: &Parts, length: usize, to: &mut Vec<u8>) {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    for part in [head.method.as_str(), " ", path, " HTTP/1.1\r\n"] {
        to.extend_from_slice(part.as_bytes());
    }
    for (name, value) in &head.headers {
        if name != CONTENT_LENGTH && name != TRANSFER_ENCODING {
            write_header(name, value.as_bytes(), to);
        }
    }
    let has_body = [Method::POST, Method::PUT, Method::PATCH].contains(&head.method);
    if length > 0 || has_body {
        write_header(&CONTENT_LENGTH, length.to_string().as_bytes(), to);
    }
    to.extend_from_slice(b"\r\n");
}

/// Writes one header line.
pub(super) fn write_header(name: &HeaderName, value: &[u8], to: &mut Vec<u8>) {
    for part in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
        to.extend_from_slice(part);
    }
}

// === reading ===

/// The head at the beginning of `bytes` and its length in bytes; `None` if more is to come. `method` is the request's.
pub(super) fn read_head(
    bytes: &[u8],
    method: &Method,
) -> Result<Option<(ResponseHead, usize)>, MalformedResponse> {
    let mut lines = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut lines);
    let length = match parsed.parse(bytes).map_err(|_| MalformedResponse::Head)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial if bytes.len() < MAX_HEAD => return Ok(None),
        httparse::Status::Partial => return Err(MalformedResponse::TooLong),
    };
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(MalformedResponse::Head)?;
    let mut headers = to_header_map(parsed.headers)?;
    let is_http11 = parsed.version == Some(1);
    let mut keep_alive = is_http11 && !asks_to_close(&headers);
    let bodiless = status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
        || method == Method::HEAD;
    let body = if bodiless {
        Framing::Over
    } else if headers.contains_key(TRANSFER_ENCODING) {
        if !is_http11 || !is_chunked(&headers) {
            return Err(MalformedResponse::Length);
        }
        // The coding takes precedence over a length (RFC 9112, 6.3). A peer that sends both may disagree with us about
        // where the next response begins, so the connection is not used again.
        keep_alive &= headers.remove(CONTENT_LENGTH).is_none();
        Framing::Chunked(Chunks::default())
    } else {
        match content_length(&headers)? {
            Some(0) => Framing::Over,
            Some(length) => Framing::Length(length),
            None => Framing::UntilClose,
        }
    };
    keep_alive &= !matches!(body, Framing::UntilClose) && status != StatusCode::SWITCHING_PROTOCOLS;
    let head = ResponseHead {
        status,
        headers,
        body,
        keep_alive,
    };
    Ok(Some((head, length)))
}

/// Whether the sender of these headers closes the connection after the message.
pub(super) fn asks_to_close(headers: &HeaderMap) -> bool {
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

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, MalformedResponse> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else {
        return Ok(None);
    };
    let digits = first.to_str().ok();
    let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    match length {
        Some(length) if lengths.next().is_none() => Ok(Some(length)),
        Some(_) | None => Err(MalformedResponse::Length),
    }
}

// === impl HeadReader ===

impl HeadReader {
    /// Takes what one read brought. Returns the response's head and the bytes after it once the head is complete;
    /// interim heads are skipped.
    pub(super) fn read(
        &mut self,
        piece: &[u8],
        method: &Method,
    ) -> Result<Option<(ResponseHead, Bytes)>, MalformedResponse> {
        self.received.extend_from_slice(piece);
        loop {
            if self.searched == 0 {
                let empty = self
                    .received
                    .iter()
                    .take_while(|byte| matches!(byte, b'\r' | b'\n'));
                let empty = empty.count();
                self.received.advance(empty);
                self.skipped += empty;
            }
            let common = self.received.len().min(VERSION_PREFIX.len());
            if self.received.get(..common) != VERSION_PREFIX.get(..common) {
                return Err(MalformedResponse::Head);
            }
            let Some(end) = self.find_end() else {
                let too_long = self.skipped + self.received.len() >= MAX_HEAD;
                return if too_long {
                    Err(MalformedResponse::TooLong)
                } else {
                    Ok(None)
                };
            };
            let whole = self.received.get(..end).unwrap_or_default();
            let (head, length) = read_head(whole, method)?.ok_or(MalformedResponse::Head)?;
            self.received.advance(length);
            self.searched = 0;
            if !head.is_interim() {
                return Ok(Some((head, self.received.split().freeze())));
            }
            self.skipped += length;
            if self.skipped > MAX_HEAD {
                return Err(MalformedResponse::TooLong);
            }
        }
    }

    /// The position after the first empty line, where the head ends.
    fn find_end(&mut self) -> Option<usize> {
        loop {
            let rest = self.received.get(self.searched..).unwrap_or_default();
            let Some(line) = memchr(b'\n', rest) else {
                self.searched = self.received.len();
                return None;
            };
            self.searched += line;
            match rest.get(line + 1..).unwrap_or_default() {
                [b'\n', ..] => return Some(self.searched + 2),
                [b'\r', b'\n', ..] => return Some(self.searched + 3),
                // The byte that decides whether the next line is empty has not arrived.
                [] | [b'\r'] => return None,
                [_, ..] => self.searched += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    fn head(text: &str) -> Result<Option<(ResponseHead, usize)>, MalformedResponse> {
        read_head(text.as_bytes(), &Method::GET)
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
            write_request_head(&request.body(()).unwrap().into_parts().0, length, &mut bytes);
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
            assert_eq!((read.body.left(), read.keep_alive), (left, keeps), "{text}");
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
    fn an_ambiguous_http1_head_is_refused() {
        for (text, expected) in [
            ("nonsense without end", MalformedResponse::Head),
            ("HTTP/2.0 200 OK\r\n\r\n", MalformedResponse::Head),
            ("HTTP/1.1 99 Low\r\n\r\n", MalformedResponse::Head),
            ("HTTP/1.1 200 OK\r\na b: c\r\n\r\n", MalformedResponse::Head),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: ten\r\n\r\n",
                MalformedResponse::Length,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
                MalformedResponse::Length,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n",
                MalformedResponse::Length,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
                MalformedResponse::Length,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
                MalformedResponse::Length,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\n\r\n",
                MalformedResponse::Length,
            ),
            (
                "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                MalformedResponse::Length,
            ),
        ] {
            assert_eq!(head(text).unwrap_err(), expected, "{text}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD));
        assert_eq!(head(&endless).unwrap_err(), MalformedResponse::TooLong);
    }

    #[test]
    fn a_head_that_comes_byte_by_byte_is_looked_at_once() {
        let filler = "y".repeat(60_000);
        let text = format!("\r\nHTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\nx: {filler}\r\na: 1\r\n\r\nhello");
        let body = text.len() - 5;
        let mut reader = HeadReader::default();
        for (at, byte) in text.as_bytes()[..body - 1].iter().enumerate() {
            assert!(reader.read(&[*byte], &Method::GET).unwrap().is_none(), "{at}");
            // At most a line's end is looked at again.
            assert!(reader.searched + 2 >= reader.received.len(), "{at}");
        }
        let (head, rest) = reader
            .read(&text.as_bytes()[body - 1..], &Method::GET)
            .unwrap()
            .unwrap();
        assert_eq!((head.status.as_u16(), rest.as_ref()), (200, &b"hello"[..]));
        assert_eq!(head.headers["a"], "1");
    }

    #[test]
    fn a_malformed_head_is_refused_before_its_end() {
        for (text, expected) in [
            ("HTTX", MalformedResponse::Head),
            ("HTTP/2.0 200", MalformedResponse::Head),
            ("nonsense without end", MalformedResponse::Head),
        ] {
            let refused = HeadReader::default().read(text.as_bytes(), &Method::GET);
            assert_eq!(refused.unwrap_err(), expected, "{text}");
        }
        for endless in [
            "\r\n".repeat(MAX_HEAD / 2),
            "HTTP/1.1 103 Early\r\n\r\n".repeat(MAX_HEAD / 20),
        ] {
            let refused = HeadReader::default().read(endless.as_bytes(), &Method::GET);
            assert_eq!(refused.unwrap_err(), MalformedResponse::TooLong);
        }
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD));
        let refused = HeadReader::default().read(endless.as_bytes(), &Method::GET);
        assert_eq!(refused.unwrap_err(), MalformedResponse::TooLong);
    }

    proptest! {
        /// The result is that of one piece, and the end is where httparse finds it.
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
            let mut reader = HeadReader::default();
            let mut rest = text.as_slice();
            let mut found = Ok(None);
            let lengths = cuts.into_iter().chain(std::iter::repeat(7));
            for length in lengths {
                if rest.is_empty() || !matches!(found, Ok(None)) {
                    break;
                }
                let (piece, more) = rest.split_at(length.min(rest.len()));
                found = reader.read(piece, &Method::GET).map(|found| found.map(|(_, behind)| behind.len() + more.len()));
                rest = more;
            }
            match (found, whole) {
                // The reader waits for the end of a head that httparse refuses before its end.
                (Ok(None), Err(_)) => {}
                (found, whole) => prop_assert_eq!(found, whole),
            }
        }
    }
}
