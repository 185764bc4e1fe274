//! A server's response of unknown length, written with little memory.
//!
//! hyper reads requests and writes short responses. Its connection keeps a buffer for reading and one for writing, 8
//! KiB each, for as long as it lives. For a stream that mostly waits, that is more than everything else that belongs to
//! it. So the reader of a connection's requests lets go of it when a response is a stream, [`write_response`] writes
//! the stream, and the reader takes the connection up again.

use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TRAILER, TRANSFER_ENCODING};
use http::response::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::rt::{Read, ReadBuf, Write};

use super::head::{asks_to_close, write_header};
use super::stall::StallTimeout;

/// Data that is ready is collected up to about this many bytes before it is written.
const MAX_COLLECTED: usize = 8 * 1024;
/// Bytes of the buffer that is kept while nothing arrives.
const MIN_BUFFER: usize = 512;
/// The most bytes that a client may send while its response is being written.
const MAX_UNREAD: usize = 512;

/// An error of a body, as this module passes it on.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Whether the response to this request may be written here, and if so, whether its client wants to use the connection
/// again.
pub fn keep_alive<B>(request: &Request<B>) -> Option<bool> {
    let is_eligible = request.version() == Version::HTTP_11 && request.method() != Method::HEAD;
    is_eligible.then(|| !asks_to_close(request.headers()))
}

/// Whether a response has a body of unknown length.
pub fn is_chunked<B>(response: &Response<B>) -> bool {
    let status = response.status();
    let bodiless = status.is_informational()
        || [
            StatusCode::NO_CONTENT,
            StatusCode::RESET_CONTENT,
            StatusCode::NOT_MODIFIED,
        ]
        .contains(&status);
    !bodiless && !response.headers().contains_key(CONTENT_LENGTH)
}

/// Writes a response to its end. `keep_alive` states whether its client wants to use the connection again. Of the
/// body's trailers those are written that the head's `Trailer` announces.
///
/// # Errors
/// The connection or the body fails, or the client has gone. The response is then incomplete.
pub fn write_response<T, B>(
    io: &mut StallTimeout<T>,
    response: Response<B>,
    keep_alive: bool,
) -> impl Future<Output = io::Result<()>>
where
    T: Read + Write + Unpin,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let (head, body) = response.into_parts();
    let mut writer = ChunkedWriter::new(&head, body, keep_alive);
    std::future::poll_fn(move |cx| writer.poll(io, cx))
}

/// A response that is being written.
struct ChunkedWriter<B> {
    /// `None` once the whole body is in `buffer`.
    body: Option<B>,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were written.
    written: usize,
    /// Whether the body was polled: the head waits for the first data, to be written together with it.
    is_begun: bool,
    is_flushed: bool,
    /// The trailers that the head announces.
    announced: Box<[HeaderName]>,
}

impl<B> ChunkedWriter<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    fn new(head: &Parts, body: B, keep_alive: bool) -> Self {
        let mut buffer = Vec::with_capacity(MIN_BUFFER);
        write_head(head, keep_alive, &mut buffer);
        Self {
            body: Some(body),
            buffer,
            written: 0,
            is_begun: false,
            is_flushed: false,
            announced: announced_trailers(&head.headers),
        }
    }

    fn poll<T>(&mut self, io: &mut StallTimeout<T>, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        T: Read + Write + Unpin,
    {
        let mut is_waiting = false;
        loop {
            if !is_waiting && (!self.is_begun || self.written == self.buffer.len()) {
                if self.is_begun {
                    self.buffer.clear();
                    self.written = 0;
                }
                self.is_begun = true;
                is_waiting = self.fill(cx)?.is_pending();
            }
            while let Some(left @ [_, ..]) = self.buffer.get(self.written..) {
                let written = ready!(Pin::new(&mut *io).poll_write(cx, left))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.written += written;
                self.is_flushed = false;
            }
            if self.body.is_some() && !is_waiting {
                continue;
            }
            if !self.is_flushed {
                ready!(Pin::new(&mut *io).poll_flush(cx))?;
                self.is_flushed = true;
            }
            if self.body.is_none() {
                return Poll::Ready(Ok(()));
            }
            if self.buffer.capacity() > MIN_BUFFER {
                (self.buffer, self.written) = (Vec::new(), 0);
            }
            return poll_client_gone(io, cx).map(Err);
        }
    }

    /// Collects the data of the body that is ready. Pending if more is to come and is not ready.
    fn fill(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        while let Some(body) = &mut self.body {
            if self.buffer.len() >= MAX_COLLECTED {
                break;
            }
            match Pin::new(body).poll_frame(cx) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(None) => self.end(&HeaderMap::new()),
                Poll::Ready(Some(frame)) => match frame.map_err(io::Error::other)?.into_data() {
                    // A chunk of length zero would end the body.
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => {
                        write!(self.buffer, "{:X}\r\n", data.len())?;
                        self.buffer.extend_from_slice(&data);
                        self.buffer.extend_from_slice(b"\r\n");
                    }
                    Err(frame) => self.end(&frame.into_trailers().unwrap_or_default()),
                },
            }
        }
        Ok(Poll::Ready(()))
    }

    fn end(&mut self, trailers: &HeaderMap) {
        self.body = None;
        self.buffer.extend_from_slice(b"0\r\n");
        for name in &self.announced {
            if let Some(value) = trailers.get(name) {
                write_header(name, value.as_bytes(), &mut self.buffer);
            }
        }
        self.buffer.extend_from_slice(b"\r\n");
    }
}

/// Writes the status line and the headers.
fn write_head(head: &Parts, keep_alive: bool, to: &mut Vec<u8>) {
    let reason = head.status.canonical_reason().unwrap_or_default();
    for part in ["HTTP/1.1 ", head.status.as_str(), " ", reason, "\r\n"] {
        to.extend_from_slice(part.as_bytes());
    }
    for (name, value) in &head.headers {
        if name != TRANSFER_ENCODING && name != CONNECTION {
            write_header(name, value.as_bytes(), to);
        }
    }
    if !keep_alive {
        write_header(&CONNECTION, b"close", to);
    }
    write_header(&TRANSFER_ENCODING, b"chunked", to);
    to.extend_from_slice(b"\r\n");
}

fn announced_trailers(headers: &HeaderMap) -> Box<[HeaderName]> {
    headers
        .get_all(TRAILER)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect()
}

/// Ready once the client has gone. Bytes that it sends while its response is being written are kept as unread.
fn poll_client_gone<T>(io: &mut StallTimeout<T>, cx: &mut Context<'_>) -> Poll<io::Error>
where
    T: Read + Write + Unpin,
{
    if !io.unread().is_empty() {
        // Nothing more is read before the response is over.
        return Poll::Pending;
    }
    let mut room = [const { MaybeUninit::uninit() }; MAX_UNREAD];
    let mut read = ReadBuf::uninit(&mut room);
    match ready!(Pin::new(&mut *io).poll_read(cx, read.unfilled())) {
        Err(error) => Poll::Ready(error),
        Ok(()) if read.filled().is_empty() => Poll::Ready(io::ErrorKind::ConnectionAborted.into()),
        Ok(()) => {
            io.set_unread(Bytes::copy_from_slice(read.filled()));
            Poll::Pending
        }
    }
}
