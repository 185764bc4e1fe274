//! The queue as users and operators are told of it.

use std::collections::BTreeMap;

use muster_job_queue::{ExecutorLine, LineView, QueueView, WaitingJobView, estimate_wait};
use muster_protocol::job::{DEFAULT_IMAGE_SECS, MAX_IMAGE_SECS, MAX_JOB_SECS, MAX_QUEUE_SECS};
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::muster::{
    CapacityNotice, JobLimits, LiveQueuePlace, MAX_NEXT_PLACES, NextPlace, OfferedClass,
};
use muster_protocol::{ExecutorClass, JobId};
use muster_routing::availability::ClassCapacity;

use super::super::miner_pool::MinerPool;
use super::super::{JobDrivers, assignment};
use super::Lines;

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
                .map(|(ahead, waiting)| WaitingJobView::new(ahead, waiting))
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
                why: self.why(line),
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
        let why = self.why(line).filter(|_| waiting > 0);
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
            why: why.unwrap_or_default(),
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
            let why = lines.why(line);
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
