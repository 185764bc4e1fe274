//! The drivers of the jobs that run: one task a job, which runs the attempt, assigns another miner if the attempt
//! failed through no fault of the user's, and reports the end once. Jobs that wait have no task.
//!
//! Each part uses only those below it in this list:
//!
//! * [`JobDrivers`] starts, resumes and cancels jobs.
//! * [`queue_dispatcher`] starts the drivers of waiting jobs, [`job_driver`] drives one job.
//! * [`queue`] keeps the jobs that wait, [`attempt_runner`] runs one attempt, [`unmatched`] answers messages about
//!   attempts that have no driver, [`partial_pay`] pays an attempt from whose checkpoint another one went on.
//! * [`miner_choice`] chooses the miner among those of a [`miner_pool`].
//! * [`miner_records`] and [`queue_in_memory`] are what attempts change ([`attempt_deps`]).
//!
//! `muster_job_messages` holds the messages themselves, and `muster_miner_link` carries them.

mod attempt_deps;
mod attempt_runner;
pub(crate) mod checkpoint_record;
mod covered_pay;
mod executor_need;
mod job_driver;
mod miner_channels;
mod miner_choice;
mod miner_pool;
mod miner_records;
mod new_attempt;
mod no_miner;
mod partial_pay;
mod queue;
mod queue_dispatcher;
mod queue_in_memory;
mod running_jobs;
mod unmatched;

use std::sync::Arc;
use std::time::Duration;

use muster_facilitator_link::live_output::LiveOutput;
use muster_grading_runner::store::GradingStore;
use muster_miner_link::{LinkSetup, MinerLink};
use muster_own_jobs::OwnJobRegistry;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::wire::machines::MinerNotice;
use muster_protocol::wire::muster::CapacityNotice;
use muster_protocol::{JobId, Timestamp};
use muster_store::StoreError;
use tokio::sync::watch;

use attempt_deps::AttemptDeps;
use job_driver::{DrivenJob, JobDriver, WaitTime};
use miner_channels::MinerChannels;
use miner_choice::MinerChooser;
pub(crate) use miner_records::MinerRecords;
use queue::QueueKeeper;
pub(crate) use queue::{FirstAttempt, FirstStep};
use queue_dispatcher::QueueDispatcher;
use queue_in_memory::WaitingJobs;
use running_jobs::{RunningJobs, RunningKind};

use crate::miner_reports::claims;
use crate::store::restore_ledger;
use crate::validator_state::ValidatorState;

