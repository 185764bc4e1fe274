//! The simulated validator's queue: the real queue and the real routing over rows of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_job_queue::{JobQueue, QueueAccount, QueueFull, QueueLimits, QueueTicket, WaitingJob};
use muster_protocol::job::{Outcome, Priority};
use muster_protocol::status::JobRejectionReason;
use muster_protocol::{JobId, JobStatus, MinerKey, Timestamp};
use muster_routing::availability::{Availability, availability};

use crate::choosing::{miners_of, rejected, was_busy, without_miner};
use crate::faults::Mutation;
use crate::invariants::Invariant;
use crate::miner::CLASS;
use crate::validator::{Job, Tried};
use crate::world::{Happening, Node, World};

/// The most jobs that wait, so low that schedules reach it.
pub(crate) const LIMITS: QueueLimits = QueueLimits {
    jobs: 8,
    per_account: 5,
};
/// For how long a miner that said that it is busy is not asked.
pub(crate) const FULL: Duration = Duration::from_secs(10);
/// How late a job may start after its time in the queue is over: a round looks for room before it ends jobs.
const GRACE: Duration = Duration::from_secs(1);

/// The terms of a job that the queue reads.
#[derive(Clone, Debug)]
pub(crate) struct WaitTerms {
    pub(crate) account: QueueAccount,
    pub(crate) priority: Priority,
    /// How long the job may wait.
    pub(crate) patience: Duration,
}

/// The part of the queue that dies with the process.
#[derive(Debug)]
pub(crate) struct WaitingLines {
    pub(crate) queue: JobQueue,
    /// The miners that said that they are busy, and until when that counts.
    pub(crate) full: BTreeMap<usize, Timestamp>,
    /// When the process started.
    since: Option<Timestamp>,
}

impl Default for WaitingLines {
    fn default() -> Self {
        Self {
            queue: JobQueue::new(LIMITS),
            full: BTreeMap::new(),
            since: None,
        }
    }
}

impl World {
    fn terms_of(&self, job: JobId) -> WaitTerms {
        let known = self.terms.get(&job).cloned();
        known.unwrap_or_else(|| WaitTerms {
            account: QueueAccount::new("a user"),
            priority: Priority::default(),
            patience: Duration::from_secs(7_200),
        })
    }

    /// A new job: its first attempt or its place in the queue is written with it.
    pub(crate) fn admit(&mut self, job: JobId) {
        let terms = self.terms_of(job);
        let mut stored = Job::new(self.now, self.now.plus(terms.patience));
        let overtakes = self.mutated(Mutation::ValidatorStartsNewcomersFirst);
        let may_start = self.validator.lines.queue.is_free_for_all(CLASS) || overtakes;
        let miner = self
            .route(job, BTreeSet::new())
            .filter(|_| self.chain && may_start);
        if let Some(miner) = miner {
            if !self.ledger.queue.is_empty() {
                let how = format!("job {job} starts although others wait");
                self.violate(Invariant::QueueOrder, how);
            }
            stored.attempts.push(self.new_attempt(job, None, miner));
            self.validator.jobs.insert(job, stored);
            self.validator.outbox.add(job, JobStatus::Received);
            if !self.may_die_here(Node::Validator) {
                self.report_next();
                self.drive(job, false);
            }
            return;
        }
        let has_room = self.ledger.queue.has_room(&terms.account, LIMITS);
        let reserved = self.validator.lines.queue.reserve(CLASS, &terms.account);
        if reserved.is_ok() != has_room {
            let how = format!("job {job} may wait: {has_room}, and the queue says {reserved:?}");
            self.violate(Invariant::QueueBound, how);
        }
        match reserved {
            Ok(ticket) => {
                let waiting = place_of(job, &stored, terms, ticket);
                stored.waits = Some(waiting.clone());
                self.validator.jobs.insert(job, stored);
                self.validator.outbox.add(job, JobStatus::Received);
                self.ledger.queue.arrive(&waiting);
                if !self.may_die_here(Node::Validator) {
                    self.validator.lines.queue.add_reserved(waiting);
                    self.report_next();
                    self.wake_dispatcher();
                }
            }
            Err(full) => {
                self.validator.jobs.insert(job, stored);
                self.validator.outbox.add(job, JobStatus::Received);
                self.ledger.turned_away.insert(job);
                self.close_job(job, refused(full));
            }
        }
    }

