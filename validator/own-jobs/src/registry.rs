//! The validator's own jobs that have not ended: the receivers of their news, and the miners that may run them.

use std::collections::HashMap;

use muster_gateway::backend::JobNews;
use muster_protocol::receipt::AttemptAtWork;
use muster_protocol::{JobId, MinerKey};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

/// The validator's own jobs from their order to their end.
#[derive(Debug, Default)]
pub struct OwnJobRegistry {
    listeners: watch::Sender<HashMap<JobId, mpsc::Sender<JobNews>>>,
    /// The jobs whose order names the only miner that may run them.
    pinned: Mutex<HashMap<JobId, PinnedJob>>,
}

/// A job that only one miner may run.
#[derive(Debug)]
struct PinnedJob {
    miner: MinerKey,
    /// The attempts by which the miner excused its refusal.
    at_work: Vec<AttemptAtWork>,
}

impl OwnJobRegistry {
    /// Registers a job before its driver starts. `miner` is the only one that may run it, if not `None`.
    pub fn add(&self, job: JobId, miner: Option<MinerKey>, listener: mpsc::Sender<JobNews>) {
        if let Some(miner) = miner {
            let at_work = Vec::new();
            self.pinned.lock().insert(job, PinnedJob { miner, at_work });
        }
        self.listeners.send_modify(|listeners| {
            listeners.insert(job, listener);
        });
    }

    /// Whether the validator ordered this job itself and it has not ended.
    pub fn contains(&self, job: JobId) -> bool {
        self.listeners.borrow().contains_key(&job)
    }

    /// The only miner that may run this job; `None` if any may.
    pub fn pinned_miner(&self, job: JobId) -> Option<MinerKey> {
        self.pinned.lock().get(&job).map(|pinned| pinned.miner)
    }

    /// Notes the attempts by which the miner of a pinned job excuses its refusal.
    pub fn note_at_work(&self, job: JobId, at_work: Vec<AttemptAtWork>) {
        if let Some(pinned) = self.pinned.lock().get_mut(&job) {
            pinned.at_work = at_work;
        }
    }

    /// Waits until one of the validator's own jobs is over; returns at once for any other job.
    pub async fn wait_for_end(&self, job: JobId) {
        // The sender belongs to `self`, so the channel cannot close.
        let _ = self
            .listeners
            .subscribe()
            .wait_for(|jobs| !jobs.contains_key(&job))
            .await;
    }

    /// Sends news of a running job to the listener named in its order.
    pub fn notify(&self, job: JobId, news: JobNews) {
        let listener = self.listeners.borrow().get(&job).cloned();
        send_news(listener, news);
    }

    /// Unregisters a job and sends its listener the reason why it is over.
    pub fn end(&self, job: JobId, why: String) {
        let mut listener = None;
        self.listeners.send_if_modified(|listeners| {
            listener = listeners.remove(&job);
            listener.is_some()
        });
        let pinned = self.pinned.lock().remove(&job);
        let at_work = pinned.map(|pinned| pinned.at_work).unwrap_or_default();
        send_news(listener, JobNews::Ended { why, at_work });
    }
}

/// A closed channel means that nobody is interested; a full one cannot be, since it holds more than a job's news.
fn send_news(listener: Option<mpsc::Sender<JobNews>>, news: JobNews) {
    if let Some(listener) = listener {
        let _ = listener.try_send(news);
    }
}
