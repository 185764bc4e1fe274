//! The jobs that wait for an executor. A waiting job has no task: its place lies in memory and in a row of the store.
//!
//! A new job begins at once if no other waits for its class and a miner may be asked ([`JobDrivers::prepare`]).
//! Otherwise it waits, and so does a job whose attempt failed through no fault of its user's while no other miner may
//! be asked. One task, the [`dispatcher`], starts the drivers of waiting jobs in order. It wakes on events that may
//! make room, and at the times at which a reason against a miner ends. [`ends`] closes jobs that leave the queue
//! without an attempt, [`restore`] reads the queue of an earlier process, [`summary`] tells users and operators about
//! it.

mod dispatcher;
mod ends;
mod restore;
mod summary;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use muster_job_queue::{
    DurationRecord, ExecutorLine, JobQueue, QueueAccount, QueueFull, QueueLimits, QueueTicket, WaitingJob,
};
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{JobId, MinerKey, Timestamp};
use muster_routing::RouteDecision;
use muster_routing::availability::LaterReasons;
use muster_store::StoreError;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::miner_pool::line_of;
use super::{FirstAttempt, JobDrivers, assignment};
use crate::config::QueueConfig;
use crate::driver::running_jobs::CancelSignal;
use crate::store::StoredAttempt;

/// The waiting jobs, and the signal that wakes their dispatcher.
#[derive(Debug)]
pub(super) struct WaitingJobs {
    /// Locked before the ledger and before the running jobs, never after them, and never across an await.
    lines: Mutex<Lines>,
    wake: Notify,
}

/// The waiting jobs and the dispatcher's knowledge about them.
#[derive(Debug)]
struct Lines {
    queue: JobQueue,
    /// The miners that must not be asked (again), for each waiting job that has had an attempt.
    tried: HashMap<JobId, BTreeSet<MinerKey>>,
    /// Waiting jobs with an image from an archive or with a login. Those of an earlier process are added when their
    /// turn comes and no executor that is free takes such an image.
    private_images: HashSet<JobId>,
    /// Jobs that have arrived since the dispatcher last looked at their line. They are refused if no miner could run
    /// them; a job that has waited goes on waiting.
    unexamined: BTreeMap<ExecutorLine, Vec<JobId>>,
    /// Why the lines wait that cannot go on before something happens.
    blocked: BTreeMap<ExecutorLine, LaterReasons>,
    /// The executors that each line waits for, when it was last found blocked.
    executors: BTreeMap<ExecutorLine, u32>,
    /// How long recent attempts took.
    durations: BTreeMap<ExecutorLine, DurationRecord>,
}

/// The first step of a new job.
#[derive(Debug)]
pub(crate) enum FirstStep {
    /// A miner was found at once, and is being dialled.
    Attempt(FirstAttempt),
    /// The job waits. Its place is reserved: [`JobDrivers::wait`] or [`JobDrivers::give_back`] must follow.
    Wait(WaitingJob),
    /// No further job may wait.
    Full(QueueFull),
    /// The job runs or waits already.
    Known,
}

/// A job that returns to the queue, or enters it late.
#[derive(Debug)]
pub(super) struct ReturningJob<'a> {
    pub(super) request: &'a UserJobRequest,
    /// Its attempts so far, oldest first.
    pub(super) attempts: &'a [StoredAttempt],
    pub(super) since: Timestamp,
    pub(super) deadline: Timestamp,
    /// Why no miner may be asked now.
    pub(super) decision: &'a RouteDecision,
}

impl Lines {
    /// Why a line waits, in words; `None` if it does not, or if the dispatcher is just looking.
    fn why(&self, line: ExecutorLine) -> Option<String> {
        let reasons = self.blocked.get(&line)?;
        Some(explain(line, reasons))
    }

    /// Removes a job that does not start; returns whether it waited and whether it has had attempts.
    fn remove(&mut self, job: JobId) -> Option<(WaitingJob, bool)> {
        let waiting = self.queue.remove(job)?;
        Some((waiting, self.forget(job)))
    }

    /// Forgets what is known of a job that waits no more; returns whether it has had attempts.
    fn forget(&mut self, job: JobId) -> bool {
        self.private_images.remove(&job);
        self.tried.remove(&job).is_some()
    }

    /// Whether a job of the line waits that needs an executor which takes private images.
    fn needs_private_images(&self, line: ExecutorLine) -> bool {
        let mut jobs = self.private_images.iter();
        jobs.any(|job| self.queue.get(*job).is_some_and(|waiting| waiting.line == line))
    }
}

// === impl WaitingJobs ===

