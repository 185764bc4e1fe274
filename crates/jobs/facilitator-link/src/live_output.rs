//! What jobs print and how far they are, while they run: passed from miners to the facilitator, and dropped rather than
//! waited for. The result of a job has all of it.

use std::sync::atomic::{AtomicU64, Ordering};

use muster_protocol::JobId;
use muster_protocol::Timestamp;
use muster_protocol::wire::executor::{JobLog, JobProgress};
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::muster::{LiveLog, LiveProgress};
use tokio::sync::{Mutex, mpsc};

/// Messages that wait for the facilitator's socket, of all jobs together.
const WAITING: usize = 256;

/// Bytes a second that one attempt may pass on.
const RATE: u64 = 256 * 1024;

/// Bytes that it may pass on at once.
const BURST: u64 = 1024 * 1024;

/// What a message costs beside its bytes, so that many little ones are bounded too.
const OVERHEAD: u64 = 1024;

/// The way from all drivers to the facilitator's link.
#[derive(Debug)]
pub(crate) struct Live {
    sender: mpsc::Sender<ToFacilitator>,
    /// Held by the link that is up.
    pub(crate) receiver: Mutex<mpsc::Receiver<ToFacilitator>>,
    dropped: AtomicU64,
}

impl Live {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        Self {
            sender,
            receiver: Mutex::new(receiver),
            dropped: AtomicU64::new(0),
        }
    }

    /// Passes a message on, if there is room.
    pub(crate) fn tell(&self, message: ToFacilitator) {
        if self.sender.try_send(message).is_err() {
            self.drop_one();
        }
    }

    /// Notes that a message went nowhere.
    pub(crate) fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Messages that went nowhere since the start.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// A piece of output, as the facilitator knows the job.
pub(crate) fn log(job: JobId, piece: JobLog) -> ToFacilitator {
    ToFacilitator::MusterJobLog(Box::new(LiveLog {
        uuid: job,
        stream: piece.stream,
        offset: piece.offset,
        data: piece.data,
    }))
}

/// How far something is, likewise.
pub(crate) fn progress(job: JobId, progress: JobProgress) -> ToFacilitator {
    ToFacilitator::MusterJobProgress(LiveProgress {
        uuid: job,
        of: progress.of,
        done: progress.done,
        total: progress.total,
    })
}

/// What one attempt may still pass on: a miner that floods takes nobody else's place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    left: u64,
    at: Timestamp,
}

impl Budget {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { left: BURST, at: now }
    }

    /// Whether a message of so many bytes may pass at `now`.
    pub(crate) fn take(&mut self, bytes: usize, now: Timestamp) -> bool {
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
    fn who_floods_is_held_to_its_rate() {
        let start = Timestamp::from_secs(1_000);
        let mut budget = Budget::new(start);
        let passed = (0..10_000).filter(|_| budget.take(64 * 1024, start)).count();
        assert_eq!(passed, 15, "a megabyte at once, overheads included");
        let later = start.plus(Duration::from_secs(1));
        assert!(budget.take(64 * 1024, later));
        let empty = (0..10_000).filter(|_| budget.take(0, later)).count();
        assert!(empty < 300, "empty messages cost too: {empty}");
    }

    #[test]
    fn a_full_way_drops_and_counts() {
        let live = Live::new();
        let progress = || {
            progress(
                JobId::from_uuid(uuid::Uuid::nil()),
                JobProgress {
                    job_uuid: muster_protocol::AttemptId::from_uuid(uuid::Uuid::nil()),
                    of: muster_protocol::wire::executor::ProgressOf::Execution,
                    done: 1,
                    total: None,
                },
            )
        };
        for _ in 0..WAITING + 3 {
            live.tell(progress());
        }
        assert_eq!(live.dropped(), 3);
    }

    proptest! {
        #[test]
        fn over_any_time_no_more_passes_than_the_burst_and_the_rate(
            waits in proptest::collection::vec(0u64..5_000, 1..50), size in 0usize..100_000,
        ) {
            let start = Timestamp::from_secs(1_000);
            let (mut now, mut budget, mut passed) = (start, Budget::new(start), 0u64);
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
