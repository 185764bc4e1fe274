//! The validator's own jobs that have not ended: the receivers of their news, and the miners that may run them.

use std::collections::{BTreeSet, HashMap};

use muster_gateway::backend::{JobNews, NoRoom};
use muster_protocol::receipt::AttemptAtWork;
use muster_protocol::{ExecutorClass, JobId, MinerKey};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

/// The validator's own jobs from their order to their end.
#[derive(Debug, Default)]
pub struct OwnJobRegistry {
    listeners: watch::Sender<HashMap<JobId, mpsc::Sender<JobNews>>>,
    /// The jobs whose order names the only miner that may run them.
    pinned: Mutex<HashMap<JobId, PinnedJob>>,
    /// The jobs for which there was no executor.
    without_room: Mutex<HashMap<JobId, NoRoom>>,
    /// Changes whenever an executor may have become free.
    room: watch::Sender<()>,
    /// The classes for whose executors users' jobs wait.
    waiting: watch::Sender<BTreeSet<ExecutorClass>>,
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

    /// Notes that there was no executor for a job, and when or for what job there may be one.
    pub fn note_no_room(&self, job: JobId, no_room: NoRoom) {
        if self.contains(job) {
            self.without_room.lock().insert(job, no_room);
        }
    }

    /// Notes that an executor may have become free.
    pub fn note_room(&self) {
        self.room.send_replace(());
    }

    /// Changes whenever an executor may have become free.
    pub fn room_changes(&self) -> watch::Receiver<()> {
        self.room.subscribe()
    }

    /// Notes the classes for whose executors users' jobs wait, because all that there are are at work.
    pub fn note_waiting_jobs(&self, classes: BTreeSet<ExecutorClass>) {
        self.waiting.send_if_modified(|known| {
            let differs = *known != classes;
            *known = classes;
            differs
        });
    }

    /// The classes for whose executors users' jobs wait.
    pub fn waiting_jobs(&self) -> watch::Receiver<BTreeSet<ExecutorClass>> {
        self.waiting.subscribe()
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
        let no_room = self.without_room.lock().remove(&job);
        send_news(
            listener,
            JobNews::Ended {
                why,
                at_work,
                no_room,
            },
        );
    }
}

/// A closed channel means that nobody is interested; a full one cannot be, since it holds more than a job's news.
fn send_news(listener: Option<mpsc::Sender<JobNews>>, news: JobNews) {
    if let Some(listener) = listener {
        let _ = listener.try_send(news);
    }
}
