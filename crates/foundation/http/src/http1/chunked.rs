//! A streamed answer over HTTP/1.1, written with as little at hand as that takes.
//!
//! hyper reads requests and writes what is short. Its connection keeps a buffer for reading and one for writing, 8 KiB each, for as
//! long as it lives, which for a stream that mostly waits is more than everything else that belongs to it. So whoever reads the
//! requests of a connection lets go of it when an answer is a stream, and takes it up again behind that.

use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, TRAILER, TRANSFER_ENCODING};
use http::response::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::rt::{Read, ReadBuf, Write};
use muster_protocol::Timestamp;

use crate::answer::Answer;
use crate::endpoint::Watched;
use crate::framing::says_close;
use crate::headers::PROOF;

/// What is here already is written together, up to about as much.
const TOGETHER: usize = 8 * 1024;
/// Room that is kept while nothing comes.
const KEPT: usize = 512;
/// What a client may send ahead while its answer is under way.
const AHEAD: usize = 512;

/// An answer that is to be written here.
pub(crate) struct Streamed {
    pub(crate) response: Response<Answer>,
    /// Whether its client wants to ask again on the same connection.
    pub(crate) keeps: bool,
}

/// Whether whoever asks this can be answered here; and if so, whether it wants to ask again.
pub(crate) fn asked_by<B>(request: &Request<B>) -> Option<bool> {
    let plain = request.version() == Version::HTTP_11 && request.method() != Method::HEAD;
    plain.then(|| !says_close(request.headers()))
}

/// Whether this answer is a stream whose length nobody knows.
pub(crate) fn is_streamed(response: &Response<Answer>) -> bool {
    let status = response.status();
    let bodiless = status.is_informational()
        || [
            StatusCode::NO_CONTENT,
            StatusCode::RESET_CONTENT,
            StatusCode::NOT_MODIFIED,
        ]
        .contains(&status);
    response.body().is_passing() && !bodiless && !response.headers().contains_key(CONTENT_LENGTH)
}

/// An answer on its way into a connection.
struct Flow {
    /// None once all of it is in `out`.
    body: Option<Answer>,
    out: Vec<u8>,
    /// How much of that has left.
    written: usize,
    /// The head has been waiting for something to go with.
    begun: bool,
    flushed: bool,
    trailers: bool,
}

/// Writes it to its end. An error, which is also a client that has gone, leaves it where it stands.
pub(crate) fn write<T>(
    io: &mut Watched<T>,
    streamed: Streamed,
    now: Timestamp,
) -> impl Future<Output = io::Result<()>>
where
    T: Read + Write + Unpin,
{
    let (head, body) = streamed.response.into_parts();
    let mut flow = Flow::new(&head, body, streamed.keeps, now);
    std::future::poll_fn(move |cx| flow.poll(io, cx))
}

impl Flow {
    fn new(head: &Parts, body: Answer, keeps: bool, now: Timestamp) -> Self {
        let mut out = Vec::with_capacity(KEPT);
        begin(head, keeps, now, &mut out);
        Self {
            body: Some(body),
            out,
            written: 0,
            begun: false,
            flushed: false,
            trailers: head.headers.contains_key(TRAILER),
        }
    }

    fn poll<T>(&mut self, io: &mut Watched<T>, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        T: Read + Write + Unpin,
    {
        let mut waits = false;
        loop {
            if !waits && (!self.begun || self.written == self.out.len()) {
                if self.begun {
                    self.out.clear();
                    self.written = 0;
                }
                self.begun = true;
                waits = self.fill(cx)?.is_pending();
            }
            while let Some(left @ [_, ..]) = self.out.get(self.written..) {
                let written = ready!(Pin::new(&mut *io).poll_write(cx, left))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.written += written;
                self.flushed = false;
            }
            if self.body.is_some() && !waits {
                continue;
            }
            if !self.flushed {
                ready!(Pin::new(&mut *io).poll_flush(cx))?;
                self.flushed = true;
            }
            if self.body.is_none() {
                return Poll::Ready(Ok(()));
            }
            if self.out.capacity() > KEPT {
                (self.out, self.written) = (Vec::new(), 0);
            }
            return heed(io, cx).map(Err);
        }
    }

    /// Takes what is here of the body. Pending if more is to come and is not here.
    fn fill(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        while let Some(body) = &mut self.body {
            if self.out.len() >= TOGETHER {
                break;
            }
            match Pin::new(body).poll_frame(cx) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(None) => self.end(&HeaderMap::new()),
                Poll::Ready(Some(frame)) => match frame.map_err(io::Error::other)?.into_data() {
                    // A chunk of no length would be the last one.
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => {
                        write!(self.out, "{:X}\r\n", data.len())?;
                        self.out.extend_from_slice(&data);
                        self.out.extend_from_slice(b"\r\n");
                    }
                    Err(frame) => self.end(&frame.into_trailers().unwrap_or_default()),
                },
            }
        }
        Ok(Poll::Ready(()))
    }

    fn end(&mut self, trailers: &HeaderMap) {
        self.body = None;
        self.out.extend_from_slice(b"0\r\n");
        // Only what the head has announced.
        if let Some(proof) = trailers.get(PROOF).filter(|_| self.trailers) {
            line(&PROOF, proof.as_bytes(), &mut self.out);
        }
        self.out.extend_from_slice(b"\r\n");
    }
}

/// The head, and how the body is framed.
fn begin(head: &Parts, keeps: bool, now: Timestamp, out: &mut Vec<u8>) {
    let reason = head.status.canonical_reason().unwrap_or_default();
    for part in ["HTTP/1.1 ", head.status.as_str(), " ", reason, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    for (name, value) in &head.headers {
        if name != TRANSFER_ENCODING && name != CONNECTION {
            line(name, value.as_bytes(), out);
        }
    }
    if !head.headers.contains_key(DATE) {
        let date = now.to_chrono().format("%a, %d %b %Y %H:%M:%S GMT").to_string();
        line(&DATE, date.as_bytes(), out);
    }
    if !keeps {
        line(&CONNECTION, b"close", out);
    }
    line(&TRANSFER_ENCODING, b"chunked", out);
    out.extend_from_slice(b"\r\n");
}

fn line(name: &HeaderName, value: &[u8], out: &mut Vec<u8>) {
    for part in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Looks whether the client is still there, and keeps what it has sent ahead. Only that it has gone is an end.
fn heed<T>(io: &mut Watched<T>, cx: &mut Context<'_>) -> Poll<io::Error>
where
    T: Read + Write + Unpin,
{
    if !io.ahead.is_empty() {
        // Behind that nothing is read before the answer is over.
        return Poll::Pending;
    }
    let mut room = [const { MaybeUninit::uninit() }; AHEAD];
    let mut read = ReadBuf::uninit(&mut room);
    match ready!(Pin::new(&mut *io).poll_read(cx, read.unfilled())) {
        Err(error) => Poll::Ready(error),
        Ok(()) if read.filled().is_empty() => Poll::Ready(io::ErrorKind::ConnectionAborted.into()),
        Ok(()) => {
            io.ahead = Bytes::copy_from_slice(read.filled());
            Poll::Pending
        }
    }
}
