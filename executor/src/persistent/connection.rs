//! One connection of a persistent executor to its miner, and the leases that come over it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use muster_process::error::Causes;
use muster_process::{Coded as _, SharedClock};
use muster_protocol::wire::executor::{ExecutorHello, LeaseOver};
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::miner::InitialJobRequest;
use muster_protocol::wire::muster::{ListedImage, MAX_LISTED_IMAGES};
use muster_protocol::{AttemptId, Digest, ExecutorToken};
use muster_websocket::reconnect::AfterConnection;
use muster_websocket::session::{Receiver, Sender};
use muster_websocket::{CloseCode, PeerSession};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::context::ProcessContext;
use crate::driver::{Driver, find_jobs, take_over};
use crate::error::Error;
use crate::journal::JobOrigin;
use crate::lease_connection::{LeaseConnection, Miner, describe_close};
use crate::machine::metrics::MachineMeter;
use crate::miner_link::{ReturnPath, SharedLine};

/// Messages that may wait for one lease. A lease gets an offer, a job, and perhaps an error and a cancellation.
const INBOX: usize = 16;
/// How often this machine is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// Shared by the connections of a persistent executor.
pub(crate) struct PersistentExecutor {
    pub(crate) process: ProcessContext,
    /// The images that the miner wants to be on this machine.
    pub(super) listed: watch::Sender<Vec<ListedImage>>,
    /// Why the miner admits this executor no more; `None` while it does.
    pub(super) revoked: Mutex<Option<String>>,
    /// The connection of the moment, for leases that come back.
    pub(super) lines: watch::Sender<Option<SharedLine>>,
    /// The leases that run, over whatever connection.
    pub(super) leases: Mutex<HashMap<AttemptId, RunningLease>>,
    /// The digest of the miner's certificate.
    pub(super) miner: Digest,
    /// How many connections there have been.
    pub(super) connections: AtomicU64,
    /// Whether this process takes no more jobs, because its program was replaced.
    pub(super) is_ending: AtomicBool,
}

/// A lease that runs.
pub(super) struct RunningLease {
    /// Cancelled once it has ended.
    over: CancellationToken,
}

/// One connection to the miner.
struct MinerConnection {
    executor: Arc<PersistentExecutor>,
    sender: Sender<Miner>,
    /// The inboxes of the leases that receive over this connection.
    inboxes: HashMap<AttemptId, mpsc::Sender<MinerToExecutor>>,
    /// A lease received over this connection.
    useful: bool,
    /// Whether the executor was being emptied, and how many jobs it had, in its hello.
    announced: (bool, u32),
}

impl PersistentExecutor {
    /// Serves one connection until it ends. The leases go on without it.
    pub(super) async fn serve(self: Arc<Self>, session: PeerSession<Miner>) -> AfterConnection {
        let (receiver, sender) = session.split();
        let settings = &self.process.config.persistent;
        let busy = self.count_leases();
        let hello = ExecutorHello {
            class: settings.class,
            // An executor that is being emptied has no more places than jobs.
            capacity: if self.is_draining() {
                busy.max(1)
            } else {
                settings.capacity
            },
            version: env!("CARGO_PKG_VERSION").to_owned(),
            busy,
        };
        if let Err(error) = sender.send(&ExecutorToMiner::MusterExecutorHello(hello)).await {
            tracing::warn!(error = %Causes(&error), "the connection ended before the hello was sent");
            return AfterConnection::Again;
        }
        let (subscribe, subscriptions) = mpsc::unbounded_channel();
        self.lines.send_replace(Some(SharedLine {
            number: self.connections.fetch_add(1, Ordering::Relaxed) + 1,
            sender: sender.clone(),
            subscribe,
        }));
        let connection = MinerConnection {
            executor: Arc::clone(&self),
            sender,
            inboxes: HashMap::new(),
            useful: false,
            announced: (self.is_draining(), busy),
        };
        let after = connection.run(receiver, subscriptions).await;
        self.lines.send_replace(None);
        after
    }

    /// Goes on with the jobs of an earlier process of this executor.
    pub(super) async fn take_over_jobs(self: Arc<Self>) {
        let (work_dir, miner) = (self.process.config.work_dir.clone(), self.miner);
        let look = move || {
            find_jobs(&work_dir, |origin, _| match origin {
                JobOrigin::Enrolled { miner: theirs } => *theirs == miner,
                JobOrigin::Started { .. } => false,
            })
        };
        for found in spawn_blocking(look).await.unwrap_or_default() {
            let attempt = found.token().attempt();
            let over = CancellationToken::new();
            self.leases.lock().insert(attempt, RunningLease { over });
            let span = tracing::info_span!("attempt", %attempt);
            let running = take_over(self.process.clone(), found, self.path()).instrument(span);
            Arc::clone(&self).run_lease(attempt, running);
        }
    }

    /// Whether there is a connection to the miner.
    pub(crate) fn is_connected(&self) -> bool {
        self.lines.borrow().is_some()
    }

