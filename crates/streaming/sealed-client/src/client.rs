//! The other end of the wire: connections to one sealed endpoint, whose certificate is known.
//!
//! HTTP/1.1, one stream to a connection: a client that reads slowly holds up its own connection and nobody else's, which on
//! one shared connection it would.

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
use muster_process::Tasks;
use muster_process::tls::{TlsIdentity, client};
use muster_protocol::Digest;
use muster_response_proof::{Attestation, Envelope, EnvelopeError, ResponseProof, SessionClose};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::exchange::{Arriving, BrokenOff, Dial, Line, Pool, Unsent};
use crate::limits::Limits;
use crate::wellknown::{PREFIX, Proofs};

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
    Connect(#[source] io::Error),
    /// There was one.
    #[error("the sealed endpoint broke off")]
    Broken(#[source] BrokenOff),
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
    pool: Arc<Pool>,
    tls: TlsConnector,
    peer: Peer,
    /// For a connection.
    limit: Duration,
    patience: Duration,
    stamp: Stamp,
}

/// When the first byte of what is asked left, on whichever connection.
#[derive(Clone, Debug, Default)]
struct Stamp(Arc<Mutex<Option<Instant>>>);

impl Stamp {
    fn set(&self) {
        let mut first = self.0.lock();
        first.get_or_insert_with(Instant::now);
    }

    fn take(&self) -> Option<Instant> {
        self.0.lock().take()
    }
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
        Ok(Self {
            // It hangs up before the other side does.
            pool: Pool::new(limits.idle / 2, tasks),
            tls: TlsConnector::from(Arc::new(tls)),
            peer,
            limit: limits.handshake,
            patience: limits.upload,
            stamp: Stamp::default(),
        })
    }

    /// Whom it talks to.
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// When the first byte since the last call of this was written to a socket, the handshake not counted. For whoever asks one
    /// thing at a time and measures how long the answer takes.
    pub fn first_byte_sent(&self) -> Option<Instant> {
        self.stamp.take()
    }

    /// Asks. The request's URI is a path. The answer's body goes through [`crate::CheckedBody`].
    ///
    /// # Errors
    /// No connection, or a broken one.
    pub async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Arriving>, ClientError> {
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("sealed"));
        // So that the proof of a streamed answer may come behind it.
        headers.insert(TE, HeaderValue::from_static("trailers"));
        let sent = self.pool.send(request, self).await;
        sent.map_err(|unsent| match unsent {
            Unsent::Connect(error) => ClientError::Connect(error),
            Unsent::Broken(error) => ClientError::Broken(error),
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

impl Dial for SealedClient {
    type Error = io::Error;

    async fn dial(&self) -> io::Result<Line> {
        let dialling = async {
            let tcp = TcpStream::connect(&self.peer.address).await?;
            tcp.set_nodelay(true)?;
            // The certificate says who answers, not the name.
            let name = ServerName::IpAddress(tcp.peer_addr()?.ip().into());
            self.tls.connect(name, tcp).await
        };
        let tls = timeout(self.limit, dialling).await;
        Ok(Box::new(Stamped {
            io: tls.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?,
            stamp: self.stamp.clone(),
        }))
    }
}

/// A connection that says when something is written to it.
struct Stamped<S> {
    io: S,
    stamp: Stamp,
}

impl<S: AsyncRead + Unpin> AsyncRead for Stamped<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stamped<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stamp.set();
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
        self.stamp.set();
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, slices)
    }
}

impl fmt::Debug for SealedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SealedClient").field(&self.peer).finish()
    }
}
