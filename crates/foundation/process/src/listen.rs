//! Sockets to listen on, and the loop that accepts their connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use muster_protocol::ErrorCode;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::clock::SharedClock;
use crate::connections::{
    AddressGroup, ConnectionBounds, ConnectionCounts, ConnectionPermit, ConnectionRefusal, TrustedProxies,
};
use crate::error::Coded;

/// The pause after a failed accept, so that a lack of file descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that the system keeps until they are accepted: after a miner's restart all its executors dial at once.
/// Linux keeps no more than `net.core.somaxconn`, 4,096 by default.
const ACCEPT_QUEUE: u32 = 4_096;

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

/// Listens on `address`, within a Tokio runtime. Port 0 takes a free one; the listener knows which.
///
/// # Errors
/// The address is taken, is not of this machine, or its port needs privileges.
pub fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    listen(address).map_err(|source| BindError { address, source })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // A restarted process takes its port back while connections of the last one still close.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE)
}

/// The address by which this machine itself reaches a listener: one that listens on every interface is reached over
/// loopback.
#[must_use]
pub fn local_address(listens: SocketAddr) -> SocketAddr {
    match listens.ip() {
        ip if !ip.is_unspecified() => listens,
        IpAddr::V4(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, listens.port())),
        IpAddr::V6(_) => SocketAddr::from((Ipv6Addr::LOCALHOST, listens.port())),
    }
}

/// Accepts the connections of a listener, with bounds on how many are open at once, in all and from one address.
#[derive(Debug)]
pub struct Acceptor {
    name: &'static str,
    listener: TcpListener,
    counts: ConnectionCounts,
    proxies: TrustedProxies,
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
    /// Counts against the bounds until it is dropped.
    pub permit: ConnectionPermit,
}

// === impl Acceptor ===

impl Acceptor {
    /// Accepts until `stop` is cancelled. `name` is the listener's name in the log. The permits that are out at a time
    /// keep within `bounds`.
    pub fn new(
        name: &'static str,
        listener: TcpListener,
        bounds: ConnectionBounds,
        clock: SharedClock,
        stop: CancellationToken,
    ) -> Self {
        Self {
            name,
            listener,
            counts: ConnectionCounts::new(bounds),
            proxies: TrustedProxies::default(),
            clock,
            stop,
        }
    }

    /// Lets connections of these proxies count for no address.
    #[must_use]
    pub fn behind(mut self, proxies: TrustedProxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// The counts of the open connections.
    pub const fn counts(&self) -> &ConnectionCounts {
        &self.counts
    }

    /// Waits for the next connection; `None` once `stop` is cancelled. A connection beyond a bound is closed at once.
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
            let address = Some(peer.ip()).filter(|address| !self.proxies.contains(*address));
            let permit = match self.counts.admit(address) {
                Ok(permit) => permit,
                Err(refusal) => {
                    self.note_refusal(refusal, peer);
                    continue;
                }
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(listener = self.name, %peer, %error, "a connection was gone as soon as it was accepted");
                continue;
            }
            return Some(Accepted { stream, peer, permit });
        }
    }

    fn note_refusal(&self, refusal: ConnectionRefusal, peer: SocketAddr) {
        let bound = match refusal {
            ConnectionRefusal::Total => "total",
            ConnectionRefusal::Address => "address",
        };
        let group = AddressGroup::of(peer.ip());
        tracing::debug!(listener = self.name, %group, bound, "too many connections: a new one was closed");
        metrics::counter!("muster_connections_refused_total", "listener" => self.name, "bound" => bound)
            .increment(1);
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

    use std::sync::Arc;

    use super::*;
    use crate::clock::TestClock;

    #[tokio::test]
    async fn connections_beyond_the_bound_are_closed_until_one_ends() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let bounds = ConnectionBounds {
            total: 1,
            per_address: 1,
        };
        let acceptor = Acceptor::new(
            "test",
            listener,
            bounds,
            Arc::new(TestClock::default()),
            stop.clone(),
        );
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
    async fn one_address_takes_no_more_than_its_share_and_a_proxy_has_none() {
        for (proxies, admitted) in [(vec![], false), (vec!["127.0.0.1".to_owned()], true)] {
            let listener = bind("0.0.0.0:0".parse().unwrap()).unwrap();
            let port = listener.local_addr().unwrap().port();
            let bounds = ConnectionBounds {
                total: 3,
                per_address: 1,
            };
            let (clock, stop) = (Arc::new(TestClock::default()), CancellationToken::new());
            let acceptor = Acceptor::new("test", listener, bounds, clock, stop)
                .behind(TrustedProxies::parse(&proxies).unwrap());
            let _first = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let _held = acceptor.next().await.unwrap();
            let _second = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let other = TcpSocket::new_v4().unwrap();
            other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
            let _third = other
                .connect(SocketAddr::from(([127, 0, 0, 1], port)))
                .await
                .unwrap();
            let next = acceptor.next().await.unwrap();
            assert_eq!(next.peer.ip() == IpAddr::from([127, 0, 0, 1]), admitted);
        }
    }

    #[tokio::test]
    async fn a_taken_address_is_named_with_its_code() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        assert_ne!(address.port(), 0);
        let error = bind(address).unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BindFailed));
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        assert!(error.to_string().contains("another process"), "{error}");
    }
    #[test]
    fn a_listener_on_every_interface_is_reached_over_loopback() {
        let reached = |listens: &str| local_address(listens.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:7"), "127.0.0.1:7");
        assert_eq!(reached("[::]:7"), "[::1]:7");
        assert_eq!(reached("192.0.2.1:7"), "192.0.2.1:7");
    }
}
