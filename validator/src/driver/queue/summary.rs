//! The queue as users and operators see it.

use std::collections::BTreeMap;

use muster_job_queue::{ExecutorLine, LineView, QueueView, WaitingJobView, WaitingLines, estimate_wait};
use muster_protocol::job::{DEFAULT_IMAGE_SECS, MAX_IMAGE_SECS, MAX_JOB_SECS, MAX_QUEUE_SECS};
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_protocol::wire::muster::{
    CapacityNotice, JobLimits, LiveQueuePlace, MAX_NEXT_PLACES, NextPlace, OfferedClass,
};
use muster_protocol::{ExecutorClass, JobId, Timestamp};
use muster_routing::availability::ClassCapacity;

use super::super::miner_pool::MinerPool;
use super::keeper::QueueKeeper;

impl QueueKeeper {
    /// The queue with at most `limit` of its jobs.
    pub(crate) fn view(&self, limit: usize) -> QueueView {
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
            lines: view_lines(&lines, false, &subnet),
            trusted_lines: view_lines(&lines, true, &trusted),
        }
    }

    /// The offers of some miners by class; nothing before the chain has answered.
    fn class_capacities(&self, pool: MinerPool) -> BTreeMap<ExecutorClass, ClassCapacity> {
        let metagraph = self.state.subnet.last_metagraph();
        metagraph.map_or_else(BTreeMap::new, |metagraph| {
            self.chooser.capacities(pool, &metagraph)
        })
    }
}

impl QueueKeeper {
    /// The subnet's offers, class by class, for users who look before they submit a job; `None` before the chain has
    /// answered.
    pub(crate) fn capacity_notice(&self) -> Option<CapacityNotice> {
        self.state.subnet.last_metagraph()?;
        let capacities = self.class_capacities(MinerPool::Subnet);
        let now = self.state.clock.now();
        let lines = self.waiting.lock();
        let shown = shown_lines(&lines, false, &capacities);
        Some(CapacityNotice {
            classes: shown
                .map(|ExecutorLine { class, .. }| {
                    let capacity = capacities.get(&class).cloned().unwrap_or_default();
                    describe_offer(&lines, class, &capacity, now)
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

/// The lines of the subnet or of the trusted miner that are offered or waited for.
fn shown_lines(
    waiting: &WaitingLines,
    on_trusted_miner: bool,
    capacities: &BTreeMap<ExecutorClass, ClassCapacity>,
) -> impl Iterator<Item = ExecutorLine> {
    let waited_for = waiting.queue.lines();
    let lines = ExecutorClass::ALL.into_iter().map(move |class| ExecutorLine {
        class,
        on_trusted_miner,
    });
    lines.filter(move |line| waited_for.contains(line) || capacities.contains_key(&line.class))
}

fn view_lines(
    waiting: &WaitingLines,
    on_trusted_miner: bool,
    capacities: &BTreeMap<ExecutorClass, ClassCapacity>,
) -> Vec<LineView> {
    let view = |line: ExecutorLine| {
        let capacity = capacities.get(&line.class).cloned().unwrap_or_default();
        let mean = waiting.durations(line).mean();
        LineView {
            class: line.class,
            waiting: waiting.queue.waiting_for(line),
            miners: capacity.miners,
            executors: capacity.executors,
            at_work: capacity.at_work,
            why: waiting.why(line),
            mean_s: mean.map(|mean| mean.as_secs()),
        }
    };
    shown_lines(waiting, on_trusted_miner, capacities)
        .map(view)
        .collect()
}

fn describe_offer(
    waiting: &WaitingLines,
    class: ExecutorClass,
    capacity: &ClassCapacity,
    now: Timestamp,
) -> OfferedClass {
    let line = ExecutorLine::of_subnet(class);
    let record = waiting.durations(line);
    let back_in = capacity.back_at.map(|at| at.since(now));
    let starts_now = capacity.free > 0 && waiting.queue.is_free_for_all(class);
    let place = |ahead: usize| NextPlace {
        ahead: to_u64(ahead),
        estimate_s: if starts_now && ahead == 0 {
            Some(0)
        } else {
            estimate_wait(ahead, capacity.usable(), back_in, &record).map(|wait| wait.as_secs())
        },
    };
    let count = waiting.queue.waiting_for(class);
    let why = waiting.why(line).filter(|_| count > 0);
    OfferedClass {
        class,
        hardware: capacity.described_hardware(),
        miners: capacity.miners,
        executors: capacity.executors,
        free: capacity.free,
        running: capacity.at_work,
        private_images: capacity.private_images,
        waiting: to_u64(count),
        next: waiting
            .queue
            .ahead_of_next(class, MAX_NEXT_PLACES)
            .into_iter()
            .map(place)
            .collect(),
        why: why.unwrap_or_default(),
    }
}

fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Jobs at the head of a line whose places are sent each time that jobs start.
const PLACES_SENT: usize = 64;

impl QueueKeeper {
    /// Sends the facilitator the place of a job in its line, as live output: a message that finds no room is dropped.
    pub(in crate::driver) fn send_place(&self, job: JobId) {
        let position = self.waiting.lock().queue.position(job);
        if let Some(position) = position {
            self.send_places(position.line, [(position.ahead, job)], position.waiting);
        }
    }

    /// Sends the facilitator the places at the head of a line, after jobs of it have started.
    pub(in crate::driver) fn send_head_places(&self, line: ExecutorLine) {
        let (head, waiting) = {
            let lines = self.waiting.lock();
            let jobs = lines.queue.in_order(line).map(|waiting| waiting.job);
            let head: Vec<_> = jobs.enumerate().take(PLACES_SENT).collect();
            (head, lines.queue.waiting_for(line))
        };
        if !head.is_empty() {
            self.send_places(line, head, waiting);
        }
    }

    fn send_places(
        &self,
        line: ExecutorLine,
        places: impl IntoIterator<Item = (usize, JobId)>,
        waiting: usize,
    ) {
        let now = self.state.clock.now();
        let (why, executors, back_in, record) = {
            let lines = self.waiting.lock();
            let why = lines.why(line).unwrap_or_default();
            let back_in = lines.back_at(line).map(|at| at.since(now));
            (why, lines.executors(line), back_in, lines.durations(line))
        };
        for (ahead, job) in places {
            let place = LiveQueuePlace {
                uuid: job,
                class: line.class,
                ahead: to_u64(ahead),
                waiting: to_u64(waiting),
                estimate_s: estimate_wait(ahead, executors, back_in, &record).map(|wait| wait.as_secs()),
                why: why.clone(),
            };
            self.live_output
                .send(ToFacilitator::MusterJobQueued(Box::new(place)));
        }
    }
}
