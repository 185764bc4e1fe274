//! The simulated validator's queue: the real lines, with the dispatcher's decisions, and the real routing over rows of
//! the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_job_queue::{
    LeftJob, LineStep, QueueAccount, QueueFull, QueueLimits, QueueTicket, WaitingJob, WaitingLines,
};
use muster_protocol::job::{Outcome, Priority};
use muster_protocol::status::JobRejectionReason;
use muster_protocol::{JobId, JobStatus, MinerKey, Timestamp};
use muster_routing::Route;
use muster_routing::availability::may_ask_others;
use muster_routing::earlier_attempts::tried_miners;

use crate::choosing::{earlier_attempts, miners_of, rejected, without_miner};
use crate::faults::Mutation;
use crate::invariants::Invariant;
use crate::miner::{CLASS, miner_key};
use crate::validator::Job;
use crate::world::{Happening, Node, World};

/// The most jobs that wait, so low that schedules reach it.
pub(crate) const LIMITS: QueueLimits = QueueLimits {
    jobs: 8,
    per_account: 5,
};
/// For how long a miner that reported that it is busy is not asked.
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
pub(crate) struct QueueMemory {
    pub(crate) lines: WaitingLines,
    /// The miners that reported that they are busy, and until when that counts.
    pub(crate) full: BTreeMap<usize, Timestamp>,
    /// When the process started.
    since: Option<Timestamp>,
}

