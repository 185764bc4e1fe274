//! The body of a response as it arrives.
//!
//! The reader's poll reads the connection itself and gets everything that one read brought as one piece. So what a peer
//! sends at once is passed on at once, a small piece does not wait for the next one, and nothing is read before it is
//! asked for.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll, ready};

use bytes::buf::Chain;
use bytes::{Buf as _, Bytes, BytesMut};
use http::{Method, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio_util::io::poll_write_buf;

use super::framing::Framing;
use super::head::{HeadReader, ResponseHead};
use super::header_lines::MalformedResponse;
use super::pool::{ByteStream, ConnectionPool};

/// The most bytes of one read: a little less than a TLS record, so that they fit into one again with their framing.
const MAX_READ: usize = 16 * 1024 - 64;

/// Why a response did not arrive, or not whole.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// Reading or writing failed.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// The peer closed the connection before its response was whole.
    #[error("the response is cut off")]
    Cut,
    /// The bytes that arrived are not a response.
    #[error("the peer did not send a response")]
    Malformed(#[from] MalformedResponse),
}

/// A request that is being sent and the connection on which its response arrives.
pub(super) struct Exchange {
    connection: ByteStream,
    unsent: Chain<Bytes, Bytes>,
    /// Whether something was written that has not been flushed.
    needs_flush: bool,
    /// Why nothing more can be written; a response may still arrive.
    write_error: Option<io::Error>,
}

/// The body's part of what one read brought.
struct Piece {
    data: Bytes,
    /// Whether every byte belonged to the body.
    is_all: Result<bool, MalformedResponse>,
}

/// The body of a response as it arrives.
pub struct ResponseBody {
    /// `None` once nothing more can arrive.
    exchange: Option<Exchange>,
    framing: Framing,
    /// Data that has arrived and was not taken yet.
    data: Bytes,
    /// The error to report after `data`.
    error: Option<BodyError>,
    /// The pool that gets the connection back, if the connection takes another request.
    pool: Option<Weak<ConnectionPool>>,
    /// The connection after `101 Switching Protocols`.
    upgrade: Option<ByteStream>,
}

// === impl Exchange ===

impl Exchange {
    pub(super) fn new(connection: ByteStream, head: Bytes, body: Bytes) -> Self {
        Self {
            connection,
            unsent: head.chain(body),
            needs_flush: true,
            write_error: None,
        }
    }

    /// The bytes of the request that were not written yet.
    pub(super) fn unsent(&self) -> &Chain<Bytes, Bytes> {
        &self.unsent
    }

    /// The response's head, and the bytes that arrived after it.
    pub(super) async fn read_head(&mut self, method: &Method) -> Result<(ResponseHead, Bytes), BodyError> {
        let mut heads = HeadReader::default();
        loop {
            let read = poll_fn(|cx| self.poll_read(cx, |bytes| heads.read(bytes, method)));
            match read.await? {
                None => return Err(self.take_end()),
                Some(Err(malformed)) => return Err(malformed.into()),
                Some(Ok(None)) => {}
                Some(Ok(Some(found))) => return Ok(found),
            }
        }
    }

    /// The response whose head was read; `rest` arrived after the head.
    pub(super) fn into_response(
        self,
        mut head: ResponseHead,
        rest: &[u8],
        pool: Weak<ConnectionPool>,
    ) -> Response<ResponseBody> {
        let mut response = Response::new(());
        *response.status_mut() = head.status;
        *response.headers_mut() = std::mem::take(&mut head.headers);
        let mut body = ResponseBody {
            exchange: Some(self),
            framing: head.body,
            data: Bytes::new(),
            error: None,
            pool: head.keep_alive.then_some(pool),
            upgrade: None,
        };
        if head.status.is_informational() {
            body.data = Bytes::copy_from_slice(rest);
            body.upgrade = body.exchange.take().map(|exchange| exchange.connection);
        } else {
            let piece = Piece::read(&mut body.framing, rest);
            body.take(piece);
        }
        response.map(|()| body)
    }

    /// Writes as much as the peer takes now. Reading does not wait for it: a response may arrive before the whole
    /// request is sent.
    fn send(&mut self, cx: &mut Context<'_>) {
        while self.needs_flush && self.write_error.is_none() {
            let connection = Pin::new(&mut self.connection);
            let written = if self.unsent.has_remaining() {
                poll_write_buf(connection, cx, &mut self.unsent).map_ok(|length| length > 0)
            } else {
                self.needs_flush = false;
                connection.poll_flush(cx).map_ok(|()| true)
            };
            match written {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => self.write_error = Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Err(error)) => self.write_error = Some(error),
                Poll::Pending => {
                    self.needs_flush = true;
                    return;
                }
            }
        }
    }

    /// Reads once. `None` if the peer has closed the connection.
    fn poll_read<R>(
        &mut self,
        cx: &mut Context<'_>,
        each: impl FnOnce(&[u8]) -> R,
    ) -> Poll<io::Result<Option<R>>> {
        self.send(cx);
        // On the stack: a connection on which nothing arrives has no buffer.
        let mut room = [const { MaybeUninit::uninit() }; MAX_READ];
        let mut read = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut self.connection).poll_read(cx, &mut read))?;
        let bytes = read.filled();
        Poll::Ready(Ok((!bytes.is_empty()).then(|| each(bytes))))
    }

    /// The error to report after the peer has closed the connection: the write error, if there was one.
    fn take_end(&mut self) -> BodyError {
        self.write_error.take().map_or(BodyError::Cut, BodyError::Io)
    }

    fn is_sent(&self) -> bool {
        !self.needs_flush && self.write_error.is_none()
    }
}

