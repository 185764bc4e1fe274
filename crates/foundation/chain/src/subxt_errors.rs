//! Translation of subxt's errors: the endpoint does not answer, or its answer is not understood.

use subxt::error::{
    BackendError, BlocksError, EventsError, ExtrinsicError, OnlineClientAtBlockError, OnlineClientError,
    RpcError, RuntimeApiError, StorageError,
};

use crate::error::ChainError;

/// The [`ChainError`] for a failed read at `url`.
pub(crate) fn name_failure<E: LibraryError>(doing: &'static str, url: &str, error: E) -> ChainError {
    match error.backend() {
        Some(BackendError::Rpc(RpcError::ClientError(subxt::rpcs::Error::User(said)))) => {
            ChainError::Answer {
                doing,
                what: said.to_string(),
            }
        }
        Some(BackendError::Rpc(RpcError::ClientError(subxt::rpcs::Error::Deserialization(said)))) => {
            ChainError::Answer {
                doing,
                what: said.to_string(),
            }
        }
        Some(_) => no_answer(doing, url, Some(Box::new(error))),
        None => ChainError::Answer {
            doing,
            what: error.to_string(),
        },
    }
}

/// The error of an endpoint that does not answer, or not in time.
pub(crate) fn no_answer(doing: &'static str, url: &str, cause: Option<crate::error::Cause>) -> ChainError {
    ChainError::Unreachable {
        doing,
        url: url.to_owned(),
        cause,
    }
}

/// An error of subxt that may be the endpoint's fault.
pub(crate) trait LibraryError: std::error::Error + Send + Sync + 'static {
    /// The fault of the endpoint, if that is the reason.
    fn backend(&self) -> Option<&BackendError>;
}

impl LibraryError for BackendError {
    fn backend(&self) -> Option<&BackendError> {
        Some(self)
    }
}

impl LibraryError for OnlineClientAtBlockError {
    fn backend(&self) -> Option<&BackendError> {
        if let Self::CannotGetCurrentBlock { reason }
        | Self::CannotGetBlockHash { reason, .. }
        | Self::CannotGetBlockHeader { reason, .. }
        | Self::CannotGetSpecVersion { reason, .. } = self
        {
            Some(reason)
        } else {
            None
        }
    }
}

impl LibraryError for RuntimeApiError {
    fn backend(&self) -> Option<&BackendError> {
        if let Self::CannotCallApi(reason) = self {
            Some(reason)
        } else {
            None
        }
    }
}

impl LibraryError for StorageError {
    fn backend(&self) -> Option<&BackendError> {
        if let Self::CannotFetchValue(reason)
        | Self::CannotIterateValues(reason)
        | Self::StreamFailure(reason) = self
        {
            Some(reason)
        } else {
            None
        }
    }
}

impl LibraryError for BlocksError {
    fn backend(&self) -> Option<&BackendError> {
        match self {
            Self::CannotGetCurrentBlock(error) => error.backend(),
            Self::CannotGetBlockHeaderStream(reason) | Self::CannotGetBlockHeader(reason) => Some(reason),
            _ => None,
        }
    }
}

impl LibraryError for ExtrinsicError {
    fn backend(&self) -> Option<&BackendError> {
        if let Self::AccountNonceError {
            reason: subxt::error::AccountNonceError::CouldNotRetrieve(reason),
            ..
        }
        | Self::ErrorSubmittingTransaction(reason)
        | Self::TransactionStatusStreamError(reason) = self
        {
            Some(reason)
        } else {
            None
        }
    }
}

impl LibraryError for EventsError {
    fn backend(&self) -> Option<&BackendError> {
        if let Self::CannotFetchEventBytes(reason) = self {
            Some(reason)
        } else {
            None
        }
    }
}

impl LibraryError for OnlineClientError {
    fn backend(&self) -> Option<&BackendError> {
        if let Self::CannotGetGenesisHash(reason) = self {
            Some(reason)
        } else {
            None
        }
    }
}
