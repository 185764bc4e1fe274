//! The services that a gateway needs of its validator: streaming jobs, and news of them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_protocol::receipt::AttemptAtWork;
use muster_protocol::wire::miner::StreamingJobReady;
use muster_protocol::{ExecutorClass, Hotkey, JobId, MinerKey, ValidatorKey};
use muster_session_pool::Service;
use tokio::sync::{mpsc, watch};

/// An order for a streaming job, which becomes one session.
#[derive(Debug)]
pub struct StreamingJobOrder {
    /// The job's id, drawn by the gateway.
    pub job: JobId,
    /// The whitelisted service that the job runs.
    pub service: Service,
    /// The only client certificate that the job's endpoint accepts, PEM.
    pub certificate: String,
    /// How long the job serves.
    pub lifetime: Duration,
    /// Limit for image and engine to come up.
    pub start_limit: Duration,
    /// The only miner that may run the job; `None` lets the validator choose one.
    pub miner: Option<MinerKey>,
    /// Receives the news of the job.
    pub news: mpsc::Sender<JobNews>,
}

/// News of a streaming job.
#[derive(Debug)]
pub enum JobNews {
    /// A miner states the address at which the job answers.
    Ready {
        /// The miner that runs the job.
        miner: MinerKey,
        /// The miner's message; its signature is not checked yet.
        ready: Box<StreamingJobReady>,
    },
    /// The session has closed by itself: its close statement in text form, as the miner forwarded it.
    Closed(String),
    /// The job is over.
    Ended {
        /// The reason, as a text for clients and logs.
        why: String,
        /// The attempts that keep the named miner's executors at work, as its refusal showed by receipts. Empty if it
        /// showed none, or if the order named no miner.
        at_work: Vec<AttemptAtWork>,
        /// Set if the job never ran because no executor was free for it.
        no_room: Option<NoRoom>,
    },
}

/// No executor was free for a job that any miner might run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoRoom {
    /// A job of times that are together this much shorter would be taken now; `None` if no job would be.
    pub shorter_by: Option<Duration>,
    /// How long until an executor is free, by the durations of recent jobs; `None` if that is not known.
    pub expected: Option<Duration>,
}

/// The validator, as its gateway uses it.
pub trait ValidatorBackend: Send + Sync + 'static {
    /// The validator's key.
    fn validator(&self) -> ValidatorKey;

    /// Whether a session may be dialled at this address, which its miner gave as `host`.
    fn permits_address(&self, host: &str, address: SocketAddr) -> bool;

    /// The coldkey of a miner; its hotkey if the chain has not named its owner yet.
    fn owner_of(&self, miner: MinerKey) -> Hotkey;

    /// Hands a job to a miner. Its news begin once this has returned.
    ///
    /// # Errors
    /// The job cannot be started; the reason, as a text for clients and logs.
    fn start_job(&self, order: StreamingJobOrder) -> BoxFuture<'_, Result<(), String>>;

    /// Changes whenever an executor may have become free.
    fn room_changes(&self) -> watch::Receiver<()>;

    /// The classes for whose executors jobs wait, because all that there are are at work.
    fn waiting_jobs(&self) -> watch::Receiver<BTreeSet<ExecutorClass>>;

    /// Ends a job that has not ended. With `is_closed` its session has given its close statement, so the job may end by
    /// itself within moments; it then counts as done and not as cancelled.
    fn end_job(&self, job: JobId, reason: &'static str, is_closed: bool) -> BoxFuture<'_, ()>;
}
