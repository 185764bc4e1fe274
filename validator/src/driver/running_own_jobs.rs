//! The jobs that the validator ordered itself and that run now: who is told of their progress, and which miner may run
//! them.

use std::collections::HashMap;

use muster_gateway::backend::JobNews;
use muster_protocol::{JobId, MinerKey};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

/// The validator's own jobs from their order to their end.
#[derive(Debug, Default)]
pub(super) struct OwnJobs {
    listeners: watch::Sender<HashMap<JobId, mpsc::Sender<JobNews>>>,
    /// The only miner that may run the job, for the jobs whose order names one.
    pinned: Mutex<HashMap<JobId, MinerKey>>,
}

impl OwnJobs {
    /// Registers a job before its driver starts. `miner` is the only one that may run it, if not `None`.
    pub(super) fn add(&self, job: JobId, miner: Option<MinerKey>, listener: mpsc::Sender<JobNews>) {
        if let Some(miner) = miner {
            self.pinned.lock().insert(job, miner);
        }
        self.listeners.send_modify(|listeners| {
            listeners.insert(job, listener);
        });
    }

    pub(super) fn contains(&self, job: JobId) -> bool {
        self.listeners.borrow().contains_key(&job)
    }

    /// The only miner that may run this job; `None` if any may.
    pub(super) fn pinned_miner(&self, job: JobId) -> Option<MinerKey> {
        self.pinned.lock().get(&job).copied()
    }

    /// Waits until one of the validator's own jobs is over; returns at once for any other job.
    pub(super) async fn wait_for_end(&self, job: JobId) {
        // The sender belongs to `self`, so the channel cannot close.
        let _ = self
            .listeners
            .subscribe()
            .wait_for(|jobs| !jobs.contains_key(&job))
            .await;
    }

    /// Sends news of a job to the listener named in its order. The news of its end are the last and unregister the job.
    pub(super) fn notify(&self, job: JobId, news: JobNews) {
        let mut listener = None;
        self.listeners.send_if_modified(|listeners| match &news {
            JobNews::Ready { .. } | JobNews::Closed(_) => {
                listener = listeners.get(&job).cloned();
                false
            }
            JobNews::Ended(_) => {
                listener = listeners.remove(&job);
                listener.is_some()
            }
        });
        if let JobNews::Ended(_) = &news {
            self.pinned.lock().remove(&job);
        }
        if let Some(listener) = listener {
            // A closed channel means that nobody is interested; a full one cannot be, since it holds more than a job's
            // news.
            let _ = listener.try_send(news);
        }
    }
}
