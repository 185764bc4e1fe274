//! Transactions that wait for a block: which may be in the next one, which wait for others, which replace which, and
//! which are not taken again for a while. A pure function of what it receives; the rules and bounds are those of
//! Substrate's pool.

use crate::rejection::Rejection;
use codec::{Decode, Encode};
use muster_devchain_runtime::{AccountId, BlockNumber, Nonce, UncheckedExtrinsic};
use sp_core::H256;
use sp_runtime::traits::{BlakeTwo256, Hash};
use sp_runtime::transaction_validity::{TransactionTag, ValidTransaction};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// For how long a transaction is not taken again that was in a block or became invalid, in the chain's time.
pub const BAN_MS: u64 = 30 * 60 * 1000;
/// How many of those are remembered.
const BANS: usize = 8192;

/// The status of a transaction, as it is sent to its watcher.
#[derive(serde::Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// It waits for a transaction that must come first.
    Future,
    /// It may be in the next block.
    Ready,
    /// It is in this block.
    InBlock(H256),
    /// This block, in which it was, is given up.
    Retracted(H256),
    /// This block, in which it is, did not become final in time. Nothing more is sent.
    FinalityTimeout(H256),
    /// This block is final.
    Finalized(H256),
    /// This transaction took its place.
    Usurped(H256),
    /// There was no room for it.
    Dropped,
    /// It can never be in a block.
    Invalid,
}

/// A transaction as received.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// Its name: the hash of its bytes.
    pub hash: H256,
    /// The encoded transaction.
    pub raw: Vec<u8>,
    /// The decoded transaction.
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
}

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many transactions that may be in the next block; a tenth of it for those that wait for others.
    pub count: usize,
    /// How many bytes they may have together; likewise.
    pub bytes: usize,
}

impl Default for Limits {
    /// Those of a Substrate node.
    fn default() -> Self {
        Self {
            count: 8192,
            bytes: 20 * 1024 * 1024,
        }
    }
}

/// A transaction that waits.
struct Waiting {
    transaction: Arc<Transaction>,
    priority: u64,
    /// The tags that must have been provided before; the set shrinks as they are.
    requires: HashSet<TransactionTag>,
    provides: Vec<TransactionTag>,
    valid_until: u64,
    /// Rises with arrival.
    order: u64,
    ready: bool,
}

/// The changes of status, by transaction.
pub type News = Vec<(H256, Status)>;

/// All that wait.
#[derive(Default)]
pub struct Pool {
    waiting: HashMap<H256, Waiting>,
    /// The transactions by the tags that they provide: two with one tag exclude each other.
    providers: HashMap<TransactionTag, H256>,
    bans: HashMap<H256, u64>,
    banned: VecDeque<H256>,
    limits: Limits,
    next: u64,
    news: News,
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Whether a transaction is worth judging.
    ///
    /// # Errors
    /// When it waits already, or is not taken for a while.
    pub fn admits(&self, hash: H256, now: u64) -> Result<(), Rejection> {
        if self.waiting.contains_key(&hash) {
            return Err(Rejection::Known(hash));
        }
        match self.bans.get(&hash) {
            Some(until) if now < *until => Err(Rejection::Banned),
            Some(_) | None => Ok(()),
        }
    }

    /// Adds a transaction that the runtime accepted after block `number`.
    ///
    /// # Errors
    /// When it waits already, is not taken for a while, or there are better ones.
    pub fn add(
        &mut self,
        transaction: Arc<Transaction>,
        validity: &ValidTransaction,
        number: BlockNumber,
        now: u64,
    ) -> Result<(), Rejection> {
        let hash = transaction.hash;
        self.admits(hash, now)?;
        let rivals = self.rivals(&validity.provides);
        let best = rivals.iter().filter_map(|rival| self.waiting.get(rival));
        if let Some(old) = best.map(|rival| rival.priority).max()
            && old >= validity.priority
        {
            return Err(Rejection::Priority {
                old,
                new: validity.priority,
            });
        }
        for rival in rivals {
            self.remove(&rival);
            self.news.push((rival, Status::Usurped(hash)));
        }
        self.next = self.next.saturating_add(1);
        let waiting = Waiting {
            transaction,
            priority: validity.priority,
            requires: validity.requires.iter().cloned().collect(),
            provides: validity.provides.clone(),
            valid_until: u64::from(number).saturating_add(validity.longevity),
            order: self.next,
            ready: false,
        };
        for tag in &waiting.provides {
            self.providers.insert(tag.clone(), hash);
        }
        self.waiting.insert(hash, waiting);
        self.promote();
        if self.waiting.get(&hash).is_some_and(|waiting| !waiting.ready) {
            self.news.push((hash, Status::Future));
        }
        let dropped = self.enforce();
        let full = dropped.contains(&hash);
        let dropped = dropped.into_iter().map(|hash| (hash, Status::Dropped));
        self.news.extend(dropped);
        if full { Err(Rejection::Full) } else { Ok(()) }
    }

    /// The changes of status since the last call.
    pub fn news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Those that may be in the next block, the most urgent first.
    #[must_use]
    pub fn candidates(&self) -> Vec<Arc<Transaction>> {
        let mut ready: Vec<_> = self.waiting.values().filter(|waiting| waiting.ready).collect();
        ready.sort_unstable_by_key(|waiting| (Reverse(waiting.priority), waiting.order));
        ready
            .into_iter()
            .map(|waiting| Arc::clone(&waiting.transaction))
            .collect()
    }

