//! Transactions that wait for a block, and why one may be refused.

use codec::Decode;
use muster_devchain_runtime::{AccountId, UncheckedExtrinsic};
use sp_core::H256;
use sp_runtime::MultiAddress;
use sp_runtime::generic::Preamble;
use sp_runtime::traits::{BlakeTwo256, Hash};
use sp_runtime::transaction_validity::{InvalidTransaction, TransactionValidityError, UnknownTransaction};

/// The most transactions that wait at once.
pub const CAPACITY: usize = 8192;

/// Why a transaction is not accepted.
#[derive(Debug, thiserror::Error)]
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
    /// The same transaction waits already.
    #[error("the transaction waits for a block already")]
    Known(H256),
    /// Too many transactions wait.
    #[error("{CAPACITY} transactions wait for a block already")]
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

/// A transaction as received.
#[derive(Clone)]
pub struct Transaction {
    /// Its name: the hash of its bytes.
    pub hash: H256,
    /// Its bytes.
    pub raw: Vec<u8>,
    /// Decoded.
    pub extrinsic: UncheckedExtrinsic,
}

impl Transaction {
    /// Decodes all of the bytes.
    ///
    /// # Errors
    /// When they are not exactly one transaction.
    pub fn decode(raw: Vec<u8>) -> Result<Self, Rejection> {
        let mut rest = raw.as_slice();
        let extrinsic = UncheckedExtrinsic::decode(&mut rest).map_err(Rejection::Undecodable)?;
        if !rest.is_empty() {
            return Err(Rejection::Undecodable(
                "bytes remain after the transaction".into(),
            ));
        }
        Ok(Self {
            hash: BlakeTwo256::hash(&raw),
            raw,
            extrinsic,
        })
    }

    /// Who signed it.
    #[must_use]
    pub fn signer(&self) -> Option<&AccountId> {
        match &self.extrinsic.preamble {
            Preamble::Signed(MultiAddress::Id(who), ..) => Some(who),
            Preamble::Signed(..) | Preamble::Bare(..) | Preamble::General(..) => None,
        }
    }
}

/// Transactions in the order of their arrival.
#[derive(Default)]
pub struct Pool(Vec<Transaction>);

impl Pool {
    /// Adds a transaction that the runtime accepted.
    ///
    /// # Errors
    /// When it waits already, or too many do.
    pub fn add(&mut self, transaction: Transaction) -> Result<H256, Rejection> {
        let hash = transaction.hash;
        if self.0.iter().any(|waiting| waiting.hash == hash) {
            return Err(Rejection::Known(hash));
        }
        if self.0.len() >= CAPACITY {
            return Err(Rejection::Full);
        }
        self.0.push(transaction);
        Ok(hash)
    }

    /// Takes all transactions for a block.
    pub fn take(&mut self) -> Vec<Transaction> {
        std::mem::take(&mut self.0)
    }

    /// What waits.
    #[must_use]
    pub fn waiting(&self) -> &[Transaction] {
        &self.0
    }
}
