//! The queue as users and operators are told of it.

use std::collections::BTreeMap;

use muster_job_queue::{ExecutorLine, WaitingJob, estimate_wait};
use muster_protocol::job::{DEFAULT_IMAGE_SECS, MAX_IMAGE_SECS, MAX_JOB_SECS, MAX_QUEUE_SECS, Priority};
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::muster::{
    CapacityNotice, JobLimits, LiveQueuePlace, MAX_NEXT_PLACES, NextPlace, OfferedClass,
};
use muster_protocol::{ExecutorClass, JobId, Timestamp};
use muster_routing::availability::ClassCapacity;
use serde::Serialize;

use super::super::miner_pool::MinerPool;
use super::super::{JobDrivers, assignment};
use super::Lines;

/// The queue as the operator sees it.
#[derive(Debug, Serialize)]
pub(crate) struct QueueView {
    /// One line for each class that the subnet offers or that is waited for.
    pub(crate) lines: Vec<LineView>,
    /// The same for the trusted miner.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) trusted_lines: Vec<LineView>,
    /// Waiting jobs in the order in which they start, class by class.
    jobs: Vec<WaitingJobView>,
}

/// The line of one class.
#[derive(Debug, Serialize)]
pub(crate) struct LineView {
    pub(crate) class: ExecutorClass,
    /// Jobs that wait.
    pub(crate) waiting: usize,
    /// Miners that offer the class.
    miners: u32,
    /// Their executors of the class.
    pub(crate) executors: u32,
    /// Attempts of this validator on these executors.
    pub(crate) at_work: u32,
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
    /// Whether it waits for the trusted miner.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    on_trusted_miner: bool,
    priority: Priority,
    /// Jobs of the line that start before.
    ahead: usize,
    since: Timestamp,
    deadline: Timestamp,
}

impl JobDrivers {
    /// The queue with at most `limit` of its jobs.
    pub(crate) fn view_queue(&self, limit: usize) -> QueueView {
        let subnet = self.class_capacities(MinerPool::Subnet);
        let trusted = self.class_capacities(MinerPool::Trusted);
        let lines = self.waiting.lock();
        let in_order = lines.queue.lines().into_iter();
        let in_order = in_order.flat_map(|line| lines.queue.in_order(line).enumerate());
        QueueView {
            jobs: in_order
                .take(limit)
                .map(|(ahead, waiting)| view_job(ahead, waiting))
                .collect(),
            lines: lines.view_lines(false, &subnet),
            trusted_lines: lines.view_lines(true, &trusted),
        }
    }

    /// The offers of some miners by class; nothing before the chain has answered.
    fn class_capacities(&self, pool: MinerPool) -> BTreeMap<ExecutorClass, ClassCapacity> {
        let metagraph = self.state.subnet.last_metagraph();
        metagraph.map_or_else(BTreeMap::new, |metagraph| {
            assignment::capacities(self, pool, &metagraph)
        })
    }
}

