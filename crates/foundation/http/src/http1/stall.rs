//! A connection whose peer must take what is written to it in time.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::time::{Instant, Sleep, sleep_until};

/// A connection of which a write fails if the peer takes nothing for as long as a limit: such a peer has gone, whatever
/// TCP reports.
pub struct StallTimeout<T> {
    io: T,
    limit: Duration,
    /// Runs while a write is pending.
    timer: Option<Pin<Box<Sleep>>>,
    write_pending: Arc<AtomicBool>,
    /// Bytes that were read from the connection and are to be read again.
    unread: Bytes,
}

impl<T> StallTimeout<T> {
    /// Gives each write on `io` as long as `limit`.
    pub fn new(io: T, limit: Duration) -> Self {
        Self {
            io,
            limit,
            timer: None,
            write_pending: Arc::default(),
            unread: Bytes::new(),
        }
    }

    /// Whether a write is pending; for a caller that has lent the connection out.
    pub fn write_pending(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.write_pending)
    }

    /// The bytes that are read before those of the connection.
    pub fn unread(&self) -> &Bytes {
        &self.unread
    }

    /// Sets the bytes that are read before those of the connection.
    pub fn set_unread(&mut self, bytes: Bytes) {
        self.unread = bytes;
    }

    /// Starts the timer when a write becomes pending, and stops it when the write is done.
    fn watch<R>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        self.write_pending.store(written.is_pending(), Ordering::Relaxed);
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let limit = self.limit;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: Read + Unpin> Read for StallTimeout<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.unread.is_empty() {
            return Pin::new(&mut this.io).poll_read(cx, buffer);
        }
        let first = this.unread.split_to(this.unread.len().min(buffer.remaining()));
        buffer.put_slice(&first);
        Poll::Ready(Ok(()))
    }
}

impl<T: Write + Unpin> Write for StallTimeout<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.watch(cx, written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(cx);
        this.watch(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        this.watch(cx, written)
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Writes until the other side's buffer is full, and then until the write fails.
    async fn write_until_error(mut connection: StallTimeout<TokioIo<tokio::io::DuplexStream>>) -> io::Error {
        loop {
            let written = std::future::poll_fn(|cx| Pin::new(&mut connection).poll_write(cx, &[0; 64])).await;
            if let Err(error) = written {
                return error;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let (near, mut far) = tokio::io::duplex(128);
        let connection = StallTimeout::new(TokioIo::new(near), Duration::from_secs(60));
        let started = Instant::now();
        let reading = async move {
            let mut buffer = [0; 32];
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                far.read_exact(&mut buffer).await.unwrap();
            }
            far
        };
        let (error, far) = tokio::join!(write_until_error(connection), reading);
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), Duration::from_secs(560));
        drop(far);
    }
}
