//! Wakes the event streams that follow a job when the job changes, and those of an account's browsers when a session of
//! the account may have ended.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use muster_facilitator_core::credentials::Account;
use muster_protocol::JobId;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The things that streams of this process watch, by key.
#[derive(Debug)]
pub(crate) struct Watchers<K: Eq + Hash> {
    watched: Mutex<HashMap<K, watch::Sender<()>>>,
}

/// A subscription to the changes of one key. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct Watch<K: Eq + Hash> {
    watchers: Arc<Watchers<K>>,
    key: K,
    changes: watch::Receiver<()>,
}

/// The watched jobs of this process.
pub(crate) type JobWatchers = Watchers<JobId>;
/// A subscription to one job's changes.
pub(crate) type JobWatch = Watch<JobId>;
/// The accounts of this process whose browsers have open event streams.
pub(crate) type SessionWatchers = Watchers<Account>;
/// A subscription to the ends of one account's sessions.
pub(crate) type SessionWatch = Watch<Account>;

// === impl Watchers ===

impl<K: Eq + Hash> Default for Watchers<K> {
    fn default() -> Self {
        Self {
            watched: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone> Watchers<K> {
    /// Subscribes to the changes of `key`. No change after this call is missed.
    pub(crate) fn watch(self: &Arc<Self>, key: K) -> Watch<K> {
        let mut watched = self.watched.lock();
        let sender = watched.entry(key.clone()).or_insert_with(|| watch::channel(()).0);
        Watch {
            watchers: Arc::clone(self),
            key,
            changes: sender.subscribe(),
        }
    }

    /// The number of watched keys.
    pub(crate) fn count(&self) -> usize {
        self.watched.lock().len()
    }

    /// Wakes the subscribers of one key.
    pub(crate) fn wake(&self, key: &K) {
        if let Some(sender) = self.watched.lock().get(key) {
            sender.send_replace(());
        }
    }

    /// Wakes every subscriber: a change may have been missed.
    pub(crate) fn wake_all(&self) {
        for sender in self.watched.lock().values() {
            sender.send_replace(());
        }
    }
}

// === impl Watch ===

impl<K: Eq + Hash> Watch<K> {
    /// Returns when there was a change since the last call.
    pub(crate) async fn changed(&mut self) {
        // The sender lives as long as any subscription.
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl<K: Eq + Hash> Drop for Watch<K> {
    fn drop(&mut self) {
        let mut watched = self.watchers.watched.lock();
        if watched
            .get(&self.key)
            .is_some_and(|sender| sender.receiver_count() <= 1)
        {
            watched.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_watch_is_woken_by_its_own_job_and_leaves_nothing_behind() {
        let job: JobId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        let watchers = Arc::new(JobWatchers::default());
        let (mut one, two) = (watchers.watch(job), watchers.watch(job));
        watchers.wake(&JobId::from_uuid(uuid::Uuid::nil()));
        watchers.wake(&job);
        one.changed().await;
        drop(two);
        assert_eq!(watchers.watched.lock().len(), 1);
        watchers.wake_all();
        one.changed().await;
        drop(one);
        assert_eq!(watchers.watched.lock().len(), 0);
    }
}
