//! Websockets between parties that know each other's certificates, see [`muster_process::tls`].

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use muster_process::connections::ConnectionBounds;
use muster_process::listen::{Accepted, Acceptor};
use muster_process::task::Tasks;
use muster_process::{SharedClock, tls};
use muster_protocol::Digest;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_tungstenite::{MaybeTlsStream, client_async_with_config};
use tokio_util::sync::CancellationToken;

use crate::error::ConnectError;
use crate::handshake::{failed_handshake, upgrade_request};
use crate::io::Io;
use crate::limits::Limits;
use crate::peer::PeerKind;
use crate::server::upgrade;
use crate::socket::Socket;

/// Connections whose certificate is not known yet, at a time. Executors of one machine dial together.
const STRANGERS: ConnectionBounds = ConnectionBounds {
    total: 64,
    per_address: 32,
};

/// Dials `address` (`host:port`) and opens a websocket at `path` over TLS, with the one peer whose certificate `config`
/// knows.
///
/// # Errors
/// No process listens there, its certificate is another one, or it does not upgrade to a websocket in time.
pub async fn connect_known(
    address: &str,
    path: &str,
    config: Arc<ClientConfig>,
    limits: &Limits,
) -> Result<Socket, ConnectError> {
    let url = format!("wss://{address}{path}");
    let tcp = TcpStream::connect(address);
    timeout(limits.handshake, dial(tcp, None, &url, config, limits))
        .await
        .map_err(|_| ConnectError::Timeout {
            url: url.clone(),
            after: limits.handshake,
        })?
}

/// Dials the one peer that has this certificate, without a certificate of our own.
pub(crate) async fn dial_pinned(
    address: (&str, u16),
    url: &str,
    certificate: Digest,
    limits: &Limits,
) -> Result<Socket, ConnectError> {
    let fault = |error: tokio_rustls::rustls::Error| ConnectError::Tls {
        url: url.to_owned(),
        source: io::Error::other(error),
    };
    let config = tls::client_without_certificate(certificate).map_err(fault)?;
    let name = tls::known_server_name(certificate).map_err(fault)?;
    let tcp = TcpStream::connect(address);
    dial(tcp, Some(name), url, Arc::new(config), limits).await
}

/// `name` shows the peer which of its certificates is known.
async fn dial(
    tcp: impl Future<Output = io::Result<TcpStream>>,
    name: Option<ServerName<'static>>,
    url: &str,
    config: Arc<ClientConfig>,
    limits: &Limits,
) -> Result<Socket, ConnectError> {
    let unreachable = |source| ConnectError::Unreachable {
        url: url.to_owned(),
        source,
    };
    let tcp = tcp.await.map_err(unreachable)?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    let peer = tcp.peer_addr().map_err(unreachable)?;
    // The peer is known by its certificate, not by its name.
    let name = name.unwrap_or_else(|| ServerName::IpAddress(peer.ip().into()));
    let tls = TlsConnector::from(config).connect(name, tcp).await;
    let tls = tls.map_err(|source| ConnectError::Tls {
        url: url.to_owned(),
        source,
    })?;
    let request = upgrade_request(url)?;
    let io: Box<dyn Io> = Box::new(tls);
    let opened = client_async_with_config(request, MaybeTlsStream::Plain(io), Some(limits.websocket())).await;
    let (frames, response) = opened.map_err(|source| {
        // In TLS 1.3 a peer rejects our certificate only after the handshake.
        if let tokio_tungstenite::tungstenite::Error::Io(source) = source {
            let url = url.to_owned();
            return ConnectError::Tls { url, source };
        }
        failed_handshake(url, source)
    })?;
    Ok(Socket::over(
        frames,
        peer,
        PeerKind::read(response.headers()),
        limits,
    ))
}

/// Decides which callers are admitted, and serves them.
pub trait Callers: Send + Sync + 'static {
    /// Whether the holder of this certificate is admitted. Asked before any of its messages is read.
    fn admits(&self, certificate: Digest) -> impl Future<Output = bool> + Send;

    /// Serves the caller to the end of the connection.
    fn serve(&self, socket: Socket, certificate: Digest) -> impl Future<Output = ()> + Send;
}

/// Listens until `stop` is cancelled; open connections live on as tasks of their own. Every path leads to the same
/// websocket.
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
    let accepting = Acceptor::new("tls", listener, STRANGERS, clock, stop);
    while let Some(Accepted { stream, peer, permit }) = accepting.next().await {
        let (acceptor, callers, own) = (acceptor.clone(), Arc::clone(&callers), tasks.clone());
        tasks.spawn("tls connection", async move {
            let greeted = timeout(limits.handshake, greet(&acceptor, stream, &*callers)).await;
            drop(permit);
            match greeted {
                Ok(Ok(Some((tls, certificate)))) => {
                    answer(tls, certificate, peer, limits, callers, &own).await;
                }
                Ok(Ok(None)) => {
                    tracing::warn!(%peer, "a caller with an unknown certificate was disconnected")
                }
                Ok(Err(error)) => tracing::warn!(%peer, %error, "the TLS handshake with a caller failed"),
                Err(_) => tracing::debug!(%peer, "a caller did not finish the TLS handshake in time"),
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
        tracing::debug!(%peer, %error, "a caller disconnected before its websocket was open");
    }
}
