//! The address at which a session is reached: TLS with the session's certificate, for the holder of one certificate.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::DATE;
use http::{HeaderValue, Response};
use hyper::rt::Write as _;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use muster_http::http1::{StallTimeout, chunked};
use muster_http::server::TaskExecutor;
use muster_process::SharedClock;
use muster_process::connections::{ConnectionBounds, ConnectionPermit};
use muster_process::listen::{Accepted, Acceptor};
use muster_process::tls::{TlsIdentity, server_for};
use muster_protocol::Digest;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client_body::SealedBody;
use crate::proxy::SealingProxy;

/// The most bytes of requests and responses that hyper buffers for one connection.
const BUFFER: usize = 64 * 1024;
/// The name of HTTP/2 in TLS.
const HTTP2: &[u8] = b"h2";
/// The bytes that one HTTP/2 stream may send ahead.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The time between two pings of an HTTP/2 client.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Why an endpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The certificate does not fit its key.
    #[error("the session's certificate cannot be used")]
    Tls(#[from] tokio_rustls::rustls::Error),
    /// The listener has no address.
    #[error("the session's address is not known")]
    Address(#[from] io::Error),
}

/// A sealed endpoint that listens. Dropping it closes its connections at once.
pub struct Endpoint {
    address: SocketAddr,
    /// Cancelled when no connection is accepted any more; open ones finish their requests.
    retiring: CancellationToken,
    /// Cancelled when all connections are closed.
    ending: CancellationToken,
    connections: TaskTracker,
    proxy: Arc<SealingProxy>,
}

impl Endpoint {
    /// Serves a session on `listener`, with the certificate of `identity`, to the client whose certificate has the
    /// digest `client` and to no other.
    ///
    /// # Errors
    /// The certificate does not fit its key, or the listener has no address.
    pub fn open(
        listener: TcpListener,
        identity: &TlsIdentity,
        client: Digest,
        proxy: Arc<SealingProxy>,
        clock: SharedClock,
    ) -> Result<Self, EndpointError> {
        let address = listener.local_addr()?;
        let tls = server_for(identity, client, &[HTTP2, b"http/1.1"])?;
        let (retiring, ending) = (CancellationToken::new(), CancellationToken::new());
        let connections = TaskTracker::new();
        let server = EndpointServer {
            tls: TlsAcceptor::from(Arc::new(tls)),
            proxy: Arc::clone(&proxy),
            clock,
            retiring: retiring.clone(),
            ending: ending.clone(),
            connections: connections.clone(),
        };
        proxy.tasks().spawn("sealed endpoint", server.accept(listener));
        Ok(Self {
            address,
            retiring,
            ending,
            connections,
            proxy,
        })
    }

    /// The address on which it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The proxy whose responses it sends.
    pub fn proxy(&self) -> &Arc<SealingProxy> {
        &self.proxy
    }

    /// Accepts no more connections, lets the open ones finish their responses for as long as `grace`, and then closes
    /// them. Every response is signed when this returns.
    pub async fn close(self, grace: Duration) {
        self.retiring.cancel();
        self.proxy.drain(grace).await;
        // The last responses are on their way; one of them may be the session's closing statement.
        self.connections.close();
        let _ = timeout(grace, self.connections.wait()).await;
        self.ending.cancel();
        self.proxy.signer().wait_drained().await;
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.retiring.cancel();
        self.ending.cancel();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.address)
    }
}

/// Accepts connections and serves them.
#[derive(Clone)]
struct EndpointServer {
    tls: TlsAcceptor,
    proxy: Arc<SealingProxy>,
    clock: SharedClock,
    retiring: CancellationToken,
    ending: CancellationToken,
    connections: TaskTracker,
}

impl EndpointServer {
    async fn accept(self, listener: TcpListener) {
        let total = self.proxy.limits().connections;
        // No address of strangers takes all places before a handshake is done.
        let bounds = ConnectionBounds {
            total,
            per_address: total.div_ceil(2),
        };
        let (clock, retiring) = (SharedClock::clone(&self.clock), self.retiring.clone());
        let acceptor = Acceptor::new("sealed endpoint", listener, bounds, clock, retiring);
        while let Some(Accepted { stream, peer, permit }) = acceptor.next().await {
            let server = self.clone();
            let open = self.connections.token();
            let connection = async move {
                let ending = server.ending.clone();
                let _ = ending
                    .run_until_cancelled(server.handshake(stream, peer, &permit))
                    .await;
                drop((permit, open));
            };
            self.proxy.tasks().spawn("sealed connection", connection);
        }
    }

    async fn handshake(self, tcp: TcpStream, peer: SocketAddr, permit: &ConnectionPermit) {
        let limit = self.proxy.limits().handshake;
        let handshake = self.tls.accept(tcp);
        // State that a connection needs for a moment only is boxed, here and below: mostly it waits, and there are
        // many.
        let shaken = Box::pin(timeout(limit, handshake)).await;
        match shaken.map(|shaken| shaken.map(Box::new)) {
            Ok(Ok(tls)) => {
                // This is the one client.
                permit.release_address();
                self.serve(tls, peer).await;
            }
            Ok(Err(error)) => tracing::info!(%peer, %error, "a TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
        }
    }

    /// Serves the version of HTTP that the handshake agreed on.
    async fn serve(self, tls: Box<TlsStream<TcpStream>>, peer: SocketAddr) {
        let http2 = tls.get_ref().1.alpn_protocol() == Some(HTTP2);
        let connection = StallTimeout::new(TokioIo::new(tls), self.proxy.limits().stall);
        let ended = if http2 {
            Box::pin(self.serve_http2(connection)).await
        } else {
            self.serve_http1(connection).await
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, error, "a connection broke");
        }
    }

