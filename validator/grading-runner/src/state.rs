//! The state that all batches and their executors share.

use std::sync::Arc;
use std::time::Duration;

use muster_grading::GradeSpec;
use muster_process::{SharedClock, Tasks};
use muster_store::StoreError;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::backend::{Announcements, GradingBackend};
use crate::settings::Settings;
use crate::store::GradingStore;

/// The reason why there is no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchRejection {
    /// No grader image is configured.
    #[error("this validator grades no class: name a grader's image in [grading.images]")]
    NoGrader,
    /// Too many requests are waiting.
    #[error("too many requested batches have not begun yet: try again later")]
    QueueFull,
    /// The validator is stopping.
    #[error("the validator is stopping")]
    Stopping,
    /// No executors were announced.
    #[error("no miner announces an executor of a class that this validator grades")]
    NoExecutors,
}

/// The state of the runner.
pub(crate) struct RunnerState {
    pub(crate) settings: Settings,
    /// The grade specification of each graded class.
    pub(crate) grade_specs: Vec<GradeSpec>,
    pub(crate) backend: Arc<dyn GradingBackend>,
    /// The executors of the subnet by the last census, which probes go by; `None` before the first one.
    pub(crate) census: Mutex<Option<Announcements>>,
    pub(crate) store: GradingStore,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    /// Bounds the openings that are fetched and judged at the same time, because each is held in memory.
    pub(crate) judging_permits: Semaphore,
    pub(crate) on_store_failure: Box<dyn Fn(StoreError) + Send + Sync>,
}

impl RunnerState {
    /// Asks every miner for its executors, and notes the answers for the next probe.
    pub(crate) async fn take_census(&self) -> Announcements {
        let announcements = self.backend.collect_announcements().await;
        let mut census = self.census.lock();
        *census = Some(census.take().unwrap_or_default().renewed(&announcements));
        announcements
    }
}

/// The span in microseconds.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
