//! The drivers of the jobs that run: one task a job, which runs the attempt, assigns another miner if the attempt
//! failed through no fault of the user's, and reports the end once. Jobs that wait have no task.
//!
//! [`assignment`] chooses the miner among those of a [`miner_pool`], [`queue`] keeps the jobs that wait for one,
//! [`attempt_runner`] runs one attempt, [`unmatched`] answers messages about attempts that have no driver.
//! `muster_job_messages` holds the messages themselves, and `muster_miner_link` carries them.

mod assignment;
mod attempt_runner;
pub(crate) mod checkpoint_record;
mod miner_pool;
mod partial_pay;
mod queue;
mod running_jobs;
mod unmatched;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_chain::Metagraph;
use muster_checkpoints::ResumeDecision;
use muster_facilitator_link::live_output::LiveOutput;
use muster_grading_runner::store::GradingStore;
use muster_job_messages::report::{
    add_complaint, describe, excuse_own_cancellation, explain_slow_image, fault_of, final_metadata,
};
use muster_job_messages::{IssuedReceipt, JobTimes, trace_job};
use muster_job_queue::{QueueTicket, WaitingJob};
use muster_miner_link::{LinkSetup, MinerChannel, MinerEndpoint, MinerLink, UnmatchedMessages};
use muster_own_jobs::OwnJobRegistry;
use muster_protocol::job::{Fault, Outcome};
use muster_protocol::wire::facilitator::JobRequest;
use muster_protocol::wire::machines::{ClaimedOffer, MinerNotice};
use muster_protocol::wire::miner::ExecutorManifest;
use muster_protocol::{AttemptId, ExecutorClass, FeatureSet, JobStatus, MinerKey, Receipt, Timestamp};
use muster_routing::retry::{self, NextStep, RetryContext};
use muster_routing::{CacheKey, MinerLedger, RouteDecision};
use muster_store::StoreError;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use assignment::Assignment;
use attempt_runner::{AttemptEnd, AttemptRunner};
use miner_pool::line_of;
use muster_job_messages::job_spans::export_trace;
pub(crate) use queue::FirstStep;
use queue::{ReturningJob, WaitingJobs};

use crate::driver::checkpoint_record::CheckpointRecord;
use crate::driver::running_jobs::{CancelSignal, RunningJobs};
use crate::metrics::{count_attempt, count_job};
use crate::miner_reports::claims::{self, ClaimBoard};
use crate::state::ValidatorState;
use crate::store::{NewAttempt, StoredAttempt, ended_attempts, restore_ledger};

/// The drivers of all open jobs, and the state that only they change.
#[derive(Debug)]
pub(crate) struct JobDrivers {
    state: Arc<ValidatorState>,
    /// The miners' records, by which jobs are assigned. Locked from reading it to noting the new attempt, so that two
    /// jobs do not take one executor; never locked across an await.
    ledger: Mutex<MinerLedger>,
    /// The connections to miners.
    channels: MinerLink,
    live_output: Arc<LiveOutput>,
    running: Arc<RunningJobs>,
    waiting: WaitingJobs,
    /// The validator's own jobs that have not ended.
    pub(crate) own_jobs: Arc<OwnJobRegistry>,
    /// Miners' claims about their machines.
    pub(crate) claims: ClaimBoard,
    /// Whether every open job of an earlier process has its driver. No driver dials before.
    resumed: watch::Sender<bool>,
    /// When this process began to drive jobs.
    started_at: Timestamp,
}

/// The first attempt of a new job, and the channel to its miner, which is being dialled. The ledger counts the attempt,
/// so it must be started or withdrawn.
#[derive(Debug)]
pub(crate) struct FirstAttempt {
    pub(crate) attempt: Box<NewAttempt>,
    channel: MinerChannel,
}

/// A job for its driver.
#[derive(Debug)]
struct DrivenJob {
    request: JobRequest,
    /// The user's reason, if the job was called off before the driver began.
    cancelled: Option<String>,
    /// Its attempts, oldest first.
    attempts: Vec<StoredAttempt>,
    /// The receipts of the last attempt.
    receipts: Vec<IssuedReceipt>,
    /// Whether an earlier process began the attempts.
    resumed: bool,
    /// The channel of the last attempt.
    channel: Option<MinerChannel>,
    /// The last attempt, if it is not in the store yet because the job has waited until now.
    begins: Option<Box<BeginningAttempt>>,
    wait: WaitTime,
}

/// The attempt with which a waiting job begins or goes on.
#[derive(Debug)]
struct BeginningAttempt {
    waiting: WaitingJob,
    turn: QueueTicket,
    attempt: Box<NewAttempt>,
}

/// How long a job may wait, should it have to wait for another miner.
#[derive(Clone, Copy, Debug)]
struct WaitTime {
    /// When the job arrived.
    since: Timestamp,
    /// When it has waited too long. The time of attempts does not count.
    deadline: Timestamp,
}