    /// A job whose attempt failed waits for a miner that may be asked later. Returns whether there is one.
    pub(crate) fn wait_again(&mut self, job: JobId) -> bool {
        let Some(stored) = self.validator.jobs.get(&job) else {
            return false;
        };
        let found = self.route_all(job, tried(stored));
        let is_over = stored.deadline <= self.now;
        if is_over {
            // Its miner was busy, and its time passed meanwhile.
            self.ledger.turned_away.insert(job);
            return false;
        }
        if matches!(availability(&found), Availability::Never) {
            return false;
        }
        let ticket = self.validator.lines.queue.draw();
        let waiting = place_of(job, stored, self.terms_of(job), ticket);
        if let Some(stored) = self.validator.jobs.get_mut(&job) {
            stored.waits = Some(waiting.clone());
        }
        self.ledger.queue.arrive(&waiting);
        if !self.may_die_here(Node::Validator) {
            self.validator.lines.queue.restore(waiting);
            self.wake_dispatcher();
        }
        true
    }

    /// The queue as the store has it, when the validator starts. Jobs that were called off meanwhile end.
    pub(crate) fn restore_queue(&mut self) {
        let limits = match self.mutation {
            Some(Mutation::ValidatorIgnoresLimits) => QueueLimits {
                jobs: usize::MAX,
                per_account: usize::MAX,
            },
            Some(_) | None => LIMITS,
        };
        self.validator.lines = WaitingLines {
            queue: JobQueue::new(limits),
            since: Some(self.now),
            ..WaitingLines::default()
        };
        if self.mutated(Mutation::ValidatorForgetsQueue) {
            return;
        }
        let rows = self.validator.jobs.iter();
        let rows: Vec<_> = rows
            .filter_map(|(job, stored)| Some((*job, stored.waits.clone()?)))
            .collect();
        let mut called_off = Vec::new();
        for (job, waiting) in rows {
            if self.is_called_off(job) {
                called_off.push(job);
            } else {
                self.validator.lines.queue.restore(waiting);
            }
        }
        for (account, turn) in self.validator.turns.clone() {
            self.validator.lines.queue.restore_turn(CLASS, &account, turn);
        }
        let life = self.validator.life;
        for job in called_off {
            self.end_waiting(job);
            if self.life(Node::Validator) != Some(life) {
                return;
            }
        }
        let order: Vec<_> = self
            .validator
            .lines
            .queue
            .in_order(CLASS.into())
            .map(|row| row.job)
            .collect();
        let expected = self.ledger.queue.order();
        if order != expected {
            let how = format!("the restored order is {order:?}, and it was {expected:?}");
            self.violate(Invariant::QueueOrder, how);
        }
        self.wake_dispatcher();
    }

    /// Something happened that may make room.
    pub(crate) fn wake_dispatcher(&mut self) {
        if !self.validator.lines.queue.is_empty() {
            let (span, life) = (self.dice.millis(0, 20), self.validator.life);
            self.after(span, Happening::Dispatch(life));
        }
    }

    /// Starts every waiting job for which there is room, and then ends those that have waited too long.
    pub(crate) fn dispatch(&mut self) {
        let life = self.validator.life;
        while self.chain {
            let free = miners_of(&self.route_all(JobId::from_uuid(uuid::Uuid::nil()), BTreeSet::new()));
            let Some((job, miner)) = self.first_startable(&free) else {
                break;
            };
            self.start_waiting(job, miner, &free);
            if self.life(Node::Validator) != Some(life) {
                return;
            }
        }
        if !self.mutated(Mutation::ValidatorNeverExpires) {
            for expired in self.validator.lines.queue.expire(self.now) {
                self.ledger.turned_away.insert(expired.job);
                self.end_waiting(expired.job);
                if self.life(Node::Validator) != Some(life) {
                    return;
                }
            }
        }
        let lines = &self.validator.lines;
        if lines.queue.is_empty() {
            return;
        }
        let full = lines
            .full
            .values()
            .filter(|until| **until > self.now)
            .min()
            .copied();
        let chain = (!self.chain).then(|| self.now.plus(Duration::from_secs(1)));
        let deadline = lines
            .queue
            .next_deadline()
            .filter(|deadline| *deadline > self.now);
        if let Some(next) = [full, chain, deadline].into_iter().flatten().min() {
            self.at(next.plus(Duration::from_millis(1)), Happening::Dispatch(life));
        }
    }

