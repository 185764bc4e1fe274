//! A block, and the making of one on top of another. Nothing here knows of time, tasks or sockets.

use crate::pool::Transaction;
use crate::root::Roots;
use crate::state::{Change, Overlay, State};
use codec::{Decode, Encode};
use muster_devchain_runtime::{
    BlockNumber, Executive, Header, RuntimeCall, RuntimeGenesisConfig, UncheckedExtrinsic,
};
use sp_core::H256;
use sp_core::storage::StateVersion;
use sp_runtime::BuildStorage;
use sp_runtime::traits::{BlakeTwo256, Hash, Header as _};
use sp_runtime::transaction_validity::{InvalidTransaction, TransactionValidityError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// A sealed block.
#[derive(Debug, Clone)]
pub struct Block {
    /// The header's hash.
    pub hash: H256,
    /// The header of the block.
    pub header: Header,
    /// The transactions in it, the timestamp first.
    pub body: Vec<Vec<u8>>,
    /// Its time in milliseconds; none at genesis.
    pub timestamp: Option<u64>,
}

impl Block {
    /// Its bytes in the store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        (&self.header, &self.body, self.timestamp).encode()
    }

    /// Reads what [`Block::encode`] wrote; nothing where it is something else or another block.
    #[must_use]
    pub fn decode(hash: H256, mut bytes: &[u8]) -> Option<Self> {
        let (header, body, timestamp) = <(Header, _, _)>::decode(&mut bytes).ok()?;
        (header.hash() == hash).then_some(Self {
            hash,
            header,
            body,
            timestamp,
        })
    }

    /// The hashes of its transactions.
    pub fn transactions(&self) -> impl Iterator<Item = H256> {
        self.body.iter().map(|raw| BlakeTwo256::hash(raw))
    }
}

/// A block with the state after it.
#[derive(Clone)]
pub struct Entry {
    /// Header and body.
    pub block: Arc<Block>,
    /// The state after it.
    pub state: State,
    /// How that state differs from the one before; empty once the store has it.
    pub changes: Vec<Change>,
}

/// Why there is no first or no next block.
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

/// The first block.
///
/// # Errors
/// When the configuration describes no state.
pub fn genesis(config: &RuntimeGenesisConfig) -> Result<Entry, Error> {
    let state = State::from_storage(config.build_storage().map_err(Error::Genesis)?);
    let no_transactions = BlakeTwo256::ordered_trie_root(Vec::new(), StateVersion::V0);
    let header = Header::new(
        0,
        no_transactions,
        state.root(),
        H256::zero(),
        sp_runtime::Digest::default(),
    );
    let block = Block {
        hash: header.hash(),
        header,
        body: Vec::new(),
        timestamp: None,
    };
    Ok(Entry {
        block: Arc::new(block),
        changes: state.entries(),
        state,
    })
}

/// A new block, and what became of the transactions that were candidates for it.
pub struct Built {
    /// The sealed block with its state.
    pub entry: Entry,
    /// The transactions in it.
    pub included: Vec<H256>,
    /// Those that can never be in a block.
    pub void: Vec<H256>,
}

/// Makes the block after `parent` out of those candidates that can be in it.
///
/// # Errors
/// When the runtime cannot make a block at all.
pub fn build(
    parent: &Entry,
    candidates: Vec<Arc<Transaction>>,
    timestamp: u64,
    roots: &Arc<Mutex<Roots>>,
) -> Result<Built, Error> {
    let number = parent.block.header.number.saturating_add(1);
    let mut overlay =
        Overlay::new(&parent.state).with_roots(Arc::clone(roots), parent.block.header.state_root);
    let first = begin(&mut overlay, number, parent.block.hash, timestamp)?;
    let mut body = vec![first];
    let (mut included, mut void) = (Vec::new(), Vec::new());
    let mut waiting = candidates;
    // A transaction may need the nonce that a later one in the queue provides: go on while a round places any.
    loop {
        let before = body.len();
        for transaction in std::mem::take(&mut waiting) {
            match apply(&mut overlay, &transaction) {
                Fate::Included => {
                    included.push(transaction.hash);
                    body.push(transaction.raw.clone());
                }
                Fate::Waits => waiting.push(transaction),
                Fate::Void(reason) => {
                    tracing::debug!(hash = ?transaction.hash, %reason, "dropped a transaction");
                    void.push(transaction.hash);
                }
            }
        }
        if body.len() == before || waiting.is_empty() {
            break;
        }
    }
    let header = catch_unwind(AssertUnwindSafe(|| overlay.run(Executive::finalize_block)))
        .map_err(|_| Error::Panicked(number))?;
    let block = Block {
        hash: header.hash(),
        header,
        body,
        timestamp: Some(timestamp),
    };
    let entry = Entry {
        block: Arc::new(block),
        state: overlay.state(),
        changes: overlay.changes(&parent.state),
    };
    Ok(Built {
        entry,
        included,
        void,
    })
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

/// The fate of a transaction when a block is made.
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