impl JobDrivers {
    /// The drivers of a validator that has just started; [`Self::resume`] takes up the stored jobs. `greeting` is the
    /// frame that every Muster miner is sent first.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn new(
        state: Arc<ValidatorState>,
        live_output: Arc<LiveOutput>,
        greeting: Option<String>,
    ) -> Result<Arc<Self>, StoreError> {
        let windows = state.config.routing.windows();
        let ledger = restore_ledger(&state.store, windows, state.clock.now()).await?;
        let (channels, unmatched) = MinerLink::new(LinkSetup {
            keypair: state.keypair.clone(),
            clock: Arc::clone(&state.clock),
            tasks: state.tasks.clone(),
            linger: Duration::from_secs(state.config.timing.linger_s),
            first_frame: greeting,
        });
        let waiting = WaitingJobs::new(&state.config.queue);
        let drivers = Arc::new(Self {
            started_at: state.clock.now(),
            state,
            waiting,
            ledger: Mutex::new(ledger),
            channels,
            live_output,
            running: Arc::default(),
            own_jobs: Arc::default(),
            claims: ClaimBoard::default(),
            resumed: watch::Sender::new(false),
        });
        drivers.answer_unmatched(unmatched);
        let dispatching = Arc::clone(&drivers).dispatch_waiting();
        drivers.state.spawn("queue", dispatching);
        Ok(drivers)
    }

    fn answer_unmatched(self: &Arc<Self>, messages: UnmatchedMessages) {
        let answering = unmatched::answer_all(Arc::clone(self), messages);
        self.state.spawn("unmatched messages", answering);
    }

    /// The miners' records. Hold the lock for a statement or two at most.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, MinerLedger> {
        self.ledger.lock()
    }

    /// The number of jobs that have a driver.
    pub(crate) fn count_running(&self) -> usize {
        self.running.count()
    }

    /// The subnet as it was last read from the chain; `None` before the chain has answered.
    pub(crate) fn metagraph(&self) -> Option<Arc<Metagraph>> {
        self.state.subnet.last_metagraph()
    }

    /// The executors that a miner offers now, by class.
    pub(crate) fn offers_of(&self, miner: MinerKey) -> Vec<ClaimedOffer> {
        let (ledger, now) = (self.ledger(), self.state.clock.now());
        let offer = |class| {
            let executors = ledger.executors(miner, class, now)?;
            (executors > 0).then_some(ClaimedOffer { class, executors })
        };
        ExecutorClass::ALL.into_iter().filter_map(offer).collect()
    }

    /// The facts and claims about the miners of the subnet.
    ///
    /// # Errors
    /// The store of grades fails.
    pub(crate) async fn list_miners(&self, grading: &GradingStore) -> Result<Vec<MinerNotice>, StoreError> {
        let metagraph = self.metagraph();
        claims::list_miners(
            metagraph.as_deref(),
            &self.claims,
            |miner| self.offers_of(miner),
            grading,
        )
        .await
    }

    /// A channel to a miner for one attempt. Does not dial yet.
    pub(crate) fn channel(&self, attempt: AttemptId, miner: MinerKey, address: SocketAddr) -> MinerChannel {
        let own = &self.state.config.trusted_miner;
        let certificate = own.certificate_of(miner, self.metagraph().as_deref());
        self.channels
            .open_channel(attempt, MinerEndpoint::new(miner, address, certificate))
    }

    fn channel_of(&self, attempt: &StoredAttempt) -> MinerChannel {
        self.channel(attempt.id, attempt.miner, attempt.address)
    }

    /// Takes back an attempt that was never offered, so that its executor is free again.
    pub(crate) fn withdraw_attempt(&self, attempt: &StoredAttempt) {
        let class = attempt.machine.plan().class;
        self.ledger()
            .withdraw_attempt(attempt.miner, class, attempt.started_at);
        self.waiting.note_room();
    }

    /// Notes a miner's manifest, which may make room for jobs that wait.
    pub(crate) fn record_manifest(&self, miner: MinerKey, shown: ExecutorManifest) {
        let now = self.state.clock.now();
        {
            let mut ledger = self.ledger();
            ledger.record_private_images(miner, shown.private_images, now);
            ledger.record_manifest(miner, shown.manifest, now);
        }
        self.waiting.note_room();
    }

    /// Notes the features that a miner showed on its connection.
    pub(crate) fn record_features(&self, miner: MinerKey, features: FeatureSet) {
        let now = self.state.clock.now();
        self.ledger().record_features(miner, features, now);
    }

    /// Drives a new job that does not wait. The job is in the store as arrived at `since`, together with its first
    /// attempt if it has one.
    pub(crate) fn start(
        self: &Arc<Self>,
        request: JobRequest,
        since: Timestamp,
        first: Option<FirstAttempt>,
    ) {
        let mut job = DrivenJob {
            wait: WaitTime {
                since,
                deadline: since.plus(self.wait_limit(&request)),
            },
            begins: None,
            request,
            cancelled: None,
            attempts: Vec::new(),
            receipts: Vec::new(),
            resumed: false,
            channel: None,
        };
        if let Some(FirstAttempt { attempt, channel }) = first {
            job.attempts.push(attempt.attempt);
            job.receipts.push(attempt.receipt);
            job.channel = Some(channel);
        }
        self.spawn_driver(job);
    }

    /// Restores the queue, and drives every other job that an earlier process left open. The next page of jobs is read
    /// while the jobs of one page get their drivers.
    pub(crate) async fn resume(self: &Arc<Self>) -> Result<(), StoreError> {
        let read = |after| {
            let state = Arc::clone(&self.state);
            let reading = async move { state.store.open_after(after).await };
            self.state.tasks.spawn("read open jobs", reading)
        };
        self.restore_queue().await?;
        let (mut next, mut resumed) = (read(None), 0_usize);
        loop {
            // The reading task fails to be joined only if it panicked over the rows.
            let page = next
                .join()
                .await
                .map_err(|error| StoreError::corrupt("jobs", error))??;
            let Some(last) = page.last()? else { break };
            next = read(Some(last));
            for job in page.read()? {
                let limit = self.wait_limit(&job.request);
                self.spawn_driver(DrivenJob {
                    wait: WaitTime {
                        since: job.created_at,
                        // How long it waited before its attempt is not known any more.
                        deadline: self.state.clock.now().plus(limit),
                    },
                    begins: None,
                    request: job.request,
                    cancelled: job.cancelled,
                    // Registers the attempt with its channel before anything is dialled: as soon as one driver dials,
                    // the miner reports on all its attempts.
                    channel: job.attempts.last().map(|last| self.channel_of(last)),
                    attempts: job.attempts,
                    receipts: job.receipts,
                    resumed: true,
                });
                resumed = resumed.saturating_add(1);
            }
        }
        self.resumed.send_replace(true);
        if resumed > 0 {
            tracing::info!(jobs = resumed, "resumed open jobs");
        }
        Ok(())
    }

    fn spawn_driver(self: &Arc<Self>, job: DrivenJob) {
        // Registered before the task first runs, so that no cancellation is missed.
        let cancel = self.running.register(job.request.uuid, job.cancelled.clone());
        self.spawn_registered(job, cancel);
    }

    fn spawn_registered(self: &Arc<Self>, job: DrivenJob, cancel: CancelSignal) {
        let drivers = Arc::clone(self);
        self.state.spawn("job", async move {
            // No driver dials while open jobs are being read: the dialling of the first hundred thousand would delay
            // the rest.
            let (stop, mut resumed) = (drivers.state.tasks.token(), drivers.resumed.subscribe());
            let all_resumed = async { resumed.wait_for(|all| *all).await.is_ok() };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = all_resumed => {}
            }
            // Boxed: the driving future takes kilobytes, which a hundred thousand waiting jobs should not take.
            Box::pin(drivers.drive(job, cancel)).await
        });
    }

    async fn drive(self: &Arc<Self>, job: DrivenJob, mut cancel: CancelSignal) -> Result<(), StoreError> {
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
            None => match assignment::assign(self, &request, &attempts, &mut cancel).await? {
                Assignment::Attempt(first) => (first.attempt, vec![first.receipt], false),
                Assignment::Later(decision, _) if !self.state.is_own(&request) => {
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
            let channel = channel.take().unwrap_or_else(|| self.channel_of(&attempt));
            let mut runner =
                AttemptRunner::new(self, &request, attempt, receipts, channel, resumed).after(&attempts);
            runner.begin_checkpoints(&attempts).await?;
            let AttemptEnd::Ended(outcome) = runner.run(&mut cancel).await? else {
                runner.hang_up().await;
                return Ok(());
            };
            let outcome = add_complaint(outcome, runner.complaint());
            attempts.push(runner.attempt().clone());
            if matches!(outcome, Outcome::Completed(_)) {
                runner.pay_predecessor().await?;
            }
            let took = self.state.clock.now().since(runner.attempt().started_at);
            wait.deadline = wait.deadline.plus(took);
            count_attempt(&outcome, took);
            let facts = self.retry_context(&request, &attempts, &cancel).await?;
            match retry::next_step(&outcome, facts) {
                NextStep::Report(_) => {}
                NextStep::TryAnother => {
                    match assignment::assign(self, &request, &attempts, &mut cancel).await? {
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
                    }
                }
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

    /// Stores the attempt with which a waiting job begins. Its miner is dialled meanwhile, and told nothing of the job
    /// yet.
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
        self.state
            .store
            .begin_waiting_attempt(waiting, *turn, attempt)
            .await
    }

    /// The facts that decide what follows the last of these attempts.
    async fn retry_context(
        &self,
        request: &JobRequest,
        attempts: &[StoredAttempt],
        cancel: &CancelSignal,
    ) -> Result<RetryContext, StoreError> {
        let last = attempts.last();
        let record = CheckpointRecord::read(&self.state.store, request).await?;
        let had_executor = last.is_some_and(|last| last.machine.ready_at().is_some());
        let decision = record
            .as_ref()
            .filter(|_| had_executor)
            .map(|record| record.decide(attempts));
        Ok(RetryContext {
            goes_on: decision.map(|decision| matches!(decision, ResumeDecision::GoOn { .. })),
            attempts: self.count_attempts(request, attempts, record.as_ref()),
            max_attempts: self.state.config.routing.max_attempts,
            slow_images: count_slow_images(attempts),
            image_elsewhere: last.is_some_and(|last| self.is_image_elsewhere(request, last.miner)),
            cancelled: cancel.reason().is_some(),
            address_told: self.is_address_told(request).await?,
        })
    }

    /// The outcome of a job that gets no further attempt. An image that came to several miners too late is explained.
    async fn explain_end(
        &self,
        request: &JobRequest,
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
            if let Some(ended) = self.state.store.forgive_excuse(attempt.id).await? {
                self.ledger().forgive_excuse(attempt.miner, ended);
            }
        }
        Ok(())
    }

    /// Whether another miner than `miner` had the job's image lately.
    fn is_image_elsewhere(&self, request: &JobRequest, miner: MinerKey) -> bool {
        let image = CacheKey::image(&request.docker_image);
        self.ledger().is_elsewhere(image, miner, self.state.clock.now())
    }

    /// Whether a job that no miner may be asked for now may wait. Jobs of the validator's own do not.
    fn may_wait(&self, request: &JobRequest, wait: WaitTime) -> bool {
        !self.state.is_own(request) && self.state.clock.now() < wait.deadline
    }

    async fn return_to_queue(
        &self,
        request: &JobRequest,
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
        self.wait_again(returning, cancel).await
    }

    /// The attempts that count against the most that a job may have. A user's job waits while miners are busy, so their
    /// word for it does not count, and one for the trusted miner waits while that miner is away.
    fn count_attempts(
        &self,
        request: &JobRequest,
        attempts: &[StoredAttempt],
        record: Option<&CheckpointRecord>,
    ) -> u32 {
        let is_own = self.state.is_own(request);
        let counts = record.map_or_else(|| vec![true; attempts.len()], |record| record.counts(attempts));
        let counted = attempts
            .iter()
            .zip(counts)
            .filter_map(|(attempt, counts)| counts.then_some(attempt))
            .filter(|attempt| is_own || !attempt.was_declined_as_busy())
            .filter(|attempt| is_own || !request.on_trusted_miner || !attempt.was_out_of_reach());
        u32::try_from(counted.count()).unwrap_or(u32::MAX)
    }

    /// Notes how long a program kept its executor, from which waiting times are estimated.
    fn note_duration(&self, request: &JobRequest, outcome: &Outcome, took: Duration) {
        match outcome {
            Outcome::Completed(_) | Outcome::Failed(_) => {
                self.waiting.note_duration(line_of(request), took);
            }
            Outcome::Rejected(_) | Outcome::HordeFailed(_) => {}
        }
    }

    /// Whether the user was told the address of a streaming job.
    async fn is_address_told(&self, request: &JobRequest) -> Result<bool, StoreError> {
        if request.streaming_details.is_none() {
            return Ok(false);
        }
        let status = self.state.store.last_status(request.uuid).await?;
        Ok(status
            .is_some_and(|status| matches!(status, JobStatus::StreamingReady | JobStatus::ExecutionDone)))
    }

    async fn close(
        &self,
        request: &JobRequest,
        outcome: Outcome,
        attempts: &[StoredAttempt],
        receipts: Vec<Receipt>,
        since: Timestamp,
    ) -> Result<(), StoreError> {
        let (job, now) = (request.uuid, self.state.clock.now());
        let attempts = ended_attempts(attempts);
        let is_own = self.state.is_own(request);
        let outcome = if is_own {
            excuse_own_cancellation(outcome)
        } else {
            outcome
        };
        count_job(&outcome);
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
        let decisions = self.state.store.told_routes(job).await?;
        let metadata = final_metadata(&outcome, &attempts, receipts, trace, decisions);
        self.state.store.close_job(job, &outcome, &metadata, now).await?;
        self.own_jobs.end(job, describe(&outcome));
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
