//! How much a peer may send before it is recognised, counted below the websocket: whatever size a frame announces, no
//! more of it is ever held for a stranger. What is behind a greeting waits in the network.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::socket::Io;

const UNLIMITED: usize = usize::MAX;

/// Bytes that may still be read. Clones are one allowance; a new one has no end.
#[derive(Clone)]
pub(crate) struct Allowance(Arc<AtomicUsize>);

impl Default for Allowance {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(UNLIMITED)))
    }
}

impl Allowance {
    /// From now on this many bytes. The read that crosses the bound, of one buffer at most, is the last.
    pub(crate) fn limit(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// No bound from now on.
    pub(crate) fn lift(&self) {
        self.limit(UNLIMITED);
    }

    /// False if there is none left.
    fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    fn spend(&self, bytes: usize) {
        let spent = |left: usize| (left != UNLIMITED).then(|| left.saturating_sub(bytes));
        // Without a bound there is nothing to write down.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
    }
}

/// The allowance is used up.
#[derive(Debug, thiserror::Error)]
#[error("too much was sent before the greeting")]
pub(crate) struct UsedUp;

/// A connection whose bytes are counted.
pub(crate) struct Counted {
    pub(crate) io: Box<dyn Io>,
    pub(crate) allowance: Allowance,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.allowance.any() {
            return Poll::Ready(Err(io::Error::other(UsedUp)));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        self.allowance.spend(buf.filled().len().saturating_sub(before));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
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
