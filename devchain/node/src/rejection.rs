//! Why a transaction is not taken into the pool.

use sp_core::H256;
use sp_runtime::transaction_validity::{InvalidTransaction, TransactionValidityError, UnknownTransaction};

/// Why a transaction is not taken into the pool.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Rejection {
    /// The bytes are not a transaction of this chain.
    #[error("decoding the transaction failed: {0}; it was made for another chain or is damaged")]
    Undecodable(codec::Error),
    /// The runtime refuses it.
    #[error("the runtime refuses the transaction: {0:?}")]
    Invalid(InvalidTransaction),
    /// The runtime cannot judge it.
    #[error("the runtime cannot judge the transaction: {0:?}")]
    Unknown(UnknownTransaction),
    /// It was in a block or became invalid a short while ago.
    #[error("the transaction was in a block or became invalid a short while ago")]
    Banned,
    /// The same transaction waits already.
    #[error("the transaction waits for a block already")]
    Known(H256),
    /// Another one that excludes it waits and is as urgent.
    #[error("another transaction with this nonce waits; a larger tip would replace it")]
    Priority {
        /// The other one's priority.
        old: u64,
        /// The priority of the new transaction.
        new: u64,
    },
    /// Too many transactions wait that are as urgent.
    #[error("the pool is full of transactions that are as urgent")]
    Full,
    /// The runtime panicked over it.
    #[error("the runtime panicked over the transaction")]
    Panicked,
}

impl From<TransactionValidityError> for Rejection {
    fn from(error: TransactionValidityError) -> Self {
        match error {
            TransactionValidityError::Invalid(error) => Self::Invalid(error),
            TransactionValidityError::Unknown(error) => Self::Unknown(error),
        }
    }
}
