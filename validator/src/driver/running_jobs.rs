//! Cancellation: how a running job's driver learns that its user called the job off.

use std::collections::HashMap;
use std::sync::Arc;

use muster_protocol::JobId;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The jobs that have a driver.
#[derive(Debug, Default)]
pub(crate) struct RunningJobs(Mutex<HashMap<JobId, RunningJob>>);

#[derive(Debug)]
struct RunningJob {
    /// Carries a cancellation to the driver.
    cancel: watch::Sender<Option<String>>,
    kind: RunningKind,
}

/// The kinds of running jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunningKind {
    /// A session by which the validator checks a miner. It ends within a minute or so.
    Check,
    /// Every other job.
    Other,
}

impl RunningJobs {
    /// Registers the driver of a job. The driver sees every cancellation from here on, and `cancelled`, the reason of a
    /// cancellation before.
    pub(crate) fn register(
        self: &Arc<Self>,
        job: JobId,
        kind: RunningKind,
        cancelled: Option<String>,
    ) -> CancelSignal {
        let cancel = watch::Sender::new(cancelled);
        let reason = cancel.subscribe();
        self.0.lock().insert(job, RunningJob { cancel, kind });
        CancelSignal {
            jobs: Arc::clone(self),
            job,
            reason,
        }
    }

    /// The number of jobs that have a driver.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Whether the job has a driver.
    pub(crate) fn contains(&self, job: JobId) -> bool {
        self.0.lock().contains_key(&job)
    }

    /// Whether one of them is a check of a miner: its executor is free again soon.
    pub(crate) fn has_check(&self) -> bool {
        let jobs = self.0.lock();
        jobs.values().any(|job| job.kind == RunningKind::Check)
    }

    /// Sends the cancellation of a job to its driver, if there is one.
    pub(crate) fn cancel(&self, job: JobId, reason: &str) {
        if let Some(running) = self.0.lock().get(&job) {
            running.cancel.send_replace(Some(reason.to_owned()));
        }
    }
}

/// Receives the cancellation of one job. Unregisters the driver when it is dropped.
#[derive(Debug)]
pub(crate) struct CancelSignal {
    jobs: Arc<RunningJobs>,
    job: JobId,
    reason: watch::Receiver<Option<String>>,
}

impl CancelSignal {
    /// The user's reason, if the job was called off.
    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.borrow().clone()
    }

    /// Waits until the job is called off; returns the user's reason. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> String {
        loop {
            if let Some(reason) = self.reason.borrow_and_update().clone() {
                return reason;
            }
            if self.reason.changed().await.is_err() {
                // The sender stays registered for as long as this signal lives, so this cannot happen.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for CancelSignal {
    fn drop(&mut self) {
        self.jobs.0.lock().remove(&self.job);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_check_is_known_until_its_driver_ends() {
        let jobs = Arc::new(RunningJobs::default());
        let job = |seed| JobId::from_uuid(Uuid::from_u128(seed));
        let _other = jobs.register(job(1), RunningKind::Other, None);
        assert!(!jobs.has_check());
        let check = jobs.register(job(2), RunningKind::Check, None);
        assert!(jobs.has_check());
        drop(check);
        assert!(!jobs.has_check());
        assert_eq!(jobs.count(), 1);
    }
}
