//! The credentials that an enrolled executor keeps: its own key, and the address and certificate of its miner.

use std::io;
use std::path::{Path, PathBuf};

use muster_process::Coded;
use muster_protocol::{Digest, ErrorCode};
use serde::{Deserialize, Serialize};

use crate::key_and_certificate::{KeyError, StoredIdentity};
use crate::private_files;

/// The file of an enrolled executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorCredentials {
    /// `host:port` of the miner.
    pub address: String,
    /// The certificate that must answer there.
    pub miner: Digest,
    /// The executor's own key and certificate.
    pub own: StoredIdentity,
}

/// Credentials that cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// There is no such file.
    #[error("this executor is not enrolled: {path} is missing; run `muster executor --enroll TOKEN`", path = path.display())]
    Missing {
        /// The file that is missing.
        path: PathBuf,
    },
    /// The file exists already.
    #[error("this executor is enrolled already; to enrol it anew, remove {path}", path = path.display())]
    Exists {
        /// The credentials' file.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("the membership {path} cannot be used", path = path.display())]
    File {
        /// The credentials' file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file does not hold credentials.
    #[error("the membership {path} cannot be read; remove it and enrol anew", path = path.display())]
    Content {
        /// The credentials' file.
        path: PathBuf,
        /// The defect of the JSON.
        source: serde_json::Error,
    },
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl Coded for CredentialsError {
    fn code(&self) -> Option<ErrorCode> {
        Some(ErrorCode::NotEnrolled)
    }
}

impl ExecutorCredentials {
    /// Reads the credentials. Blocks.
    ///
    /// # Errors
    /// The file is missing, broken, or may be read by other users.
    pub fn load(path: &Path) -> Result<Self, CredentialsError> {
        let at = || path.to_owned();
        let text = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CredentialsError::Missing { path: at() });
            }
            read => read.map_err(|source| CredentialsError::File { path: at(), source })?,
        };
        let private = private_files::is_private(path);
        if !private.map_err(|source| CredentialsError::File { path: at(), source })? {
            return Err(KeyError::Exposed { path: at() }.into());
        }
        serde_json::from_slice(&text).map_err(|source| CredentialsError::Content { path: at(), source })
    }

    /// Stores the credentials, never over others. Blocks.
    ///
    /// # Errors
    /// The file exists, or cannot be written.
    pub fn store(&self, path: &Path) -> Result<(), CredentialsError> {
        let at = || path.to_owned();
        if path.exists() {
            return Err(CredentialsError::Exists { path: at() });
        }
        let text =
            serde_json::to_vec(self).map_err(|source| CredentialsError::Content { path: at(), source })?;
        private_files::write(path, &text).map_err(|source| CredentialsError::File { path: at(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_kept_once_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("membership.json");
        assert!(matches!(
            ExecutorCredentials::load(&path),
            Err(CredentialsError::Missing { .. })
        ));
        let membership = ExecutorCredentials {
            address: "h:1".to_owned(),
            miner: Digest::of(b"x"),
            own: StoredIdentity::generate("box").unwrap(),
        };
        membership.store(&path).unwrap();
        assert_eq!(ExecutorCredentials::load(&path).unwrap(), membership);
        assert!(matches!(
            membership.store(&path),
            Err(CredentialsError::Exists { .. })
        ));
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(
            ExecutorCredentials::load(&path),
            Err(CredentialsError::Content { .. })
        ));
    }
}
