//! Stand-ins around a validator that is measured: a facilitator that takes every update, a miner that notes when offers
//! come, a chain that stands still and a chain that does not answer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::Response;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, pending, ready};
use muster_chain::weights_commit::{CommitPosition, OnChainWeights};
use muster_chain::{BlockNumber, ChainError, Metagraph, Netuid, Neuron, Uid, WeightRules, WeightsCall};
use muster_identity::Keypair;
use muster_process::Tasks;
use muster_protocol::wire::facilitator::{Response as Answer, ToFacilitator, UserJobRequest};
use muster_protocol::wire::miner::{DeclineJob, ExecutorManifest};
use muster_protocol::wire::muster::{Challenge, ChallengeNonce};
use muster_protocol::wire::signing::decode_from_validator;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, JobRejectionReason, Manifest};
use muster_validator::chain::{Blocks, Chain};
use muster_websocket::{Limits, Socket, server};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

/// The class of every job and executor of a bench.
pub const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

/// The monotonic clock of this machine.
#[expect(
    clippy::disallowed_methods,
    reason = "a bench measures real time; no test moves it"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// An offer that a miner declined.
#[derive(Clone, Copy, Debug)]
pub struct DeclinedOffer {
    /// The attempt that the validator offered.
    pub attempt: AttemptId,
    /// When the offer came.
    pub came: Instant,
    /// When the answer was given.
    pub answered: Instant,
}

/// A miner that declines every offer for good, so that its job ends and its executor is free again.
#[derive(Clone, Debug)]
pub struct DecliningMiner {
    /// Executors in its manifest.
    pub executors: u32,
    /// Every offer, as soon as it has come.
    pub offers: mpsc::UnboundedSender<DeclinedOffer>,
    /// One permit is one answer; `None` for a miner that answers at once.
    pub answers: Option<Arc<Semaphore>>,
}

/// Jobs for a validator, which one facilitator hands over.
pub type HandedJobs = Arc<Mutex<Option<mpsc::UnboundedReceiver<UserJobRequest>>>>;

/// A listening stand-in.
#[derive(Clone, Debug)]
pub enum Listener {
    /// A miner that declines.
    Miner(DecliningMiner),
    /// A facilitator for one validator.
    Facilitator(HandedJobs),
}

#[derive(Clone)]
struct Served {
    listener: Listener,
    tasks: Tasks,
}

/// Opens a stand-in on a free port.
///
/// # Errors
/// There is no port.
pub async fn open(tasks: &Tasks, listener: Listener) -> Result<SocketAddr> {
    let socket = TcpListener::bind("127.0.0.1:0").await?;
    let address = socket.local_addr()?;
    let served = Served {
        listener,
        tasks: tasks.clone(),
    };
    let service = Router::new()
        .fallback(serve)
        .with_state(served)
        .into_make_service_with_connect_info::<SocketAddr>();
    tasks.spawn("stand-in", async move { axum::serve(socket, service).await });
    Ok(address)
}

async fn serve(
    State(served): State<Served>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let listener = served.listener.clone();
    let on_socket = move |socket| async move {
        // A peer that closes the connection has what it needs.
        let _ = match listener {
            Listener::Miner(miner) => miner.serve(socket).await,
            Listener::Facilitator(jobs) => facilitate(socket, jobs).await,
        };
    };
    server::upgrade(request, peer, &Limits::miner(), &served.tasks, on_socket).map(Body::new)
}

impl DecliningMiner {
    async fn serve(self, mut socket: Socket) -> Result<()> {
        while let Some(frame) = socket.recv().await? {
            let came = now();
            let message = decode_from_validator(&frame)?.message;
            let answer = if let ValidatorToMiner::V0InitialJobRequest(offer) = message {
                self.decline(offer.job_uuid, came).await?
            } else if let ValidatorToMiner::ValidatorAuthForMiner(_) = message {
                MinerToValidator::V0ExecutorManifestRequest(ExecutorManifest {
                    manifest: Manifest::new([(CLASS, self.executors)]),
                    private_images: None,
                })
            } else {
                continue;
            };
            socket.send(encode(&answer)).await?;
        }
        Ok(())
    }

    /// Declines with a reason that holds: a job of a busy miner would wait and come again.
    async fn decline(&self, attempt: AttemptId, came: Instant) -> Result<MinerToValidator> {
        if let Some(answers) = &self.answers {
            answers.acquire().await?.forget();
        }
        let answered = now();
        self.offers.send(DeclinedOffer {
            attempt,
            came,
            answered,
        })?;
        Ok(MinerToValidator::V0DeclineJobRequest(DeclineJob {
            job_uuid: attempt,
            message: "a bench".to_owned(),
            reason: JobRejectionReason::ValidatorBlacklisted,
            receipts: vec![],
            context: None,
        }))
    }
}

