//! One connection of a persistent executor to its miner, and the leases that come over it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use muster_process::error::Causes;
use muster_process::{Coded as _, SharedClock};
use muster_protocol::wire::executor::{ExecutorHello, LeaseOver};
use muster_protocol::wire::miner::{FromMiner, InitialJobRequest, ToMiner};
use muster_protocol::wire::muster::{ListedImage, MAX_LISTED_IMAGES};
use muster_protocol::{AttemptId, ExecutorToken};
use muster_websocket::reconnect::AfterConnection;
use muster_websocket::session::{Receiver, Sender};
use muster_websocket::{CloseCode, PeerSession};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::context::ProcessContext;
use crate::driver::Driver;
use crate::lease_connection::{LeaseConnection, Miner, describe_close};
use crate::machine_metrics::MachineMeter;

/// Messages that may wait for one lease. A lease gets an offer, a job, and perhaps an error and a cancellation.
const INBOX: usize = 16;
/// How often this machine is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// Shared by the connections of a persistent executor.
pub(super) struct PersistentExecutor {
    pub(super) process: ProcessContext,
    /// The images that the miner wants to be on this machine.
    pub(super) listed: watch::Sender<Vec<ListedImage>>,
    /// Why the miner admits this executor no more; `None` while it does.
    pub(super) revoked: Mutex<Option<String>>,
}

/// One connection to the miner.
struct MinerConnection {
    executor: Arc<PersistentExecutor>,
    sender: Sender<Miner>,
    /// The inboxes of the leases that run.
    leases: HashMap<AttemptId, mpsc::Sender<ToMiner>>,
    drivers: FuturesUnordered<BoxFuture<'static, AttemptId>>,
}

impl PersistentExecutor {
    /// Serves the leases of one connection until it ends.
    pub(super) async fn serve(self: Arc<Self>, session: PeerSession<Miner>) -> AfterConnection {
        let (receiver, sender) = session.split();
        let settings = &self.process.config.persistent;
        let hello = ExecutorHello {
            class: settings.class,
            capacity: settings.capacity,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        if let Err(error) = sender.send(&FromMiner::MusterExecutorHello(hello)).await {
            tracing::warn!(error = %Causes(&error), "the connection ended before the hello was sent");
            return AfterConnection::Again;
        }
        let connection = MinerConnection {
            executor: Arc::clone(&self),
            sender,
            leases: HashMap::new(),
            drivers: FuturesUnordered::new(),
        };
        connection.run(receiver).await
    }

    fn clock(&self) -> &SharedClock {
        &self.process.clock
    }
}

impl MinerConnection {
    async fn run(mut self, mut receiver: Receiver<Miner>) -> AfterConnection {
        let executor = Arc::clone(&self.executor);
        let (clock, stop) = (Arc::clone(executor.clock()), executor.process.shutdown.clone());
        let disk = executor.process.config.work_dir.clone();
        let mut meter = spawn_blocking(move || MachineMeter::new(find_existing(&disk)))
            .await
            .ok();
        let mut measure_at = clock.now();
        let after = loop {
            if stop.is_cancelled() && self.drivers.is_empty() {
                break AfterConnection::Stop;
            }
            tokio::select! {
                biased;
                // Every driver ends by the same token.
                () = stop.cancelled(), if !stop.is_cancelled() => {}
                Some(attempt) = self.drivers.next() => self.end_lease(attempt).await,
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
                }
            }
        };
        // Every driver now loses its miner, and removes its container.
        self.leases.clear();
        while let Some(attempt) = self.drivers.next().await {
            tracing::debug!(%attempt, "ended with its connection");
        }
        self.sender.close(CloseCode::Normal, "").await;
        after
    }

    fn handle_message(&mut self, message: ToMiner) {
        let attempt = match &message {
            ToMiner::V0InitialJobRequest(offer) => return self.begin_lease(offer.clone()),
            ToMiner::V0JobRequest(job) => Some(job.job_uuid),
            ToMiner::MusterCancelJob(cancel) => Some(cancel.job_uuid),
            ToMiner::MusterSessionSealed(sealed) => Some(sealed.job_uuid),
            ToMiner::MusterFetchImage(fetch) => Some(fetch.job_uuid),
            ToMiner::MusterWhitelist(notice) => {
                self.update_listed(notice.images.clone());
                None
            }
            ToMiner::GenericError(error) => {
                tracing::warn!(details = error.details, "the miner reports an error");
                None
            }
            ToMiner::ValidatorAuthForMiner(_)
            | ToMiner::V0MainHotkeyMessage(_)
            | ToMiner::V0JobAcceptedReceiptRequest(_)
            | ToMiner::V0JobFinishedReceiptRequest(_)
            | ToMiner::MusterExecutorEnrolled(_) => {
                tracing::warn!("ignored a message that is not for an executor");
                None
            }
        };
        if let Some(lease) = attempt.and_then(|attempt| self.leases.get(&attempt)) {
            // A lease that has ended or whose inbox is full needs no more.
            let _ = lease.try_send(message);
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
        if self.leases.contains_key(&attempt) {
            return;
        }
        let (inbox, messages) = mpsc::channel(INBOX);
        // The inbox is empty.
        let _ = inbox.try_send(ToMiner::V0InitialJobRequest(offer));
        self.leases.insert(attempt, inbox);
        // The connection proves who the miner is; the token only names the container.
        let token = ExecutorToken::new(attempt, Uuid::new_v4());
        let process = self.executor.process.clone();
        let (now, tasks) = (process.clock.now(), process.tasks.clone());
        let connection = LeaseConnection::shared(messages, self.sender.clone());
        let driver = Driver::new(process, token, connection, now);
        let span = tracing::info_span!("attempt", %attempt);
        // A task of its own: the work of one lease must not delay the connection.
        let driving = tasks.spawn("lease", driver.drive().instrument(span));
        self.drivers.push(Box::pin(async move {
            match driving.join().await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let code = error.code().map(|code| code.code()).unwrap_or_default();
                    tracing::warn!(code, %attempt, error = %Causes(&error), "the attempt ended early");
                }
                Err(error) => tracing::error!(%attempt, %error, "the attempt's task failed"),
            }
            attempt
        }));
    }

    async fn end_lease(&mut self, attempt: AttemptId) {
        self.leases.remove(&attempt);
        let over = FromMiner::MusterLeaseOver(LeaseOver { job_uuid: attempt });
        if let Err(error) = self.sender.send(&over).await {
            // The connection is broken: the next read ends it.
            tracing::debug!(error = %Causes(&error), "the end of a lease could not be sent to the miner");
        }
    }

    async fn measure(&mut self, meter: Option<MachineMeter>) -> Option<MachineMeter> {
        let mut meter = meter?;
        let now = self.executor.clock().now();
        let measured = spawn_blocking(move || {
            let metrics = meter.measure(now);
            (meter, metrics)
        });
        let (meter, metrics) = measured.await.ok()?;
        let message = FromMiner::MusterExecutorMetrics(Box::new(metrics));
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
