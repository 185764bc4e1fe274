//! The connected validators: [`Desk`] decides who gets what, this rings the session that is to look.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_protocol::{JobId, ValidatorKey};
use tokio::sync::Notify;

use crate::delivery::{Desk, LinkId};

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
    /// Signs a session in. It replaces earlier ones of the same validator for deliveries.
    pub fn sit(self: &Arc<Self>, validator: ValidatorKey) -> Seat {
        let bell = Arc::new(Notify::new());
        let mut inner = self.lock();
        let link = inner.desk.connect(validator);
        inner.bells.insert(link, Arc::clone(&bell));
        Seat {
            hub: Arc::clone(self),
            validator,
            link,
            bell,
        }
    }

    /// Tells the validator's session, if there is one, to look for jobs.
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
        if let Some(bell) = self
            .desk
            .current(validator)
            .and_then(|link| self.bells.get(&link))
        {
            bell.notify_one();
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
    pub fn due(&self, unanswered: &[JobId]) -> Vec<JobId> {
        self.hub.lock().desk.due(self.validator, self.link, unanswered)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.hub.lock();
        inner.bells.remove(&self.link);
        inner.desk.disconnect(self.validator, self.link);
        // An older connection may take over what this one leaves.
        inner.ring(self.validator);
    }
}