/// A facilitator that hands over what it is given and takes every update.
async fn facilitate(mut socket: Socket, jobs: HandedJobs) -> Result<()> {
    socket.recv().await?;
    socket
        .send(encode(&Challenge::new(ChallengeNonce::from_bytes([7; 32]))))
        .await?;
    socket.recv().await?;
    socket.send(encode(&Answer::success())).await?;
    let taken = jobs.lock().take();
    let mut jobs = taken.context("a second validator")?;
    let (mut reader, writer) = socket.split();
    loop {
        tokio::select! {
            job = jobs.recv() => {
                let Some(job) = job else { return Ok(()) };
                writer.send(encode(&job)).await?;
            }
            frame = reader.recv() => {
                let Some(frame) = frame? else { return Ok(()) };
                if let ToFacilitator::V0JobStatusUpdate(_) = decode(&frame)? {
                    writer.send(encode(&Answer::success())).await?;
                }
            }
        }
    }
}

/// A chain that stands still.
#[derive(Debug)]
pub struct StillChain {
    /// The subnet as it stays.
    pub metagraph: Metagraph,
}

impl Chain for StillChain {
    fn genesis(&self) -> BoxFuture<'_, Result<String, ChainError>> {
        async { Ok("a bench's own".to_owned()) }.boxed()
    }

    fn metagraph(&self) -> BoxFuture<'_, Result<Metagraph, ChainError>> {
        async { Ok(self.metagraph.clone()) }.boxed()
    }

    fn weight_rules(&self) -> BoxFuture<'_, Result<WeightRules, ChainError>> {
        pending().boxed()
    }

    fn submit<'a>(
        &'a self,
        _call: &'a WeightsCall,
        _last: BlockNumber,
    ) -> BoxFuture<'a, Result<CommitPosition, ChainError>> {
        pending().boxed()
    }

    fn read_weights(&self) -> BoxFuture<'_, Result<OnChainWeights, ChainError>> {
        pending().boxed()
    }

    fn blocks(&self) -> BoxFuture<'_, Result<Blocks, ChainError>> {
        pending().boxed()
    }
}

/// A subnet of this validator, with a permit, and this miner.
pub fn metagraph(validator: &Keypair, miner: &Keypair, address: SocketAddr) -> Metagraph {
    let neuron = |uid: u16, hotkey: Hotkey, axon| Neuron {
        uid: Uid(uid),
        hotkey,
        coldkey: hotkey,
        axon,
        stake: 1_000_000_000_000,
        permit: uid == 0,
        active: true,
        registered: BlockNumber(0),
        last_update: BlockNumber(0),
        incentive: 0,
    };
    Metagraph {
        block: BlockNumber(100),
        netuid: Netuid(1),
        tempo: 360,
        last_epoch: BlockNumber(0),
        certificates: std::collections::BTreeMap::new(),
        neurons: vec![
            neuron(0, validator.hotkey(), None),
            neuron(1, miner.hotkey(), Some(address)),
        ],
    }
}

/// A chain that does not answer.
#[derive(Debug)]
pub struct NoChain;

fn away<T: Send + 'static>() -> BoxFuture<'static, Result<T, ChainError>> {
    ready(Err(ChainError::Unreachable {
        doing: "answer",
        url: "nowhere".to_owned(),
        cause: None,
    }))
    .boxed()
}

impl Chain for NoChain {
    fn genesis(&self) -> BoxFuture<'_, Result<String, ChainError>> {
        away()
    }

    fn metagraph(&self) -> BoxFuture<'_, Result<Metagraph, ChainError>> {
        away()
    }

    fn weight_rules(&self) -> BoxFuture<'_, Result<WeightRules, ChainError>> {
        away()
    }

    fn submit<'a>(
        &'a self,
        _call: &'a WeightsCall,
        _last: BlockNumber,
    ) -> BoxFuture<'a, Result<CommitPosition, ChainError>> {
        away()
    }

    fn read_weights(&self) -> BoxFuture<'_, Result<OnChainWeights, ChainError>> {
        away()
    }

    fn blocks(&self) -> BoxFuture<'_, Result<Blocks, ChainError>> {
        away()
    }
}

/// A figure of `/proc/PID/status`.
///
/// # Errors
/// The process has ended, or has no such figure.
pub fn proc_status(file: &Path, name: &str) -> Result<f64> {
    let text = std::fs::read_to_string(file)?;
    let fields: HashMap<_, _> = text.lines().filter_map(|line| line.split_once(':')).collect();
    let field = fields
        .get(name)
        .with_context(|| format!("{} has no {name}", file.display()))?;
    Ok(field.split_whitespace().next().unwrap_or_default().parse()?)
}

/// The resident memory of a process, in KiB.
///
/// # Errors
/// The process has ended.
pub fn resident(pid: u32) -> Result<f64> {
    proc_status(Path::new(&format!("/proc/{pid}/status")), "VmRSS")
}
