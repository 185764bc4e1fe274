//! What an executor keeps of having enrolled: its own key, and which miner is its.

use std::io;
use std::path::{Path, PathBuf};

use muster_process::Coded;
use muster_protocol::{Digest, ErrorCode};
use serde::{Deserialize, Serialize};

use crate::files;
use crate::keys::{KeyError, StoredIdentity};

/// The file of an enrolled executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// `host:port` of the miner.
    pub address: String,
    /// The certificate that must answer there.
    pub miner: Digest,
    /// The executor's own key and certificate.
    pub own: StoredIdentity,
}

/// A membership that cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// There is none.
    #[error("this executor is not enrolled: {path} is missing; run `muster executor --enrol TOKEN`", path = path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// It is there already.
    #[error("this executor is enrolled already; to enrol it anew, remove {path}", path = path.display())]
    Exists {
        /// Which.
        path: PathBuf,
    },
    /// The file.
    #[error("the membership {path} cannot be used", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its content.
    #[error("the membership {path} cannot be read; remove it and enrol anew", path = path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// Its key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl Coded for MembershipError {
    fn code(&self) -> Option<ErrorCode> {
        Some(ErrorCode::NotEnrolled)
    }
}

impl Membership {
    /// Reads it. Blocks.
    ///
    /// # Errors
    /// It is missing, broken, or may be read by others.
    pub fn load(path: &Path) -> Result<Self, MembershipError> {
        let at = || path.to_owned();
        let text = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(MembershipError::Missing { path: at() });
            }
            read => read.map_err(|source| MembershipError::File { path: at(), source })?,
        };
        let private = files::is_private(path);
        if !private.map_err(|source| MembershipError::File { path: at(), source })? {
            return Err(KeyError::Exposed { path: at() }.into());
        }
        serde_json::from_slice(&text).map_err(|source| MembershipError::Content { path: at(), source })
    }

    /// Keeps it, never over another one. Blocks.
    ///
    /// # Errors
    /// There is one, or the file cannot be written.
    pub fn keep(&self, path: &Path) -> Result<(), MembershipError> {
        let at = || path.to_owned();
        if path.exists() {
            return Err(MembershipError::Exists { path: at() });
        }
        let text =
            serde_json::to_vec(self).map_err(|source| MembershipError::Content { path: at(), source })?;
        files::write(path, &text).map_err(|source| MembershipError::File { path: at(), source })
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
            Membership::load(&path),
            Err(MembershipError::Missing { .. })
        ));
        let membership = Membership {
            address: "h:1".to_owned(),
            miner: Digest::of(b"x"),
            own: StoredIdentity::generate("box").unwrap(),
        };
        membership.keep(&path).unwrap();
        assert_eq!(Membership::load(&path).unwrap(), membership);
        assert!(matches!(
            membership.keep(&path),
            Err(MembershipError::Exists { .. })
        ));
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(
            Membership::load(&path),
            Err(MembershipError::Content { .. })
        ));
    }
}