impl WaitingJobs {
    pub(super) fn new(config: &QueueConfig) -> Self {
        let queue = JobQueue::new(QueueLimits {
            jobs: config.max_jobs,
            per_account: config.max_per_account,
        });
        Self {
            lines: Mutex::new(Lines {
                queue,
                tried: HashMap::new(),
                private_images: HashSet::new(),
                unexamined: BTreeMap::new(),
                blocked: BTreeMap::new(),
                executors: BTreeMap::new(),
                durations: BTreeMap::new(),
            }),
            wake: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock()
    }

    /// Tells the dispatcher that there may be room now: an attempt ended, or a miner showed its executors.
    pub(super) fn note_room(&self) {
        let mut lines = self.lock();
        lines.blocked.clear();
        if !lines.queue.is_empty() {
            self.wake.notify_one();
        }
    }

    /// Notes how long an attempt kept its executor.
    pub(super) fn note_duration(&self, line: ExecutorLine, duration: Duration) {
        self.lock().durations.entry(line).or_default().note(duration);
    }
}

// === impl JobDrivers ===

impl JobDrivers {
    /// Decides the first step of a new job. Waits for nothing. The chosen miner is dialled and told nothing of the job
    /// yet.
    pub(crate) fn prepare(&self, request: &UserJobRequest) -> FirstStep {
        let (job, line) = (request.uuid, line_of(request));
        // Held while a miner is chosen, so that no other newcomer overtakes a job that is found to wait.
        let mut lines = self.waiting.lock();
        if self.running.contains(job) || lines.queue.get(job).is_some() {
            return FirstStep::Known;
        }
        if lines.queue.is_free_for_all(line)
            && let Some(attempt) = assignment::assign_at_once(self, request)
        {
            drop(lines);
            let attempt = Box::new(attempt);
            let mut channel = self.channel_of(&attempt.attempt);
            channel.dial();
            return FirstStep::Attempt(FirstAttempt { attempt, channel });
        }
        let account = QueueAccount::new(&request.account());
        match lines.queue.reserve(line, &account) {
            Ok(ticket) => {
                let since = self.state.clock.now();
                let deadline = since.plus(self.wait_limit(request));
                FirstStep::Wait(place_of(request, ticket, since, deadline))
            }
            Err(full) => FirstStep::Full(full),
        }
    }

    /// How long a job may wait in all. A job that may not wait has the shortest time that there is, so that the
    /// dispatcher looks once for a miner.
    pub(super) fn wait_limit(&self, request: &UserJobRequest) -> Duration {
        let limit = request.terms().queue_time_limit;
        let limit = Duration::from_secs(limit.unwrap_or(self.state.config.queue.default_s));
        limit.max(Duration::from_micros(1))
    }

    /// Lets a new job wait that is in the store with its place.
    pub(crate) fn wait(&self, waiting: WaitingJob, request: &UserJobRequest) {
        let (job, line, deadline) = (waiting.job, waiting.line, waiting.deadline);
        let mut lines = self.waiting.lock();
        lines.queue.add_reserved(waiting);
        // That a line is blocked says nothing about a private image: it may be that no miner takes one.
        let is_private = request.has_private_image();
        if is_private {
            lines.private_images.insert(job);
        }
        let is_blocked = lines.blocked.contains_key(&line) && !is_private;
        if !is_blocked {
            lines.unexamined.entry(line).or_default().push(job);
        }
        // The dispatcher looks at a new job, and must not sleep past the deadline of one that it need not look at.
        if !is_blocked || lines.queue.next_deadline() == Some(deadline) {
            self.waiting.wake.notify_one();
        }
        drop(lines);
        if is_blocked {
            self.tell_position(job);
        }
    }

    /// Gives back the place of a job that turned out to be known.
    pub(crate) fn give_back(&self, waiting: &WaitingJob) {
        self.waiting.lock().queue.release(waiting.line, &waiting.account);
    }

    /// Lets a job wait that was admitted before. If it is called off meanwhile, it ends.
    pub(super) async fn wait_again(
        &self,
        returning: ReturningJob<'_>,
        cancel: CancelSignal,
    ) -> Result<(), StoreError> {
        let request = returning.request;
        let ticket = self.waiting.lock().queue.draw();
        let waiting = place_of(request, ticket, returning.since, returning.deadline);
        let (job, ordinal) = (request.uuid, assignment::next_ordinal(returning.attempts));
        let now = self.state.clock.now();
        self.state
            .store
            .wait_again(&waiting, ordinal, returning.decision, now)
            .await?;
        tracing::info!(%job, class = %request.executor_class, attempts = returning.attempts.len(), "job waits for another miner");
        let cancelled = {
            let mut lines = self.waiting.lock();
            let reason = cancel.reason();
            if reason.is_none() {
                let metagraph = self.state.subnet.last_metagraph();
                let tried =
                    assignment::unaskable_miners(line_of(request), returning.attempts, metagraph.as_deref());
                lines.tried.insert(job, tried);
                if request.has_private_image() {
                    lines.private_images.insert(job);
                }
                lines.queue.restore(waiting);
                // From here on a cancellation finds the job in the queue.
                drop(cancel);
                self.waiting.wake.notify_one();
            }
            reason
        };
        match cancelled {
            Some(reason) => self.end_cancelled(job, &reason, true).await,
            None => {
                self.tell_position(job);
                Ok(())
            }
        }
    }
}

/// The reasons why a line waits, in words.
fn explain(line: ExecutorLine, reasons: &LaterReasons) -> String {
    if line.on_trusted_miner && reasons.full > 0 {
        return "the trusted miner does not answer, or has no executor free".to_owned();
    }
    reasons.to_string()
}

fn place_of(
    request: &UserJobRequest,
    ticket: QueueTicket,
    since: Timestamp,
    deadline: Timestamp,
) -> WaitingJob {
    WaitingJob {
        job: request.uuid,
        account: QueueAccount::new(&request.account()),
        line: line_of(request),
        priority: request.terms().priority,
        ticket,
        since,
        deadline,
    }
}
