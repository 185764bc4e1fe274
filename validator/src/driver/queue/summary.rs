//! The queue as users and operators are told of it.

use std::collections::BTreeMap;

use muster_job_queue::{WaitingJob, estimate_wait};
use muster_protocol::job::Priority;
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::muster::LiveQueuePlace;
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
    /// The reason why the jobs wait; `None` if nothing waits, or if the dispatcher is just looking.
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

    /// The subnet's offers by class; nothing before the chain has answered.
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

/// Jobs at the head of a line whose users are told their place each time that jobs start.
const TOLD: usize = 64;

impl JobDrivers {
    /// Tells the facilitator the place of a job in its line, as live output: a message that finds no room is dropped.
    pub(super) fn tell_position(&self, job: JobId) {
        let position = self.waiting.lock().queue.position(job);
        if let Some(position) = position {
            self.tell_positions(position.class, [(position.ahead, job)], position.waiting);
        }
    }

    /// Tells the facilitator the places at the head of a line, after jobs of it have started.
    pub(super) fn tell_head(&self, class: ExecutorClass) {
        let (head, waiting) = {
            let lines = self.waiting.lock();
            let jobs = lines.queue.in_order(class).map(|waiting| waiting.job);
            let head: Vec<_> = jobs.enumerate().take(TOLD).collect();
            (head, lines.queue.waiting_for(class))
        };
        if !head.is_empty() {
            self.tell_positions(class, head, waiting);
        }
    }

    fn tell_positions(
        &self,
        class: ExecutorClass,
        places: impl IntoIterator<Item = (usize, JobId)>,
        waiting: usize,
    ) {
        let (why, executors, record) = {
            let lines = self.waiting.lock();
            let why = lines.blocked.get(&class).map(ToString::to_string);
            let executors = lines.executors.get(&class).copied();
            let record = lines.durations.get(&class).cloned();
            (
                why.unwrap_or_default(),
                executors.unwrap_or(0),
                record.unwrap_or_default(),
            )
        };
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        for (ahead, job) in places {
            let place = LiveQueuePlace {
                uuid: job,
                class,
                ahead: count(ahead),
                waiting: count(waiting),
                estimate_s: estimate_wait(ahead, executors, &record).map(|wait| wait.as_secs()),
                why: why.clone(),
            };
            self.live_output
                .send(ToFacilitator::MusterJobQueued(Box::new(place)));
        }
    }
}
