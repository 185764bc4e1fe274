//! Where a session is reached: TLS with the session's certificate, for the holder of one certificate.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use muster_http::server::TaskExecutor;
use muster_process::SharedClock;
use muster_process::listen::{Accepted, Acceptor};
use muster_process::tls::{TlsIdentity, server_for};
use muster_protocol::Digest;
use parking_lot::{Mutex, MutexGuard};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::outflow::{self, Streamed};
use crate::seal::Seal;

/// The most of requests and answers that waits here, of one connection.
const BUFFER: usize = 64 * 1024;
/// HTTP/2, as TLS calls it.
const HTTP2: &[u8] = b"h2";
/// What one HTTP/2 stream may send ahead.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Between two questions whether an HTTP/2 client is still there, and how long it has for the answer.
const PING: Duration = Duration::from_secs(20);

/// Why an endpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The certificate.
    #[error("the session's certificate cannot be used")]
    Tls(#[from] tokio_rustls::rustls::Error),
    /// The listener.
    #[error("the session's address is not known")]
    Address(#[from] io::Error),
}

/// A sealed endpoint that listens. Dropping it closes it at once.
pub struct Endpoint {
    address: SocketAddr,
    /// No new connections; those that are there finish their requests.
    retiring: CancellationToken,
    /// No connections.
    ending: CancellationToken,
    connections: TaskTracker,
    seal: Arc<Seal>,
}

impl Endpoint {
    /// Serves a session on `listener`, with `identity`, to the client whose certificate has this digest and to no other.
    ///
    /// # Errors
    /// A certificate that does not fit its key, a listener without an address.
    pub fn open(
        listener: TcpListener,
        identity: &TlsIdentity,
        client: Digest,
        seal: Arc<Seal>,
        clock: SharedClock,
    ) -> Result<Self, EndpointError> {
        let address = listener.local_addr()?;
        let tls = server_for(identity, client, &[HTTP2, b"http/1.1"])?;
        let (retiring, ending) = (CancellationToken::new(), CancellationToken::new());
        let connections = TaskTracker::new();
        let door = Door {
            acceptor: TlsAcceptor::from(Arc::new(tls)),
            seal: Arc::clone(&seal),
            clock,
            retiring: retiring.clone(),
            ending: ending.clone(),
            connections: connections.clone(),
        };
        seal.tasks().spawn("sealed endpoint", door.accept(listener));
        Ok(Self {
            address,
            retiring,
            ending,
            connections,
            seal,
        })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whose answers it gives.
    pub fn seal(&self) -> &Arc<Seal> {
        &self.seal
    }

    /// Takes no more connections and lets those that are there finish what is under way, for as long as `grace`; then hangs
    /// up. Everything is signed when this returns.
    pub async fn close(self, grace: Duration) {
        self.retiring.cancel();
        self.seal.drain(grace).await;
        // The last answers are on their way, which may be the session's own last word.
        self.connections.close();
        let _ = timeout(grace, self.connections.wait()).await;
        self.ending.cancel();
        self.seal.sealer().drained().await;
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

#[derive(Clone)]
struct Door {
    acceptor: TlsAcceptor,
    seal: Arc<Seal>,
    clock: SharedClock,
    retiring: CancellationToken,
    ending: CancellationToken,
    connections: TaskTracker,
}

impl Door {
    async fn accept(self, listener: TcpListener) {
        let most = self.seal.limits().connections;
        let (clock, retiring) = (SharedClock::clone(&self.clock), self.retiring.clone());
        let acceptor = Acceptor::new("sealed endpoint", listener, most, clock, retiring);
        while let Some(Accepted { stream, peer, permit }) = acceptor.next().await {
            let door = self.clone();
            let open = self.connections.token();
            let connection = async move {
                let ending = door.ending.clone();
                let _ = ending.run_until_cancelled(door.greet(stream, peer)).await;
                drop((permit, open));
            };
            self.seal.tasks().spawn("sealed connection", connection);
        }
    }

    async fn greet(self, tcp: TcpStream, peer: SocketAddr) {
        let limit = self.seal.limits().handshake;
        let handshake = self.acceptor.accept(tcp);
        // What a connection needs for a moment only is boxed, here and below: most of its life it waits, and there are many.
        let shaken = Box::pin(timeout(limit, handshake)).await;
        match shaken.map(|shaken| shaken.map(Box::new)) {
            Ok(Ok(tls)) => self.serve(tls, peer).await,
            Ok(Err(error)) => tracing::info!(%peer, %error, "a caller did not come through TLS"),
            Err(_) => tracing::debug!(%peer, "a caller was too slow"),
        }
    }

    /// Speaks what was agreed on during the handshake.
    async fn serve(self, tls: Box<TlsStream<TcpStream>>, peer: SocketAddr) {
        let http2 = tls.get_ref().1.alpn_protocol() == Some(HTTP2);
        let watched = Watched::new(TokioIo::new(tls), self.seal.limits().stall);
        let ended = if http2 {
            Box::pin(self.serve_http2(watched)).await
        } else {
            self.serve_http1(watched).await
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, error, "a connection broke");
        }
    }

    async fn serve_http2(&self, watched: Connected) -> Result<(), BoxError> {
        let limits = self.seal.limits();
        let seal = Arc::clone(&self.seal);
        let service = service_fn(move |request| {
            let seal = Arc::clone(&seal);
            async move { Ok::<_, Infallible>(Box::pin(seal.answer(request)).await) }
        });
        let executor = TaskExecutor::new("sealed stream", self.seal.tasks().clone());
        let connection = http2::Builder::new(executor)
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            .initial_stream_window_size(STREAM_WINDOW)
            .max_send_buf_size(BUFFER)
            .keep_alive_interval(PING)
            .keep_alive_timeout(limits.stall)
            .serve_connection(watched, service);
        let mut connection = Box::pin(connection);
        tokio::select! {
            ended = connection.as_mut() => return Ok(ended?),
            () = self.retiring.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        Ok(connection.await?)
    }

    /// One request after another; while an answer streams, only what writes it is there.
    async fn serve_http1(&self, mut watched: Connected) -> Result<(), BoxError> {
        loop {
            // In a place of its own, which is gone while an answer streams.
            let Some((io, streamed)) = Box::pin(self.read_requests(watched)).await? else {
                return Ok(());
            };
            watched = io;
            let keeps = streamed.keeps;
            outflow::write(&mut watched, streamed, self.clock.now()).await?;
            if !keeps || self.retiring.is_cancelled() {
                poll_fn(|cx| Pin::new(&mut watched).poll_shutdown(cx)).await?;
                return Ok(());
            }
        }
    }

    /// Reads requests and answers them, until an answer is a stream. None once the connection is over.
    async fn read_requests(&self, watched: Connected) -> Result<Option<(Connected, Streamed)>, BoxError> {
        let handed = Arc::new(Mutex::new(None));
        let writes_wait = Arc::clone(&watched.waits);
        let (seal, hand) = (Arc::clone(&self.seal), Arc::clone(&handed));
        let service = service_fn(move |request| {
            let (seal, hand) = (Arc::clone(&seal), Arc::clone(&hand));
            async move {
                let asked_by = outflow::asked_by(&request);
                let response = Box::pin(seal.answer(request)).await;
                match asked_by.filter(|_| outflow::is_streamed(&response)) {
                    None => Ok::<_, Infallible>(response),
                    Some(keeps) => {
                        *lock(&hand) = Some(Streamed { response, keeps });
                        // The connection is taken from under this.
                        std::future::pending().await
                    }
                }
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.seal.limits().head)
            .max_buf_size(BUFFER)
            .serve_connection(watched, service)
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
            // Whatever it has to say before that answer has been said once no write waits.
            let handed_over = lock(&handed).is_some() && !writes_wait.load(Ordering::Relaxed);
            if handed_over {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await?;
        let streamed = lock(&handed).take();
        Ok(streamed.and_then(|streamed| {
            let parts = (*connection).into_parts()?;
            let mut io = parts.io;
            // Not the buffer itself, which is what is to be let go of.
            io.ahead = Bytes::copy_from_slice(&parts.read_buf);
            Some((io, streamed))
        }))
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection after its handshake.
type Connected = Watched<TokioIo<Box<TlsStream<TcpStream>>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole between any two statements.
    mutex.lock()
}

/// A connection whose client must take what waits for it in time: one that does not has gone, whatever TCP says.
pub(crate) struct Watched<T> {
    io: T,
    limit: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Whether one does, for whoever has lent the connection out.
    waits: Arc<AtomicBool>,
    /// What was read of it and is still to be.
    pub(crate) ahead: Bytes,
}

impl<T> Watched<T> {
    pub(crate) fn new(io: T, limit: Duration) -> Self {
        Self {
            io,
            limit,
            stalled: None,
            waits: Arc::default(),
            ahead: Bytes::new(),
        }
    }

    /// Gives a waiting write its time.
    fn watch<R>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        self.waits.store(written.is_pending(), Ordering::Relaxed);
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: Read + Unpin> Read for Watched<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead.is_empty() {
            return Pin::new(&mut this.io).poll_read(cx, buffer);
        }
        let first = this.ahead.split_to(this.ahead.len().min(buffer.remaining()));
        buffer.put_slice(&first);
        Poll::Ready(Ok(()))
    }
}

impl<T: Write + Unpin> Write for Watched<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.watch(cx, written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(cx);
        this.watch(cx, flushed)
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
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        this.watch(cx, written)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Writes until the other side's buffer is full and then until it is over.
    async fn write_on(mut watched: Watched<TokioIo<tokio::io::DuplexStream>>) -> io::Error {
        loop {
            let written = std::future::poll_fn(|cx| Pin::new(&mut watched).poll_write(cx, &[0; 64])).await;
            if let Err(error) = written {
                return error;
            }
        }
    }

    /// Of the future that such a function returns.
    fn size_of_future<A, B, C, F: Future>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_stream_that_waits_has_little_beside_it() {
        // There are thousands of them. What is needed for a moment only, a handshake or a request's way, is in a place of its own.
        let connection = size_of_future(Door::greet);
        let stream = size_of::<crate::relay::Relay<crate::exchange::Arriving>>();
        assert!(connection <= 768, "a connection: {connection} bytes");
        assert!(stream <= 1_088, "an answer: {stream} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let (near, mut far) = tokio::io::duplex(128);
        let watched = Watched::new(TokioIo::new(near), Duration::from_secs(60));
        let started = Instant::now();
        let reading = async move {
            let mut buffer = [0; 32];
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                far.read_exact(&mut buffer).await.unwrap();
            }
            far
        };
        let (error, far) = tokio::join!(write_on(watched), reading);
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), Duration::from_secs(560));
        drop(far);
    }
}
