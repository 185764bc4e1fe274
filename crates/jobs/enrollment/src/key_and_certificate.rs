//! A key pair with a self-signed certificate, in a file that only its owner may read.

use std::io;
use std::path::{Path, PathBuf};

use muster_process::tls::TlsIdentity;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};

use crate::private_files;

/// A key pair that cannot be made, kept or read.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("the key file {path} cannot be used; it must be readable and writable by this user", path = path.display())]
    File {
        /// The key file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Other users may read the file.
    #[error("the key file {path} may be read by others; chmod 600 it, or remove it if they have", path = path.display())]
    Exposed {
        /// The key file.
        path: PathBuf,
    },
    /// The file holds no key and certificate in PEM.
    #[error("{0} is not a key and its certificate in PEM; restore it, or enrol anew")]
    Content(String),
    /// A key cannot be drawn.
    #[error("a key pair cannot be made on this machine")]
    Make(#[from] rcgen::Error),
}

/// A key pair and its certificate in PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredIdentity {
    /// The certificate in PEM.
    certificate: String,
    /// The private key in PEM.
    key: String,
}

impl std::fmt::Debug for StoredIdentity {
    /// Shows nothing, which keeps the key out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoredIdentity(…)")
    }
}

impl StoredIdentity {
    /// Draws a key and makes a self-signed certificate. `name` is its subject, for people who look at it; it proves
    /// nothing.
    ///
    /// # Errors
    /// The operating system gives no randomness.
    pub fn generate(name: &str) -> Result<Self, KeyError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec!["muster".to_owned()])?;
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, name);
        params.distinguished_name = subject;
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// The identity for TLS. `whence` names the source in errors.
    ///
    /// # Errors
    /// The texts are not a key and a certificate in PEM.
    pub fn open(&self, whence: &str) -> Result<TlsIdentity, KeyError> {
        let content = |_| KeyError::Content(whence.to_owned());
        Ok(TlsIdentity {
            certificate: CertificateDer::from_pem_slice(self.certificate.as_bytes()).map_err(content)?,
            key: PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(content)?,
        })
    }
}

/// The key pair in a PEM file; drawn and stored there if there is none. Blocks.
///
/// # Errors
/// The file cannot be used, or may be read by other users.
pub fn load_or_create(path: &Path, name: &str) -> Result<TlsIdentity, KeyError> {
    let file = |source| KeyError::File {
        path: path.to_owned(),
        source,
    };
    if !path.try_exists().map_err(file)? {
        let made = StoredIdentity::generate(name)?;
        private_files::write(path, [made.certificate, made.key].concat().as_bytes()).map_err(file)?;
    }
    if !private_files::is_private(path).map_err(file)? {
        return Err(KeyError::Exposed {
            path: path.to_owned(),
        });
    }
    let text = std::fs::read_to_string(path).map_err(file)?;
    let both = StoredIdentity {
        certificate: text.clone(),
        key: text,
    };
    both.open(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_drawn_once_and_kept_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/key.pem");
        let first = load_or_create(&path, "miner").unwrap().fingerprint();
        assert_eq!(load_or_create(&path, "miner").unwrap().fingerprint(), first);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(
            load_or_create(&path, "miner"),
            Err(KeyError::Exposed { .. })
        ));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "no key").unwrap();
        assert!(matches!(
            load_or_create(&path, "miner"),
            Err(KeyError::Content(_))
        ));
    }

    #[test]
    fn tls_takes_what_was_drawn() {
        let identity = StoredIdentity::generate("x").unwrap().open("memory").unwrap();
        muster_process::tls::server(&identity).unwrap();
        muster_process::tls::client(&identity, identity.fingerprint()).unwrap();
    }
}