    /// Whether this process takes no more jobs: the operator wants none here, or its program was replaced.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed) || self.process.config.drain_file().exists()
    }

    /// The leases that run.
    pub(crate) fn count_leases(&self) -> u32 {
        u32::try_from(self.leases.lock().len()).unwrap_or(u32::MAX)
    }

    /// Waits while this process takes no more jobs and has none. Shows meanwhile how many there are.
    pub(super) async fn wait_until_wanted(&self) {
        let config = &self.process.config;
        while self.is_draining() {
            let jobs = self.count_leases();
            if let Err(error) = std::fs::write(config.drained_file(), jobs.to_string()) {
                tracing::warn!(%error, "the number of jobs cannot be shown to `muster executor drain`");
            }
            if jobs > 0 {
                return;
            }
            self.clock().sleep(MEASURE_EVERY).await;
        }
        // It is there only after a drain.
        let _ = std::fs::remove_file(config.drained_file());
    }

    fn path(&self) -> ReturnPath {
        ReturnPath::Shared {
            lines: self.lines.subscribe(),
            miner: self.miner,
        }
    }

    /// Runs a lease to its end, whatever becomes of the connection.
    fn run_lease(
        self: Arc<Self>,
        attempt: AttemptId,
        running: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        let tasks = self.process.tasks.clone();
        let driving = tasks.spawn("lease", running);
        tasks.spawn("end of a lease", async move {
            match driving.join().await {
                Ok(Ok(())) => {}
                // Validators end their own jobs so, each batch of grading among them.
                Ok(Err(Error::Cancelled(reason))) => {
                    tracing::info!(%attempt, reason, "the job was called off")
                }
                Ok(Err(error)) => {
                    let code = error.code().map(|code| code.code()).unwrap_or_default();
                    tracing::warn!(code, %attempt, error = %Causes(&error), "the attempt ended early");
                }
                Err(error) => tracing::error!(%attempt, %error, "the attempt's task failed"),
            }
            self.end_lease(attempt).await;
        });
    }

    /// Waits until every lease has ended, after the process was asked to stop.
    pub(super) async fn end_leases(&self) {
        let running: Vec<_> = self
            .leases
            .lock()
            .values()
            .map(|lease| lease.over.clone())
            .collect();
        for over in running {
            over.cancelled().await;
        }
    }

    /// Reports to the miner that a lease has ended and that its place is free.
    async fn end_lease(&self, attempt: AttemptId) {
        let ended = self.leases.lock().remove(&attempt);
        let line = self.lines.borrow().clone();
        // The place of a job that ends while the executor is being emptied must not be given away.
        if let Some(line) = line.filter(|_| !self.is_draining()) {
            let over = ExecutorToMiner::MusterLeaseOver(LeaseOver { job_uuid: attempt });
            if let Err(error) = line.sender.send(&over).await {
                // The next hello does not count it.
                tracing::debug!(error = %Causes(&error), "the end of a lease could not be sent to the miner");
            }
        }
        if let Some(ended) = ended {
            ended.over.cancel();
        }
    }

    fn clock(&self) -> &SharedClock {
        &self.process.clock
    }
}

impl MinerConnection {
    async fn run(
        mut self,
        mut receiver: Receiver<Miner>,
        mut subscriptions: mpsc::UnboundedReceiver<(AttemptId, mpsc::Sender<MinerToExecutor>)>,
    ) -> AfterConnection {
        let executor = Arc::clone(&self.executor);
        let (clock, stop) = (Arc::clone(executor.clock()), executor.process.shutdown.clone());
        let disk = executor.process.config.work_dir.clone();
        let mut meter = spawn_blocking(move || MachineMeter::new(find_existing(&disk)))
            .await
            .ok();
        let mut measure_at = clock.now();
        let after = loop {
            tokio::select! {
                biased;
                // The leases end by the same token, and report to the miner over this connection.
                () = stop.cancelled() => {
                    executor.end_leases().await;
                    break AfterConnection::Stop;
                }
                Some((attempt, inbox)) = subscriptions.recv() => {
                    self.inboxes.insert(attempt, inbox);
                }
                received = receiver.recv() => match received {
                    Ok(Some(message)) => self.handle_message(message),
                    Ok(None) => {
                        let why = describe_close(&receiver);
                        tracing::warn!(why, "the miner closed the connection");
                        if receiver.closed().is_some_and(|closed| closed.code == CloseCode::Policy) {
                            *executor.revoked.lock() = Some(why);
                            break AfterConnection::Stop;
                        }
                        break AfterConnection::Again;
                    }
                    Err(error) if error.is_fatal() => {
                        tracing::warn!(error = %Causes(&error), "the miner was lost");
                        break AfterConnection::Again;
                    }
                    Err(error) => tracing::warn!(error = %Causes(&error), "ignored a frame of the miner"),
                },
                () = clock.sleep_until(measure_at) => {
                    measure_at = clock.now().plus(MEASURE_EVERY);
                    meter = self.measure(meter.take()).await;
                    if self.is_outdated() {
                        // The next hello carries the capacity anew.
                        break AfterConnection::AgainSoon;
                    }
                }
            }
        };
        let after = match after {
            AfterConnection::Again if self.useful => AfterConnection::AgainSoon,
            AfterConnection::Again | AfterConnection::AgainSoon | AfterConnection::Stop => after,
        };
        // A lease that receives over this connection notices its end.
        self.inboxes.clear();
        self.sender.close(CloseCode::Normal, "").await;
        after
    }

