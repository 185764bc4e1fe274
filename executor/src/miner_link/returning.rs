//! How an executor comes back to its lease: over a new connection of the lease's own, or over the one that the leases
//! of a persistent executor share.

use std::future::pending;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_process::backoff::random_jitter;
use muster_process::error::Causes;
use muster_process::{Backoff, SharedClock};
use muster_protocol::wire::executor::{LeaseHeld, Reattach};
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::{AttemptId, Digest, Timestamp};
use muster_websocket::session::Sender;
use muster_websocket::{Greeting, Limits, connect};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::journal::JobOrigin;
use crate::lease_connection::{LeaseConnection, Miner, Received};

/// The path at which a miner takes executors back.
const PATH: &str = "/v0/reattach";
/// The pauses between two attempts to reach the miner.
const RETRY: Backoff = Backoff {
    base: Duration::from_millis(200),
    max: Duration::from_secs(5),
};
/// How long the miner may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// Messages that may wait for one lease.
const INBOX: usize = 16;

/// A new connection with the next secret, or why the miner has no use for it.
pub(super) type Returning = BoxFuture<'static, Result<(LeaseConnection, LeaseHeld), String>>;

/// Where a lost connection is replaced.
#[derive(Clone)]
pub(crate) enum ReturnPath {
    /// By a connection of the lease's own, to this address (`ws://host:port`).
    Own(String),
    /// By the next connection of the persistent executor.
    Shared {
        /// The connection of the moment.
        lines: watch::Receiver<Option<SharedLine>>,
        /// The digest of the miner's certificate.
        miner: Digest,
    },
}

/// A connection that leases share.
#[derive(Clone)]
pub(crate) struct SharedLine {
    /// Different for every connection of the process; later ones have higher numbers.
    pub(crate) number: u64,
    /// Sends to the miner.
    pub(crate) sender: Sender<Miner>,
    /// Asks for the messages of one attempt.
    pub(crate) subscribe: mpsc::UnboundedSender<(AttemptId, mpsc::Sender<MinerToExecutor>)>,
}

/// Everything that a returning executor shows.
#[derive(Clone, Debug)]
pub(super) struct ReturnTicket {
    pub(super) held: LeaseHeld,
    pub(super) job_since: Option<Timestamp>,
    pub(super) clock: SharedClock,
}

/// The miner's answer.
enum MinerAnswer {
    Held(LeaseHeld),
    Refused(String),
    /// None came: the connection is of no use.
    Silence,
}

// === impl ReturnPath ===

impl ReturnPath {
    /// Begins to come back; ends when the miner has answered.
    pub(super) fn dial(&self, ticket: ReturnTicket) -> Returning {
        match self {
            Self::Own(address) => {
                let url = muster_websocket::with_path(address, PATH);
                Box::pin(return_alone(url, ticket))
            }
            Self::Shared { lines, .. } => Box::pin(return_shared(lines.clone(), ticket)),
        }
    }

    /// The miner, as a journal names it.
    pub(super) fn origin(&self) -> JobOrigin {
        match self {
            Self::Own(address) => JobOrigin::Started {
                miner_address: address.clone(),
            },
            Self::Shared { miner, .. } => JobOrigin::Enrolled { miner: *miner },
        }
    }
}

async fn return_alone(url: String, ticket: ReturnTicket) -> Result<(LeaseConnection, LeaseHeld), String> {
    let mut failures = 0;
    loop {
        match connect(&url, &Limits::miner()).await {
            Ok(socket) => {
                let mut connection = LeaseConnection::own(Greeting::new(socket).accept(Miner));
                if connection.send(&ticket.message()).await.is_ok() {
                    match await_answer(&mut connection, ticket.held.job_uuid).await {
                        MinerAnswer::Held(held) => return Ok((connection, held)),
                        MinerAnswer::Refused(reason) => return Err(reason),
                        MinerAnswer::Silence => {}
                    }
                }
            }
            Err(error) => tracing::debug!(error = %Causes(&error), "the miner cannot be reached"),
        }
        ticket.clock.sleep(RETRY.delay(failures, random_jitter())).await;
        failures = failures.saturating_add(1);
    }
}

async fn return_shared(
    mut lines: watch::Receiver<Option<SharedLine>>,
    ticket: ReturnTicket,
) -> Result<(LeaseConnection, LeaseHeld), String> {
    let mut seen = 0;
    loop {
        let newer = |line: &Option<SharedLine>| line.as_ref().is_some_and(|line| line.number > seen);
        let Ok(line) = lines.wait_for(newer).await.map(|line| line.clone()) else {
            // The process ends; the driver sees that too.
            return pending().await;
        };
        let Some(line) = line else { continue };
        seen = line.number;
        let (inbox, messages) = mpsc::channel(INBOX);
        let attempt = ticket.held.job_uuid;
        // A connection that is just lost drops the inbox.
        let _ = line.subscribe.send((attempt, inbox));
        let mut connection = LeaseConnection::shared(messages, line.sender);
        if connection.send(&ticket.message()).await.is_err() {
            continue;
        }
        match await_answer(&mut connection, attempt).await {
            MinerAnswer::Held(held) => return Ok((connection, held)),
            MinerAnswer::Refused(reason) => return Err(reason),
            MinerAnswer::Silence => {}
        }
    }
}

async fn await_answer(connection: &mut LeaseConnection, attempt: AttemptId) -> MinerAnswer {
    let answer = async {
        loop {
            match connection.recv().await {
                Received::Message(MinerToExecutor::MusterLeaseHeld(held)) if held.job_uuid == attempt => {
                    return MinerAnswer::Held(held);
                }
                Received::Message(MinerToExecutor::MusterCancelJob(cancel)) if cancel.job_uuid == attempt => {
                    return MinerAnswer::Refused(cancel.reason);
                }
                Received::Lost(_) => return MinerAnswer::Silence,
                Received::Message(_) | Received::Malformed(_) | Received::Ignorable(_) => {}
            }
        }
    };
    timeout(ANSWER_LIMIT, answer)
        .await
        .unwrap_or(MinerAnswer::Silence)
}

// === impl ReturnTicket ===

impl ReturnTicket {
    fn message(&self) -> ExecutorToMiner {
        let age = |since| self.clock.now().since(since).as_millis();
        ExecutorToMiner::MusterReattach(Reattach {
            job_uuid: self.held.job_uuid,
            epoch: self.held.epoch,
            secret: self.held.secret.clone(),
            job_ms: self
                .job_since
                .map(|since| u64::try_from(age(since)).unwrap_or(u64::MAX)),
        })
    }
}
