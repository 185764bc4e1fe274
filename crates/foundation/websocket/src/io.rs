//! The byte streams that a socket runs over.

use tokio::io::{AsyncRead, AsyncWrite};

/// TCP, TLS or an upgraded HTTP connection.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}
