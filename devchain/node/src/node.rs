//! The one place that changes the chain. Everything outside holds a cheap [`Node`] and reads blocks, which never change.

use crate::chain::{Block, Chain, Error, Panicked};
use crate::clock::Clock;
use crate::pool::Rejection;
use muster_devchain_runtime::{AccountId, BlockNumber, Nonce, RuntimeGenesisConfig};
use sp_core::H256;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// A handle on the chain.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    chain: Mutex<Chain>,
    clock: Clock,
    genesis: H256,
    head: watch::Sender<BlockNumber>,
}

impl Node {
    /// Starts a chain. No block follows the first until somebody seals one.
    ///
    /// # Errors
    /// When the configuration describes no state.
    pub fn new(config: &RuntimeGenesisConfig, clock: Clock) -> Result<Self, Error> {
        let chain = Chain::genesis(config)?;
        let genesis = chain.head().hash;
        Ok(Self(Arc::new(Inner {
            chain: Mutex::new(chain),
            clock,
            genesis,
            head: watch::Sender::new(0),
        })))
    }

    /// The hash of the first block: the chain's name.
    #[must_use]
    pub fn genesis(&self) -> H256 {
        self.0.genesis
    }

    /// The last block.
    #[must_use]
    pub fn head(&self) -> Arc<Block> {
        Arc::clone(self.chain().head())
    }

    /// A block by its hash; the last one without.
    #[must_use]
    pub fn block(&self, hash: Option<H256>) -> Option<Arc<Block>> {
        let chain = self.chain();
        match hash {
            None => Some(Arc::clone(chain.head())),
            Some(hash) => chain.by_hash(&hash).cloned(),
        }
    }

    /// A block by its number.
    #[must_use]
    pub fn block_at(&self, number: BlockNumber) -> Option<Arc<Block>> {
        self.chain().by_number(number).cloned()
    }

    /// The number of the last block, now and whenever it changes.
    #[must_use]
    pub fn heads(&self) -> watch::Receiver<BlockNumber> {
        self.0.head.subscribe()
    }

    /// Takes a transaction into the pool.
    ///
    /// # Errors
    /// As [`Chain::submit`].
    pub fn submit(&self, raw: Vec<u8>) -> Result<H256, Rejection> {
        self.chain().submit(raw)
    }

    /// The bytes of the transactions that wait for a block.
    #[must_use]
    pub fn pending(&self) -> Vec<Vec<u8>> {
        self.chain()
            .pool()
            .waiting()
            .iter()
            .map(|transaction| transaction.raw.clone())
            .collect()
    }

    /// The nonce of an account's next transaction.
    ///
    /// # Errors
    /// When the runtime panics.
    pub fn next_nonce(&self, account: &AccountId) -> Result<Nonce, Panicked> {
        self.chain().next_nonce(account)
    }

    /// Seals one block.
    ///
    /// # Errors
    /// As [`Chain::seal`].
    pub fn seal(&self) -> Result<Arc<Block>, Error> {
        let mut chain = self.chain();
        let timestamp = self.0.clock.next(chain.head().timestamp);
        let block = chain.seal(timestamp)?;
        self.0.head.send_replace(block.header.number);
        Ok(block)
    }

    /// A panic while the lock was held left the chain whole: it changes only after the runtime has returned.
    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.0.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
