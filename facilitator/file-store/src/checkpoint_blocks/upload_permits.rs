//! Permits of the blocks that are received at one time, shared among accounts, and the pace of each of them. The
//! decisions are pure; [`UploadPermits`] waits by them.
//!
//! Each permit stands for one block in memory. An account has a share of the permits. It borrows those that nobody
//! uses, but for a reserve, so a newcomer gets a permit at once. A permit that comes back goes to the waiting account
//! with the fewest.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_protocol::Timestamp;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Blocks that are received at one time.
pub(crate) const RECEIVED_AT_ONCE: usize = 32;

/// Permits that an account may take while any are free.
const ACCOUNT_SHARE: usize = 8;

/// Free permits that an account beyond its share leaves to others.
const RESERVED: usize = 8;

/// How long a block may take to arrive: eight mebibytes at 35 KiB/s, the limit of the executors' client.
pub(crate) const RECEIVE_LIMIT: Duration = Duration::from_secs(240);

/// The time over which an upload's rate is measured.
pub(crate) const PACE_WINDOW: Duration = Duration::from_secs(20);

/// The bytes that an upload brings within [`PACE_WINDOW`], or it is given up: 16 KiB/s. An executor sends three blocks
/// at a time, so each has 40 KiB/s of a line of 1 Mbit/s.
pub(crate) const PACE_BYTES: usize = 320 * 1024;

/// The permits of all accounts. Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct UploadPermits {
    table: Arc<Mutex<PermitTable>>,
}

/// One block may be received. The permit goes back when it is dropped.
#[derive(Debug)]
pub(crate) struct UploadPermit {
    table: Arc<Mutex<PermitTable>>,
    account: String,
}

#[derive(Debug, Default)]
struct PermitTable {
    /// The permits of each account that has any.
    held: BTreeMap<String, usize>,
    /// In order of arrival.
    waiting: VecDeque<WaitingUpload>,
}

#[derive(Debug)]
struct WaitingUpload {
    account: String,
    permitted: oneshot::Sender<UploadPermit>,
}

/// The rate of one upload. Pure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UploadPace {
    began: Timestamp,
    window_began: Timestamp,
    in_window: usize,
}

/// An upload is slower than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooSlow;

// === impl UploadPermits, UploadPermit ===

impl UploadPermits {
    /// Waits until the account may send one more block.
    pub(crate) async fn acquire(&self, account: &str) -> UploadPermit {
        let received = {
            let mut table = self.table.lock();
            if table.take(account) {
                return self.permit(account);
            }
            let (permitted, received) = oneshot::channel();
            table.waiting.push_back(WaitingUpload {
                account: account.to_owned(),
                permitted,
            });
            received
        };
        // The sender lies in the table until it is used, and the table outlives this call.
        match received.await {
            Ok(permit) => permit,
            Err(_) => std::future::pending().await,
        }
    }

    fn permit(&self, account: &str) -> UploadPermit {
        UploadPermit {
            table: Arc::clone(&self.table),
            account: account.to_owned(),
        }
    }
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        let served = self.table.lock().give_back(&self.account);
        for waiting in served {
            // If its client has gone meanwhile, the permit is dropped here and goes on to the next.
            let _ = waiting.permitted.send(Self {
                table: Arc::clone(&self.table),
                account: waiting.account,
            });
        }
    }
}

// === impl PermitTable ===

/// Whether an account with `own` permits may take one of the free ones.
const fn may_take(own: usize, free: usize) -> bool {
    free > 0 && (own < ACCOUNT_SHARE || free > RESERVED)
}

impl PermitTable {
    fn own(&self, account: &str) -> usize {
        self.held.get(account).copied().unwrap_or_default()
    }

    fn free(&self) -> usize {
        RECEIVED_AT_ONCE.saturating_sub(self.held.values().sum())
    }

    /// Takes a permit for the account, if it may have one now.
    fn take(&mut self, account: &str) -> bool {
        let own = self.own(account);
        let takes = may_take(own, self.free());
        if takes {
            self.held.insert(account.to_owned(), own.saturating_add(1));
        }
        takes
    }

    /// Gives a permit of the account back, and takes the permits of the uploads that get one now.
    fn give_back(&mut self, account: &str) -> Vec<WaitingUpload> {
        match self.own(account) {
            0 | 1 => drop(self.held.remove(account)),
            more => drop(self.held.insert(account.to_owned(), more.saturating_sub(1))),
        }
        self.waiting.retain(|waiting| !waiting.permitted.is_closed());
        let mut served = Vec::new();
        while let Some(next) = self.pop_next() {
            served.push(next);
        }
        served
    }

    /// The waiting upload of the account with the fewest permits, the first of equals, with its permit taken; `None` if
    /// none may have one now.
    fn pop_next(&mut self) -> Option<WaitingUpload> {
        let waiting = self.waiting.iter().enumerate();
        let (place, _) = waiting.min_by_key(|(_, upload)| self.own(&upload.account))?;
        let account = self.waiting.get(place)?.account.clone();
        if !self.take(&account) {
            return None;
        }
        self.waiting.remove(place)
    }
}

// === impl UploadPace ===

impl UploadPace {
    /// An upload that begins at `now`.
    pub(crate) const fn new(now: Timestamp) -> Self {
        Self {
            began: now,
            window_began: now,
            in_window: 0,
        }
    }

    /// Counts bytes that have arrived.
    pub(crate) const fn note(&mut self, bytes: usize) {
        self.in_window = self.in_window.saturating_add(bytes);
    }

