//! Servers of HTTP/1.1 and HTTP/2 on one port, bounded in connections, in the time of a request's head and in the time
//! to stop.

use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
pub use hyper_util::service::TowerToHyperService;
use muster_process::listen::{Accepted, Acceptor};
use muster_process::{SharedClock, Tasks};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Streams of one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// Bytes that an HTTP/2 connection buffers for one stream that its client does not read.
const SEND_BUFFER: usize = 64 * 1024;
/// Between two pings on an HTTP/2 connection.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The first bytes of a connection that speaks HTTP/2 (RFC 9113, 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Open connections. A connection that was upgraded (to a websocket) counts no longer.
    pub connections: usize,
    /// From the moment a request is waited for until its head is complete; a connection that idles longer is closed.
    pub head: Duration,
    /// How long requests may go on after the server was told to stop.
    pub drain: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            head: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

/// Serves each connection with the service that `service_for` makes for the address of its client, until `stop` is
/// cancelled. Then no connection is accepted any more, requests under way have [`ServerLimits::drain`] to finish, and
/// this returns once all connections are closed. Connections that were upgraded are no longer the server's.
///
/// `name` is the listener's name in the log and the name of its tasks.
pub async fn serve<F, S, B>(
    name: &'static str,
    listener: TcpListener,
    limits: ServerLimits,
    service_for: F,
    tasks: Tasks,
    clock: SharedClock,
    stop: CancellationToken,
) where
    F: Fn(SocketAddr) -> S,
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let acceptor = Acceptor::new(name, listener, limits.connections, clock, stop.clone());
    let open = TaskTracker::new();
    let builder = builder(&limits, TaskExecutor::new(name, tasks.clone()));
    while let Some(Accepted { stream, peer, permit }) = acceptor.next().await {
        let (builder, service, stop) = (builder.clone(), service_for(peer), stop.clone());
        let io = TokioIo::new(VersionDeadline::new(stream, limits.head));
        let connection = async move {
            let mut serving = pin!(builder.serve_connection_with_upgrades(io, service));
            // A client that hangs up is no error of ours.
            if stop.run_until_cancelled(serving.as_mut()).await.is_none() {
                serving.as_mut().graceful_shutdown();
                let _ = timeout(limits.drain, serving).await;
            }
            drop(permit);
        };
        tasks.spawn(name, open.track_future(connection));
    }
    open.close();
    open.wait().await;
}

fn builder(limits: &ServerLimits, executor: TaskExecutor) -> Builder<TaskExecutor> {
    let mut builder = Builder::new(executor);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(SEND_BUFFER);
    builder
}

/// For [`serve`]: one service for all connections, whose requests carry `extension(address of the client)`.
pub fn with_peer<S: Clone, T>(
    service: S,
    extension: fn(SocketAddr) -> T,
) -> impl Fn(SocketAddr) -> WithPeer<S, T> {
    move |peer| WithPeer {
        service: service.clone(),
        extension: extension(peer),
    }
}

/// A service that adds a value to the extensions of each request; see [`with_peer`].
#[derive(Clone, Debug)]
pub struct WithPeer<S, T> {
    service: S,
    extension: T,
}

// === impl WithPeer ===

impl<S, T, B> Service<Request<B>> for WithPeer<S, T>
where
    S: Service<Request<B>>,
    T: Clone + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(self.extension.clone());
        self.service.call(request)
    }
}

/// Runs what hyper spawns (the streams of an HTTP/2 connection) as named tasks of the process.
#[derive(Clone, Debug)]
pub struct TaskExecutor {
    name: &'static str,
    tasks: Tasks,
}

// === impl TaskExecutor ===

impl TaskExecutor {
    /// Spawns on `tasks` under this name.
    pub const fn new(name: &'static str, tasks: Tasks) -> Self {
        Self { name, tasks }
    }
}

impl<F> hyper::rt::Executor<F> for TaskExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.tasks.spawn(self.name, future);
    }
}

/// Fails to read once a connection has not shown in time which version of HTTP it speaks. Hyper bounds the time of
/// heads, and only from that moment on.
struct VersionDeadline {
    stream: TcpStream,
    /// Bytes of [`HTTP2_PREFACE`] that came.
    matched: usize,
    /// `None` once the version is known.
    deadline: Option<Pin<Box<Sleep>>>,
}

// === impl VersionDeadline ===

