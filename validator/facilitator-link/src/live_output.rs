//! Live output: the output and progress of running jobs on the way from miners to the facilitator.
//!
//! A message that finds no room is dropped, so that no job waits for the facilitator. The result of a job has all its
//! output.

use std::sync::atomic::{AtomicU64, Ordering};

use muster_protocol::wire::checkpoints::JobCheckpoints;
use muster_protocol::wire::executor::{JobLog, JobMetrics, JobProgress};
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::muster::{LiveLog, LiveMetrics, LiveProgress};
use muster_protocol::{JobId, Timestamp};
use tokio::sync::{Mutex, mpsc};

/// Messages of all jobs together that wait for the facilitator's socket.
const QUEUE: usize = 256;

/// Bytes a second that one attempt may send, on average.
const RATE: u64 = 256 * 1024;

/// Bytes that one attempt may send at once.
const BURST: u64 = 1024 * 1024;

/// Bytes that a message counts beside its own, so that many small messages are bounded too.
const OVERHEAD: u64 = 1024;

/// The queue of live output from all drivers to the link.
#[derive(Debug)]
pub struct LiveOutput {
    sender: mpsc::Sender<ToFacilitator>,
    /// Locked by the connection that is up.
    pub(crate) receiver: Mutex<mpsc::Receiver<ToFacilitator>>,
    dropped: AtomicU64,
}

impl Default for LiveOutput {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        Self {
            sender,
            receiver: Mutex::new(receiver),
            dropped: AtomicU64::new(0),
        }
    }
}

impl LiveOutput {
    /// Queues a message for the facilitator; drops and counts it if the queue is full.
    pub fn send(&self, message: ToFacilitator) {
        if self.sender.try_send(message).is_err() {
            self.count_dropped();
        }
    }

    /// Counts a message that was dropped.
    pub fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Messages dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The message that carries a piece of a job's output.
pub fn log_message(job: JobId, piece: JobLog) -> ToFacilitator {
    ToFacilitator::MusterJobLog(Box::new(LiveLog {
        uuid: job,
        stream: piece.stream,
        offset: piece.offset,
        data: piece.data,
    }))
}

/// The message that carries a job's progress.
pub fn progress_message(job: JobId, progress: JobProgress) -> ToFacilitator {
    ToFacilitator::MusterJobProgress(LiveProgress {
        uuid: job,
        of: progress.of,
        done: progress.done,
        total: progress.total,
        layers: progress.layers,
    })
}

/// The message that carries what a job's program reports.
pub fn metrics_message(job: JobId, metrics: JobMetrics) -> ToFacilitator {
    ToFacilitator::MusterJobMetrics(Box::new(LiveMetrics {
        uuid: job,
        at: metrics.at,
        report: metrics.report,
    }))
}

/// The message that lists the checkpoints of a job.
pub fn checkpoints_message(list: JobCheckpoints) -> ToFacilitator {
    ToFacilitator::MusterJobCheckpoints(Box::new(list))
}

/// The bytes that one attempt may still send, so that a miner that floods the queue crowds out no other job.
#[derive(Clone, Copy, Debug)]
pub struct LiveBudget {
    left: u64,
    at: Timestamp,
}

impl LiveBudget {
    /// The budget of an attempt that begins at `now`.
    pub fn new(now: Timestamp) -> Self {
        Self { left: BURST, at: now }
    }

    /// Takes the cost of a message of `bytes` bytes; `false` if the budget does not cover it, so that the message must
    /// be dropped.
    pub fn take(&mut self, bytes: usize, now: Timestamp) -> bool {
        let millis = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX);
        let earned = millis.saturating_mul(RATE) / 1_000;
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(BURST);
            self.at = now;
        }
        let cost = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(OVERHEAD);
        let enough = cost <= self.left;
        if enough {
            self.left -= cost;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_flooding_attempt_is_held_to_its_rate() {
        let start = Timestamp::from_secs(1_000);
        let mut budget = LiveBudget::new(start);
        let passed = (0..10_000).filter(|_| budget.take(64 * 1024, start)).count();
        assert_eq!(passed, 15, "a megabyte at once, overheads included");
        let later = start.plus(Duration::from_secs(1));
        assert!(budget.take(64 * 1024, later));
        let empty = (0..10_000).filter(|_| budget.take(0, later)).count();
        assert!(empty < 300, "empty messages cost too: {empty}");
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let live = LiveOutput::default();
        let progress = || {
            progress_message(
                JobId::from_uuid(uuid::Uuid::nil()),
                JobProgress {
                    job_uuid: muster_protocol::AttemptId::from_uuid(uuid::Uuid::nil()),
                    of: muster_protocol::wire::executor::ProgressOf::Execution,
                    done: 1,
                    total: None,
                    layers: None,
                },
            )
        };
        for _ in 0..QUEUE + 3 {
            live.send(progress());
        }
        assert_eq!(live.dropped(), 3);
    }

    proptest! {
        #[test]
        fn over_any_time_no_more_passes_than_the_burst_and_the_rate(
            waits in proptest::collection::vec(0u64..5_000, 1..50), size in 0usize..100_000,
        ) {
            let start = Timestamp::from_secs(1_000);
            let (mut now, mut budget, mut passed) = (start, LiveBudget::new(start), 0u64);
            for wait in waits {
                now = now.plus(Duration::from_millis(wait));
                for _ in 0..40 {
                    if budget.take(size, now) { passed += u64::try_from(size).unwrap(); }
                }
            }
            let millis = u64::try_from(now.since(start).as_millis()).unwrap();
            prop_assert!(passed <= BURST + RATE * millis / 1_000 + 1);
        }
    }
}