    /// When the upload is judged next, if it has not ended before.
    pub(crate) fn judged_at(&self) -> Timestamp {
        let limit = self.began.plus(RECEIVE_LIMIT);
        self.window_began.plus(PACE_WINDOW).min(limit)
    }

    /// Judges the upload, and begins the next window where one is over.
    ///
    /// # Errors
    /// Less than [`PACE_BYTES`] came within the window, or [`RECEIVE_LIMIT`] is over.
    pub(crate) fn judge(&mut self, now: Timestamp) -> Result<(), TooSlow> {
        if now >= self.began.plus(RECEIVE_LIMIT) {
            return Err(TooSlow);
        }
        if now < self.window_began.plus(PACE_WINDOW) {
            return Ok(());
        }
        if self.in_window < PACE_BYTES {
            return Err(TooSlow);
        }
        (self.window_began, self.in_window) = (now, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    fn acquired(permits: &UploadPermits, account: &str) -> Option<UploadPermit> {
        permits.acquire(account).now_or_never()
    }

    #[test]
    fn an_account_borrows_unused_permits_and_leaves_the_reserve() {
        let permits = UploadPermits::default();
        let held: Vec<_> = std::iter::from_fn(|| acquired(&permits, "a")).collect();
        assert_eq!(held.len(), RECEIVED_AT_ONCE - RESERVED);
        let others: Vec<_> = std::iter::from_fn(|| acquired(&permits, "b")).collect();
        assert_eq!(others.len(), ACCOUNT_SHARE);
        assert!(acquired(&permits, "c").is_none());
        drop(held);
        assert!(acquired(&permits, "c").is_some());
    }

    #[tokio::test]
    async fn a_permit_that_comes_back_goes_to_the_account_with_the_fewest() {
        let permits = UploadPermits::default();
        let mut held: Vec<_> = std::iter::from_fn(|| acquired(&permits, "a")).collect();
        let others: Vec<_> = std::iter::from_fn(|| acquired(&permits, "b")).collect();
        let mut first = Box::pin(permits.acquire("a"));
        let mut gone = Box::pin(permits.acquire("c"));
        let mut last = Box::pin(permits.acquire("c"));
        for waiting in [&mut first, &mut gone, &mut last] {
            assert!(waiting.now_or_never().is_none());
        }
        drop(gone);
        drop(held.pop());
        let permit = last.now_or_never().unwrap();
        assert_eq!(permit.account, "c");
        drop(held.pop());
        assert!(
            (&mut first).now_or_never().is_none(),
            "the reserve is not there yet"
        );
        drop((others, permit));
        assert_eq!(first.now_or_never().unwrap().account, "a");
    }

    #[test]
    fn an_upload_is_given_up_after_a_slow_window_and_after_its_limit() {
        let began = Timestamp::from_secs(1_769_000_000);
        let after = |secs| began.plus(Duration::from_secs(secs));
        let mut pace = UploadPace::new(began);
        assert_eq!(pace.judged_at(), after(20));
        assert_eq!(pace.judge(after(19)), Ok(()));
        pace.note(PACE_BYTES);
        assert_eq!(pace.judge(after(20)), Ok(()));
        pace.note(PACE_BYTES - 1);
        assert_eq!(pace.judge(after(39)), Ok(()));
        assert_eq!(pace.judge(after(40)), Err(TooSlow));
        let mut pace = UploadPace::new(began);
        for window in 1..12 {
            pace.note(PACE_BYTES);
            assert_eq!(pace.judge(after(20 * window)), Ok(()));
        }
        assert_eq!(pace.judged_at(), after(240));
        pace.note(PACE_BYTES);
        assert_eq!(pace.judge(after(240)), Err(TooSlow));
    }

    #[test]
    fn three_uploads_over_one_slow_line_pass() {
        let began = Timestamp::from_secs(1_769_000_000);
        // 1 Mbit/s, in bytes a second.
        let each = 125_000 / 3;
        let mut pace = UploadPace::new(began);
        for second in 1..=(8 * 1024 * 1024) / each {
            pace.note(each);
            assert_eq!(pace.judge(began.plus(Duration::from_secs(second as u64))), Ok(()));
        }
    }

    proptest! {
        /// Permits are neither lost nor made, and the fewest held among those who wait is never beyond its share while
        /// permits are free.
        #[test]
        fn permits_are_neither_lost_nor_made(steps in proptest::collection::vec((0_u8..5, any::<bool>(), any::<prop::sample::Index>()), 1..300)) {
            let permits = UploadPermits::default();
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for (account, takes, which) in steps {
                if takes || held.is_empty() {
                    let mut upload = Box::pin({
                        let permits = permits.clone();
                        async move { permits.acquire(&account.to_string()).await }
                    });
                    match (&mut upload).now_or_never() {
                        Some(permit) => held.push(permit),
                        None => waiting.push(upload),
                    }
                } else {
                    drop(held.swap_remove(which.index(held.len())));
                    waiting.retain_mut(|upload| match upload.now_or_never() {
                        Some(permit) => {
                            held.push(permit);
                            false
                        }
                        None => true,
                    });
                }
                let table = permits.table.lock();
                prop_assert_eq!(table.held.values().sum::<usize>(), held.len());
                prop_assert_eq!(table.waiting.len(), waiting.len());
                prop_assert!(held.len() <= RECEIVED_AT_ONCE);
                let free = table.free();
                prop_assert!(table.waiting.iter().all(|upload| !may_take(table.own(&upload.account), free)));
            }
        }
    }
}
