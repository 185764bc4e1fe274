//! The socket: JSON-RPC over websockets and HTTP on the loopback interface, and nowhere else.

use crate::connection::Connection;
use crate::faults::Faulty;
use crate::node::Node;
use crate::rpc;
use jsonrpsee::server::middleware::rpc::RpcServiceBuilder;
use jsonrpsee::server::{Server, ServerConfig, ServerHandle, serve_with_graceful_shutdown, stop_channel};
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// How much clients may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once.
    pub connections: u32,
    /// Subscriptions on one connection.
    pub subscriptions: u32,
    /// Bytes of a request.
    pub request: u32,
    /// Bytes of an answer.
    pub response: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            subscriptions: 1024,
            // As a Substrate node.
            request: 15 * 1024 * 1024,
            // Room for a metagraph of ten thousand neurons with their weights, in hexadecimal.
            response: 64 * 1024 * 1024,
        }
    }
}

/// Why the node is not reachable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port is taken or forbidden.
    #[error("listening on 127.0.0.1:{port} failed; choose another port with --port, or 0 for a free one")]
    Bind {
        /// The port that was asked for.
        port: u16,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Two methods have one name.
    #[error("registering the RPC methods failed")]
    Methods(#[from] jsonrpsee::core::RegisterMethodError),
}

/// A running server. It stops when this is dropped.
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    handle: ServerHandle,
    /// Ends the accepting when it is dropped.
    _accepting: oneshot::Sender<()>,
}

impl Running {
    /// Closes all connections and waits until they are closed.
    pub async fn stop(self) {
        // It may have stopped already, which is what was asked for.
        let _ = self.handle.stop();
        self.handle.stopped().await;
    }
}

/// Serves a node on a port; 0 for a free one.
///
/// # Errors
/// When the port cannot be bound.
pub async fn serve(node: &Node, port: u16, limits: Limits) -> Result<Running, Error> {
    let bind = |source| Error::Bind { port, source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    let methods = rpc::module(node)?;
    let config = ServerConfig::builder()
        .max_request_body_size(limits.request)
        .max_response_body_size(limits.response)
        .max_connections(limits.connections)
        .max_subscriptions_per_connection(limits.subscriptions)
        .build();
    let (service, most) = (
        node.clone(),
        usize::try_from(limits.response).unwrap_or(usize::MAX),
    );
    let faulty = RpcServiceBuilder::new().layer_fn(move |inner| Faulty {
        service: inner,
        node: service.clone(),
        most,
    });
    let builder = Server::builder()
        .set_config(config)
        .set_rpc_middleware(faulty)
        .to_service_builder();
    let (stop, handle) = stop_channel();
    let (accepting, mut dropped) = oneshot::channel();
    let node = node.clone();
    tokio::spawn(async move {
        let mut id = 0u32;
        loop {
            let stream = tokio::select! {
                stream = accept(&listener) => stream,
                () = stop.clone().shutdown() => return,
                _ = &mut dropped => return,
            };
            id = id.wrapping_add(1);
            // A refused connection is closed at once.
            let Some(connection) = Connection::new(stream, id, &node) else {
                continue;
            };
            let service = builder
                .clone()
                .connection_id(id)
                .build(methods.clone(), stop.clone());
            let stopped = stop.clone().shutdown();
            tokio::spawn(async move {
                if let Err(problem) = serve_with_graceful_shutdown(connection, service, stopped).await {
                    tracing::debug!(%problem, "a connection ended");
                }
            });
        }
    });
    Ok(Running {
        address,
        handle,
        _accepting: accepting,
    })
}

/// The next connection. A failure of one does not affect the next.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Small answers must not wait for more.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(problem) => {
                tracing::warn!(%problem, "accepting a connection failed");
                // No file descriptors are left, most likely: others must close theirs first.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}