impl VersionDeadline {
    fn new(stream: TcpStream, after: Duration) -> Self {
        Self {
            stream,
            matched: 0,
            deadline: Some(Box::pin(sleep(after))),
        }
    }

    fn look_at(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if HTTP2_PREFACE.get(self.matched) != Some(byte) {
                self.deadline = None;
                return;
            }
            self.matched += 1;
        }
        if self.matched == HTTP2_PREFACE.len() {
            self.deadline = None;
        }
    }
}

impl AsyncRead for VersionDeadline {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(deadline) = &mut self.deadline else {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        };
        if deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.look_at(buf.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for VersionDeadline {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use hyper::service::service_fn;
    use muster_process::{TestClock, listen};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Notify;

    use super::*;

    const LIMITS: ServerLimits = ServerLimits {
        connections: 2,
        head: Duration::from_millis(200),
        drain: Duration::from_millis(200),
    };
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

    /// A server that answers each request with its client's address.
    struct Server {
        address: SocketAddr,
        stop: CancellationToken,
        serving: muster_process::task::Task<()>,
        /// Notified when a request arrives.
        arrived: Arc<Notify>,
        /// Answers wait for it where the server was started with `waits`.
        release: Arc<Notify>,
    }

    async fn start(waits: bool) -> Server {
        let listener = listen::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (arrived, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let signals = (Arc::clone(&arrived), Arc::clone(&release));
        let service = service_fn(move |request: Request<Incoming>| {
            let (arrived, release) = signals.clone();
            async move {
                arrived.notify_one();
                if waits {
                    release.notified().await;
                }
                let peer = request.extensions().get::<SocketAddr>().unwrap().to_string();
                Ok::<_, Infallible>(Response::new(peer))
            }
        });
        let (tasks, stop) = (Tasks::new(), CancellationToken::new());
        let clock = Arc::new(TestClock::default());
        let service_for = with_peer(service, |peer| peer);
        let serving = serve(
            "test",
            listener,
            LIMITS,
            service_for,
            tasks.clone(),
            clock,
            stop.clone(),
        );
        Server {
            address,
            stop,
            serving: tasks.spawn("serve", serving),
            arrived,
            release,
        }
    }

    async fn read_to_end(mut stream: TcpStream) -> String {
        let mut text = String::new();
        let _ = timeout(Duration::from_secs(20), stream.read_to_string(&mut text))
            .await
            .expect("the server does not hang up");
        text
    }

    #[tokio::test]
    async fn a_request_is_answered_and_knows_its_client() {
        let server = start(false).await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let own = stream.local_addr().unwrap();
        stream.write_all(REQUEST).await.unwrap();
        // The server closes the connection because it idles.
        let answer = read_to_end(stream).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with(&own.to_string()),
            "{answer}"
        );
        server.stop.cancel();
        server.serving.join().await.unwrap();
    }

    #[tokio::test]
    async fn clients_that_say_nothing_or_too_little_are_disconnected() {
        let server = start(false).await;
        for beginning in [&b""[..], b"P", b"PRI * HTTP/2", b"GET / HTTP/1.1\r\nHost: "] {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(beginning).await.unwrap();
            let answer = read_to_end(stream).await;
            assert!(!answer.contains("200"), "{answer}");
        }
    }

    #[tokio::test]
    async fn no_more_connections_than_the_bound_are_open() {
        let server = start(true).await;
        let mut busy = Vec::new();
        for _ in 0..LIMITS.connections {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(REQUEST).await.unwrap();
            server.arrived.notified().await;
            busy.push(stream);
        }
        let mut late = TcpStream::connect(server.address).await.unwrap();
        let _ = late.write_all(REQUEST).await;
        assert_eq!(read_to_end(late).await, "");
        server.release.notify_waiters();
        for stream in busy {
            assert!(read_to_end(stream).await.contains("200"));
        }
    }

    #[tokio::test]
    async fn a_stop_lets_requests_finish_and_waits_for_no_others() {
        for finishes in [true, false] {
            let server = start(true).await;
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(REQUEST).await.unwrap();
            server.arrived.notified().await;
            server.stop.cancel();
            if finishes {
                server.release.notify_one();
            }
            let ended = timeout(Duration::from_secs(20), server.serving.join()).await;
            ended.unwrap().unwrap();
            assert_eq!(read_to_end(stream).await.contains("200"), finishes);
            assert!(TcpStream::connect(server.address).await.is_err());
        }
    }
}
