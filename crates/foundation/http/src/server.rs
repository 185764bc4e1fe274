//! Servers of HTTP/1.1 and HTTP/2 on one port. They bound the number of connections, in all and from one address, and
//! the time of everything that a client could stretch: the head of a request, its body, a pause between requests, and
//! the reading of a response. A response may take as long as its server needs, and so may an upgraded connection.

mod bodies;
mod forwarded;
mod limits;
mod settings;
mod transport;
mod version;

use std::error::Error;
use std::future::{Future, pending};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
pub use hyper_util::service::TowerToHyperService;
use muster_process::connections::{ConnectionBounds, ConnectionCounts, ConnectionPermit, TrustedProxies};
use muster_process::listen::{Accepted, Acceptor};
use muster_process::{SharedClock, Tasks};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::bodies::InFlight;
pub use self::bodies::{BodyError, PacedBody, ResponseInFlight};
pub use self::forwarded::{ProxyHeader, client_address};
pub use self::limits::ServerLimits;
pub use self::settings::HttpSettings;
use self::transport::Transport;
pub use self::transport::{IsEncrypted, ServerTls, TlsFileError, TlsFiles};
use self::version::{HttpVersion, OpenedStream};
use crate::http1::StallTimeout;

/// Streams of one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// Bytes that an HTTP/2 connection buffers for one stream that its client does not read.
const SEND_BUFFER: usize = 64 * 1024;
/// Between two pings on an HTTP/2 connection.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// A listener's server: its name, its bounds, and the parts of the process that it needs.
#[derive(Clone, Debug)]
pub struct Server {
    /// The listener's name in the log, and the name of its tasks.
    pub name: &'static str,
    /// Bounds on connections and times; see [`ServerLimits::default`].
    pub limits: ServerLimits,
    /// The proxies whose word about their clients' addresses is believed.
    pub proxies: TrustedProxies,
    /// The header in which they write it.
    pub proxy_header: ProxyHeader,
    /// TLS, if the port speaks it.
    pub tls: Option<ServerTls>,
    /// Runs the connections.
    pub tasks: Tasks,
    /// Paces the listener when it fails.
    pub clock: SharedClock,
    /// Stops the server.
    pub stop: CancellationToken,
}

// === impl Server ===

impl Server {
    /// A server with a role's settings.
    pub fn new(
        name: &'static str,
        settings: &HttpSettings,
        tasks: Tasks,
        clock: SharedClock,
        stop: CancellationToken,
    ) -> Self {
        Self {
            name,
            limits: settings.limits(),
            proxies: settings.proxies(),
            proxy_header: settings.proxy_header,
            tls: None,
            tasks,
            clock,
            stop,
        }
    }

    /// The same server with TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<ServerTls>) -> Self {
        self.tls = tls;
        self
    }

    /// The same server with the TLS of these files, if they are named. Changed files are read again while it runs.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn with_tls_files(mut self, files: &TlsFiles) -> Result<Self, TlsFileError> {
        if let Some((tls, following)) = files.open(self.clock.clone(), self.stop.clone())? {
            self.tls = Some(tls);
            self.tasks.spawn("certificate", following);
        }
        Ok(self)
    }
}

/// The address of a request's client, in the extensions of the request: of the connection, or as a trusted proxy gives
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress(pub IpAddr);

impl ClientAddress {
    /// The client with the port of its connection, or of its proxy's.
    #[must_use]
    pub const fn at_port_of(self, peer: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.0, peer.port())
    }
}

