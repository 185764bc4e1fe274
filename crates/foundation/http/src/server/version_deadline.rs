//! The time in which a connection must show which version of HTTP it speaks.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// The first bytes of a connection that speaks HTTP/2 (RFC 9113, 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Fails to read once a connection has not shown in time which version of HTTP it speaks. Hyper bounds the time of
/// heads, and only from that moment on.
pub(super) struct VersionDeadline {
    stream: TcpStream,
    /// Bytes of [`HTTP2_PREFACE`] that came.
    matched: usize,
    /// `None` once the version is known.
    deadline: Option<Pin<Box<Sleep>>>,
}

// === impl VersionDeadline ===

impl VersionDeadline {
    pub(super) fn new(stream: TcpStream, after: Duration) -> Self {
        Self {
            stream,
            matched: 0,
            deadline: Some(Box::pin(sleep(after))),
        }
    }

    fn look_at(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if HTTP2_PREFACE.get(self.matched) != Some(byte) {
                self.deadline = None;
                return;
            }
            self.matched += 1;
        }
        if self.matched == HTTP2_PREFACE.len() {
            self.deadline = None;
        }
    }
}

impl AsyncRead for VersionDeadline {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(deadline) = &mut self.deadline else {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        };
        if deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.look_at(buf.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for VersionDeadline {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
