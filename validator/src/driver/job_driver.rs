//! The driver of one job: runs an attempt, assigns another miner if the attempt failed through no fault of the user's,
//! and reports the end once.

use std::sync::Arc;
use std::time::Duration;

use muster_checkpoints::ResumeDecision;
use muster_job_messages::job_spans::export_trace;
use muster_job_messages::last_status::{
    add_complaint, describe, excuse_own_cancellation, explain_slow_image, fault_of, final_metadata,
};
use muster_job_messages::{IssuedReceipt, JobTimes, trace_job};
use muster_job_queue::{QueueTicket, WaitingJob};
use muster_miner_link::MinerChannel;
use muster_protocol::job::{Fault, Outcome};
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{JobStatus, Receipt, Timestamp};
use muster_routing::RouteDecision;
use muster_routing::budget::BudgetedAccount;
use muster_routing::earlier_attempts::{AskedFor, EarlierAttempt, count_attempts};
use muster_routing::retry::{self, NextStep, RetryContext};
use muster_store::StoreError;
use tokio::sync::watch;

use super::attempt_deps::AttemptDeps;
use super::attempt_runner::{AttemptEnd, AttemptRunner};
use super::checkpoint_record::{CheckpointRecord, earlier_attempts};
use super::miner_choice::{Assignment, MinerChooser};
use super::queue::{QueueKeeper, ReturningJob};
use super::running_jobs::CancelSignal;
use crate::outcome_counts::{count_attempt, count_job};
use crate::store::{NewAttempt, StoredAttempt, ended_attempts};

/// Drives jobs to their ends, each in a task of its own.
#[derive(Debug)]
pub(super) struct JobDriver {
    pub(super) deps: Arc<AttemptDeps>,
    pub(super) chooser: Arc<MinerChooser>,
    pub(super) queue: Arc<QueueKeeper>,
    /// Whether every open job of an earlier process has its driver. No driver dials before.
    pub(super) resumed: watch::Sender<bool>,
}

/// A job for its driver.
#[derive(Debug)]
pub(super) struct DrivenJob {
    pub(super) request: UserJobRequest,
    /// The user's reason, if the job was called off before the driver began.
    pub(super) cancelled: Option<String>,
    /// Its attempts, oldest first.
    pub(super) attempts: Vec<StoredAttempt>,
    /// The receipts of the last attempt.
    pub(super) receipts: Vec<IssuedReceipt>,
    /// Whether an earlier process began the attempts.
    pub(super) resumed: bool,
    /// The channel of the last attempt.
    pub(super) channel: Option<MinerChannel>,
    /// The last attempt, if it is not in the store yet because the job has waited until now.
    pub(super) begins: Option<Box<BeginningAttempt>>,
    pub(super) wait: WaitTime,
}

/// The attempt with which a waiting job begins or goes on.
#[derive(Debug)]
pub(super) struct BeginningAttempt {
    pub(super) waiting: WaitingJob,
    pub(super) turn: QueueTicket,
    pub(super) attempt: Box<NewAttempt>,
}

/// How long a job may wait, should it have to wait for another miner.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitTime {
    /// When the job arrived.
    pub(super) since: Timestamp,
    /// When it has waited too long. The time of attempts does not count.
    pub(super) deadline: Timestamp,
}