/// Serves each connection with the service that `service_for` makes for the address of its other end, until `stop` is
/// cancelled. Then no connection is accepted any more, requests under way have [`ServerLimits::drain`] to finish, and
/// this returns once all connections are closed. Connections that were upgraded are no longer the server's.
///
/// Requests carry a [`ClientAddress`], an [`IsEncrypted`] and an `Arc<ConnectionPermit>` in their extensions.
pub async fn serve<F, S, B>(server: Server, listener: TcpListener, service_for: F)
where
    F: Fn(SocketAddr) -> S,
    S: Service<Request<PacedBody<Incoming>>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let Server { name, limits, .. } = server;
    let (tasks, stop) = (server.tasks.clone(), server.stop.clone());
    let bounds = ConnectionBounds {
        total: limits.connections,
        per_address: limits.per_address,
    };
    let acceptor = Acceptor::new(name, listener, bounds, server.clock.clone(), stop.clone())
        .behind(server.proxies.clone());
    let open = TaskTracker::new();
    let builders = Arc::new(Builders::new(&limits, TaskExecutor::new(name, tasks.clone())));
    let clients = Clients {
        // Requests of proxies' clients are counted by themselves: the proxy's connections are bounded already.
        counts: ConnectionCounts::new(ConnectionBounds {
            total: usize::MAX,
            ..bounds
        }),
        proxies: server.proxies,
        header: server.proxy_header,
    };
    let clients = Arc::new(clients);
    while let Some(Accepted { stream, peer, permit }) = acceptor.next().await {
        let requests = watch::Sender::new(0);
        let in_flight = requests.subscribe();
        let tls = server.tls.clone();
        let mut service = BoundedService {
            is_encrypted: false,
            service: service_for(peer),
            peer: peer.ip(),
            permit: Arc::new(permit),
            clients: Arc::clone(&clients),
            requests,
            body: limits.body,
        };
        let (builders, stop) = (Arc::clone(&builders), stop.clone());
        let connection = async move {
            let opening = timeout(limits.head, open_http(stream, tls.as_ref()));
            let opened = tokio::select! {
                opened = opening => opened,
                () = stop.cancelled() => return,
            };
            // A client that sends nothing in time, or hangs up, is no error of ours.
            let Ok(Ok(Some((version, stream)))) = opened else {
                return;
            };
            service.is_encrypted = stream.is_encrypted();
            let io = StallTimeout::new(TokioIo::new(stream), limits.stall);
            let end = ConnectionEnd {
                limits,
                stop,
                in_flight,
            };
            match version {
                HttpVersion::Http1 => {
                    let serving = builders.http1.serve_connection(io, service).with_upgrades();
                    end.drive(serving, |serving| serving.graceful_shutdown()).await;
                }
                HttpVersion::Http2 => {
                    let serving = builders.http2.serve_connection(io, service);
                    // Few connections speak it, and its state is large.
                    Box::pin(end.drive(serving, |serving| serving.graceful_shutdown())).await;
                }
            }
        };
        tasks.spawn(name, open.track_future(connection));
    }
    // Its socket closes with it: a client that comes now is refused at once, and does not wait for the last request.
    drop(acceptor);
    open.close();
    open.wait().await;
}

/// Opens a connection to its first bytes of HTTP. `None` if its client was notified that the port speaks TLS only.
async fn open_http(
    stream: TcpStream,
    tls: Option<&ServerTls>,
) -> io::Result<Option<(HttpVersion, OpenedStream<Transport>)>> {
    match transport::open(stream, tls).await? {
        Some(transport) => OpenedStream::open(transport).await.map(Some),
        None => Ok(None),
    }
}

/// The rules by which a connection ends.
struct ConnectionEnd {
    limits: ServerLimits,
    stop: CancellationToken,
    /// The number of requests in flight.
    in_flight: watch::Receiver<usize>,
}

// === impl ConnectionEnd ===

impl ConnectionEnd {
    /// Serves a connection until it ends by itself, has idled too long, or the server stops. `shut_down` lets it take
    /// no further request.
    async fn drive<C: Future>(self, connection: C, shut_down: fn(Pin<&mut C>)) {
        let Self {
            limits,
            stop,
            in_flight,
        } = self;
        let mut serving = pin!(connection);
        tokio::select! {
            _ = serving.as_mut() => return,
            () = stop.cancelled() => {}
            () = wait_until_idle(in_flight.clone(), limits.head) => {
                shut_down(serving.as_mut());
                // A request that has just come is answered; a client that does not hang up is not waited for.
                tokio::select! {
                    _ = serving.as_mut() => return,
                    () = stop.cancelled() => {}
                    () = wait_until_idle(in_flight, limits.drain) => return,
                }
            }
        }
        shut_down(serving.as_mut());
        let _ = timeout(limits.drain, serving).await;
    }
}

