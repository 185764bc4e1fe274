//! What can be wrong with a wallet. No message holds anything secret.

use std::path::PathBuf;

use muster_protocol::ErrorCode;

use crate::key::SecretError;

/// A wallet that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WalletError {
    /// A name with a slash in it, or none.
    #[error("wallet: {0:?} is not a name: it must be a plain file name")]
    Name(String),
    /// `~` without a home directory.
    #[error(
        "wallet: the path begins with ~ but there is no home directory; set HOME or write the whole path"
    )]
    NoHome,
    /// No such file.
    #[error("wallet: there is no {}; make it with `muster wallet new`, or name another wallet", .0.display())]
    Missing(PathBuf),
    /// There is one already.
    #[error("wallet: {} exists already and is never overwritten; choose another name", .0.display())]
    Exists(PathBuf),
    /// The file system refuses.
    #[error("wallet: cannot {operation} {}", path.display())]
    Io {
        /// What was to be done.
        operation: &'static str,
        /// With which file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// An encrypted key.
    #[error("wallet: {} is encrypted, and this program never asks for a password; hotkeys are kept unencrypted", .0.display())]
    Encrypted(PathBuf),
    /// Not a key file.
    #[error("wallet: {} is not a key file of Bittensor: {reason}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A key file of another kind of key.
    #[error("wallet: {} holds a key of type {kind}; only sr25519, which is 1, is used here", path.display())]
    KeyType {
        /// Which file.
        path: PathBuf,
        /// The number it says.
        kind: u64,
    },
    /// A secret that makes no key.
    #[error("wallet: {}", path.display())]
    Secret {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: SecretError,
    },
    /// The secret's key is not the public key that stands beside it.
    #[error("wallet: {} contradicts itself: its secret is not that of {claimed}", path.display())]
    Mismatch {
        /// Which file.
        path: PathBuf,
        /// The address that the file says.
        claimed: String,
    },
}

impl WalletError {
    /// Its page in `docs/errors/`.
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::WalletUnusable
    }
}
