//! A connection that can be broken from this side, as if the network had failed.

use crate::node::Node;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// A client's connection.
pub(crate) struct Connection {
    stream: TcpStream,
    broken: oneshot::Receiver<()>,
    cut: bool,
    id: u32,
    node: Node,
}

impl Connection {
    /// Wraps a stream, unless connections are refused now.
    pub(crate) fn new(stream: TcpStream, id: u32, node: &Node) -> Option<Self> {
        Some(Self {
            stream,
            broken: node.faults().connected(id)?,
            cut: false,
            id,
            node: node.clone(),
        })
    }

    fn failure() -> io::Error {
        io::ErrorKind::ConnectionReset.into()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.node.faults().disconnected(self.id);
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Somebody always reads: the end is noticed here, and the flag notifies a writer.
        if self.cut || Pin::new(&mut self.broken).poll(context).is_ready() {
            self.cut = true;
            return Poll::Ready(Err(Self::failure()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.cut {
            return Poll::Ready(Err(Self::failure()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
