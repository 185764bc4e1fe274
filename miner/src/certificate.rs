//! The miner's certificate: TLS on its port, the announcement of the certificate on the chain, and its rotation.
//!
//! The certificate is the miner's own and nobody signs it. Validators know its digest from the chain. A rotation keeps
//! the certificate before it in a second file, for peers that still know that one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_enrollment::key_and_certificate::{KeyError, load_or_create};
use muster_http::server::ServerTls;
use muster_process::tls::{TlsIdentity, public_server};
use muster_process::{SharedClock, Tasks};
use muster_protocol::Digest;
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::TlsConfig;

/// How often the miner looks whether its certificate was rotated.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A certificate cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A key and its certificate do not belong together.
    #[error("the key in {path} does not belong to the certificate there")]
    Pair {
        /// The PEM file's path.
        path: PathBuf,
        /// The error of the TLS library.
        source: rustls::Error,
    },
    /// A certificate cannot be rotated.
    #[error("cannot replace {path}")]
    Rotate {
        /// The PEM file's path.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
}

/// The certificate that is served now, for the port and for the announcement.
#[derive(Clone, Debug)]
pub(crate) struct MinerCertificate {
    /// The TLS of the port.
    pub(crate) tls: ServerTls,
    /// The digest of the newest certificate.
    pub(crate) digest: watch::Receiver<Digest>,
}

impl MinerCertificate {
    /// Opens the certificate, which is made at the first start, and follows its rotation until `tasks` are stopped.
    /// `None` where the configuration has no TLS.
    pub(crate) fn open(
        config: &TlsConfig,
        tasks: &Tasks,
        clock: &SharedClock,
    ) -> Result<Option<Self>, CertificateError> {
        if !config.enabled {
            return Ok(None);
        }
        let (server, digest) = load(&config.certificate)?;
        tracing::info!(certificate = %digest, "the miner's port speaks TLS");
        let (servers, config_seen) = watch::channel(server);
        let (digests, digest) = watch::channel(digest);
        let path = config.certificate.clone();
        tasks.spawn(
            "certificate",
            follow(path, servers, digests, Arc::clone(clock), tasks.token()),
        );
        let tls = ServerTls {
            config: config_seen,
            // For peers that know no certificate, and for readers of receipts. The routes refuse the others.
            allows_plain: true,
        };
        Ok(Some(Self { tls, digest }))
    }
}

/// The file of the certificate before the present one.
fn previous(path: &Path) -> PathBuf {
    path.with_extension("previous.pem")
}

fn load(path: &Path) -> Result<(Arc<ServerConfig>, Digest), CertificateError> {
    let present = load_or_create(path, "miner")?;
    let digest = present.fingerprint();
    let before = previous(path);
    let mut identities: Vec<TlsIdentity> = vec![present];
    if before.exists() {
        identities.push(load_or_create(&before, "miner")?);
    }
    let server = public_server(&identities).map_err(|source| CertificateError::Pair {
        path: path.to_owned(),
        source,
    })?;
    Ok((Arc::new(server), digest))
}

async fn follow(
    path: PathBuf,
    servers: watch::Sender<Arc<ServerConfig>>,
    digests: watch::Sender<Digest>,
    clock: SharedClock,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(LOOK_EVERY) => {}
        }
        // A rotation renames: for a moment the file may be missing, and must not be made anew here.
        if !path.exists() {
            continue;
        }
        match load(&path) {
            Ok((server, digest)) if digest != *digests.borrow() => {
                tracing::info!(certificate = %digest, "a new certificate is served beside the one before it");
                servers.send_replace(server);
                digests.send_replace(digest);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::error!(error = %muster_process::error::Causes(&error), "the miner's certificate cannot be read; the one before it is served on");
            }
        }
    }
}

/// Makes a new certificate; the present one is kept as the one before it. A running miner serves and announces the new
/// one within seconds. Returns its digest. Blocks.
///
/// # Errors
/// A file cannot be read or written.
pub fn rotate(config: &TlsConfig) -> Result<Digest, CertificateError> {
    let path = &config.certificate;
    // Made first, so that a failure leaves everything as it was.
    let next = path.with_extension("next.pem");
    let rotate = |from: &Path, to: &Path| {
        std::fs::rename(from, to).map_err(|source| CertificateError::Rotate {
            path: to.to_owned(),
            source,
        })
    };
    let digest = load_or_create(&next, "miner")?.fingerprint();
    if path.exists() {
        rotate(path, &previous(path))?;
    }
    rotate(&next, path)?;
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_the_certificate_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let config = TlsConfig {
            certificate: folder.path().join("tls.pem"),
            ..TlsConfig::default()
        };
        let (_, first) = load(&config.certificate).unwrap();
        assert_eq!(load(&config.certificate).unwrap().1, first, "made once");
        let second = rotate(&config).unwrap();
        assert_ne!(first, second);
        assert_eq!(load(&config.certificate).unwrap().1, second);
        let kept = load_or_create(&previous(&config.certificate), "miner").unwrap();
        assert_eq!(kept.fingerprint(), first);
        let third = rotate(&config).unwrap();
        assert_eq!(load(&config.certificate).unwrap().1, third);
        let kept = load_or_create(&previous(&config.certificate), "miner").unwrap();
        assert_eq!(kept.fingerprint(), second);
    }
}
