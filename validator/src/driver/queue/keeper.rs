//! Jobs enter the queue, and return to it after an attempt.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_facilitator_link::live_output::LiveOutput;
use muster_job_queue::{QueueAccount, QueueFull, QueueTicket, WaitingJob};
use muster_miner_link::MinerChannel;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{JobId, MinerKey, Timestamp};
use muster_routing::RouteDecision;
use muster_store::StoreError;

use super::super::miner_channels::MinerChannels;
use super::super::miner_choice::{MinerChooser, unaskable_miners};
use super::super::miner_pool::line_of;
use super::super::new_attempt::next_ordinal;
use super::super::queue_in_memory::WaitingJobs;
use super::super::running_jobs::{CancelSignal, RunningJobs};
use crate::store::{NewAttempt, StoredAttempt};
use crate::validator_state::ValidatorState;

/// The time for which a check of miners keeps executors, at most in the usual case: a batch of grading whose executors
/// are free is over within seconds.
const CHECK_LASTS: Duration = Duration::from_secs(60);

/// Keeps the waiting jobs in memory as they are in the store: lets jobs in, ends those that leave without an attempt,
/// and shows them.
#[derive(Debug)]
pub(crate) struct QueueKeeper {
    pub(super) state: Arc<ValidatorState>,
    pub(super) waiting: Arc<WaitingJobs>,
    pub(super) chooser: Arc<MinerChooser>,
    pub(super) channels: Arc<MinerChannels>,
    /// The jobs that do not wait any more.
    pub(super) running: Arc<RunningJobs>,
    pub(super) live_output: Arc<LiveOutput>,
    /// When this process began to drive jobs.
    pub(super) started_at: Timestamp,
}

/// The first attempt of a new job, and the channel to its miner, which is being dialled. The ledger counts the attempt,
/// so it must be started or withdrawn.
#[derive(Debug)]
pub(crate) struct FirstAttempt {
    pub(crate) attempt: Box<NewAttempt>,
    pub(in crate::driver) channel: MinerChannel,
}

/// The first step of a new job.
#[derive(Debug)]
pub(crate) enum FirstStep {
    /// A miner was found at once, and is being dialled.
    Attempt(FirstAttempt),
    /// The job waits. Its place is reserved: [`QueueKeeper::wait`] or [`QueueKeeper::give_back`] must follow.
    Wait(WaitingJob),
    /// No further job may wait.
    Full(QueueFull),
    /// The job runs or waits already.
    Known,
}

/// A job that returns to the queue, or enters it late.
#[derive(Debug)]
pub(in crate::driver) struct ReturningJob<'a> {
    pub(in crate::driver) request: &'a UserJobRequest,
    /// Its attempts so far, oldest first.
    pub(in crate::driver) attempts: &'a [StoredAttempt],
    pub(in crate::driver) since: Timestamp,
    pub(in crate::driver) deadline: Timestamp,
    /// Why no miner may be asked now.
    pub(in crate::driver) decision: &'a RouteDecision,
}

impl QueueKeeper {
    /// The keeper of a process that begins to drive jobs now; [`Self::restore`] reads the queue of the process before.
    pub(in crate::driver) fn new(
        state: Arc<ValidatorState>,
        waiting: Arc<WaitingJobs>,
        chooser: Arc<MinerChooser>,
        channels: Arc<MinerChannels>,
        running: Arc<RunningJobs>,
        live_output: Arc<LiveOutput>,
    ) -> Self {
        let started_at = state.clock.now();
        Self {
            state,
            waiting,
            chooser,
            channels,
            running,
            live_output,
            started_at,
        }
    }

    /// Decides the first step of a new job. Waits for nothing. The chosen miner is dialled; nothing of the job is
    /// sent to it yet.
    pub(crate) fn prepare(&self, request: &UserJobRequest) -> FirstStep {
        let (job, line) = (request.uuid, line_of(request));
        // Held while a miner is chosen, so that no other newcomer overtakes a job that is found to wait.
        let mut lines = self.waiting.lock();
        if self.running.contains(job) || lines.queue.get(job).is_some() {
            return FirstStep::Known;
        }
        if lines.queue.is_free_for_all(line)
            && let Some(attempt) = self.chooser.assign_at_once(request)
        {
            drop(lines);
            let attempt = Box::new(attempt);
            let mut channel = self.channels.open_for(&attempt.attempt);
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
    /// dispatcher looks once for a miner. While the validator itself checks miners, a user's job may wait for the end
    /// of that in any case: the executors that it finds at work are not at work for users.
    pub(in crate::driver) fn wait_limit(&self, request: &UserJobRequest) -> Duration {
        let limit = request.terms().queue_time_limit;
        let limit = Duration::from_secs(limit.unwrap_or(self.state.config.queue.default_s));
        let least = match !self.state.is_own(request) && self.running.has_check() {
            true => CHECK_LASTS,
            false => Duration::from_micros(1),
        };
        limit.max(least)
    }

    /// Lets a new job wait that is in the store with its place.
    pub(crate) fn wait(&self, waiting: WaitingJob, request: &UserJobRequest) {
        let job = waiting.job;
        let arrival = self
            .waiting
            .lock()
            .add_reserved(waiting, request.has_private_image());
        if arrival.wakes {
            self.waiting.wake.notify_one();
        }
        if arrival.is_blocked {
            self.send_place(job);
        }
    }

    /// Gives back the place of a job that turned out to be known.
    pub(crate) fn give_back(&self, waiting: &WaitingJob) {
        self.waiting.lock().queue.release(waiting.line, &waiting.account);
    }

    /// Calls a job off: a waiting job ends at once, a running one learns of it through its driver. The cancellation is
    /// in the store already.
    pub(in crate::driver) async fn cancel(&self, job: JobId, reason: &str) -> Result<(), StoreError> {
        let has_attempts = {
            let mut lines = self.waiting.lock();
            match lines.remove(job) {
                Some(left) => left.has_attempts,
                None => {
                    // Sent while the queue is locked, so that the job cannot change sides unseen.
                    self.running.cancel(job, reason);
                    return Ok(());
                }
            }
        };
        self.end_cancelled(job, reason, has_attempts).await
    }

    /// Lets a job wait that was admitted before. If it is called off meanwhile, it ends.
    pub(in crate::driver) async fn wait_again(
        &self,
        returning: ReturningJob<'_>,
        cancel: CancelSignal,
    ) -> Result<(), StoreError> {
        let request = returning.request;
        let ticket = self.waiting.lock().queue.draw();
        let waiting = place_of(request, ticket, returning.since, returning.deadline);
        let (job, ordinal) = (request.uuid, next_ordinal(returning.attempts));
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
                let tried = self.unaskable(request, returning.attempts);
                lines.add_again(waiting, tried, request.has_private_image());
                // From here on a cancellation finds the job in the queue.
                drop(cancel);
                self.waiting.wake.notify_one();
            }
            reason
        };
        match cancelled {
            Some(reason) => self.end_cancelled(job, &reason, true).await,
            None => {
                self.send_place(job);
                Ok(())
            }
        }
    }

    fn unaskable(&self, request: &UserJobRequest, attempts: &[StoredAttempt]) -> BTreeSet<MinerKey> {
        let metagraph = self.state.subnet.last_metagraph();
        unaskable_miners(line_of(request), attempts, metagraph.as_deref())
    }
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
