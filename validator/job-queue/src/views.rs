//! The queue as the operator sees it.

use muster_protocol::job::Priority;
use muster_protocol::{ExecutorClass, JobId, Timestamp};
use serde::Serialize;

use crate::WaitingJob;

/// The lines, and the jobs in them.
#[derive(Debug, Serialize)]
pub struct QueueView {
    /// One line for each class that the subnet offers or that is waited for.
    pub lines: Vec<LineView>,
    /// The same for the trusted miner.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trusted_lines: Vec<LineView>,
    /// Waiting jobs in the order in which they start, line by line.
    pub jobs: Vec<WaitingJobView>,
}

/// The line of one class.
#[derive(Debug, Serialize)]
pub struct LineView {
    /// The class of executor that the line waits for.
    pub class: ExecutorClass,
    /// Jobs that wait.
    pub waiting: usize,
    /// Miners that offer the class.
    pub miners: u32,
    /// Their executors of the class.
    pub executors: u32,
    /// Attempts of this validator on these executors.
    pub at_work: u32,
    /// The reason why the jobs wait; `None` if nothing waits, or if the dispatcher is just looking.
    pub why: Option<String>,
    /// Seconds that recent programs of the class took, on average; `None` if none has ended.
    pub mean_s: Option<u64>,
}

/// One waiting job.
#[derive(Debug, Serialize)]
pub struct WaitingJobView {
    job: JobId,
    account: String,
    class: ExecutorClass,
    /// Whether it waits for the trusted miner.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    on_trusted_miner: bool,
    priority: Priority,
    /// Jobs of the line that start before.
    ahead: usize,
    since: Timestamp,
    deadline: Timestamp,
}

impl WaitingJobView {
    /// A job with `ahead` jobs of its line before it.
    pub fn new(ahead: usize, waiting: &WaitingJob) -> Self {
        Self {
            job: waiting.job,
            account: waiting.account.to_string(),
            class: waiting.line.class,
            on_trusted_miner: waiting.line.on_trusted_miner,
            priority: waiting.priority,
            ahead,
            since: waiting.since,
            deadline: waiting.deadline,
        }
    }
}
