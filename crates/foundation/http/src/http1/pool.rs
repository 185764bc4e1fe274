//! Connections to one peer that wait for their next request.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use muster_process::Tasks;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// The most connections without a request that are kept.
const MAX_IDLE: usize = 64;

/// A connection of any kind: TCP, TLS, a Unix socket.
pub trait IoStream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> IoStream for T {}

/// A connection, whatever it goes through.
pub type ByteStream = Box<dyn IoStream>;

/// The idle connections to one peer.
pub(super) struct ConnectionPool {
    idle: Mutex<IdleConnections>,
    /// The longest time that a connection stays open without a request.
    max_idle_time: Duration,
    tasks: Tasks,
    dropped: CancellationToken,
}

#[derive(Default)]
struct IdleConnections {
    /// Each connection with the time when its last response was over, oldest first.
    connections: VecDeque<(ByteStream, Instant)>,
    /// Whether a task runs that closes the connections that are too old.
    has_closer: bool,
}

impl ConnectionPool {
    /// An empty pool that keeps connections without a request for `max_idle_time`.
    pub(super) fn new(max_idle_time: Duration, tasks: &Tasks) -> Arc<Self> {
        Arc::new(Self {
            idle: Mutex::default(),
            max_idle_time,
            tasks: tasks.clone(),
            dropped: CancellationToken::new(),
        })
    }

    /// The idle connection that was used last, if there is one that the peer has not closed.
    pub(super) fn take(&self) -> Option<ByteStream> {
        let mut idle = self.idle.lock();
        while let Some((mut connection, _)) = idle.connections.pop_back() {
            if is_quiet(&mut connection) {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose response is over.
    pub(super) fn give_back(self: &Arc<Self>, connection: ByteStream) {
        let mut idle = self.idle.lock();
        if idle.connections.len() == MAX_IDLE {
            idle.connections.pop_front();
        }
        idle.connections.push_back((connection, Instant::now()));
        if !std::mem::replace(&mut idle.has_closer, true) {
            let (pool, dropped) = (Arc::downgrade(self), self.dropped.clone());
            let stopping = self.tasks.token();
            self.tasks.spawn("idle connections", async move {
                tokio::select! {
                    () = close_idle(pool) => {}
                    () = dropped.cancelled() => {}
                    () = stopping.cancelled() => {}
                }
            });
        }
    }

    /// The number of idle connections.
    #[cfg(test)]
    pub(super) fn idle_count(&self) -> usize {
        self.idle.lock().connections.len()
    }

    /// Closes the connections that have been idle for too long. Returns the time until the next one will have been;
    /// `None` if none is left.
    fn prune(&self) -> Option<Duration> {
        let (mut idle, now) = (self.idle.lock(), Instant::now());
        while let Some((_, since)) = idle.connections.front() {
            let age = now.saturating_duration_since(*since);
            if age < self.max_idle_time {
                return Some(self.max_idle_time.saturating_sub(age));
            }
            idle.connections.pop_front();
        }
        idle.has_closer = false;
        None
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        self.dropped.cancel();
    }
}

impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionPool({} idle)", self.idle.lock().connections.len())
    }
}

/// Closes idle connections in time; runs as long as a pool has any.
async fn close_idle(pool: Weak<ConnectionPool>) {
    while let Some(wait) = pool.upgrade().and_then(|pool| pool.prune()) {
        sleep(wait).await;
    }
}

/// Whether nothing has arrived on an idle connection, not even its end.
fn is_quiet(connection: &mut ByteStream) -> bool {
    let mut byte = [0];
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(connection)
        .poll_read(&mut cx, &mut ReadBuf::new(&mut byte))
        .is_pending()
}
