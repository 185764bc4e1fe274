//! Blocks, each with the state after it, and the making of the next one. Nothing here knows of time, tasks or sockets.

use crate::pool::{Pool, Rejection, Transaction};
use crate::state::{Overlay, State};
use codec::{Decode, Encode};
use muster_devchain_runtime::{
    AccountId, BlockNumber, Executive, Header, Nonce, RuntimeCall, RuntimeGenesisConfig, System,
    UncheckedExtrinsic,
};
use sp_core::H256;
use sp_core::storage::StateVersion;
use sp_runtime::BuildStorage;
use sp_runtime::traits::{BlakeTwo256, Hash, Header as _};
use sp_runtime::transaction_validity::{InvalidTransaction, TransactionSource, TransactionValidityError};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A sealed block.
pub struct Block {
    /// The header's hash.
    pub hash: H256,
    /// The header.
    pub header: Header,
    /// The transactions in it, the timestamp first.
    pub body: Vec<Vec<u8>>,
    /// The transactions that were in the pool and are void now.
    pub dropped: Vec<H256>,
    /// Its time in milliseconds; none at genesis.
    pub timestamp: Option<u64>,
    /// The state after it.
    pub state: State,
}

/// Why there is no chain or no next block.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The genesis configuration describes no state.
    #[error("building the genesis state failed: {0}")]
    Genesis(String),
    /// The runtime panicked outside a transaction.
    #[error("the runtime panicked while it sealed block {0}; the block was given up")]
    Panicked(BlockNumber),
    /// The runtime refused what every block begins with.
    #[error("the runtime refused the timestamp of block {0}; the block was given up")]
    Timestamp(BlockNumber),
}

/// The runtime panicked. The state that it worked on is as it was.
#[derive(Debug, thiserror::Error)]
#[error("the runtime panicked")]
pub struct Panicked;

/// Runs the runtime on a state, forgets what it changed, and survives its panics.
///
/// # Errors
/// When the runtime panics.
pub fn consult<R>(state: &State, f: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(|| state.run(f))).map_err(|_| Panicked)
}

/// The chain and its pool.
pub struct Chain {
    /// Every block, by number.
    blocks: Vec<Arc<Block>>,
    by_hash: HashMap<H256, usize>,
    head: Arc<Block>,
    pool: Pool,
}

impl Chain {
    /// A chain of one block.
    ///
    /// # Errors
    /// When the configuration describes no state.
    pub fn genesis(config: &RuntimeGenesisConfig) -> Result<Self, Error> {
        let state = State::from_storage(config.build_storage().map_err(Error::Genesis)?);
        let root = state.run(|| sp_io::storage::root(StateVersion::V1));
        let root = H256::decode(&mut root.as_slice()).map_err(|e| Error::Genesis(e.to_string()))?;
        let no_transactions = BlakeTwo256::ordered_trie_root(Vec::new(), StateVersion::V0);
        let header = Header::new(
            0,
            no_transactions,
            root,
            H256::zero(),
            sp_runtime::Digest::default(),
        );
        let hash = header.hash();
        let genesis = Arc::new(Block {
            hash,
            header,
            body: Vec::new(),
            dropped: Vec::new(),
            timestamp: None,
            state,
        });
        Ok(Self {
            blocks: vec![Arc::clone(&genesis)],
            by_hash: HashMap::from([(hash, 0)]),
            head: genesis,
            pool: Pool::default(),
        })
    }

    /// The last block.
    #[must_use]
    pub fn head(&self) -> &Arc<Block> {
        &self.head
    }

    /// A block by its hash.
    #[must_use]
    pub fn by_hash(&self, hash: &H256) -> Option<&Arc<Block>> {
        self.by_hash.get(hash).and_then(|number| self.blocks.get(*number))
    }

    /// A block by its number.
    #[must_use]
    pub fn by_number(&self, number: BlockNumber) -> Option<&Arc<Block>> {
        self.blocks.get(usize::try_from(number).ok()?)
    }

    /// What waits for a block.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Takes a transaction into the pool, if the runtime would accept it on the last block.
    ///
    /// # Errors
    /// When it is not one, or the runtime refuses it, or the pool does.
    pub fn submit(&mut self, raw: Vec<u8>) -> Result<H256, Rejection> {
        let transaction = Transaction::decode(raw)?;
        let (extrinsic, head) = (transaction.extrinsic.clone(), self.head.hash);
        consult(&self.head.state, || {
            Executive::validate_transaction(TransactionSource::External, extrinsic, head)
        })
        .map_err(|Panicked| Rejection::Panicked)??;
        self.pool.add(transaction)
    }

