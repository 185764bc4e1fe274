//! The engine in its container: its address, and the connections to it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use muster_http::http1::{BodyError, ByteStream, Dial, Http1Client, ResponseBody, SendError};
use muster_process::Tasks;
use muster_response_proof::Limits;
use muster_response_proof::headers::prepare_for_engine;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::netns::NetworkNamespace;
use crate::socket::{JobSocket, SocketError};

/// The address of an engine.
#[derive(Clone, Debug)]
pub enum EngineAddress {
    /// A Unix socket in a folder that is shared with its container.
    Socket(JobSocket),
    /// A port of its container's loopback.
    Namespace(NetworkNamespace, u16),
    /// An address that is reached from here. For engines without a container.
    Address(SocketAddr),
}

/// Why the engine gave no response.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection can be made.
    #[error("the engine cannot be reached")]
    Connect(#[source] SocketError),
    /// The connection broke, or what came is no response.
    #[error("the engine broke off, or did not answer in HTTP")]
    Broken(#[source] BodyError),
    /// It did not answer in time.
    #[error("the engine did not answer within {0:?}")]
    Silent(Duration),
}

/// Connections to one engine. Clones share them.
#[derive(Clone)]
pub struct Upstream {
    http: Http1Client,
    address: EngineAddress,
    /// The longest time in which a connection is made.
    connect_timeout: Duration,
}

impl Upstream {
    /// Connections to the engine at this address. None is made yet.
    pub fn new(address: EngineAddress, limits: &Limits, tasks: &Tasks) -> Self {
        Self {
            http: Http1Client::new(limits.idle, tasks),
            address,
            connect_timeout: limits.connect,
        }
    }

    /// The engine's address.
    pub fn address(&self) -> &EngineAddress {
        &self.address
    }

    /// Sends a request, whose URI is a path, and waits for the head of the response.
    ///
    /// # Errors
    /// No connection can be made, or it breaks.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<ResponseBody>, UpstreamError> {
        let sent = self.http.send(request, self).await;
        sent.map_err(|error| match error {
            SendError::Connect(error) => UpstreamError::Connect(error),
            SendError::Broken(error) => UpstreamError::Broken(error),
        })
    }

    /// Sends a GET of `path` and returns the status of the response.
    ///
    /// # Errors
    /// There is no response within `limit`.
    pub async fn probe(&self, path: &str, limit: Duration) -> Result<http::StatusCode, UpstreamError> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = path.parse().unwrap_or_default();
        prepare_for_engine(request.headers_mut());
        let answered = timeout(limit, self.send(request)).await;
        answered
            .map_err(|_| UpstreamError::Silent(limit))?
            .map(|response| response.status())
    }
}

impl Dial for Upstream {
    type Error = SocketError;

    async fn dial(&self) -> Result<ByteStream, SocketError> {
        match &self.address {
            EngineAddress::Socket(socket) => Ok(Box::new(socket.connect(self.connect_timeout).await?)),
            EngineAddress::Namespace(namespace, port) => {
                let stream = namespace.connect(*port, self.connect_timeout).await;
                Ok(Box::new(stream.map_err(SocketError::Connect)?))
            }
            EngineAddress::Address(address) => {
                let stream = timeout(self.connect_timeout, TcpStream::connect(address)).await;
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