// === impl Piece ===

impl Piece {
    fn read(framing: &mut Framing, bytes: &[u8]) -> Self {
        let mut data = BytesMut::with_capacity(bytes.len());
        let own = framing.read(bytes, &mut data);
        Self {
            data: data.freeze(),
            is_all: own.map(|own| own == bytes.len()),
        }
    }
}

// === impl ResponseBody ===

impl ResponseBody {
    fn take(&mut self, piece: Piece) {
        self.data = piece.data;
        match piece.is_all {
            Err(malformed) => self.fail(malformed.into()),
            Ok(is_all) if self.framing.is_over() => self.end(is_all),
            Ok(_) => {}
        }
    }

    fn fail(&mut self, error: BodyError) {
        self.exchange = None;
        self.error = Some(error);
    }

    /// Gives the connection back after the last byte, unless bytes that nobody asked for came after it.
    fn end(&mut self, is_clean: bool) {
        let exchange = self
            .exchange
            .take()
            .filter(|exchange| is_clean && exchange.is_sent());
        let pool = self.pool.take().and_then(|pool| pool.upgrade());
        if let (Some(exchange), Some(pool)) = (exchange, pool) {
            pool.give_back(exchange.connection);
        }
    }

    /// The connection after `101 Switching Protocols`, and the bytes that have arrived on it.
    pub fn into_upgraded(self) -> Option<(ByteStream, Bytes)> {
        Some((self.upgrade?, self.data))
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResponseBody").field(&self.framing).finish()
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        loop {
            if !this.data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.data)))));
            }
            if let Some(error) = this.error.take() {
                return Poll::Ready(Some(Err(error)));
            }
            let Some(exchange) = &mut this.exchange else {
                let trailers = this.framing.take_trailers();
                return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
            };
            let framing = &mut this.framing;
            match ready!(exchange.poll_read(cx, |bytes| Piece::read(framing, bytes))) {
                Err(error) => this.fail(error.into()),
                Ok(Some(piece)) => this.take(piece),
                Ok(None) if this.framing.end_by_close() => this.end(false),
                Ok(None) => {
                    let end = exchange.take_end();
                    this.fail(end);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.error.is_none() && self.framing.is_over() && !self.framing.has_trailers()
    }

    fn size_hint(&self) -> SizeHint {
        let here = u64::try_from(self.data.len()).unwrap_or(u64::MAX);
        let mut hint = SizeHint::new();
        match self.framing.left() {
            Some(left) => hint.set_exact(left.saturating_add(here)),
            None => hint.set_lower(here),
        }
        hint
    }
}
