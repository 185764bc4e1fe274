//! TLS on a server's port, beside HTTP without it: the first byte of a connection distinguishes the two.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_process::config::Problem;
use muster_process::{SharedClock, tls};
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

/// The first byte of a TLS connection: the type of the record that holds its greeting (RFC 8446, 5.1).
const TLS_HANDSHAKE: u8 = 0x16;
/// The protocols that a server with PEM files offers, the best first.
const ALPN: &[&[u8]] = &[b"h2", b"http/1.1"];
/// How often a server looks whether its files have changed.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The answer to a client without TLS, where the port speaks TLS only.
const TLS_ONLY: &[u8] =
    b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: TLS/1.2, HTTP/1.1\r\nConnection: close\r\n\
Content-Type: application/json\r\nContent-Length: 63\r\n\r\n\
{\"detail\":\"This port speaks TLS only; use https:// or wss://.\"}";

/// Whether a request came over TLS, in the extensions of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsEncrypted(pub bool);

/// A connection's bytes, with or without TLS.
pub(super) type Transport = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// The TLS of a server.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// The present certificates. A connection keeps those with which it began.
    pub config: watch::Receiver<Arc<ServerConfig>>,
    /// Whether HTTP without TLS is served too.
    pub allows_plain: bool,
}

/// The table `[http.tls]` of a role's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsFiles {
    /// The PEM file of the certificate and of those that lead to its authority. Empty: no TLS.
    pub certificate: PathBuf,
    /// The PEM file of its private key.
    pub key: PathBuf,
    /// Whether the port serves HTTP without TLS too.
    pub allow_plain: bool,
}

/// The files of a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// A file cannot be read.
    #[error("cannot read {path}; check http.tls.certificate and http.tls.key")]
    Read {
        /// The PEM file's path.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The files hold no certificate with its key.
    #[error("{certificate} and {key} are no certificate with its private key in PEM form")]
    Content {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// The error of the TLS library.
        source: tokio_rustls::rustls::Error,
    },
}

impl TlsFiles {
    /// Whether there is TLS.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.certificate.as_os_str().is_empty()
    }

    /// All problems of these settings. `table` is the name of the table.
    #[must_use]
    pub fn problems(&self, table: &str) -> Vec<Problem> {
        let has_key = !self.key.as_os_str().is_empty();
        if self.is_on() == has_key {
            return Vec::new();
        }
        let missing = if has_key { "certificate" } else { "key" };
        let text = "must be set: TLS needs a certificate and its private key";
        vec![Problem::at(format!("{table}.{missing}"), text)]
    }

    fn load(&self) -> Result<Arc<ServerConfig>, TlsFileError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| TlsFileError::Read {
                path: path.to_owned(),
                source,
            })
        };
        let (certificate, key) = (read(&self.certificate)?, read(&self.key)?);
        let config = tls::server_from_pem(&certificate, &key, ALPN);
        config.map(Arc::new).map_err(|source| TlsFileError::Content {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })
    }

    /// The TLS of these files, and a task that reads them again when they change. Files that cannot be used then are
    /// reported, and the certificate before them goes on. `None` without TLS.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn open(
        &self,
        clock: SharedClock,
        stop: CancellationToken,
    ) -> Result<Option<(ServerTls, impl Future<Output = ()> + Send + 'static)>, TlsFileError> {
        if !self.is_on() {
            return Ok(None);
        }
        let (sender, config) = watch::channel(self.load()?);
        let tls = ServerTls {
            config,
            allows_plain: self.allow_plain,
        };
        Ok(Some((tls, self.clone().follow(sender, clock, stop))))
    }

    async fn follow(
        self,
        sender: watch::Sender<Arc<ServerConfig>>,
        clock: SharedClock,
        stop: CancellationToken,
    ) {
        let mut seen = self.modified();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(LOOK_EVERY) => {}
            }
            let now = self.modified();
            if now == seen {
                continue;
            }
            seen = now;
            match self.load() {
                Ok(config) => {
                    sender.send_replace(config);
                    tracing::info!(certificate = %self.certificate.display(), "a new certificate is served");
                }
                Err(error) => {
                    tracing::error!(%error, "the new certificate cannot be used; the one before it is served on");
                }
            }
        }
    }

    fn modified(&self) -> [Option<std::time::SystemTime>; 2] {
        [&self.certificate, &self.key]
            .map(|path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok())
    }
}

/// Opens a connection: with TLS if its first byte begins a handshake. `None` for a connection without TLS where that is
/// not served; its client has been notified.
///
/// # Errors
/// The connection breaks, or the handshake fails.
pub(super) async fn open(mut stream: TcpStream, tls: Option<&ServerTls>) -> io::Result<Option<Transport>> {
    let Some(tls) = tls else {
        return Ok(Some(Either::Left(stream)));
    };
    let mut first = [0];
    stream.peek(&mut first).await?;
    if first == [TLS_HANDSHAKE] {
        let config = Arc::clone(&tls.config.borrow());
        let opened = TlsAcceptor::from(config).accept(stream).await?;
        return Ok(Some(Either::Right(Box::new(opened))));
    }
    if tls.allows_plain {
        return Ok(Some(Either::Left(stream)));
    }
    stream.write_all(TLS_ONLY).await?;
    stream.shutdown().await?;
    Ok(None)
}

#[cfg(test)]
mod tests;
