//! Sockets to listen on.

use std::io;
use std::net::SocketAddr;

use muster_protocol::ErrorCode;
use tokio::net::TcpListener;

use crate::error::Coded;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({}); choose another address in the configuration, or stop who holds it", advice(.source))]
pub struct BindError {
    /// The address asked for.
    pub address: SocketAddr,
    /// The operating system's reason.
    pub source: io::Error,
}

impl Coded for BindError {
    fn code(&self) -> Option<ErrorCode> {
        Some(ErrorCode::BindFailed)
    }
}

/// Listens on `address`. Port 0 takes a free one; the listener knows which.
///
/// # Errors
/// The address is taken, is not of this machine, or its port needs privileges.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| BindError { address, source })
}

fn advice(error: &io::Error) -> &'static str {
    let kind = error.kind();
    if kind == io::ErrorKind::AddrInUse {
        "another process listens there"
    } else if kind == io::ErrorKind::AddrNotAvailable {
        "this machine does not have that address"
    } else if kind == io::ErrorKind::PermissionDenied {
        "ports below 1024 need privileges"
    } else {
        "see the cause"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_address_is_named_with_its_code() {
        let first = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = first.local_addr().unwrap();
        assert_ne!(address.port(), 0);
        let error = bind(address).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BindFailed));
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        assert!(error.to_string().contains("another process"), "{error}");
    }
}
