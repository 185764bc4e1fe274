//! The engine in its container: where it is, and a pool of connections to it.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioIo, TokioTimer};
use muster_kit::Tasks;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tower_service::Service;

use crate::limits::Limits;
use crate::netns::Namespace;
use crate::rt::Spawner;
use crate::socket::{JobSocket, SocketError};

/// The most of an answer's head and of its body that waits here, of one connection.
const BUFFER: usize = 64 * 1024;
/// How many connections without a request are kept.
const IDLE_CONNECTIONS: usize = 64;

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
    Connect(#[source] hyper_util::client::legacy::Error),
    /// There was one.
    #[error("the engine broke off, or answered what is no HTTP")]
    Broken(#[source] hyper_util::client::legacy::Error),
    /// It did not answer in time.
    #[error("the engine did not answer within {0:?}")]
    Silent(Duration),
}

/// Connections to one engine. Clones share them.
#[derive(Clone)]
pub struct Upstream {
    client: Client<Dial, Full<Bytes>>,
    address: EngineAddress,
}

impl Upstream {
    /// For the engine at this address. Nothing is dialled yet.
    pub fn new(address: EngineAddress, limits: &Limits, tasks: &Tasks) -> Self {
        let spawner = Spawner {
            tasks: tasks.clone(),
            name: "engine connection",
        };
        let client = Client::builder(spawner)
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(limits.idle)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .http1_max_buf_size(BUFFER)
            .set_host(false)
            .build(Dial {
                address: address.clone(),
                limit: limits.connect,
            });
        Self { client, address }
    }

    /// Where the engine is.
    pub fn address(&self) -> &EngineAddress {
        &self.address
    }

    /// Asks. The request's URI is a path.
    ///
    /// # Errors
    /// No connection, or a broken one.
    pub async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, UpstreamError> {
        *request.uri_mut() = absolute(request.uri());
        *request.version_mut() = http::Version::HTTP_11;
        self.client.request(request).await.map_err(|error| {
            if error.is_connect() {
                UpstreamError::Connect(error)
            } else {
                UpstreamError::Broken(error)
            }
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

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upstream").field(&self.address).finish()
    }
}

/// The pool sorts its connections by authority; ours has one.
fn absolute(uri: &Uri) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(Authority::from_static("engine"));
    parts.path_and_query = Some(
        uri.path_and_query()
            .cloned()
            .unwrap_or_else(|| http::uri::PathAndQuery::from_static("/")),
    );
    Uri::from_parts(parts).unwrap_or_default()
}

/// Makes the pool's connections.
#[derive(Clone, Debug)]
struct Dial {
    address: EngineAddress,
    limit: Duration,
}

impl Dial {
    async fn dial(self) -> Result<Line, SocketError> {
        match &self.address {
            EngineAddress::Socket(socket) => Ok(Line::Unix(TokioIo::new(socket.connect(self.limit).await?))),
            EngineAddress::Namespace(namespace, port) => {
                let stream = namespace.connect(*port, self.limit).await;
                Ok(Line::Tcp(TokioIo::new(stream.map_err(SocketError::Connect)?)))
            }
            EngineAddress::Address(address) => {
                let stream = timeout(self.limit, TcpStream::connect(address)).await;
                let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
                Ok(Line::Tcp(TokioIo::new(stream.map_err(SocketError::Connect)?)))
            }
        }
    }
}

impl Service<Uri> for Dial {
    type Response = Line;
    type Error = SocketError;
    type Future = Pin<Box<dyn Future<Output = Result<Line, SocketError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), SocketError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        Box::pin(self.clone().dial())
    }
}

/// One connection.
enum Line {
    Unix(TokioIo<UnixStream>),
    Tcp(TokioIo<TcpStream>),
}

impl Connection for Line {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(line) => Pin::new(line).poll_read(cx, buffer),
            Self::Tcp(line) => Pin::new(line).poll_read(cx, buffer),
        }
    }
}

impl Write for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(line) => Pin::new(line).poll_write(cx, bytes),
            Self::Tcp(line) => Pin::new(line).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(line) => Pin::new(line).poll_flush(cx),
            Self::Tcp(line) => Pin::new(line).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(line) => Pin::new(line).poll_shutdown(cx),
            Self::Tcp(line) => Pin::new(line).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Unix(line) => line.is_write_vectored(),
            Self::Tcp(line) => line.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(line) => Pin::new(line).poll_write_vectored(cx, slices),
            Self::Tcp(line) => Pin::new(line).poll_write_vectored(cx, slices),
        }
    }
}
