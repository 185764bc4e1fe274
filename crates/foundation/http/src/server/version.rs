//! The version of HTTP that a connection speaks, by its first bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio_util::either::Either;

use super::transport::Transport;

/// The first bytes of a connection that speaks HTTP/2 (RFC 9113, 3.4).
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The version of HTTP that a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpVersion {
    /// HTTP/1.0 or 1.1.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
}

/// A connection whose first bytes were read to learn its version. Its reader gets them again, and in the same read the
/// bytes that follow them: hyper doubles the buffer of a connection whose first read is a short one.
#[derive(Debug)]
pub(super) struct OpenedStream<S> {
    stream: S,
    first: [u8; HTTP2_PREFACE.len()],
    /// The end of the bytes in `first`.
    filled: usize,
    /// The end of those that were read again.
    taken: usize,
}

// === impl OpenedStream ===

impl<S: AsyncRead + Unpin> OpenedStream<S> {
    /// Reads until the connection has shown its version.
    ///
    /// # Errors
    /// The connection breaks or ends before that.
    pub(super) async fn open(mut stream: S) -> io::Result<(HttpVersion, Self)> {
        let mut first = [0; HTTP2_PREFACE.len()];
        let mut filled = 0;
        loop {
            let rest = first.get_mut(filled..).unwrap_or_default();
            let count = stream.read(rest).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += count;
            let version = if first.get(..filled) != HTTP2_PREFACE.get(..filled) {
                HttpVersion::Http1
            } else if filled == HTTP2_PREFACE.len() {
                HttpVersion::Http2
            } else {
                continue;
            };
            let opened = Self {
                stream,
                first,
                filled,
                taken: 0,
            };
            return Ok((version, opened));
        }
    }
}

impl OpenedStream<Transport> {
    /// Whether the connection has TLS.
    pub(super) const fn is_encrypted(&self) -> bool {
        matches!(self.stream, Either::Right(_))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for OpenedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let first = this.first.get(this.taken..this.filled).unwrap_or_default();
        if first.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let count = first.len().min(buf.remaining());
        buf.put_slice(first.get(..count).unwrap_or_default());
        this.taken += count;
        if this.taken == this.filled && buf.remaining() > 0 {
            // A stream without further bytes, or with an error, reports it again at the next read.
            let _ = Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for OpenedStream<S> {
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
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// The two ends of a connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn the_first_bytes_tell_the_version_and_are_read_with_those_behind_them() {
        let preface = HTTP2_PREFACE.as_slice();
        for (sent, version) in [
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), HttpVersion::Http1),
            (b"PRI * HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), HttpVersion::Http1),
            (b"P x".to_vec(), HttpVersion::Http1),
            (preface.to_vec(), HttpVersion::Http2),
            ([preface, b"\0\0\0\x04\0\0\0\0\0"].concat(), HttpVersion::Http2),
        ] {
            let (mut client, server) = pair().await;
            client.write_all(&sent).await.unwrap();
            server.readable().await.unwrap();
            let (found, mut opened) = OpenedStream::open(server).await.unwrap();
            assert_eq!(found, version, "{sent:?}");
            let mut read = vec![0; 100];
            let count = opened.read(&mut read).await.unwrap();
            assert_eq!(
                read.get(..count),
                Some(sent.as_slice()),
                "one read has everything"
            );
            client.write_all(b"more").await.unwrap();
            let count = opened.read(&mut read).await.unwrap();
            assert_eq!(read.get(..count), Some(b"more".as_slice()));
        }
    }

    #[tokio::test]
    async fn a_small_buffer_gets_the_first_bytes_in_order() {
        let (mut client, server) = pair().await;
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let (_, mut opened) = OpenedStream::open(server).await.unwrap();
        let mut read = [0; 5];
        opened.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"GET /");
        opened.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b" HTTP");
    }

    #[tokio::test]
    async fn a_connection_that_ends_before_its_version_is_known_is_an_error() {
        let (mut client, server) = pair().await;
        client.write_all(b"PRI * HTTP").await.unwrap();
        drop(client);
        let ended = OpenedStream::open(server).await.map(|(version, _)| version);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
