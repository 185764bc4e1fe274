//! The other end of the wire: connections to one sealed endpoint, whose certificate is known.
//!
//! HTTP/1.1, one stream to a connection: a client that reads slowly holds up its own connection and nobody else's, which on
//! one shared connection it would.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioIo, TokioTimer};
use muster_kit::Tasks;
use muster_kit::tls::{TlsIdentity, client};
use muster_protocol::Digest;
use muster_seal::{Attestation, Envelope, EnvelopeError, ResponseProof, SessionClose};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tower_service::Service;

use crate::limits::Limits;
use crate::rt::Spawner;
use crate::wellknown::{PREFIX, Proofs};

/// The most of an answer that waits here, of one connection.
const BUFFER: usize = 64 * 1024;
/// How many connections without a request are kept.
const IDLE_CONNECTIONS: usize = 64;
/// The most that an endpoint may say about itself: proofs as many as it gives at once.
const MAX_SAID: usize = 4 * 1024 * 1024;

/// Whom to talk to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// `host:port`.
    pub address: String,
    /// SHA-256 of its certificate in DER.
    pub certificate: Digest,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no connection.
    #[error("the sealed endpoint cannot be reached")]
    Connect(#[source] hyper_util::client::legacy::Error),
    /// There was one.
    #[error("the sealed endpoint broke off")]
    Broken(#[source] hyper_util::client::legacy::Error),
    /// What it says about itself did not come, or not whole, or not in time.
    #[error("the sealed endpoint does not say its {0}")]
    Unsaid(&'static str),
    /// It answered otherwise than with what was asked.
    #[error("the sealed endpoint answered {0}")]
    Status(StatusCode),
    /// It is no signed statement.
    #[error("the sealed endpoint said what is no statement")]
    Statement(#[from] EnvelopeError),
}

/// Connections to one sealed endpoint. Clones share them.
#[derive(Clone)]
pub struct SealedClient {
    client: Client<Dial, Full<Bytes>>,
    peer: Peer,
    patience: Duration,
}

impl SealedClient {
    /// For this peer, as the holder of `identity`. Nothing is dialled yet.
    ///
    /// # Errors
    /// A key that does not belong to the certificate.
    pub fn new(
        peer: Peer,
        identity: &TlsIdentity,
        limits: &Limits,
        tasks: &Tasks,
    ) -> Result<Self, tokio_rustls::rustls::Error> {
        let mut tls = client(identity, peer.certificate)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let spawner = Spawner {
            tasks: tasks.clone(),
            name: "sealed client",
        };
        let client = Client::builder(spawner)
            .pool_timer(TokioTimer::new())
            // It hangs up before the other side does.
            .pool_idle_timeout(limits.idle / 2)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .http1_max_buf_size(BUFFER)
            .set_host(false)
            .build(Dial {
                address: peer.address.clone().into(),
                tls: Arc::new(tls),
                limit: limits.handshake,
            });
        Ok(Self {
            client,
            peer,
            patience: limits.upload,
        })
    }

    /// Whom it talks to.
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Asks. The request's URI is a path. The answer's body goes through [`crate::CheckedBody`].
    ///
    /// # Errors
    /// No connection, or a broken one.
    pub async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, ClientError> {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority = Some(Authority::from_static("sealed"));
        let path = request.uri().path_and_query().cloned();
        parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        *request.version_mut() = http::Version::HTTP_11;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("sealed"));
        // So that the proof of a streamed answer may come behind it.
        headers.insert(TE, HeaderValue::from_static("trailers"));
        self.client.request(request).await.map_err(|error| {
            if error.is_connect() {
                ClientError::Connect(error)
            } else {
                ClientError::Broken(error)
            }
        })
    }

    /// The session's attestation, whose signature nobody has checked yet.
    ///
    /// # Errors
    /// It does not come, or is none.
    pub async fn attestation(&self) -> Result<Envelope<Attestation>, ClientError> {
        let said = self.said(Method::GET, "attestation").await?;
        Ok(Envelope::from_text(&said)?)
    }

    /// Proofs from a number on, as many as the endpoint gives at once, and the number that its next response will have.
    ///
    /// # Errors
    /// They do not come, or one of them is none.
    pub async fn proofs(&self, from: u64) -> Result<(Vec<Envelope<ResponseProof>>, u64), ClientError> {
        let said = self.said(Method::GET, &format!("proofs?from={from}")).await?;
        let said: Proofs = serde_json::from_str(&said).map_err(|_| ClientError::Unsaid("proofs"))?;
        let proofs = said
            .proofs
            .iter()
            .map(|numbered| Envelope::from_text(&numbered.proof));
        Ok((proofs.collect::<Result<_, _>>()?, said.next))
    }

    /// Ends the session and gets its last word, once everything that is under way has been signed, and with it the proofs
    /// from a number on: no others can be asked for afterwards.
    ///
    /// # Errors
    /// It does not come, or is none.
    pub async fn close(&self, from: u64) -> Result<LastWords, ClientError> {
        let said = self.said(Method::POST, &format!("close?from={from}")).await?;
        let mut lines = said.lines();
        let close = Envelope::from_text(lines.next().unwrap_or_default())?;
        let proofs = lines.map(Envelope::from_text).collect::<Result<_, _>>()?;
        Ok(LastWords { close, proofs })
    }

    async fn said(&self, method: Method, what: &str) -> Result<String, ClientError> {
        let mut request = Request::new(Full::default());
        *request.method_mut() = method;
        *request.uri_mut() = format!("{PREFIX}{what}").parse().unwrap_or_default();
        let asking = async {
            let response = self.send(request).await?;
            if response.status() != StatusCode::OK {
                return Err(ClientError::Status(response.status()));
            }
            let body = Limited::new(response.into_body(), MAX_SAID).collect().await;
            let body = body.map_err(|_| ClientError::Unsaid("own state"))?.to_bytes();
            String::from_utf8(body.into()).map_err(|_| ClientError::Unsaid("own state"))
        };
        timeout(self.patience, asking)
            .await
            .unwrap_or(Err(ClientError::Unsaid("own state in time")))
    }
}

/// What a session says as it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastWords {
    /// How many responses there were.
    pub close: Envelope<SessionClose>,
    /// The proofs that were asked for with it, as many as the endpoint gives at once.
    pub proofs: Vec<Envelope<ResponseProof>>,
}

impl fmt::Debug for SealedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SealedClient").field(&self.peer).finish()
    }
}

/// Makes the pool's connections.
#[derive(Clone)]
struct Dial {
    address: Arc<str>,
    tls: Arc<ClientConfig>,
    limit: Duration,
}

impl Dial {
    async fn dial(self) -> io::Result<Line> {
        let dialling = async {
            let tcp = TcpStream::connect(&*self.address).await?;
            tcp.set_nodelay(true)?;
            // The certificate says who answers, not the name.
            let name = ServerName::IpAddress(tcp.peer_addr()?.ip().into());
            TlsConnector::from(self.tls).connect(name, tcp).await
        };
        let tls = timeout(self.limit, dialling).await;
        let tls = tls.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        Ok(Line(TokioIo::new(tls)))
    }
}

impl Service<Uri> for Dial {
    type Response = Line;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Line>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        Box::pin(self.clone().dial())
    }
}

/// One connection.
struct Line(TokioIo<TlsStream<TcpStream>>);

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
        Pin::new(&mut self.get_mut().0).poll_read(cx, buffer)
    }
}

impl Write for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write_vectored(cx, slices)
    }
}