impl JobDriver {
    /// Starts the task of a job that is registered as running.
    pub(super) fn spawn(self: &Arc<Self>, job: DrivenJob, cancel: CancelSignal) {
        let driver = Arc::clone(self);
        self.deps.state.spawn("job", async move {
            // No driver dials while open jobs are being read: the dialling of the first hundred thousand would delay
            // the rest.
            let (stop, mut resumed) = (driver.deps.state.tasks.token(), driver.resumed.subscribe());
            let all_resumed = async { resumed.wait_for(|all| *all).await.is_ok() };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = all_resumed => {}
            }
            // Boxed: the driving future takes kilobytes, which a hundred thousand waiting jobs should not take.
            Box::pin(driver.drive(job, cancel)).await
        });
    }

    async fn drive(&self, job: DrivenJob, mut cancel: CancelSignal) -> Result<(), StoreError> {
        let DrivenJob {
            request,
            mut attempts,
            receipts,
            resumed,
            mut channel,
            begins,
            mut wait,
            cancelled: _,
        } = job;
        if let Some(begins) = begins {
            self.store_beginning(&begins, channel.as_mut()).await?;
        }
        let (mut attempt, mut receipts, mut resumed) = match attempts.pop() {
            Some(last) => (last, receipts, resumed),
            None => match self.chooser.assign(&request, &attempts, &mut cancel).await? {
                Assignment::Attempt(first) => (first.attempt, vec![first.receipt], false),
                Assignment::Later(decision, _) if !self.deps.state.is_own(&request) => {
                    return self
                        .return_to_queue(&request, &attempts, wait, &decision, cancel)
                        .await;
                }
                Assignment::Later(_, outcome) | Assignment::NoMiner(outcome) => {
                    return self.close(&request, outcome, &[], vec![], wait.since).await;
                }
                Assignment::Stopped => return Ok(()),
            },
        };
        loop {
            let channel = channel
                .take()
                .unwrap_or_else(|| self.deps.channels.open_for(&attempt));
            let mut runner = AttemptRunner::new(&self.deps, &request, attempt, receipts, channel, resumed)
                .after(&attempts);
            runner.begin_checkpoints(&attempts).await?;
            let AttemptEnd::Ended(outcome) = runner.run(&mut cancel).await? else {
                runner.hang_up().await;
                return Ok(());
            };
            runner.report_end();
            let outcome = add_complaint(outcome, runner.complaint());
            attempts.push(runner.attempt().clone());
            if matches!(outcome, Outcome::Completed(_)) {
                runner.pay_predecessor().await?;
            }
            let took = self.deps.state.clock.now().since(runner.attempt().started_at);
            wait.deadline = wait.deadline.plus(time_not_waited(&attempts, took));
            count_attempt(&outcome, took);
            let facts = self.retry_context(&request, &attempts, &cancel).await?;
            match retry::next_step(&outcome, facts) {
                NextStep::Report(_) => {}
                NextStep::TryAnother => match self.chooser.assign(&request, &attempts, &mut cancel).await? {
                    Assignment::Attempt(another) => {
                        tracing::info!(job = %request.uuid, ended = describe(&outcome), miner = %another.attempt.miner, "trying another miner");
                        runner.hang_up().await;
                        (attempt, receipts, resumed) = (another.attempt, vec![another.receipt], false);
                        continue;
                    }
                    Assignment::Later(decision, _) if self.may_wait(&request, wait) => {
                        runner.hang_up().await;
                        return self
                            .return_to_queue(&request, &attempts, wait, &decision, cancel)
                            .await;
                    }
                    Assignment::Later(..) | Assignment::NoMiner(_) | Assignment::Stopped => {}
                },
            }
            let outcome = self
                .explain_end(&request, outcome, &attempts, facts.slow_images)
                .await?;
            let receipts = match runner.settle().await? {
                None => return Ok(()),
                Some(receipts) => receipts.iter().filter_map(IssuedReceipt::complete).collect(),
            };
            return self
                .close(&request, outcome, &attempts, receipts, wait.since)
                .await;
        }
    }

    /// Stores the attempt with which a waiting job begins. Its miner is dialled meanwhile; nothing of the job is
    /// sent to it yet.
    async fn store_beginning(
        &self,
        begins: &BeginningAttempt,
        channel: Option<&mut MinerChannel>,
    ) -> Result<(), StoreError> {
        if let Some(channel) = channel {
            channel.dial();
        }
        let BeginningAttempt {
            waiting,
            turn,
            attempt,
        } = begins;
        self.deps
            .state
            .store
            .begin_waiting_attempt(waiting, *turn, attempt)
            .await
    }

    /// The facts that decide what follows the last of these attempts.
    async fn retry_context(
        &self,
        request: &UserJobRequest,
        attempts: &[StoredAttempt],
        cancel: &CancelSignal,
    ) -> Result<RetryContext, StoreError> {
        let last = attempts.last();
        let record = CheckpointRecord::read(&self.deps.state.store, request).await?;
        let had_executor = last.is_some_and(|last| last.machine.ready_at().is_some());
        let decision = record
            .as_ref()
            .filter(|_| had_executor)
            .map(|record| record.decide(attempts));
        Ok(RetryContext {
            goes_on: decision.map(|decision| matches!(decision, ResumeDecision::GoOn { .. })),
            attempts: self.count_attempts(request, attempts, record.as_ref()),
            max_attempts: self.deps.state.config.routing.max_attempts,
            slow_images: count_slow_images(attempts),
            image_elsewhere: last.is_some_and(|last| {
                let records = &self.deps.records;
                records.is_image_elsewhere(&request.docker_image, last.miner)
            }),
            started_elsewhere: last.is_some_and(|last| {
                let outcome = last.machine.outcome();
                outcome.is_some_and(|outcome| self.deps.is_started_elsewhere(request, last.miner, outcome))
            }),
            cancelled: cancel.reason().is_some(),
            address_told: self.is_address_known(request).await?,
        })
    }

    /// The outcome of a job that gets no further attempt. An image that came to several miners too late is explained.
    async fn explain_end(
        &self,
        request: &UserJobRequest,
        outcome: Outcome,
        attempts: &[StoredAttempt],
        slow_images: u32,
    ) -> Result<Outcome, StoreError> {
        match attempts.last().and_then(StoredAttempt::image_failure) {
            Some(failure) if failure.fault() == Fault::Nobody => {
                if slow_images >= retry::MAX_SLOW_IMAGES {
                    self.forgive_slow_images(attempts).await?;
                }
                Ok(explain_slow_image(outcome, &request.docker_image, slow_images))
            }
            Some(_) | None => Ok(outcome),
        }
    }

    /// Takes the marks off the attempts to which an image did not come that came to no miner: the user is at fault.
    async fn forgive_slow_images(&self, attempts: &[StoredAttempt]) -> Result<(), StoreError> {
        for attempt in attempts.iter().filter(|attempt| is_slow_image(attempt)) {
            if let Some(ended) = self.deps.state.store.forgive_excuse(attempt.id).await? {
                self.deps.records.ledger().forgive_excuse(attempt.miner, ended);
            }
        }
        Ok(())
    }

    /// Whether a job that no miner may be asked for now may wait. Jobs of the validator's own do not.
    fn may_wait(&self, request: &UserJobRequest, wait: WaitTime) -> bool {
        !self.deps.state.is_own(request) && self.deps.state.clock.now() < wait.deadline
    }

    async fn return_to_queue(
        &self,
        request: &UserJobRequest,
        attempts: &[StoredAttempt],
        wait: WaitTime,
        decision: &RouteDecision,
        cancel: CancelSignal,
    ) -> Result<(), StoreError> {
        let returning = ReturningJob {
            request,
            attempts,
            since: wait.since,
            deadline: wait.deadline,
            decision,
        };
        self.queue.wait_again(returning, cancel).await
    }

    /// The attempts that count against the most that a job may have.
    fn count_attempts(
        &self,
        request: &UserJobRequest,
        attempts: &[StoredAttempt],
        record: Option<&CheckpointRecord>,
    ) -> u32 {
        let counts = record.map_or_else(|| vec![true; attempts.len()], |record| record.counts(attempts));
        let earlier = earlier_attempts(attempts).into_iter().zip(counts);
        let counted = earlier.filter_map(|(attempt, counts)| counts.then_some(attempt));
        let job = AskedFor {
            is_own: self.deps.state.is_own(request),
            on_trusted_miner: request.on_trusted_miner,
        };
        count_attempts(counted, job)
    }

    /// Whether the user knows the address of a streaming job.
    async fn is_address_known(&self, request: &UserJobRequest) -> Result<bool, StoreError> {
        if request.streaming_details.is_none() {
            return Ok(false);
        }
        let status = self.deps.state.store.last_status(request.uuid).await?;
        Ok(status
            .is_some_and(|status| matches!(status, JobStatus::StreamingReady | JobStatus::ExecutionDone)))
    }

    async fn close(
        &self,
        request: &UserJobRequest,
        outcome: Outcome,
        attempts: &[StoredAttempt],
        receipts: Vec<Receipt>,
        since: Timestamp,
    ) -> Result<(), StoreError> {
        let (job, now) = (request.uuid, self.deps.state.clock.now());
        let attempts = ended_attempts(attempts);
        let is_own = self.deps.state.is_own(request);
        let outcome = if is_own {
            excuse_own_cancellation(outcome)
        } else {
            outcome
        };
        count_job(&outcome);
        if outcome.is_broken_image()
            && let Some(account) = BudgetedAccount::of(request)
        {
            self.deps.state.broken_images.lock().note(account, now);
        }
        let last = attempts.last();
        let (attempt, miner) = (
            last.map(|last| last.attempt.to_string()),
            last.map(|last| last.miner.to_string()),
        );
        tracing::info!(%job, attempt, miner, outcome = describe(&outcome), fault = %fault_of(&outcome), attempts = attempts.len(), "job over");
        let times = JobTimes {
            arrived: since,
            closed: now,
        };
        let trace = request
            .traceparent()
            .map(|context| trace_job(context, times, &attempts));
        export_trace(job, trace.as_ref(), &outcome);
        let decisions = self.deps.state.store.told_routes(job).await?;
        let metadata = final_metadata(&outcome, &attempts, receipts, trace, decisions);
        self.deps
            .state
            .store
            .close_job(job, &outcome, &metadata, now)
            .await?;
        self.deps.own_jobs.end(job, describe(&outcome));
        Ok(())
    }
}

/// Whether the image did not come to the attempt although nobody is at fault.
fn is_slow_image(attempt: &StoredAttempt) -> bool {
    let failure = attempt.image_failure();
    failure.is_some_and(|failure| failure.fault() == Fault::Nobody)
}

fn count_slow_images(attempts: &[StoredAttempt]) -> u32 {
    let slow = attempts.iter().filter(|attempt| is_slow_image(attempt));
    u32::try_from(slow.count()).unwrap_or(u32::MAX)
}

/// The time by which the last of these attempts, which took so long, extends the job's longest wait. A job waits also
/// while a miner has no room for it; if that extended the wait, it might never end.
fn time_not_waited(attempts: &[StoredAttempt], took: Duration) -> Duration {
    let earlier = earlier_attempts(attempts);
    let was_busy = earlier.last().is_some_and(EarlierAttempt::was_declined_as_busy);
    if was_busy { Duration::ZERO } else { took }
}