    /// The nonce after those of an account that may be in the next block, given the one that is due.
    #[must_use]
    pub fn next_nonce(&self, account: &AccountId, mut nonce: Nonce) -> Nonce {
        let ready = |tag: &TransactionTag| {
            let provider = self.providers.get(tag).and_then(|hash| self.waiting.get(hash));
            provider.is_some_and(|waiting| waiting.ready)
        };
        while ready(&(account, nonce).encode()) {
            nonce = nonce.saturating_add(1);
        }
        nonce
    }

    /// A block was sealed: what is in it and what can never be in one leaves, and what waited for it may be in the
    /// next.
    pub fn sealed(&mut self, included: &[H256], void: &[H256], number: BlockNumber, now: u64) {
        for hash in included {
            self.ban(*hash, now);
            let Some(done) = self.remove(hash) else { continue };
            for waiting in self.waiting.values_mut() {
                waiting.requires.retain(|tag| !done.provides.contains(tag));
            }
        }
        let late = |waiting: &&Waiting| waiting.valid_until < u64::from(number);
        let late = self
            .waiting
            .values()
            .filter(late)
            .map(|late| late.transaction.hash);
        let gone: Vec<H256> = late.chain(void.iter().copied()).collect();
        for hash in gone {
            if self.remove(&hash).is_some() {
                self.ban(hash, now);
                self.news.push((hash, Status::Invalid));
            }
        }
        self.promote();
    }

    /// Takes everything out, in the order of arrival, to be judged anew on another chain; what was banned may come
    /// again.
    pub fn take(&mut self) -> Vec<Arc<Transaction>> {
        let mut all: Vec<_> = self.waiting.drain().map(|(_, waiting)| waiting).collect();
        self.providers.clear();
        self.bans.clear();
        self.banned.clear();
        all.sort_unstable_by_key(|waiting| waiting.order);
        all.into_iter().map(|waiting| waiting.transaction).collect()
    }

    fn rivals(&self, provides: &[TransactionTag]) -> HashSet<H256> {
        let rivals = provides.iter().filter_map(|tag| self.providers.get(tag));
        rivals.copied().collect()
    }

    /// Removes one; those that needed it wait for another.
    fn remove(&mut self, hash: &H256) -> Option<Waiting> {
        let removed = self.waiting.remove(hash)?;
        for tag in &removed.provides {
            self.providers.remove(tag);
        }
        Some(removed)
    }

    fn ban(&mut self, hash: H256, now: u64) {
        if self.bans.insert(hash, now.saturating_add(BAN_MS)).is_none() {
            self.banned.push_back(hash);
        }
        while self.banned.len() > BANS {
            if let Some(oldest) = self.banned.pop_front() {
                self.bans.remove(&oldest);
            }
        }
    }

    /// Makes ready whatever has all that it requires, until nothing changes.
    fn promote(&mut self) {
        let mut future: Vec<(u64, H256)> = self
            .waiting
            .iter()
            .filter(|(_, w)| !w.ready)
            .map(|(h, w)| (w.order, *h))
            .collect();
        future.sort_unstable();
        loop {
            let before = future.len();
            future.retain(|(_, hash)| {
                let has = |tag: &TransactionTag| {
                    let provider = self.providers.get(tag).and_then(|hash| self.waiting.get(hash));
                    provider.is_some_and(|provider| provider.ready)
                };
                let ready = self
                    .waiting
                    .get(hash)
                    .is_some_and(|waiting| waiting.requires.iter().all(has));
                if let Some(waiting) = self.waiting.get_mut(hash)
                    && ready
                {
                    waiting.ready = true;
                    self.news.push((*hash, Status::Ready));
                }
                !ready
            });
            if future.len() == before {
                return;
            }
        }
    }

    /// Drops the least urgent until the rest is within the limits, with those that cannot be without them.
    fn enforce(&mut self) -> Vec<H256> {
        let mut dropped = Vec::new();
        for (ready, share) in [(true, 1), (false, 10)] {
            loop {
                let kind = self.waiting.values().filter(|waiting| waiting.ready == ready);
                let (count, bytes) = kind.clone().fold((0usize, 0usize), |(count, bytes), waiting| {
                    let size = waiting.transaction.raw.len();
                    (count.saturating_add(1), bytes.saturating_add(size))
                });
                if count <= self.limits.count / share && bytes <= self.limits.bytes / share {
                    break;
                }
                let least = kind.min_by_key(|waiting| (waiting.priority, Reverse(waiting.order)));
                let Some(hash) = least.map(|waiting| waiting.transaction.hash) else {
                    break;
                };
                self.drop_with_dependants(hash, &mut dropped);
            }
        }
        dropped
    }

    fn drop_with_dependants(&mut self, hash: H256, dropped: &mut Vec<H256>) {
        let mut doomed = vec![hash];
        while let Some(hash) = doomed.pop() {
            let Some(gone) = self.remove(&hash) else { continue };
            dropped.push(hash);
            let needs = |waiting: &&Waiting| {
                waiting.ready && gone.provides.iter().any(|tag| waiting.requires.contains(tag))
            };
            doomed.extend(
                self.waiting
                    .values()
                    .filter(needs)
                    .map(|waiting| waiting.transaction.hash),
            );
        }
    }
}
