//! Wakes the event streams that follow a job when the job changes.

use std::collections::HashMap;
use std::sync::Arc;

use muster_protocol::JobId;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The watched jobs of this process.
#[derive(Debug, Default)]
pub(crate) struct JobWatchers {
    jobs: Mutex<HashMap<JobId, watch::Sender<()>>>,
}

/// A subscription to one job's changes. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct JobWatch {
    watchers: Arc<JobWatchers>,
    job: JobId,
    changes: watch::Receiver<()>,
}

// === impl JobWatchers ===

impl JobWatchers {
    /// Subscribes to a job. No change after this call is missed.
    pub(crate) fn watch(self: &Arc<Self>, job: JobId) -> JobWatch {
        let mut jobs = self.jobs.lock();
        let sender = jobs.entry(job).or_insert_with(|| watch::channel(()).0);
        JobWatch {
            watchers: Arc::clone(self),
            job,
            changes: sender.subscribe(),
        }
    }

    /// The number of watched jobs.
    pub(crate) fn count(&self) -> usize {
        self.jobs.lock().len()
    }

    /// Wakes the subscribers of one job.
    pub(crate) fn wake(&self, job: JobId) {
        if let Some(sender) = self.jobs.lock().get(&job) {
            sender.send_replace(());
        }
    }

    /// Wakes every subscriber: a change may have been missed.
    pub(crate) fn wake_all(&self) {
        for sender in self.jobs.lock().values() {
            sender.send_replace(());
        }
    }
}

// === impl JobWatch ===

impl JobWatch {
    /// Returns when the job has changed since the last call.
    pub(crate) async fn changed(&mut self) {
        // The sender lives as long as any subscription.
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for JobWatch {
    fn drop(&mut self) {
        let mut jobs = self.watchers.jobs.lock();
        if jobs
            .get(&self.job)
            .is_some_and(|sender| sender.receiver_count() <= 1)
        {
            jobs.remove(&self.job);
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
        watchers.wake(JobId::from_uuid(uuid::Uuid::nil()));
        watchers.wake(job);
        one.changed().await;
        drop(two);
        assert_eq!(watchers.jobs.lock().len(), 1);
        watchers.wake_all();
        one.changed().await;
        drop(one);
        assert_eq!(watchers.jobs.lock().len(), 0);
    }
}
