//! Why a validator stops.

use muster_chain::ChainError;
use muster_identity::wallet::WalletError;
use muster_kit::Coded;
use muster_kit::listen::BindError;
use muster_kit::ready::ReadyError;
use muster_kit::store::StoreError;
use muster_protocol::ErrorCode;

/// Why a validator cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its hotkey.
    #[error("the validator's hotkey cannot be loaded; check `wallet` in its configuration")]
    Wallet(#[source] WalletError),
    /// Its chain.
    #[error("the validator cannot use the chain")]
    Chain(#[source] ChainError),
    /// Its store. Nothing may be said that is not durable, so it stops; what is open is resumed at the next start.
    #[error("the validator cannot use its store")]
    Store(#[from] StoreError),
    /// Its status address.
    #[error("the validator cannot serve its state")]
    Bind(#[from] BindError),
    /// Its ready file.
    #[error("the validator cannot say that it is ready")]
    Ready(#[from] ReadyError),
    /// The listener of its status address.
    #[error("the validator's status address stopped serving")]
    Serve(#[source] std::io::Error),
}

impl Error {
    /// Its page in `docs/errors/`.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Wallet(_) => Some(ErrorCode::WalletUnusable),
            Self::Chain(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Bind(error) => error.code(),
            Self::Ready(_) | Self::Serve(_) => None,
        }
    }
}

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        Self::code(self)
    }
}
