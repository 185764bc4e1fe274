//! The registry of validators' sessions in this process: which connection holds a validator's jobs, and what each
//! session has to do. [`ValidatorConnections`] decides; this module wakes the sessions.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_facilitator_core::connections::{ConnectionId, Trust, ValidatorConnections};
use muster_protocol::{JobId, Timestamp, ValidatorKey};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The most jobs in one session's [`SessionWork`]; with more, the session checks the whole store instead.
const MAX_QUEUED_JOBS: usize = 4096;

/// The open sessions.
#[derive(Debug, Default)]
pub(crate) struct ValidatorSessions {
    registry: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    connections: ValidatorConnections,
    inboxes: BTreeMap<ConnectionId, SessionInbox>,
}

#[derive(Debug, Default)]
struct SessionInbox {
    notify: Arc<Notify>,
    work: SessionWork,
}

/// The work that a woken session has to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionWork {
    /// Whether to check everything that is stored for the validator.
    pub(crate) check_store: bool,
    /// Jobs to deliver.
    pub(crate) deliver: Vec<JobId>,
    /// Jobs to stop.
    pub(crate) cancel: Vec<JobId>,
}

/// A session's entry in the registry. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct SessionRegistration {
    sessions: Arc<ValidatorSessions>,
    validator: ValidatorKey,
    connection: ConnectionId,
    notify: Arc<Notify>,
}

// === impl ValidatorSessions ===

impl ValidatorSessions {
    /// Registers a session.
    pub(crate) fn register(
        self: &Arc<Self>,
        validator: ValidatorKey,
        trust: Trust,
        now: Timestamp,
    ) -> SessionRegistration {
        let inbox = SessionInbox::default();
        let notify = Arc::clone(&inbox.notify);
        let mut registry = self.registry.lock();
        let connection = registry.connections.connect(validator, trust, now);
        registry.inboxes.insert(connection, inbox);
        SessionRegistration {
            sessions: Arc::clone(self),
            validator,
            connection,
            notify,
        }
    }

    /// Whether the validator must answer a challenge, because it has answered one recently.
    pub(crate) fn demands_proof(&self, validator: ValidatorKey, now: Timestamp) -> bool {
        self.registry.lock().connections.demands_proof(validator, now)
    }

    /// Makes the validator's sessions check the store. Only the one that holds the validator's jobs finds any.
    pub(crate) fn wake(&self, validator: ValidatorKey) {
        let mut registry = self.registry.lock();
        registry.add_work(validator, |work| work.check_store = true);
    }

    /// Makes every session check the store.
    pub(crate) fn wake_all(&self) {
        for inbox in self.registry.lock().inboxes.values_mut() {
            inbox.work.check_store = true;
            inbox.notify.notify_one();
        }
    }

    /// Gives the validator's sessions a job to deliver.
    pub(crate) fn queue_delivery(&self, validator: ValidatorKey, job: JobId) {
        let mut registry = self.registry.lock();
        registry.add_work(validator, |work| work.deliver.push(job));
    }

    /// Gives the validator's sessions a job to stop.
    pub(crate) fn queue_cancellation(&self, validator: ValidatorKey, job: JobId) {
        let mut registry = self.registry.lock();
        registry.add_work(validator, |work| work.cancel.push(job));
    }

    /// The time of the last frame over the connection of this process that holds the validator's jobs; `None` without
    /// one.
    pub(crate) fn last_frame_at(&self, validator: ValidatorKey, now: Timestamp) -> Option<Timestamp> {
        self.registry.lock().connections.last_frame_at(validator, now)
    }

    /// The number of connected validators.
    pub(crate) fn validator_count(&self) -> usize {
        self.registry.lock().connections.validator_count()
    }

    /// Whether the validator has any connection to this process.
    pub(crate) fn is_connected(&self, validator: ValidatorKey) -> bool {
        let registry = self.registry.lock();
        registry.connections.connections_of(validator).next().is_some()
    }
}

// === impl Registry ===

impl Registry {
    fn add_work(&mut self, validator: ValidatorKey, add: impl Fn(&mut SessionWork)) {
        for connection in self.connections.connections_of(validator) {
            if let Some(inbox) = self.inboxes.get_mut(&connection) {
                add(&mut inbox.work);
                if inbox.work.deliver.len() + inbox.work.cancel.len() > MAX_QUEUED_JOBS {
                    inbox.work = SessionWork {
                        check_store: true,
                        ..SessionWork::default()
                    };
                }
                inbox.notify.notify_one();
            }
        }
    }
}

// === impl SessionRegistration ===

impl SessionRegistration {
    /// Returns when the session has work. A wake-up that comes while nobody waits is kept for the next call.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// Takes the session's work. The next call returns only what was added since.
    pub(crate) fn take_work(&self) -> SessionWork {
        let mut registry = self.sessions.registry.lock();
        let inbox = registry.inboxes.get_mut(&self.connection);
        inbox
            .map(|inbox| std::mem::take(&mut inbox.work))
            .unwrap_or_default()
    }

    /// Takes those of the validator's unanswered jobs that are due over this connection, and marks them as delivered.
    pub(crate) fn take_due(&self, unanswered: &[JobId], now: Timestamp) -> Vec<JobId> {
        let mut registry = self.sessions.registry.lock();
        let connections = &mut registry.connections;
        connections.take_due(self.validator, self.connection, unanswered, now)
    }

    /// Whether this unanswered job is due over this connection. If it is, it is marked as delivered.
    pub(crate) fn take_if_due(&self, job: JobId, now: Timestamp) -> bool {
        let mut registry = self.sessions.registry.lock();
        let connections = &mut registry.connections;
        connections.take_if_due(self.validator, self.connection, job, now)
    }

    /// Records that a frame came over this connection.
    pub(crate) fn record_frame(&self, now: Timestamp) {
        let mut registry = self.sessions.registry.lock();
        let connections = &mut registry.connections;
        connections.record_frame(self.validator, self.connection, now);
    }

    /// Whether this connection holds the validator's jobs: it receives them, and only it may report on them.
    pub(crate) fn holds_jobs(&self, now: Timestamp) -> bool {
        let mut registry = self.sessions.registry.lock();
        registry.connections.holder(self.validator, now) == Some(self.connection)
    }
}

impl Drop for SessionRegistration {
    fn drop(&mut self) {
        let mut registry = self.sessions.registry.lock();
        registry.inboxes.remove(&self.connection);
        registry.connections.disconnect(self.validator, self.connection);
        // Another connection of the validator may now hold its jobs.
        registry.add_work(self.validator, |work| work.check_store = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::Hotkey;

    #[test]
    fn work_is_taken_once_and_too_many_jobs_become_a_check_of_the_store() {
        let job: JobId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        let validator = ValidatorKey(Hotkey::from_bytes([1; 32]));
        let sessions = Arc::new(ValidatorSessions::default());
        let session = sessions.register(validator, Trust::Claimed, Timestamp::from_secs(1));
        sessions.queue_delivery(validator, job);
        sessions.queue_cancellation(validator, job);
        let work = session.take_work();
        assert_eq!(
            (work.check_store, work.deliver, work.cancel),
            (false, vec![job], vec![job])
        );
        assert_eq!(session.take_work(), SessionWork::default());
        for _ in 0..=MAX_QUEUED_JOBS {
            sessions.queue_delivery(validator, job);
        }
        assert!(session.take_work().check_store);
    }
}
