//! What users and operators are told about the queue.

use std::collections::BTreeMap;

use muster_job_queue::WaitingJob;
use muster_protocol::job::Priority;
use muster_protocol::{ExecutorClass, JobId, Timestamp};
use muster_routing::availability::ClassCapacity;
use serde::Serialize;

use super::super::{JobDrivers, assignment};

/// The queue as the operator sees it.
#[derive(Debug, Serialize)]
pub(crate) struct QueueView {
    /// One line for each class that is offered or waited for.
    lines: Vec<LineView>,
    /// Waiting jobs in the order in which they start, class by class.
    jobs: Vec<WaitingJobView>,
}

/// The line of one class.
#[derive(Debug, Serialize)]
pub(crate) struct LineView {
    class: ExecutorClass,
    /// Jobs that wait.
    waiting: usize,
    /// Miners that offer the class.
    miners: u32,
    /// Their executors of the class.
    executors: u32,
    /// Attempts of this validator on these executors.
    at_work: u32,
    /// What the jobs wait for; `None` if nothing waits, or if the dispatcher is just looking.
    why: Option<String>,
    /// Seconds that recent programs of the class took, on average; `None` if none has ended.
    mean_s: Option<u64>,
}

/// One waiting job.
#[derive(Debug, Serialize)]
pub(crate) struct WaitingJobView {
    job: JobId,
    account: String,
    class: ExecutorClass,
    priority: Priority,
    /// Jobs of the line that start before.
    ahead: usize,
    since: Timestamp,
    deadline: Timestamp,
}

impl JobDrivers {
    /// The queue with at most `limit` of its jobs.
    pub(crate) fn view_queue(&self, limit: usize) -> QueueView {
        let capacities = self.class_capacities();
        let lines = self.waiting.lock();
        let classes = lines.queue.classes();
        let in_order = classes
            .iter()
            .flat_map(|class| lines.queue.in_order(*class).enumerate())
            .take(limit);
        QueueView {
            jobs: in_order
                .map(|(ahead, waiting)| view_job(ahead, waiting))
                .collect(),
            lines: ExecutorClass::ALL
                .into_iter()
                .filter(|class| classes.contains(class) || capacities.contains_key(class))
                .map(|class| {
                    let capacity = capacities.get(&class).copied().unwrap_or_default();
                    let mean = lines.durations.get(&class).and_then(|record| record.mean());
                    LineView {
                        class,
                        waiting: lines.queue.waiting_for(class),
                        miners: capacity.miners,
                        executors: capacity.executors,
                        at_work: capacity.at_work,
                        why: lines.blocked.get(&class).map(ToString::to_string),
                        mean_s: mean.map(|mean| mean.as_secs()),
                    }
                })
                .collect(),
        }
    }

    /// What the subnet offers, by class; nothing before the chain has answered.
    fn class_capacities(&self) -> BTreeMap<ExecutorClass, ClassCapacity> {
        let metagraph = self.state.subnet.last_metagraph();
        metagraph.map_or_else(BTreeMap::new, |metagraph| {
            assignment::capacities(self, &metagraph)
        })
    }
}

fn view_job(ahead: usize, waiting: &WaitingJob) -> WaitingJobView {
    WaitingJobView {
        job: waiting.job,
        account: waiting.account.to_string(),
        class: waiting.class,
        priority: waiting.priority,
        ahead,
        since: waiting.since,
        deadline: waiting.deadline,
    }
}

impl JobDrivers {
    /// Tells the facilitator the place of a job in its line.
    pub(super) fn tell_position(&self, job: JobId) {
        let position = self.waiting.lock().queue.position(job);
        tracing::debug!(%job, ?position, "the job waits");
    }
}
