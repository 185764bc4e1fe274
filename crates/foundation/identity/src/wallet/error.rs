//! Errors of wallets. No message holds a secret.

use std::path::PathBuf;

use muster_protocol::ErrorCode;

use crate::key::SecretError;

/// The reason why a wallet cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WalletError {
    /// The name is empty or contains a slash.
    #[error("wallet: {0:?} is not a name: it must be a plain file name")]
    Name(String),
    /// The path begins with `~` and there is no home directory.
    #[error(
        "wallet: the path begins with ~ but there is no home directory; set HOME or write the whole path"
    )]
    NoHome,
    /// The file does not exist.
    #[error("wallet: there is no {}; make it with `muster wallet new`, or name another wallet", .0.display())]
    Missing(PathBuf),
    /// The file exists already.
    #[error("wallet: {} exists already and is never overwritten; choose another name", .0.display())]
    Exists(PathBuf),
    /// The file system refuses an operation.
    #[error("wallet: cannot {operation} {}", path.display())]
    Io {
        /// The operation, such as `read`.
        operation: &'static str,
        /// The path of the key file.
        path: PathBuf,
        /// The underlying error.
        source: std::io::Error,
    },
    /// The key is encrypted.
    #[error("wallet: {} is encrypted, and this program never asks for a password; hotkeys are kept unencrypted", .0.display())]
    Encrypted(PathBuf),
    /// The file is not a key file.
    #[error("wallet: {} is not a key file of Bittensor: {reason}", path.display())]
    Malformed {
        /// The path of the key file.
        path: PathBuf,
        /// The fault in the file, without its values.
        reason: String,
    },
    /// The file holds another type of key.
    #[error("wallet: {} holds a key of type {kind}; only sr25519, which is 1, is used here", path.display())]
    KeyType {
        /// The path of the key file.
        path: PathBuf,
        /// The `cryptoType` in the file.
        kind: u64,
    },
    /// The secret in the file does not make a key.
    #[error("wallet: {}", path.display())]
    Secret {
        /// The path of the key file.
        path: PathBuf,
        /// The underlying error.
        source: SecretError,
    },
    /// The secret's key differs from the public key in the same file.
    #[error("wallet: {} contradicts itself: its secret is not that of {claimed}", path.display())]
    Mismatch {
        /// The path of the key file.
        path: PathBuf,
        /// The address in the file.
        claimed: String,
    },
}

impl WalletError {
    /// The error's code, which has a page in `docs/errors/`.
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::WalletUnusable
    }
}
