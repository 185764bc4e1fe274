//! The one place that changes the chain. Everything outside holds a cheap [`Node`] and reads blocks, which never
//! change.
//!
//! A block is best as soon as it is sealed, and final once the store has it. Only the sealer's lock is held while the
//! runtime works, so that readers and submitters do not wait for it.

use crate::block::{self, Block, Built, Entry, Panicked, consult};
use crate::clock::{Clock, Past};
use crate::faults::Faults;
use crate::pool::{Limits, Pool, Status, Transaction};
use crate::rejection::Rejection;
use crate::root::Roots;
use crate::state::State;
use crate::view::View;
use crate::watchers::Watchers;
use muster_devchain_runtime::{AccountId, BlockNumber, Executive, Nonce, RuntimeGenesisConfig, System};
use muster_devchain_store::{Sealed, Store};
use sp_core::H256;
use sp_runtime::transaction_validity::TransactionSource;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// How many blocks may wait for their finality, whatever keeps it.
const MOST_UNFINAL: usize = 8192;
/// How many blocks become final together where many are asked for: one write to the disk for all of them.
const BATCH: u32 = 64;
/// The longest that a batch takes.
const BATCH_TIME: Duration = Duration::from_millis(100);

/// How a node keeps its chain.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where blocks take their time from.
    pub clock: Clock,
    /// How many blocks' states are kept, the last ones.
    pub states: u32,
    /// How many blocks the last final one is behind the best.
    pub lag: u32,
    /// How many transactions may wait.
    pub pool: Limits,
}

impl Options {
    /// Blocks are final at once; as many states as the program keeps by default.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            states: 4096,
            lag: 0,
            pool: Limits::default(),
        }
    }
}

/// Why there is no chain or it does not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime makes no block.
    #[error(transparent)]
    Block(#[from] block::Error),
    /// The store does not keep or give what it should.
    #[error("keeping the chain failed")]
    Store(#[from] muster_devchain_store::Error),
    /// The folder holds another chain.
    #[error(
        "the folder holds the chain with genesis {found:?}, and the specification describes {expected:?}; use the specification that it was begun with, or an empty folder"
    )]
    OtherChain {
        /// The genesis of the specification.
        expected: H256,
        /// The genesis in the store.
        found: H256,
    },
    /// The folder was written by another runtime.
    #[error(
        "the folder was written by runtime {found}, and this program has runtime {expected}; begin a new chain in an empty folder"
    )]
    OtherRuntime {
        /// The version of this program.
        expected: u32,
        /// The one that wrote.
        found: u32,
    },
    /// The store contradicts itself.
    #[error(
        "the store is damaged: {0}; restore the folder from a copy, or begin a new chain in an empty one"
    )]
    Damaged(String),
    /// Too many blocks are not final.
    #[error("{MOST_UNFINAL} blocks wait for finality; no more are sealed until some are final")]
    Unfinal,
    /// A reorganisation that reaches too deep.
    #[error("{0} block(s) are not final yet; only so many can be given up")]
    TooDeep(usize),
    /// A time that is over.
    #[error(transparent)]
    Past(#[from] Past),
}

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// There is no such block.
    #[error("there is no such block")]
    Block,
    /// The block is too old.
    #[error("the state after block {0:?} is no longer kept")]
    Discarded(H256),
    /// The store does not give it.
    #[error(transparent)]
    Store(#[from] Error),
}

/// A handle on the chain.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    sealer: Mutex<Sealer>,
    pool: Mutex<(Pool, Watchers)>,
    view: RwLock<View>,
    store: Store,
    states: u32,
    genesis: H256,
    /// Changes whenever the best or the last final block does.
    changed: watch::Sender<u64>,
    faults: Faults,
}

/// The state of sealing; the holder of its lock seals.
struct Sealer {
    clock: Clock,
    roots: Arc<Mutex<Roots>>,
    lag: u32,
    /// Whether nothing becomes final.
    stalled: bool,
    /// How often the head was reorganised.
    forks: u64,
}

