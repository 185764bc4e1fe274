//! The state that every batch and every executor in it share.

use std::sync::Arc;
use std::time::Duration;

use muster_grading::Course;
use muster_process::store::StoreError;
use muster_process::{SharedClock, Tasks};
use tokio::sync::Semaphore;

use crate::backend::Host;
use crate::book::Book;
use crate::settings::Settings;

/// Why there is no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is nothing to challenge with.
    #[error("this validator grades no class: name a grader's image in [grading.images]")]
    NoGrader,
    /// Enough are waiting.
    #[error("batches that were asked for before this one have not begun yet")]
    Waiting,
    /// It stops.
    #[error("the validator stops")]
    Stopped,
    /// Nobody was there.
    #[error("no miner announces an executor of a class that this validator grades")]
    Nobody,
}

/// What all parts share.
pub(crate) struct Core {
    pub(crate) settings: Settings,
    /// What each class has to prove.
    pub(crate) courses: Vec<Course>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) book: Book,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
    /// Openings that are fetched and judged at a time: what they take is held in memory.
    pub(crate) judging: Semaphore,
    pub(crate) failed: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// Microseconds of a span.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