    async fn serve_http2(&self, io: TlsConnection) -> Result<(), BoxError> {
        let limits = self.proxy.limits();
        let proxy = Arc::clone(&self.proxy);
        let service = service_fn(move |request| {
            let proxy = Arc::clone(&proxy);
            async move { Ok::<_, Infallible>(Box::pin(proxy.answer(request)).await) }
        });
        let executor = TaskExecutor::new("sealed stream", self.proxy.tasks().clone());
        let connection = http2::Builder::new(executor)
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            .initial_stream_window_size(STREAM_WINDOW)
            .max_send_buf_size(BUFFER)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(limits.stall)
            .serve_connection(io, service);
        let mut connection = Box::pin(connection);
        tokio::select! {
            ended = connection.as_mut() => return Ok(ended?),
            () = self.retiring.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        Ok(connection.await?)
    }

    /// Serves one request after another. While a response is streamed, only its writer is held in memory.
    async fn serve_http1(&self, mut io: TlsConnection) -> Result<(), BoxError> {
        loop {
            // Boxed, so that it is freed while a response is streamed.
            let Some((returned, streamed)) = Box::pin(self.read_requests(io)).await? else {
                return Ok(());
            };
            io = returned;
            let keep_alive = streamed.keep_alive;
            self.write(&mut io, streamed).await?;
            if !keep_alive || self.retiring.is_cancelled() {
                poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx)).await?;
                return Ok(());
            }
        }
    }

    /// Writes a streamed response. The future is no `async fn`'s, which would hold the response twice.
    fn write<'a>(
        &self,
        io: &'a mut TlsConnection,
        streamed: StreamedResponse,
    ) -> impl Future<Output = io::Result<()>> + use<'a> {
        let response = self.add_date(streamed.response);
        chunked::write_response(io, response, streamed.keep_alive)
    }

    /// Adds a `Date`, as hyper does to the responses that it writes.
    fn add_date(&self, mut response: Response<SealedBody>) -> Response<SealedBody> {
        let now = self.clock.now().to_chrono();
        let date = now.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
        if let Ok(date) = HeaderValue::from_str(&date) {
            response.headers_mut().entry(DATE).or_insert(date);
        }
        response
    }

    /// Reads requests and answers them until a response is to be streamed. `None` once the connection is over.
    async fn read_requests(
        &self,
        io: TlsConnection,
    ) -> Result<Option<(TlsConnection, StreamedResponse)>, BoxError> {
        let streamed = Arc::new(Mutex::new(None));
        let write_pending = io.write_pending();
        let (proxy, handed) = (Arc::clone(&self.proxy), Arc::clone(&streamed));
        let service = service_fn(move |request| {
            let (proxy, handed) = (Arc::clone(&proxy), Arc::clone(&handed));
            async move {
                let keep_alive = chunked::keep_alive(&request);
                let response = Box::pin(proxy.answer(request)).await;
                let is_streamed = response.body().is_streamed() && chunked::is_chunked(&response);
                match keep_alive.filter(|_| is_streamed) {
                    None => Ok::<_, Infallible>(response),
                    Some(keep_alive) => {
                        *handed.lock() = Some(StreamedResponse { response, keep_alive });
                        // The connection is taken away from hyper, so this never returns.
                        std::future::pending().await
                    }
                }
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.proxy.limits().head)
            .max_buf_size(BUFFER)
            .serve_connection(io, service)
            .with_upgrades();
        let mut connection = Box::new(connection);
        let mut retiring = pin!(self.retiring.cancelled());
        let mut retired = false;
        poll_fn(|cx| {
            if !retired && retiring.as_mut().poll(cx).is_ready() {
                retired = true;
                Pin::new(&mut *connection).graceful_shutdown();
            }
            if let Poll::Ready(ended) = Pin::new(&mut *connection).poll(cx) {
                return Poll::Ready(ended);
            }
            // hyper has written everything that comes before the response once no write is pending.
            let is_handed_over = streamed.lock().is_some() && !write_pending.load(Ordering::Relaxed);
            if is_handed_over {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await?;
        let streamed = streamed.lock().take();
        Ok(streamed.and_then(|streamed| {
            let parts = (*connection).into_parts()?;
            let mut io = parts.io;
            // A copy, so that hyper's buffer is freed.
            io.set_unread(Bytes::copy_from_slice(&parts.read_buf));
            Some((io, streamed))
        }))
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A response that is written without hyper.
struct StreamedResponse {
    response: Response<SealedBody>,
    /// Whether the client wants to use the connection again.
    keep_alive: bool,
}

/// A connection after its handshake.
type TlsConnection = StallTimeout<TokioIo<Box<TlsStream<TcpStream>>>>;

#[cfg(test)]
mod tests {
    use muster_http::http1::ResponseBody;

    use super::*;
    use crate::response_relay::Relay;

    /// The size of the future that such a function returns.
    fn size_of_future<'a, F: Future>(
        _: impl FnOnce(EndpointServer, TcpStream, SocketAddr, &'a ConnectionPermit) -> F,
    ) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_stream_that_waits_has_little_beside_it() {
        // There are thousands of them. State that is needed for a moment only, for a handshake or a request, is boxed.
        let connection = size_of_future(EndpointServer::handshake);
        let stream = size_of::<Relay<ResponseBody>>();
        assert!(connection <= 768, "a connection: {connection} bytes");
        assert!(stream <= 1_104, "a response: {stream} bytes");
    }
}