    /// The first waiting job that one of the free miners may run, and the miner that suits it best.
    fn first_startable(&self, free: &[usize]) -> Option<(JobId, usize)> {
        if free.is_empty() {
            return None;
        }
        let miner_of = |job: JobId| {
            let stored = self.validator.jobs.get(&job)?;
            self.route(job, tried(stored))
        };
        let queue = &self.validator.lines.queue;
        let job = if self.mutated(Mutation::ValidatorWaitsForTheFirst) {
            queue
                .in_order(CLASS.into())
                .find(|waiting| miner_of(waiting.job).is_some())
        } else {
            queue.first_where(CLASS, |waiting| miner_of(waiting.job).is_some())
        }?;
        Some((job.job, miner_of(job.job)?))
    }

    fn start_waiting(&mut self, job: JobId, miner: usize, free: &[usize]) {
        let Some((waiting, turn)) = self.validator.lines.queue.take(job) else {
            return;
        };
        let jobs = &self.validator.jobs;
        let may_pass = |passed: JobId| {
            let tried = jobs.get(&passed).map(tried_indices).unwrap_or_default();
            free.iter().all(|miner| tried.contains(miner))
        };
        if let Err((broken, how)) = self.ledger.queue.start(job, turn, may_pass) {
            self.violate(broken, how);
        }
        let latest = waiting
            .deadline
            .max(self.validator.lines.since.unwrap_or(self.now));
        if self.now > latest.plus(GRACE) {
            let how = format!(
                "job {job} starts {:?} after its time",
                self.now.since(waiting.deadline)
            );
            self.violate(Invariant::WaitsNoLonger, how);
        }
        let stored = self.validator.jobs.get(&job);
        if stored.is_some_and(|stored| stored.called_off) {
            let how = format!("job {job} starts, which its user called off");
            self.violate(Invariant::NobodyAskedAfterCancel, how);
        }
        let last = self
            .validator
            .jobs
            .get(&job)
            .and_then(|stored| stored.attempts.last());
        let attempt = self.new_attempt(job, last.map(|tried| tried.id), miner);
        // One write: the row goes, the turn and the attempt come.
        if !self.mutated(Mutation::ValidatorForgetsTurns) {
            self.validator.turns.insert(waiting.account, turn);
        }
        if let Some(stored) = self.validator.jobs.get_mut(&job) {
            stored.waits = None;
            stored.attempts.push(attempt);
        }
        if !self.may_die_here(Node::Validator) {
            self.drive(job, false);
        }
    }

    /// Ends a waiting job that gets no further attempt: its row goes with the same write.
    pub(crate) fn end_waiting(&mut self, job: JobId) {
        self.validator.lines.queue.remove(job);
        let Some(stored) = self.validator.jobs.get_mut(&job) else {
            return;
        };
        stored.waits = None;
        let outcome = without_miner(stored);
        self.ledger.queue.leave(job);
        self.close_job(job, outcome);
    }
}

fn place_of(job: JobId, stored: &Job, terms: WaitTerms, ticket: QueueTicket) -> WaitingJob {
    WaitingJob {
        job,
        account: terms.account,
        line: CLASS.into(),
        priority: terms.priority,
        ticket,
        since: stored.since,
        deadline: stored.deadline,
    }
}

/// The miners that have had their attempt at a job: all but those that only said that they were busy.
fn tried_indices(stored: &Job) -> BTreeSet<usize> {
    let real = stored.attempts.iter().filter(|tried| !was_busy(tried));
    real.map(|tried| tried.miner).collect()
}

fn tried(stored: &Job) -> BTreeSet<MinerKey> {
    let real = stored.attempts.iter().filter(|tried| !was_busy(tried));
    real.map(Tried::miner_key).collect()
}

fn refused(full: QueueFull) -> Outcome {
    rejected(JobRejectionReason::Busy, &full.to_string())
}