impl Default for QueueMemory {
    fn default() -> Self {
        Self {
            lines: WaitingLines::new(LIMITS),
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
        let may_start = self.validator.queue.lines.queue.is_free_for_all(CLASS) || overtakes;
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
        let reserved = self.validator.queue.lines.queue.reserve(CLASS, &terms.account);
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
                    let arrival = self.validator.queue.lines.add_reserved(waiting, false);
                    self.report_next();
                    self.wake_dispatcher(arrival.wakes);
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
        let tried = tried(stored);
        let is_over = stored.deadline <= self.now;
        if is_over {
            // Its miner was busy, and its time passed meanwhile.
            self.ledger.turned_away.insert(job);
            return false;
        }
        if !may_ask_others(self.route_need(), &tried) {
            return false;
        }
        let ticket = self.validator.queue.lines.queue.draw();
        let waiting = place_of(job, stored, self.terms_of(job), ticket);
        if let Some(stored) = self.validator.jobs.get_mut(&job) {
            stored.waits = Some(waiting.clone());
        }
        self.ledger.queue.arrive(&waiting);
        if !self.may_die_here(Node::Validator) {
            self.validator.queue.lines.add_again(waiting, tried, false);
            self.wake_dispatcher(true);
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
        self.validator.queue = QueueMemory {
            lines: WaitingLines::new(limits),
            since: Some(self.now),
            ..QueueMemory::default()
        };
        if self.mutated(Mutation::ValidatorForgetsQueue) {
            return;
        }
        let rows = self.validator.jobs.iter();
        let rows: Vec<_> = rows
            .filter_map(|(job, stored)| {
                let tried = (!stored.attempts.is_empty()).then(|| tried(stored));
                Some((*job, stored.waits.clone()?, tried))
            })
            .collect();
        let mut called_off = Vec::new();
        for (job, waiting, tried) in rows {
            if self.is_called_off(job) {
                called_off.push(job);
            } else {
                self.validator.queue.lines.restore(waiting, tried);
            }
        }
        for (account, turn) in self.validator.turns.clone() {
            self.validator
                .queue
                .lines
                .queue
                .restore_turn(CLASS, &account, turn);
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
            .queue
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
        if !self.validator.queue.lines.queue.is_empty() {
            self.wake_dispatcher(true);
        }
    }

    /// An attempt has given back its executor.
    pub(crate) fn note_room(&mut self) {
        if self.validator.queue.lines.note_room() {
            self.wake_dispatcher(true);
        }
    }

    /// Draws when the dispatcher would look, so that its decisions change no later draw, and wakes it if it must look.
    fn wake_dispatcher(&mut self, wakes: bool) {
        let (span, life) = (self.dice.millis(0, 20), self.validator.life);
        if wakes {
            self.after(span, Happening::Dispatch(life));
        }
    }

    /// The route of a job that no miner was asked for yet.
    fn route_need(&self) -> Route {
        self.route_all(JobId::from_uuid(uuid::Uuid::nil()), BTreeSet::new())
    }

    /// Starts every waiting job for which there is room, and then ends those that have waited too long.
    pub(crate) fn dispatch(&mut self) {
        let life = self.validator.life;
        while self.chain && self.validator.queue.lines.queue.waiting_for(CLASS) > 0 {
            let found = self.route_need();
            let job = match self.validator.queue.lines.next_step(CLASS.into(), &found, None) {
                LineStep::Start(job) => self.first_of_all(&found).unwrap_or(job),
                LineStep::Block(reasons) => {
                    self.validator
                        .queue
                        .lines
                        .block(CLASS.into(), reasons, self.traits.believed);
                    break;
                }
                // Both miners show the class, and no image is private.
                LineStep::PassOver { .. } | LineStep::Refuse | LineStep::RefusePrivate => break,
            };
            let stored = self.validator.jobs.get(&job);
            let Some(miner) = stored.and_then(|stored| self.route(job, tried(stored))) else {
                let lines = &mut self.validator.queue.lines;
                if lines.pass_over(job, CLASS.into(), false, &found.candidates) {
                    continue;
                }
                break;
            };
            self.start_waiting(job, miner, &miners_of(&found));
            if self.life(Node::Validator) != Some(life) {
                return;
            }
        }
        if !self.mutated(Mutation::ValidatorNeverExpires) {
            for LeftJob { waiting, .. } in self.validator.queue.lines.expire(self.now) {
                self.ledger.turned_away.insert(waiting.job);
                self.end_waiting(waiting.job);
                if self.life(Node::Validator) != Some(life) {
                    return;
                }
            }
        }
        let memory = &self.validator.queue;
        if memory.lines.queue.is_empty() {
            return;
        }
        // In place of the chain's blocks, at which the real dispatcher looks too.
        let full = memory
            .full
            .values()
            .filter(|until| **until > self.now)
            .min()
            .copied();
        let chain = (!self.chain).then(|| self.now.plus(Duration::from_secs(1)));
        let deadline = memory
            .lines
            .queue
            .next_deadline()
            .filter(|deadline| *deadline > self.now);
        if let Some(next) = [full, chain, deadline].into_iter().flatten().min() {
            self.at(next.plus(Duration::from_millis(1)), Happening::Dispatch(life));
        }
    }

    /// The first job of the line that one of these miners may run, whatever the accounts' turns: the broken rule.
    fn first_of_all(&self, found: &Route) -> Option<JobId> {
        if !self.mutated(Mutation::ValidatorWaitsForTheFirst) {
            return None;
        }
        let may_run = |job: &JobId| {
            let tried = self.validator.jobs.get(job).map(tried).unwrap_or_default();
            let mut candidates = found.candidates.iter();
            candidates.any(|candidate| !tried.contains(&candidate.miner))
        };
        let mut jobs = self.validator.queue.lines.queue.in_order(CLASS.into());
        jobs.find(|waiting| may_run(&waiting.job))
            .map(|waiting| waiting.job)
    }

    fn start_waiting(&mut self, job: JobId, miner: usize, free: &[usize]) {
        let Some((waiting, turn)) = self.validator.queue.lines.start(job) else {
            return;
        };
        let jobs = &self.validator.jobs;
        let may_pass = |passed: JobId| {
            let tried = jobs.get(&passed).map(tried).unwrap_or_default();
            free.iter().all(|miner| tried.contains(&miner_key(*miner)))
        };
        if let Err((broken, how)) = self.ledger.queue.start(job, turn, may_pass) {
            self.violate(broken, how);
        }
        let latest = waiting
            .deadline
            .max(self.validator.queue.since.unwrap_or(self.now));
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
        self.validator.queue.lines.remove(job);
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

fn tried(stored: &Job) -> BTreeSet<MinerKey> {
    tried_miners(&earlier_attempts(&stored.attempts), false)
}

fn refused(full: QueueFull) -> Outcome {
    rejected(JobRejectionReason::Busy, &full.to_string())
}
