//! The jobs that wait in memory, and the signal that wakes their dispatcher.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_job_queue::{ExecutorLine, QueueLimits, WaitingLines};
use muster_own_jobs::OwnJobRegistry;
use muster_protocol::ExecutorClass;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::config::QueueConfig;

/// The waiting jobs, and the signal that wakes their dispatcher.
#[derive(Debug)]
pub(super) struct WaitingJobs {
    /// Locked before the ledger and before the running jobs, never after them, and never across an await.
    lines: Mutex<WaitingLines>,
    pub(super) wake: Notify,
    /// Learns of room as well: jobs of the validator's own wait outside the queue.
    own_jobs: Arc<OwnJobRegistry>,
}

impl WaitingJobs {
    pub(super) fn new(config: &QueueConfig, own_jobs: Arc<OwnJobRegistry>) -> Self {
        let limits = QueueLimits {
            jobs: config.max_jobs,
            per_account: config.max_per_account,
        };
        Self {
            lines: Mutex::new(WaitingLines::new(limits)),
            wake: Notify::new(),
            own_jobs,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WaitingLines> {
        self.lines.lock()
    }

    /// Notes that there may be room now: an attempt ended, or a miner showed its executors.
    pub(super) fn note_room(&self) {
        if self.lock().note_room() {
            self.wake.notify_one();
        }
        self.own_jobs.note_room();
    }

    /// Notes the classes for whose executors jobs wait: unused sessions make room for them.
    pub(super) fn note_waiting_classes(&self, classes: BTreeSet<ExecutorClass>) {
        self.own_jobs.note_waiting_jobs(classes);
    }

    /// Notes how long an attempt kept its executor.
    pub(super) fn note_duration(&self, line: ExecutorLine, duration: Duration) {
        self.lock().note_duration(line, duration);
    }
}
