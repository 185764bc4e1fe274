//! Sockets to listen on, and the loop that accepts their connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_protocol::ErrorCode;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::clock::SharedClock;
use crate::error::Coded;

/// The pause after a failed accept, so that a lack of file descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({}); choose another address in the configuration, or stop the process that holds it", advice(.source))]
pub struct BindError {
    /// The address of the configuration.
    pub address: SocketAddr,
    /// The operating system's reason.
    pub source: io::Error,
}

impl Coded for BindError {
    fn code(&self) -> Option<ErrorCode> {
        Some(ErrorCode::BindFailed)
    }
}

/// Listens on `address`. Port 0 takes a free one; the listener knows which.
///
/// # Errors
/// The address is taken, is not of this machine, or its port needs privileges.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| BindError { address, source })
}

/// Accepts the connections of a listener, with a bound on how many are open at once.
#[derive(Debug)]
pub struct Acceptor {
    name: &'static str,
    listener: TcpListener,
    permits: Arc<Semaphore>,
    clock: SharedClock,
    stop: CancellationToken,
}

/// A connection that was accepted. Nagle's algorithm is off: messages are small and their receivers wait for them.
#[derive(Debug)]
pub struct Accepted {
    /// The accepted connection.
    pub stream: TcpStream,
    /// The address of its other end.
    pub peer: SocketAddr,
    /// Counts against the bound until it is dropped.
    pub permit: OwnedSemaphorePermit,
}

// === impl Acceptor ===

impl Acceptor {
    /// Accepts until `stop` is cancelled. `name` is the listener's name in the log. At most `max_connections` permits
    /// are out at a time.
    pub fn new(
        name: &'static str,
        listener: TcpListener,
        max_connections: usize,
        clock: SharedClock,
        stop: CancellationToken,
    ) -> Self {
        Self {
            name,
            listener,
            permits: Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS))),
            clock,
            stop,
        }
    }

    /// Waits for the next connection; `None` once `stop` is cancelled. A connection beyond the bound is closed at once.
    pub async fn next(&self) -> Option<Accepted> {
        loop {
            let (stream, peer) = match self.stop.run_until_cancelled(self.listener.accept()).await? {
                Ok(accepted) => accepted,
                // Out of file descriptors, mostly: connections in use have to end first.
                Err(error) => {
                    tracing::warn!(listener = self.name, %error, "cannot accept a connection");
                    self.stop
                        .run_until_cancelled(self.clock.sleep(ACCEPT_PAUSE))
                        .await?;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                tracing::debug!(listener = self.name, %peer, "too many connections: a new one was closed");
                metrics::counter!("muster_connections_refused_total", "listener" => self.name).increment(1);
                continue;
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(listener = self.name, %peer, %error, "a connection was gone as soon as it was accepted");
                continue;
            }
            return Some(Accepted { stream, peer, permit });
        }
    }
}

fn advice(error: &io::Error) -> &'static str {
    let kind = error.kind();
    if kind == io::ErrorKind::AddrInUse {
        "another process listens there"
    } else if kind == io::ErrorKind::AddrNotAvailable {
        "this machine does not have that address"
    } else if kind == io::ErrorKind::PermissionDenied {
        "ports below 1024 need privileges"
    } else {
        "see the cause"
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::clock::TestClock;

    #[tokio::test]
    async fn connections_beyond_the_bound_are_closed_until_one_ends() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let acceptor = Acceptor::new("test", listener, 1, Arc::new(TestClock::default()), stop.clone());
        let _first = TcpStream::connect(address).await.unwrap();
        let held = acceptor.next().await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        let read_end = async {
            assert_eq!(second.read(&mut [0]).await.unwrap(), 0);
            drop(held);
            TcpStream::connect(address).await.unwrap()
        };
        let (third, client) = tokio::join!(acceptor.next(), read_end);
        assert_eq!(third.unwrap().peer, client.local_addr().unwrap());
        stop.cancel();
        assert!(acceptor.next().await.is_none());
    }

    #[tokio::test]
    async fn a_taken_address_is_named_with_its_code() {
        let first = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = first.local_addr().unwrap();
        assert_ne!(address.port(), 0);
        let error = bind(address).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BindFailed));
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        assert!(error.to_string().contains("another process"), "{error}");
    }
}