    /// Whether the miner must receive another capacity because the executor is being emptied, or is not any more.
    fn is_outdated(&self) -> bool {
        let (was_draining, jobs) = self.announced;
        let draining = self.executor.is_draining();
        draining != was_draining || (draining && jobs != self.executor.count_leases())
    }

    fn handle_message(&mut self, message: MinerToExecutor) {
        let attempt = match &message {
            MinerToExecutor::V0InitialJobRequest(offer) => return self.begin_lease(offer.clone()),
            MinerToExecutor::V0JobRequest(job) => Some(job.job_uuid),
            MinerToExecutor::MusterCancelJob(cancel) => Some(cancel.job_uuid),
            MinerToExecutor::MusterSessionSealed(sealed) => Some(sealed.job_uuid),
            MinerToExecutor::MusterFetchImage(fetch) => Some(fetch.job_uuid),
            MinerToExecutor::MusterLeaseHeld(held) => Some(held.job_uuid),
            MinerToExecutor::MusterEndStored(stored) => Some(stored.job_uuid),
            MinerToExecutor::MusterCheckpointKept(kept) => Some(kept.job_uuid),
            MinerToExecutor::MusterDrain(drain) => Some(drain.job_uuid),
            MinerToExecutor::MusterWhitelist(notice) => {
                self.update_listed(notice.images.clone());
                None
            }
            MinerToExecutor::GenericError(error) => {
                tracing::warn!(details = error.details, "the miner reports an error");
                None
            }
            MinerToExecutor::MusterExecutorEnrolled(_) => {
                tracing::warn!("ignored a message that is not for an executor");
                None
            }
        };
        if let Some(inbox) = attempt.and_then(|attempt| self.inboxes.get(&attempt)) {
            self.useful = true;
            // A lease that has ended or whose inbox is full needs no more.
            let _ = inbox.try_send(message);
        }
    }

    /// Passes a changed list of images on.
    fn update_listed(&self, mut images: Vec<ListedImage>) {
        images.truncate(MAX_LISTED_IMAGES);
        self.executor.listed.send_if_modified(|known| {
            let changed = *known != images;
            *known = images;
            changed
        });
    }

    fn begin_lease(&mut self, offer: Box<InitialJobRequest>) {
        let attempt = offer.job_uuid;
        let over = CancellationToken::new();
        {
            let mut leases = self.executor.leases.lock();
            if leases.contains_key(&attempt) {
                drop(leases);
                // Repeated to a lease that came back.
                if let Some(inbox) = self.inboxes.get(&attempt) {
                    let _ = inbox.try_send(MinerToExecutor::V0InitialJobRequest(offer));
                }
                return;
            }
            leases.insert(attempt, RunningLease { over });
        }
        let (inbox, messages) = mpsc::channel(INBOX);
        // The inbox is empty.
        let _ = inbox.try_send(MinerToExecutor::V0InitialJobRequest(offer));
        self.inboxes.insert(attempt, inbox);
        self.useful = true;
        // The connection proves who the miner is; the token only names the container.
        let token = ExecutorToken::new(attempt, Uuid::new_v4());
        let process = self.executor.process.clone();
        let now = process.clock.now();
        let connection = LeaseConnection::shared(messages, self.sender.clone());
        let path = self.executor.path();
        let driver = Driver::new(process, token, connection, path, now);
        let span = tracing::info_span!("attempt", %attempt);
        let executor = Arc::clone(&self.executor);
        // A task of its own: a lease outlives its connection, and its work must not delay it.
        executor.run_lease(attempt, driver.drive().instrument(span));
    }

    async fn measure(&mut self, meter: Option<MachineMeter>) -> Option<MachineMeter> {
        let mut meter = meter?;
        let now = self.executor.clock().now();
        let measured = spawn_blocking(move || {
            let metrics = meter.measure(now);
            (meter, metrics)
        });
        let (meter, metrics) = measured.await.ok()?;
        let message = ExecutorToMiner::MusterExecutorMetrics(Box::new(metrics));
        if let Err(error) = self.sender.send(&message).await {
            tracing::debug!(error = %Causes(&error), "the metrics of this machine could not be sent to the miner");
        }
        Some(meter)
    }
}

/// The folder, or the nearest one above it that exists.
fn find_existing(folder: &Path) -> PathBuf {
    let found = folder.ancestors().find(|folder| folder.exists());
    found.map_or_else(|| "/".into(), Path::to_path_buf)
}
