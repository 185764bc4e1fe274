//! The socket: JSON-RPC over websockets and HTTP on the loopback interface, and nowhere else.

use crate::node::Node;
use crate::rpc;
use jsonrpsee::server::{Server, ServerConfig, ServerHandle};
use std::net::{Ipv4Addr, SocketAddr};

/// Room for a metagraph of thousands of neurons and for the metadata, in hexadecimal.
const MAX_MESSAGE: u32 = 64 * 1024 * 1024;

/// Why the node is not reachable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port is taken or forbidden.
    #[error("listening on 127.0.0.1:{port} failed; choose another port with --port, or 0 for a free one")]
    Bind {
        /// The port that was asked for.
        port: u16,
        /// What the system said.
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
pub async fn serve(node: &Node, port: u16) -> Result<Running, Error> {
    let bind = |source| Error::Bind { port, source };
    let config = ServerConfig::builder()
        .max_request_body_size(MAX_MESSAGE)
        .max_response_body_size(MAX_MESSAGE)
        .max_connections(1024)
        .build();
    let server = Server::builder()
        .set_config(config)
        .build((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(bind)?;
    let address = server.local_addr().map_err(bind)?;
    let handle = server.start(rpc::module(node)?);
    Ok(Running { address, handle })
}
