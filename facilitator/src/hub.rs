//! The connected validators: [`Desk`] decides who gets what, this rings the session that is to look.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_protocol::{JobId, Timestamp, ValidatorKey};
use tokio::sync::Notify;

use muster_porter::delivery::{Desk, LinkId, Trust};

/// Where sessions of validators sign in and are rung when there may be something to deliver.
#[derive(Debug, Default)]
pub struct Hub {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    desk: Desk,
    bells: BTreeMap<LinkId, Arc<Notify>>,
}

/// A session's place in the hub; given up when dropped.
#[derive(Debug)]
pub struct Seat {
    hub: Arc<Hub>,
    validator: ValidatorKey,
    link: LinkId,
    bell: Arc<Notify>,
}

// === impl Hub ===

impl Hub {
    /// Signs a session in.
    pub fn sit(self: &Arc<Self>, validator: ValidatorKey, trust: Trust, now: Timestamp) -> Seat {
        let bell = Arc::new(Notify::new());
        let mut inner = self.lock();
        let link = inner.desk.connect(validator, trust, now);
        inner.bells.insert(link, Arc::clone(&bell));
        Seat {
            hub: Arc::clone(self),
            validator,
            link,
            bell,
        }
    }

    /// Whether a mere claim to be this validator is not enough.
    pub fn demands_proof(&self, validator: ValidatorKey, now: Timestamp) -> bool {
        self.lock().desk.demands_proof(validator, now)
    }

    /// Tells the validator's sessions to look for jobs; only the one that holds them finds any.
    pub fn ring(&self, validator: ValidatorKey) {
        self.lock().ring(validator);
    }

    /// How many validators are connected.
    pub fn validators(&self) -> usize {
        self.lock().desk.validators()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No holder leaves it half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn ring(&self, validator: ValidatorKey) {
        for link in self.desk.links(validator) {
            if let Some(bell) = self.bells.get(&link) {
                bell.notify_one();
            }
        }
    }
}

// === impl Seat ===

impl Seat {
    /// Ends when there may be something to deliver. A ring while nobody waits is not lost.
    pub async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Which of the validator's unanswered jobs are to go over this connection now. They count as delivered.
    pub fn due(&self, unanswered: &[JobId], now: Timestamp) -> Vec<JobId> {
        self.hub
            .lock()
            .desk
            .due(self.validator, self.link, unanswered, now)
    }

    /// A frame has come over this connection.
    pub fn heard(&self, now: Timestamp) {
        self.hub.lock().desk.heard(self.validator, self.link, now);
    }

    /// Whether this connection holds the validator's jobs: they go over it, and it may report on them.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.hub.lock().desk.holder(self.validator, now) == Some(self.link)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.hub.lock();
        inner.bells.remove(&self.link);
        inner.desk.disconnect(self.validator, self.link);
        // Another connection may take over what this one leaves.
        inner.ring(self.validator);
    }
}