/// Returns once no request has been in flight for as long as `limit`.
async fn wait_until_idle(mut requests: watch::Receiver<usize>, limit: Duration) {
    loop {
        let is_idle = *requests.borrow_and_update() == 0;
        let changed = if is_idle {
            match timeout(limit, requests.changed()).await {
                Ok(changed) => changed,
                Err(_) => return,
            }
        } else {
            requests.changed().await
        };
        if changed.is_err() {
            // The connection's service is gone, so the connection has ended or was upgraded.
            return pending().await;
        }
    }
}

/// The settings of both versions of HTTP, shared by all connections of a server.
struct Builders {
    http1: http1::Builder,
    http2: http2::Builder<TaskExecutor>,
}

// === impl Builders ===

impl Builders {
    fn new(limits: &ServerLimits, executor: TaskExecutor) -> Self {
        let (mut http1, mut http2) = (http1::Builder::new(), http2::Builder::new(executor));
        http1.timer(TokioTimer::new()).header_read_timeout(limits.head);
        http2
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .max_concurrent_streams(MAX_STREAMS)
            .max_send_buf_size(SEND_BUFFER);
        Self { http1, http2 }
    }
}

/// The rules for clients behind proxies, shared by all connections of a server.
struct Clients {
    counts: ConnectionCounts,
    proxies: TrustedProxies,
    header: ProxyHeader,
}

/// A connection's service within the server's bounds.
struct BoundedService<S> {
    service: S,
    /// Whether the connection has TLS.
    is_encrypted: bool,
    /// The other end of the connection: the client, or a proxy.
    peer: IpAddr,
    permit: Arc<ConnectionPermit>,
    clients: Arc<Clients>,
    /// The number of requests in flight.
    requests: watch::Sender<usize>,
    /// The time in which a body must bring another KiB, as the server's limits set it.
    body: Duration,
}

// === impl Clients, BoundedService ===

impl Clients {
    /// The address of a request's client, and the client's place if it is behind a proxy.
    ///
    /// # Errors
    /// The client has as many requests in flight as it may have.
    fn admit(
        &self,
        peer: IpAddr,
        headers: &http::HeaderMap,
    ) -> Result<(ClientAddress, Option<Arc<ConnectionPermit>>), TooManyRequests> {
        let client = client_address(peer, headers, &self.proxies, self.header);
        if client == peer.to_canonical() {
            return Ok((ClientAddress(client), None));
        }
        let permit = self.counts.admit(Some(client)).map_err(|_| TooManyRequests)?;
        Ok((ClientAddress(client), Some(Arc::new(permit))))
    }
}

struct TooManyRequests;

impl<S, B> Service<Request<Incoming>> for BoundedService<S>
where
    S: Service<Request<PacedBody<Incoming>>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<ResponseInFlight<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let (client, place) = match self.clients.admit(self.peer, request.headers()) {
            Ok(admitted) => admitted,
            Err(TooManyRequests) => return Box::pin(async { Ok(too_many_requests()) }),
        };
        let permit = place.clone().unwrap_or_else(|| Arc::clone(&self.permit));
        let extensions = request.extensions_mut();
        extensions.insert(client);
        extensions.insert(IsEncrypted(self.is_encrypted));
        extensions.insert(permit);
        let in_flight = InFlight::begin(&self.requests, place);
        let limit = self.body;
        let answering = self.service.call(request.map(|body| PacedBody::new(body, limit)));
        Box::pin(async move {
            let response = answering.await?;
            Ok(response.map(|body| ResponseInFlight::new(Either::Left(body), Some(in_flight))))
        })
    }
}

fn too_many_requests<B>() -> Response<ResponseInFlight<B>> {
    let reason = "{\"detail\":\"Too many requests of this address are being answered; try again.\"}";
    let body = Either::Right(Full::from(reason));
    let mut response = Response::new(ResponseInFlight::new(body, None));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
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

#[cfg(test)]
mod tests;
