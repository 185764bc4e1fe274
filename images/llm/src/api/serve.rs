//! Listening: a Unix socket or a port, and no more connections than there is room for.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Where the engine listens.
#[derive(Clone, Debug)]
pub enum Address {
    /// A Unix socket; a dead one of the same name is replaced.
    Socket(PathBuf),
    /// A TCP port on all addresses.
    Port(u16),
}

/// Serves until `stop` resolves, then lets open requests finish. Further connections wait in the system's queue.
///
/// # Errors
/// The address cannot be had.
pub async fn serve(
    address: &Address,
    connections: usize,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(connections));
    match address {
        Address::Socket(path) => {
            let inner = bind(path)?;
            axum::serve(Limited { inner, permits }, router)
                .with_graceful_shutdown(stop)
                .await
        }
        Address::Port(port) => {
            let inner = TcpListener::bind(("0.0.0.0", *port)).await?;
            axum::serve(Limited { inner, permits }, router)
                .with_graceful_shutdown(stop)
                .await
        }
    }
}

/// Seconds since 1970.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "only shown to clients; nothing here decides by the time of day"
)]
pub fn unix_seconds() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is something that is no socket",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    // Every user with access to the folder may connect: the owner of the mount need not be the user in the container.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

struct Limited<L> {
    inner: L,
    permits: Arc<Semaphore>,
}

impl<L> Listener for Limited<L>
where
    L: Listener,
    L::Io: Unpin,
{
    type Io = Held<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // The semaphore is never closed; a connection without a permit would only lift the limit.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        let (io, address) = self.inner.accept().await;
        (Held { io, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

/// A connection that counts until it is closed.
struct Held<T> {
    io: T,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Held<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Held<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
