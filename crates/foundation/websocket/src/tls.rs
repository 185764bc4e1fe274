//! Websockets between parties that know each other's certificates (see [`muster_process::tls`]): one dials, one listens.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use muster_process::task::Tasks;
use muster_process::{SharedClock, tls};
use muster_protocol::{Digest, MUSTER_PROTOCOL_HEADER, MUSTER_PROTOCOL_VERSION};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::{MaybeTlsStream, client_async_with_config};
use tokio_util::sync::CancellationToken;

use crate::client::{handshake, shows_muster};
use crate::error::ConnectError;
use crate::limits::Limits;
use crate::server::upgrade;
use crate::socket::{Io, Socket};

/// Connections that may be between accepting and a known certificate at once.
const MAX_STRANGERS: usize = 64;
/// After a failed accept, so that a lack of file descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Dials `address` (`host:port`) and opens a websocket at `path` over TLS. Only the peer that `config` knows is talked to.
///
/// # Errors
/// Nobody there, somebody else there, a refusal, an answer that is not websocket, or none in time.
pub async fn connect_known(
    address: &str,
    path: &str,
    config: Arc<ClientConfig>,
    limits: &Limits,
) -> Result<Socket, ConnectError> {
    let url = format!("wss://{address}{path}");
    timeout(limits.handshake, dial(address, &url, config, limits))
        .await
        .map_err(|_| ConnectError::Timeout {
            url: url.clone(),
            after: limits.handshake,
        })?
}

async fn dial(
    address: &str,
    url: &str,
    config: Arc<ClientConfig>,
    limits: &Limits,
) -> Result<Socket, ConnectError> {
    let unreachable = |source| ConnectError::Unreachable {
        url: url.to_owned(),
        source,
    };
    let tcp = TcpStream::connect(address).await.map_err(unreachable)?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    let peer = tcp.peer_addr().map_err(unreachable)?;
    // The certificate says who answers, not the name.
    let name = ServerName::IpAddress(peer.ip().into());
    let tls = TlsConnector::from(config).connect(name, tcp).await;
    let tls = tls.map_err(|source| ConnectError::Tls {
        url: url.to_owned(),
        source,
    })?;
    let mut request = url
        .into_client_request()
        .map_err(|source| handshake(url, source))?;
    request.headers_mut().insert(
        MUSTER_PROTOCOL_HEADER,
        HeaderValue::from_static(MUSTER_PROTOCOL_VERSION),
    );
    let io: Box<dyn Io> = Box::new(tls);
    let opened = client_async_with_config(request, MaybeTlsStream::Plain(io), Some(limits.websocket())).await;
    let (frames, response) = opened.map_err(|source| {
        // A peer that does not take our certificate says so only once TLS is up.
        if let tokio_tungstenite::tungstenite::Error::Io(source) = source {
            let url = url.to_owned();
            return ConnectError::Tls { url, source };
        }
        handshake(url, source)
    })?;
    Ok(Socket::over(
        frames,
        peer,
        shows_muster(response.headers()),
        limits,
    ))
}

/// Who decides about callers and talks to them.
pub trait Callers: Send + Sync + 'static {
    /// Whether whoever holds this certificate may speak at all. Asked before a byte of it is read.
    fn admits(&self, certificate: Digest) -> impl Future<Output = bool> + Send;

    /// Talks to it, to the end of the connection.
    fn serve(&self, socket: Socket, certificate: Digest) -> impl Future<Output = ()> + Send;
}

/// Listens until `stop` is cancelled; open connections live on as tasks of their own. Whatever path is asked for, there is
/// one websocket here.
pub async fn listen<C: Callers>(
    listener: TcpListener,
    config: ServerConfig,
    limits: Limits,
    callers: Arc<C>,
    tasks: Tasks,
    clock: SharedClock,
    stop: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let strangers = Arc::new(Semaphore::new(MAX_STRANGERS));
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let (tcp, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                let _ = stop.run_until_cancelled(clock.sleep(ACCEPT_PAUSE)).await;
                continue;
            }
        };
        // One too many waits for nothing: it is hung up on.
        let Ok(permit) = Arc::clone(&strangers).try_acquire_owned() else {
            continue;
        };
        let (acceptor, callers, own) = (acceptor.clone(), Arc::clone(&callers), tasks.clone());
        tasks.spawn("tls connection", async move {
            let greeted = timeout(limits.handshake, greet(&acceptor, tcp, &*callers)).await;
            drop(permit);
            match greeted {
                Ok(Ok(Some((tls, certificate)))) => {
                    answer(tls, certificate, peer, limits, callers, &own).await;
                }
                Ok(Ok(None)) => tracing::warn!(%peer, "a caller with an unknown certificate was hung up on"),
                Ok(Err(error)) => tracing::warn!(%peer, %error, "a caller did not come through TLS"),
                Err(_) => tracing::debug!(%peer, "a caller was too slow"),
            }
        });
    }
}

type Tls = tokio_rustls::server::TlsStream<TcpStream>;

async fn greet<C: Callers>(
    acceptor: &TlsAcceptor,
    tcp: TcpStream,
    callers: &C,
) -> io::Result<Option<(Tls, Digest)>> {
    tcp.set_nodelay(true)?;
    let tls = acceptor.accept(tcp).await?;
    let shown = tls.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let Some(certificate) = shown.map(tls::fingerprint) else {
        return Ok(None);
    };
    Ok(callers.admits(certificate).await.then_some((tls, certificate)))
}

async fn answer<C: Callers>(
    tls: Tls,
    certificate: Digest,
    peer: SocketAddr,
    limits: Limits,
    callers: Arc<C>,
    tasks: &Tasks,
) {
    let service = service_fn(|request| {
        let callers = Arc::clone(&callers);
        let on_socket = move |socket| async move { callers.serve(socket, certificate).await };
        let answer = upgrade(request, peer, &limits, tasks, on_socket);
        async { Ok::<_, std::convert::Infallible>(answer) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.handshake)
        .serve_connection(TokioIo::new(tls), service)
        .with_upgrades();
    if let Err(error) = serving.await {
        tracing::debug!(%peer, %error, "a caller left before its websocket was open");
    }
}