/// A panic while a lock was held left what it protects whole: it changes only after the runtime has returned.
fn whole<T>(lock: Result<T, PoisonError<T>>) -> T {
    lock.unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// Begins a chain in a store, or goes on with the one that is there. No block follows until somebody seals one.
    ///
    /// # Errors
    /// When the configuration describes no state, or the store holds another chain or is damaged.
    pub fn open(config: &RuntimeGenesisConfig, store: Store, options: Options) -> Result<Self, Error> {
        let genesis = block::genesis(config)?;
        let hash = genesis.block.hash;
        let view = crate::resume::resume(&store, genesis, options.states)?;
        let mut clock = options.clock;
        clock.resume(view.best().block.timestamp);
        Ok(Self(Arc::new(Inner {
            sealer: Mutex::new(Sealer {
                clock,
                roots: Arc::default(),
                lag: options.lag,
                stalled: false,
                forks: 0,
            }),
            pool: Mutex::new((Pool::new(options.pool), Watchers::default())),
            view: RwLock::new(view),
            store,
            states: options.states,
            genesis: hash,
            changed: watch::Sender::new(0),
            faults: Faults::default(),
        })))
    }

    /// The hash of the first block: the chain's name.
    #[must_use]
    pub fn genesis(&self) -> H256 {
        self.0.genesis
    }

    /// The faults that are set.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    /// The best block.
    #[must_use]
    pub fn head(&self) -> Arc<Block> {
        Arc::clone(&self.view().best().block)
    }

    /// The last final block.
    #[must_use]
    pub fn finalised(&self) -> Arc<Block> {
        Arc::clone(&self.view().finalised().block)
    }

    /// A block by its hash; the best one without.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn block(&self, hash: Option<H256>) -> Result<Option<Arc<Block>>, Error> {
        let Some(hash) = hash else {
            return Ok(Some(self.head()));
        };
        let held = self.view().find(&hash).map(|entry| Arc::clone(&entry.block));
        if held.is_some() {
            return Ok(held);
        }
        match self.0.store.number(&hash.0)? {
            Some(number) => crate::resume::kept(&self.0.store, number),
            None => Ok(None),
        }
    }

    /// A block by its number.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn block_at(&self, number: BlockNumber) -> Result<Option<Arc<Block>>, Error> {
        {
            let view = self.view();
            let held = view.at(number).map(|entry| Arc::clone(&entry.block));
            if held.is_some() || number > view.best().block.header.number {
                return Ok(held);
            }
        }
        crate::resume::kept(&self.0.store, number)
    }

    /// A block and the state after it; the best one without a hash.
    ///
    /// # Errors
    /// When there is no such block or its state is no longer kept.
    pub fn state(&self, hash: Option<H256>) -> Result<(Arc<Block>, State), Missing> {
        let of = |entry: &Entry| (Arc::clone(&entry.block), entry.state.clone());
        let Some(hash) = hash else {
            return Ok(of(self.view().best()));
        };
        if let Some(held) = self.view().find(&hash).map(of) {
            return Ok(held);
        }
        match self.block(Some(hash))? {
            Some(_) => Err(Missing::Discarded(hash)),
            None => Err(Missing::Block),
        }
    }

    /// Notifies whenever the best or the last final block changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Takes a transaction into the pool.
    ///
    /// # Errors
    /// When it is not one, or the runtime refuses it, or the pool does.
    pub fn submit(&self, raw: Vec<u8>) -> Result<H256, Rejection> {
        self.take_in(raw, |_, hash| hash)
    }

    /// Takes a transaction into the pool and reports what becomes of it.
    ///
    /// # Errors
    /// As [`Node::submit`].
    pub fn submit_and_watch(&self, raw: Vec<u8>) -> Result<broadcast::Receiver<Status>, Rejection> {
        self.take_in(raw, Watchers::watch)
    }

    /// `accepted` sees the watchers before they are notified of the transaction.
    fn take_in<T>(
        &self,
        raw: Vec<u8>,
        accepted: impl FnOnce(&mut Watchers, H256) -> T,
    ) -> Result<T, Rejection> {
        let transaction = Arc::new(Transaction::decode(raw)?);
        let hash = transaction.hash;
        let best = self.view().best().clone();
        let now = best.block.timestamp.unwrap_or(0);
        self.pool().0.admits(hash, now)?;
        let validity = judge(&transaction, &best)?;
        let mut pool = self.pool();
        let (pool, watchers) = &mut *pool;
        let added = pool.add(transaction, &validity, best.block.header.number, now);
        let result = added.map(|()| accepted(watchers, hash));
        watchers.tell(pool.news());
        result
    }

    /// The bytes of the transactions that may be in the next block.
    #[must_use]
    pub fn pending(&self) -> Vec<Vec<u8>> {
        let candidates = self.pool().0.candidates();
        candidates
            .iter()
            .map(|transaction| transaction.raw.clone())
            .collect()
    }

    /// The nonce of an account's next transaction, those that wait included.
    ///
    /// # Errors
    /// When the runtime panics.
    pub fn next_nonce(&self, account: &AccountId) -> Result<Nonce, Panicked> {
        let state = self.view().best().state.clone();
        let sealed = consult(&state, || System::account_nonce(account))?;
        Ok(self.pool().0.next_nonce(account, sealed))
    }

    /// Seals one block.
    ///
    /// # Errors
    /// As [`Node::seal_many`].
    pub fn seal(&self) -> Result<Arc<Block>, Error> {
        self.seal_many(1)
    }

    /// Seals blocks, and returns the best one when they are kept.
    ///
    /// # Errors
    /// When the runtime cannot make a block at all; the pool is empty then: one of its transactions may be the reason.
    /// When the store does not keep it; it is not final then, and the next one tries again.
    pub fn seal_many(&self, n: u32) -> Result<Arc<Block>, Error> {
        let mut left = n;
        while left > 0 {
            let mut sealer = whole(self.0.sealer.lock());
            let began = std::time::Instant::now();
            let mut sealed = Ok(());
            for _ in 0..BATCH.min(left) {
                sealed = self.seal_one(&mut sealer);
                left = left.saturating_sub(1);
                if sealed.is_err() || began.elapsed() > BATCH_TIME {
                    break;
                }
            }
            let finalised = self.finalise(&sealer);
            sealed?;
            finalised?;
        }
        Ok(self.head())
    }

    fn seal_one(&self, sealer: &mut Sealer) -> Result<(), Error> {
        let parent = {
            let view = self.view();
            if view.tail().len() >= MOST_UNFINAL {
                return Err(Error::Unfinal);
            }
            view.best().clone()
        };
        let candidates = self.pool().0.candidates();
        let timestamp = sealer.clock.next(parent.block.timestamp);
        let built =
            block::build(&parent, candidates, timestamp, &sealer.roots).inspect_err(|_| self.empty_pool())?;
        sealer.clock.taken();
        let Built {
            entry,
            included,
            void,
        } = built;
        let block = Arc::clone(&entry.block);
        // A client that is notified of the block finds it.
        self.view_mut().push(entry);
        self.settle(&block, &included, &void);
        Ok(())
    }

    /// Notifies the pool and the watchers of a block.
    fn settle(&self, block: &Block, included: &[H256], void: &[H256]) {
        let mut pool = self.pool();
        let (pool, watchers) = &mut *pool;
        let number = block.header.number;
        pool.sealed(included, void, number, block.timestamp.unwrap_or(0));
        watchers.tell(pool.news());
        watchers.in_block(included.iter().copied(), number, block.hash);
    }

    fn empty_pool(&self) {
        let mut pool = self.pool();
        let (pool, watchers) = &mut *pool;
        let dropped = pool.take();
        watchers.tell(dropped.iter().map(|t| (t.hash, Status::Dropped)).collect());
    }

    /// Makes final what is due, once the store has it.
    fn finalise(&self, sealer: &Sealer) -> Result<(), Error> {
        let due: Vec<Sealed> = {
            let view = self.view();
            let lag = usize::try_from(sealer.lag).unwrap_or(usize::MAX);
            let count = view.tail().len().saturating_sub(lag);
            let count = if sealer.stalled { 0 } else { count };
            view.tail().iter().take(count).map(sealed).collect()
        };
        let kept = if due.is_empty() {
            Ok(())
        } else {
            self.0.store.commit(&due, self.0.states)
        };
        if kept.is_ok() {
            self.view_mut().finalise(due.len());
        }
        let (finalised, best) = {
            let view = self.view();
            (
                view.finalised().block.header.number,
                view.best().block.header.number,
            )
        };
        self.pool().1.finality(finalised, best);
        self.0.changed.send_modify(|times| *times = times.wrapping_add(1));
        Ok(kept?)
    }

    /// How many blocks the last final one is behind the best, and whether none becomes final.
    ///
    /// # Errors
    /// When the store does not keep what becomes final by it.
    pub fn set_finality(&self, lag: Option<u32>, stalled: Option<bool>) -> Result<(), Error> {
        let mut sealer = whole(self.0.sealer.lock());
        sealer.lag = lag.unwrap_or(sealer.lag);
        sealer.stalled = stalled.unwrap_or(sealer.stalled);
        self.finalise(&sealer)
    }

    /// Gives the next block its time in milliseconds.
    ///
    /// # Errors
    /// When that is not later than the best block's.
    pub fn set_time(&self, time: u64) -> Result<(), Error> {
        let mut sealer = whole(self.0.sealer.lock());
        Ok(sealer.clock.set(time, self.head().timestamp)?)
    }

    /// Makes the next block later by some milliseconds.
    pub fn advance(&self, milliseconds: u64) {
        whole(self.0.sealer.lock()).clock.advance(milliseconds);
    }

    /// Gives up the last `depth` blocks and seals one more than that in their place. The transactions that were in them
    /// may be in the new ones, or are forgotten.
    ///
    /// # Errors
    /// When some of these blocks are final, or the runtime cannot make the others; the head is as it was then.
    pub fn reorganise(&self, depth: usize, keep_transactions: bool) -> Result<Arc<Block>, Error> {
        let mut sealer = whole(self.0.sealer.lock());
        let (ancestor, given_up) = {
            let view = self.view();
            let unfinal = view.tail().len();
            let kept = unfinal.checked_sub(depth).ok_or(Error::TooDeep(unfinal))?;
            let (kept, given_up) = view.tail().split_at(kept);
            let ancestor = kept.last().unwrap_or(view.finalised()).clone();
            (ancestor, given_up.to_vec())
        };
        let waiting = self.pool().0.take();
        let mut again = Vec::new();
        let mut forgotten = Vec::new();
        for entry in &given_up {
            // The first is the timestamp.
            for raw in entry.block.body.iter().skip(1) {
                match Transaction::decode(raw.clone()) {
                    Ok(transaction) if keep_transactions => again.push(Arc::new(transaction)),
                    Ok(transaction) => forgotten.push(transaction.hash),
                    Err(_) => {}
                }
            }
        }
        again.extend(waiting.iter().cloned());
        let branch = self
            .branch(&mut sealer, ancestor, &given_up, &again)
            .inspect_err(|_| self.resubmit(waiting))?;
        let blocks: Vec<_> = branch.iter().map(|built| built.entry.clone()).collect();
        self.view_mut().replace(depth, blocks);
        {
            let mut pool = self.pool();
            for entry in given_up.iter().rev() {
                pool.1.retracted(entry.block.transactions(), entry.block.hash);
            }
            pool.1.tell(
                forgotten
                    .into_iter()
                    .map(|hash| (hash, Status::Dropped))
                    .collect(),
            );
        }
        self.resubmit(again);
        for built in &branch {
            self.settle(&built.entry.block, &built.included, &built.void);
        }
        self.finalise(&sealer)?;
        Ok(self.head())
    }

    /// The blocks that take the place of others: one more, the transactions in the first, none with an old one's time.
    fn branch(
        &self,
        sealer: &mut Sealer,
        ancestor: Entry,
        given_up: &[Entry],
        transactions: &[Arc<Transaction>],
    ) -> Result<Vec<Built>, Error> {
        sealer.forks = sealer.forks.saturating_add(1);
        let mut branch: Vec<Built> = Vec::new();
        let mut parent = ancestor;
        let mut candidates = transactions.to_vec();
        for place in 0..=given_up.len() {
            let old = given_up.get(place).and_then(|entry| entry.block.timestamp);
            let due = sealer.clock.next(parent.block.timestamp);
            // A clock that steps would make the same blocks again.
            let timestamp = due.max(old.unwrap_or(0)).saturating_add(sealer.forks);
            let built = block::build(&parent, std::mem::take(&mut candidates), timestamp, &sealer.roots)?;
            parent = built.entry.clone();
            branch.push(built);
        }
        Ok(branch)
    }

    /// Puts transactions into the pool as of the best block. Known transactions are refused, as they should be.
    fn resubmit(&self, transactions: Vec<Arc<Transaction>>) {
        let best = self.view().best().clone();
        for transaction in transactions {
            let Ok(validity) = judge(&transaction, &best) else {
                continue;
            };
            let mut pool = self.pool();
            let (pool, watchers) = &mut *pool;
            let now = best.block.timestamp.unwrap_or(0);
            // There was room for it a moment ago.
            let _ = pool.add(transaction, &validity, best.block.header.number, now);
            watchers.tell(pool.news());
        }
    }

    fn pool(&self) -> MutexGuard<'_, (Pool, Watchers)> {
        whole(self.0.pool.lock())
    }

    /// The blocks in memory. Not to be held while the runtime works or the disk is written.
    pub(crate) fn view(&self) -> RwLockReadGuard<'_, View> {
        whole(self.0.view.read())
    }

    fn view_mut(&self) -> RwLockWriteGuard<'_, View> {
        whole(self.0.view.write())
    }
}

/// A block as the store keeps it.
pub(crate) fn sealed(entry: &Entry) -> Sealed {
    Sealed {
        number: entry.block.header.number,
        hash: entry.block.hash.0,
        block: entry.block.encode(),
        changes: entry.changes.clone(),
    }
}

/// The runtime's verdict on a transaction after a block.
fn judge(
    transaction: &Transaction,
    best: &Entry,
) -> Result<sp_runtime::transaction_validity::ValidTransaction, Rejection> {
    let (extrinsic, hash) = (transaction.extrinsic.clone(), best.block.hash);
    let judged = consult(&best.state, || {
        Executive::validate_transaction(TransactionSource::External, extrinsic, hash)
    });
    Ok(judged.map_err(|Panicked| Rejection::Panicked)??)
}