/// The drivers of all open jobs.
#[derive(Debug)]
pub(crate) struct JobDrivers {
    state: Arc<ValidatorState>,
    pub(crate) records: Arc<MinerRecords>,
    pub(crate) channels: Arc<MinerChannels>,
    pub(crate) queue: Arc<QueueKeeper>,
    running: Arc<RunningJobs>,
    /// The validator's own jobs that have not ended.
    pub(crate) own_jobs: Arc<OwnJobRegistry>,
    driver: Arc<JobDriver>,
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
        let clock = Arc::clone(&state.clock);
        let own_jobs = Arc::new(OwnJobRegistry::default());
        let waiting = Arc::new(WaitingJobs::new(&state.config.queue, Arc::clone(&own_jobs)));
        let restored = restore_ledger(&state.store, state.config.routing.windows(), clock.now()).await?;
        let (link, unmatched) = MinerLink::new(LinkSetup {
            keypair: state.keypair.clone(),
            clock: Arc::clone(&clock),
            tasks: state.tasks.clone(),
            linger: Duration::from_secs(state.config.timing.linger_s),
            first_frame: greeting,
        });
        let records = Arc::new(MinerRecords::new(restored, clock, Arc::clone(&waiting)));
        let channels = Arc::new(MinerChannels {
            state: Arc::clone(&state),
            link,
        });
        let chooser = Arc::new(MinerChooser {
            state: Arc::clone(&state),
            records: Arc::clone(&records),
            own_jobs: Arc::clone(&own_jobs),
        });
        let running = Arc::new(RunningJobs::default());
        let queue = Arc::new(QueueKeeper::new(
            Arc::clone(&state),
            Arc::clone(&waiting),
            Arc::clone(&chooser),
            Arc::clone(&channels),
            Arc::clone(&running),
            Arc::clone(&live_output),
        ));
        let deps = Arc::new(AttemptDeps {
            state: Arc::clone(&state),
            records: Arc::clone(&records),
            waiting: Arc::clone(&waiting),
            own_jobs: Arc::clone(&own_jobs),
            live_output,
            channels: Arc::clone(&channels),
        });
        state.spawn(
            "unmatched messages",
            unmatched::answer_all(Arc::clone(&deps), unmatched),
        );
        let driver = Arc::new(JobDriver {
            deps,
            chooser: Arc::clone(&chooser),
            queue: Arc::clone(&queue),
            resumed: watch::Sender::new(false),
        });
        let dispatcher = QueueDispatcher {
            state: Arc::clone(&state),
            waiting,
            chooser,
            channels: Arc::clone(&channels),
            running: Arc::clone(&running),
            queue: Arc::clone(&queue),
            driver: Arc::clone(&driver),
        };
        state.spawn("queue", dispatcher.run());
        Ok(Arc::new(Self {
            state,
            records,
            channels,
            queue,
            running,
            own_jobs,
            driver,
        }))
    }

    /// The number of jobs that have a driver.
    pub(crate) fn count_running(&self) -> usize {
        self.running.count()
    }

    /// The subnet's offers for users; `None` before the chain has answered.
    pub(crate) fn capacity_notice(&self) -> Option<CapacityNotice> {
        self.queue.capacity_notice()
    }

    /// The facts and claims about the miners of the subnet.
    ///
    /// # Errors
    /// The store of grades fails.
    pub(crate) async fn list_miners(&self, grading: &GradingStore) -> Result<Vec<MinerNotice>, StoreError> {
        let metagraph = self.state.subnet.last_metagraph();
        claims::list_miners(
            metagraph.as_deref(),
            &self.records.claims,
            |miner| self.records.offers_of(miner),
            grading,
        )
        .await
    }

    /// Drives a new job that does not wait. The job is in the store as arrived at `since`, together with its first
    /// attempt if it has one.
    pub(crate) fn start(&self, request: UserJobRequest, since: Timestamp, first: Option<FirstAttempt>) {
        let mut job = DrivenJob {
            wait: WaitTime {
                since,
                deadline: since.plus(self.queue.wait_limit(&request)),
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

    /// Calls a job off: a waiting job ends at once, a running one learns of it through its driver. The cancellation is
    /// in the store already.
    pub(crate) async fn cancel(&self, job: JobId, reason: &str) -> Result<(), StoreError> {
        self.queue.cancel(job, reason).await
    }

    /// Restores the queue, and drives every other job that an earlier process left open. The next page of jobs is read
    /// while the jobs of one page get their drivers.
    pub(crate) async fn resume(&self) -> Result<(), StoreError> {
        let read = |after| {
            let state = Arc::clone(&self.state);
            let reading = async move { state.store.open_after(after).await };
            self.state.tasks.spawn("read open jobs", reading)
        };
        self.queue.restore().await?;
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
                let limit = self.queue.wait_limit(&job.request);
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
                    channel: job.attempts.last().map(|last| self.channels.open_for(last)),
                    attempts: job.attempts,
                    receipts: job.receipts,
                    resumed: true,
                });
                resumed = resumed.saturating_add(1);
            }
        }
        self.driver.resumed.send_replace(true);
        if resumed > 0 {
            tracing::info!(jobs = resumed, "resumed open jobs");
        }
        Ok(())
    }

    fn spawn_driver(&self, job: DrivenJob) {
        // Registered before the task first runs, so that no cancellation is missed.
        let kind = match self.state.is_own_check(&job.request) {
            true => RunningKind::Check,
            false => RunningKind::Other,
        };
        let cancelled = job.cancelled.clone();
        let cancel = self.running.register(job.request.uuid, kind, cancelled);
        self.driver.spawn(job, cancel);
    }
}
