//! Connections to one sealed endpoint, whose certificate is known.
//!
//! It speaks HTTP/1.1 with one response at a time on a connection, so that a slow reader holds up its own connection
//! only. On one shared HTTP/2 connection it would hold up the others.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, TE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use muster_http::http1::{BodyError, ByteStream, Dial, Http1Client, ResponseBody, SendError};
use muster_process::Tasks;
use muster_process::tls::{TlsIdentity, client};
use muster_protocol::Digest;
use muster_response_proof::well_known::{PREFIX, ProofListing};
use muster_response_proof::{Attestation, Envelope, EnvelopeError, Limits, ResponseProof, SessionClose};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// The longest document of an endpoint about its session, in bytes: as many proofs as it sends at once.
const MAX_DOCUMENT: usize = 4 * 1024 * 1024;

/// The address and the certificate of a sealed endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedPeer {
    /// The endpoint's address: `host:port`.
    pub address: String,
    /// SHA-256 of the endpoint's certificate in DER.
    pub certificate: Digest,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection can be made.
    #[error("the sealed endpoint cannot be reached")]
    Connect(#[source] io::Error),
    /// The connection broke, or what came is no response.
    #[error("the sealed endpoint broke off")]
    Broken(#[source] BodyError),
    /// A document about the session did not arrive, not whole, or not in time.
    #[error("the sealed endpoint does not send its {0}")]
    NoDocument(&'static str),
    /// It answered with another status than 200.
    #[error("the sealed endpoint answered {0}")]
    Status(StatusCode),
    /// A document holds no signed statement.
    #[error("the sealed endpoint sent something else than a signed statement")]
    Statement(#[from] EnvelopeError),
}

/// Connections to one sealed endpoint. Clones share them.
#[derive(Clone)]
pub struct SealedClient {
    http: Http1Client,
    tls: TlsConnector,
    peer: SealedPeer,
    /// The longest time in which a connection is made.
    connect_timeout: Duration,
    /// The longest time in which a document about the session arrives.
    document_timeout: Duration,
    first_write: FirstWrite,
}

/// The time of the first write on any of the connections.
#[derive(Clone, Debug, Default)]
struct FirstWrite(Arc<Mutex<Option<Instant>>>);

impl FirstWrite {
    fn set(&self) {
        let mut first = self.0.lock();
        first.get_or_insert_with(Instant::now);
    }

    fn take(&self) -> Option<Instant> {
        self.0.lock().take()
    }
}

impl SealedClient {
    /// A client of this endpoint that shows the certificate of `identity`. No connection is made yet.
    ///
    /// # Errors
    /// The key does not belong to the certificate.
    pub fn new(
        peer: SealedPeer,
        identity: &TlsIdentity,
        limits: &Limits,
        tasks: &Tasks,
    ) -> Result<Self, tokio_rustls::rustls::Error> {
        let mut tls = client(identity, peer.certificate)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            // Idle connections are closed before the endpoint closes them.
            http: Http1Client::new(limits.idle / 2, tasks),
            tls: TlsConnector::from(Arc::new(tls)),
            peer,
            connect_timeout: limits.handshake,
            document_timeout: limits.upload,
            first_write: FirstWrite::default(),
        })
    }

    /// The endpoint that it connects to.
    pub const fn peer(&self) -> &SealedPeer {
        &self.peer
    }

    /// The time at which the first byte since the last call was written to a socket, not counting the handshake. For a
    /// caller that sends one request at a time and measures how long the response takes.
    pub fn take_first_write(&self) -> Option<Instant> {
        self.first_write.take()
    }

    /// Sends a request, whose URI is a path. The caller reads the response's body through [`crate::CheckedBody`].
    ///
    /// # Errors
    /// No connection can be made, or it breaks.
    pub async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, ClientError> {
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("sealed"));
        // The proof of a streamed response may then come as a trailer.
        headers.insert(TE, HeaderValue::from_static("trailers"));
        let sent = self.http.send(request, self).await;
        sent.map_err(|error| match error {
            SendError::Connect(error) => ClientError::Connect(error),
            SendError::Broken(error) => ClientError::Broken(error),
        })
    }

    /// Fetches the session's attestation. Its signature is not checked.
    ///
    /// # Errors
    /// The attestation does not arrive, or cannot be read.
    pub async fn fetch_attestation(&self) -> Result<Envelope<Attestation>, ClientError> {
        let text = self.fetch(Method::GET, "attestation").await?;
        Ok(Envelope::from_text(&text)?)
    }

    /// Fetches proofs from the number `from` on, as many as the endpoint sends at once. Returns them with the number
    /// that the session's next response will have.
    ///
    /// # Errors
    /// The proofs do not arrive, or one of them cannot be read.
    pub async fn fetch_proofs(&self, from: u64) -> Result<(Vec<Envelope<ResponseProof>>, u64), ClientError> {
        let text = self.fetch(Method::GET, &format!("proofs?from={from}")).await?;
        let listing: ProofListing =
            serde_json::from_str(&text).map_err(|_| ClientError::NoDocument("proofs"))?;
        let proofs = listing
            .proofs
            .iter()
            .map(|numbered| Envelope::from_text(&numbered.proof));
        Ok((proofs.collect::<Result<_, _>>()?, listing.next))
    }

    /// Closes the session. Its closing statement arrives once all responses under way are signed, together with the
    /// proofs from the number `from` on, as no proof can be fetched afterwards.
    ///
    /// # Errors
    /// The statement does not arrive, or cannot be read.
    pub async fn close(&self, from: u64) -> Result<ClosingStatement, ClientError> {
        let text = self.fetch(Method::POST, &format!("close?from={from}")).await?;
        let mut lines = text.lines();
        let close = Envelope::from_text(lines.next().unwrap_or_default())?;
        let proofs = lines.map(Envelope::from_text).collect::<Result<_, _>>()?;
        Ok(ClosingStatement { close, proofs })
    }

    /// Fetches one document about the session.
    async fn fetch(&self, method: Method, name: &str) -> Result<String, ClientError> {
        let mut request = Request::new(Full::default());
        *request.method_mut() = method;
        *request.uri_mut() = format!("{PREFIX}{name}").parse().unwrap_or_default();
        let fetching = async {
            let response = self.send(request).await?;
            if response.status() != StatusCode::OK {
                return Err(ClientError::Status(response.status()));
            }
            let body = Limited::new(response.into_body(), MAX_DOCUMENT).collect().await;
            let body = body.map_err(|_| ClientError::NoDocument("own state"))?.to_bytes();
            String::from_utf8(body.into()).map_err(|_| ClientError::NoDocument("own state"))
        };
        timeout(self.document_timeout, fetching)
            .await
            .unwrap_or(Err(ClientError::NoDocument("own state in time")))
    }
}

/// The closing statement of a session, and its last proofs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosingStatement {
    /// The signed statement, not checked.
    pub close: Envelope<SessionClose>,
    /// The proofs that were asked for, as many as the endpoint sends at once, not checked.
    pub proofs: Vec<Envelope<ResponseProof>>,
}

impl Dial for SealedClient {
    type Error = io::Error;

    async fn dial(&self) -> io::Result<ByteStream> {
        let dialling = async {
            let tcp = TcpStream::connect(&self.peer.address).await?;
            tcp.set_nodelay(true)?;
            // The endpoint is known by its certificate, not by its name.
            let name = ServerName::IpAddress(tcp.peer_addr()?.ip().into());
            self.tls.connect(name, tcp).await
        };
        let tls = timeout(self.connect_timeout, dialling).await;
        Ok(Box::new(TimedStream {
            io: tls.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?,
            first_write: self.first_write.clone(),
        }))
    }
}

/// A connection that notes the time of its first write.
struct TimedStream<S> {
    io: S,
    first_write: FirstWrite,
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.first_write.set();
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
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
        self.first_write.set();
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, slices)
    }
}

impl fmt::Debug for SealedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SealedClient").field(&self.peer).finish()
    }
}
