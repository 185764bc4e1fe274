//! The engine in its container: where it is, and a pool of connections to it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use muster_process::Tasks;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::exchange::{Arriving, BrokenOff, Dial, Line, Pool, Unsent};
use crate::limits::Limits;
use crate::netns::Namespace;
use crate::socket::{JobSocket, SocketError};

/// Where an engine listens.
#[derive(Clone, Debug)]
pub enum EngineAddress {
    /// On a Unix socket in a folder that its container shares.
    Socket(JobSocket),
    /// On a port of its container's loopback.
    Namespace(Namespace, u16),
    /// On an address that this machine reaches as it is. For engines that run in no container.
    Address(SocketAddr),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// There is no connection.
    #[error("the engine cannot be reached")]
    Connect(#[source] SocketError),
    /// There was one.
    #[error("the engine broke off, or answered what is no HTTP")]
    Broken(#[source] BrokenOff),
    /// It did not answer in time.
    #[error("the engine did not answer within {0:?}")]
    Silent(Duration),
}

/// Connections to one engine. Clones share them.
#[derive(Clone)]
pub struct Upstream {
    pool: Arc<Pool>,
    address: EngineAddress,
    /// For a connection.
    limit: Duration,
}

impl Upstream {
    /// For the engine at this address. Nothing is dialled yet.
    pub fn new(address: EngineAddress, limits: &Limits, tasks: &Tasks) -> Self {
        Self {
            pool: Pool::new(limits.idle, tasks),
            address,
            limit: limits.connect,
        }
    }

    /// Where the engine is.
    pub fn address(&self) -> &EngineAddress {
        &self.address
    }

    /// Asks. The request's URI is a path.
    ///
    /// # Errors
    /// No connection, or a broken one.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Arriving>, UpstreamError> {
        let sent = self.pool.send(request, self).await;
        sent.map_err(|unsent| match unsent {
            Unsent::Connect(error) => UpstreamError::Connect(error),
            Unsent::Broken(error) => UpstreamError::Broken(error),
        })
    }

    /// The status that the engine answers a GET of `path` with, within `limit`.
    ///
    /// # Errors
    /// It does not.
    pub async fn probe(&self, path: &str, limit: Duration) -> Result<http::StatusCode, UpstreamError> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = path.parse().unwrap_or_default();
        crate::headers::to_engine(request.headers_mut());
        let answered = timeout(limit, self.send(request)).await;
        answered
            .map_err(|_| UpstreamError::Silent(limit))?
            .map(|response| response.status())
    }
}

impl Dial for Upstream {
    type Error = SocketError;

    async fn dial(&self) -> Result<Line, SocketError> {
        match &self.address {
            EngineAddress::Socket(socket) => Ok(Box::new(socket.connect(self.limit).await?)),
            EngineAddress::Namespace(namespace, port) => {
                let stream = namespace.connect(*port, self.limit).await;
                Ok(Box::new(stream.map_err(SocketError::Connect)?))
            }
            EngineAddress::Address(address) => {
                let stream = timeout(self.limit, TcpStream::connect(address)).await;
                let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
                Ok(Box::new(stream.map_err(SocketError::Connect)?))
            }
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upstream").field(&self.address).finish()
    }
}