fn view_job(ahead: usize, waiting: &WaitingJob) -> WaitingJobView {
    WaitingJobView {
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

impl JobDrivers {
    /// The subnet's offers, class by class, for users who look before they submit a job; `None` before the chain has
    /// answered.
    pub(crate) fn capacity_notice(&self) -> Option<CapacityNotice> {
        self.state.subnet.last_metagraph()?;
        let capacities = self.class_capacities(MinerPool::Subnet);
        let lines = self.waiting.lock();
        let shown = lines.shown(false, &capacities);
        Some(CapacityNotice {
            classes: shown
                .map(|ExecutorLine { class, .. }| {
                    let capacity = capacities.get(&class).cloned().unwrap_or_default();
                    lines.describe_offer(class, &capacity)
                })
                .collect(),
            limits: JobLimits {
                job_s: MAX_JOB_SECS,
                image_s: MAX_IMAGE_SECS,
                image_default_s: DEFAULT_IMAGE_SECS,
                queue_s: MAX_QUEUE_SECS,
                queue_default_s: self.state.config.queue.default_s,
            },
        })
    }
}

impl Lines {
    /// The lines of the subnet or of the trusted miner that are offered or waited for.
    fn shown(
        &self,
        on_trusted_miner: bool,
        capacities: &BTreeMap<ExecutorClass, ClassCapacity>,
    ) -> impl Iterator<Item = ExecutorLine> {
        let waited_for = self.queue.lines();
        let lines = ExecutorClass::ALL.into_iter().map(move |class| ExecutorLine {
            class,
            on_trusted_miner,
        });
        lines.filter(move |line| waited_for.contains(line) || capacities.contains_key(&line.class))
    }

    fn view_lines(
        &self,
        on_trusted_miner: bool,
        capacities: &BTreeMap<ExecutorClass, ClassCapacity>,
    ) -> Vec<LineView> {
        let view = |line: ExecutorLine| {
            let capacity = capacities.get(&line.class).cloned().unwrap_or_default();
            let mean = self.durations.get(&line).and_then(|record| record.mean());
            LineView {
                class: line.class,
                waiting: self.queue.waiting_for(line),
                miners: capacity.miners,
                executors: capacity.executors,
                at_work: capacity.at_work,
                why: self.blocked.get(&line).map(ToString::to_string),
                mean_s: mean.map(|mean| mean.as_secs()),
            }
        };
        self.shown(on_trusted_miner, capacities).map(view).collect()
    }

    fn describe_offer(&self, class: ExecutorClass, capacity: &ClassCapacity) -> OfferedClass {
        let line = ExecutorLine::of_subnet(class);
        let record = self.durations.get(&line).cloned().unwrap_or_default();
        let starts_now = capacity.free > 0 && self.queue.is_free_for_all(class);
        let place = |ahead: usize| NextPlace {
            ahead: to_u64(ahead),
            estimate_s: if starts_now && ahead == 0 {
                Some(0)
            } else {
                estimate_wait(ahead, capacity.executors, &record).map(|wait| wait.as_secs())
            },
        };
        let waiting = self.queue.waiting_for(class);
        let why = self.blocked.get(&line).filter(|_| waiting > 0);
        OfferedClass {
            class,
            hardware: capacity.usual_hardware().map(str::to_owned),
            miners: capacity.miners,
            executors: capacity.executors,
            free: capacity.free,
            running: capacity.at_work,
            private_images: capacity.private_images,
            waiting: to_u64(waiting),
            next: self
                .queue
                .ahead_of_next(class, MAX_NEXT_PLACES)
                .into_iter()
                .map(place)
                .collect(),
            why: why.map(ToString::to_string).unwrap_or_default(),
        }
    }
}

fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Jobs at the head of a line whose users are told their place each time that jobs start.
const TOLD: usize = 64;

impl JobDrivers {
    /// Tells the facilitator the place of a job in its line, as live output: a message that finds no room is dropped.
    pub(super) fn tell_position(&self, job: JobId) {
        let position = self.waiting.lock().queue.position(job);
        if let Some(position) = position {
            self.tell_positions(position.line, [(position.ahead, job)], position.waiting);
        }
    }

    /// Tells the facilitator the places at the head of a line, after jobs of it have started.
    pub(super) fn tell_head(&self, line: ExecutorLine) {
        let (head, waiting) = {
            let lines = self.waiting.lock();
            let jobs = lines.queue.in_order(line).map(|waiting| waiting.job);
            let head: Vec<_> = jobs.enumerate().take(TOLD).collect();
            (head, lines.queue.waiting_for(line))
        };
        if !head.is_empty() {
            self.tell_positions(line, head, waiting);
        }
    }

    fn tell_positions(
        &self,
        line: ExecutorLine,
        places: impl IntoIterator<Item = (usize, JobId)>,
        waiting: usize,
    ) {
        let (why, executors, record) = {
            let lines = self.waiting.lock();
            let why = lines.blocked.get(&line).map(ToString::to_string);
            let executors = lines.executors.get(&line).copied();
            let record = lines.durations.get(&line).cloned();
            (
                why.unwrap_or_default(),
                executors.unwrap_or(0),
                record.unwrap_or_default(),
            )
        };
        for (ahead, job) in places {
            let place = LiveQueuePlace {
                uuid: job,
                class: line.class,
                ahead: to_u64(ahead),
                waiting: to_u64(waiting),
                estimate_s: estimate_wait(ahead, executors, &record).map(|wait| wait.as_secs()),
                why: why.clone(),
            };
            self.live_output
                .send(ToFacilitator::MusterJobQueued(Box::new(place)));
        }
    }
}
