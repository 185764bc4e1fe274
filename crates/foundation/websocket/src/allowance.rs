//! A bound on the bytes that a peer may send before it is recognised, counted below the websocket: a frame that
//! announces a larger size is never held in memory for a stranger. Bytes behind a greeting wait in the network.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::io::Io;

const UNLIMITED: usize = usize::MAX;

/// The number of bytes that may still be read. Clones share it; a new one is unlimited.
#[derive(Clone)]
pub(crate) struct ReadAllowance(Arc<AtomicUsize>);

impl Default for ReadAllowance {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(UNLIMITED)))
    }
}

impl ReadAllowance {
    /// Allows this many bytes from now on. The read that crosses the bound, of one buffer at most, is the last.
    pub(crate) fn limit(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Removes the bound.
    pub(crate) fn lift(&self) {
        self.limit(UNLIMITED);
    }

    /// Whether any byte may still be read.
    fn has_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    fn spend(&self, bytes: usize) {
        let spent = |left: usize| (left != UNLIMITED).then(|| left.saturating_sub(bytes));
        // An unlimited allowance stays as it is.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
    }
}

/// The allowance is used up.
#[derive(Debug, thiserror::Error)]
#[error("too much was sent before the greeting")]
pub(crate) struct AllowanceUsedUp;

/// A connection whose bytes are counted.
pub(crate) struct CountedIo {
    pub(crate) io: Box<dyn Io>,
    pub(crate) allowance: ReadAllowance,
}

impl AsyncRead for CountedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.allowance.has_any() {
            return Poll::Ready(Err(io::Error::other(AllowanceUsedUp)));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        self.allowance.spend(buf.filled().len().saturating_sub(before));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CountedIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