    /// The nonce of an account's next transaction, those that wait included.
    ///
    /// # Errors
    /// When the runtime panics.
    pub fn next_nonce(&self, account: &AccountId) -> Result<Nonce, Panicked> {
        let sealed = consult(&self.head.state, || System::account_nonce(account))?;
        let waiting = self
            .pool
            .waiting()
            .iter()
            .filter(|t| t.signer() == Some(account))
            .count();
        Ok(sealed.saturating_add(Nonce::try_from(waiting).unwrap_or(Nonce::MAX)))
    }

    /// Seals the next block with what waits in the pool. Transactions that cannot be in it yet wait on; void ones are dropped.
    ///
    /// # Errors
    /// When the runtime cannot make a block at all. The chain is then as it was, but for the pool, which is empty: one of its
    /// transactions may be the reason.
    pub fn seal(&mut self, timestamp: u64) -> Result<Arc<Block>, Error> {
        let parent = Arc::clone(&self.head);
        let number = parent.header.number.saturating_add(1);
        let mut overlay = Overlay::new(&parent.state);
        let mut waiting = self.pool.take();

        let first = begin(&mut overlay, number, parent.hash, timestamp)?;
        let mut body = vec![first];
        let mut dropped = Vec::new();
        // A transaction may need the nonce that a later one in the queue provides: go on while a round places any.
        loop {
            let before = body.len();
            for transaction in std::mem::take(&mut waiting) {
                match apply(&mut overlay, &transaction) {
                    Fate::Included => body.push(transaction.raw),
                    Fate::Waits => waiting.push(transaction),
                    Fate::Void(reason) => {
                        tracing::debug!(hash = ?transaction.hash, %reason, "dropped a transaction");
                        dropped.push(transaction.hash);
                    }
                }
            }
            if body.len() == before || waiting.is_empty() {
                break;
            }
        }
        let header = catch_unwind(AssertUnwindSafe(|| overlay.run(Executive::finalize_block)))
            .map_err(|_| Error::Panicked(number))?;
        for transaction in waiting {
            // There was room for it a moment ago.
            let _ = self.pool.add(transaction);
        }

        let hash = header.hash();
        let state = overlay.state();
        let block = Arc::new(Block {
            hash,
            header,
            body,
            dropped,
            timestamp: Some(timestamp),
            state,
        });
        self.by_hash.insert(hash, self.blocks.len());
        self.blocks.push(Arc::clone(&block));
        self.head = Arc::clone(&block);
        Ok(block)
    }
}

/// Opens a block and states its time. Returns the encoded timestamp.
fn begin(overlay: &mut Overlay, number: BlockNumber, parent: H256, timestamp: u64) -> Result<Vec<u8>, Error> {
    let header = Header::new(
        number,
        H256::zero(),
        H256::zero(),
        parent,
        sp_runtime::Digest::default(),
    );
    let call = RuntimeCall::Timestamp(pallet_timestamp::Call::set { now: timestamp });
    let inherent = UncheckedExtrinsic::new_bare(call);
    let encoded = inherent.encode();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        overlay.run(|| {
            Executive::initialize_block(&header);
            Executive::apply_extrinsic(inherent)
        })
    }));
    match outcome {
        Ok(Ok(Ok(()))) => Ok(encoded),
        Ok(Ok(Err(_)) | Err(_)) => Err(Error::Timestamp(number)),
        Err(_) => Err(Error::Panicked(number)),
    }
}

/// What becomes of a transaction when a block is made.
enum Fate {
    /// It is in the block, whether its call succeeded or not.
    Included,
    /// It may be in a later one.
    Waits,
    /// It can never be in a block.
    Void(String),
}

fn apply(overlay: &mut Overlay, transaction: &Transaction) -> Fate {
    let before = overlay.state();
    let extrinsic = transaction.extrinsic.clone();
    match catch_unwind(AssertUnwindSafe(|| {
        overlay.run(|| Executive::apply_extrinsic(extrinsic))
    })) {
        Ok(Ok(_)) => Fate::Included,
        Ok(Err(TransactionValidityError::Invalid(
            InvalidTransaction::Future | InvalidTransaction::ExhaustsResources,
        ))) => {
            overlay.restore(&before);
            Fate::Waits
        }
        Ok(Err(error)) => {
            overlay.restore(&before);
            Fate::Void(format!("{error:?}"))
        }
        Err(_) => {
            overlay.restore(&before);
            Fate::Void("the runtime panicked".into())
        }
    }
}
