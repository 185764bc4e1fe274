//! A hundred thousand waiting jobs: the memory of each, the time until a restarted validator has them all back, and the
//! time from a miner's word that its executor is free to the next offer, against the same with a short queue.
//!
//! `MUSTER_BENCH_QUEUED` sets how many jobs (100,000 unless it does). The validator is the real one, in a process of
//! its own with its store on disk. Its one miner has one executor and ends each attempt by declining it for good, so
//! each answer makes room for one job. The jobs stand in the store when the validator starts.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use muster_bench::process::soon;
use muster_bench::stage::{
    CLASS, DeclinedOffer, DecliningMiner, Listener, NoChain, StillChain, metagraph, open, resident,
};
use muster_bench::{Direction, Report, Row, Turns, median, quantile, timed};
use muster_identity::Keypair;
use muster_process::{Clock as _, SharedClock, SystemClock, Tasks, ready, tls};
use muster_protocol::{Hotkey, JobId};
use muster_store::begin;
use muster_validator::chain::Chain;
use muster_validator::store::Store;
use muster_validator::{Config, run_on};
use parking_lot::Mutex;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

const ROUNDS: usize = 5;
/// Jobs that start in a round.
const STARTS: usize = 400;
const QUEUED: usize = 100_000;
/// A queue that is called short. It must outlast all rounds.
const SHORT: usize = 3_000;
/// Accounts that take turns.
const ACCOUNTS: usize = 1_000;
/// Longer than any start should take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The folder of a child that is the validator.
const ROLE: &str = "MUSTER_BENCH_QUEUE_IN";
/// The addresses of its facilitator and its miner. A child without them has neither these nor a chain.
const OTHERS: &str = "MUSTER_BENCH_QUEUE_OTHERS";

fn main() -> Result<()> {
    tls::install_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Some(folder) = std::env::var_os(ROLE) {
        return runtime.block_on(be_validator(Path::new(&folder)));
    }
    let queued = std::env::var("MUSTER_BENCH_QUEUED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(QUEUED);
    let folders = [(); 3].map(|()| tempfile::tempdir());
    let [long, short, empty] = folders;
    let (long, short, empty) = (long?, short?, empty?);
    for (folder, jobs) in [(&long, queued), (&short, SHORT), (&empty, 0)] {
        runtime.block_on(fill(folder.path(), jobs))?;
    }
    let mut rows = restarts(long.path(), empty.path(), queued)?;
    rows.extend(latencies(&runtime, long.path(), short.path(), queued)?);
    let accounts = ACCOUNTS.min(queued);
    Report {
        rows,
        notes: vec![
            format!("jobs of {accounts} accounts with priorities from 1 to 10; {ROUNDS} rounds of {STARTS} starts each, in turns"),
            "memory: of the process right after it restored its queue, less that of one with an empty queue".to_owned(),
            "a start: the miner's answer is read, the attempt's end and the job's are stored, the next job is routed and its attempt \
             stored, 64 users are told their places, and the offer reaches the miner"
                .to_owned(),
        ],
    }
    .print()
}

// === restarts and memory ===

/// The restored queue: how long it takes to come back, and its memory.
fn restarts(long: &Path, empty: &Path, queued: usize) -> Result<Vec<Row>> {
    let (mut with, mut without, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    // The first round brings the files into the machine's cache.
    for round in 0..=ROUNDS {
        let (full, spent) = timed(|| Validator::start(long, None));
        let full = full?;
        let (bare, spent_bare) = timed(|| Validator::start(empty, None));
        let bare = bare?;
        let more_kib = resident(full.0.id())? - resident(bare.0.id())?;
        if round > 0 {
            with.push(spent.as_secs_f64());
            without.push(spent_bare.as_secs_f64());
            #[expect(clippy::cast_precision_loss, reason = "nobody queues so many jobs")]
            bytes.push(more_kib * 1024.0 / queued as f64);
        }
    }
    let row = |what: &str, unit: &str, samples| Row::alone(what, unit, Direction::LowerIsBetter, samples);
    Ok(vec![
        row(
            &format!("{queued} waiting jobs restored after kill -9, process start included"),
            "s",
            with,
        ),
        row("the same with an empty queue", "s", without),
        row("memory of a waiting job", "bytes", bytes),
    ])
}

// === the way from a free executor to the next offer ===

/// A validator with its queue, and the miner that answers when it is allowed to.
struct Subnet {
    validator: Validator,
    answers: Arc<Semaphore>,
    offers: mpsc::UnboundedReceiver<DeclinedOffer>,
    /// The last offer that was answered.
    last: Option<DeclinedOffer>,
    tasks: Tasks,
}

fn latencies(runtime: &Runtime, long: &Path, short: &Path, queued: usize) -> Result<Vec<Row>> {
    let mut subnets = [
        runtime.block_on(Subnet::start(long))?,
        runtime.block_on(Subnet::start(short))?,
    ];
    let (mut medians, mut tails) = (Turns::default(), Turns::default());
    for round in 0..=ROUNDS {
        let [ours, theirs] = &mut subnets;
        let (ours, theirs) = (ours.round(runtime)?, theirs.round(runtime)?);
        if round > 0 {
            medians.ours.extend(median(&ours));
            medians.peer.extend(median(&theirs));
            tails.ours.extend(quantile(&ours, 0.99));
            tails.peer.extend(quantile(&theirs, 0.99));
        }
    }
    let what = format!("from a free executor to the next offer, {queued} jobs waiting");
    let peer = format!("at most {SHORT} jobs waiting");
    let row = |part: &str, turns| {
        let what = format!("{what}: {part}");
        Row::against(&what, "ms", Direction::LowerIsBetter, &peer, turns)
    };
    let rows = vec![row("median", medians), row("P99", tails)];
    for subnet in subnets {
        subnet.tasks.shutdown();
        drop(subnet.validator);
    }
    Ok(rows)
}

impl Subnet {
    async fn start(folder: &Path) -> Result<Self> {
        let tasks = Tasks::new();
        let (offered, offers) = mpsc::unbounded_channel();
        let answers = Arc::new(Semaphore::new(0));
        let miner = DecliningMiner {
            executors: 1,
            offers: offered,
            answers: Some(Arc::clone(&answers)),
        };
        let miner = open(&tasks, Listener::Miner(miner)).await?;
        // It hands over no job: all are in the store. The channel stays open, so that the connection does.
        let (handing, jobs) = mpsc::unbounded_channel();
        let facilitator = open(&tasks, Listener::Facilitator(Arc::new(Mutex::new(Some(jobs))))).await?;
        let stop = tasks.token();
        tasks.spawn("hand over nothing", async move {
            stop.cancelled().await;
            drop(handing);
        });
        Ok(Self {
            validator: Validator::start(folder, Some((facilitator, miner)))?,
            answers,
            offers,
            last: None,
            tasks,
        })
    }

    /// Lets the jobs of a round start; the milliseconds from each answer to the offer after it.
    fn round(&mut self, runtime: &Runtime) -> Result<Vec<f64>> {
        let mut spans = Vec::with_capacity(STARTS);
        self.answers.add_permits(STARTS);
        for _ in 0..STARTS {
            let offers = &mut self.offers;
            let next = runtime.block_on(async { tokio::time::timeout(PATIENCE, offers.recv()).await });
            let next = next
                .context("no offer within a minute")?
                .context("the miner is gone")?;
            if let Some(last) = self.last.replace(next) {
                spans.push(next.came.duration_since(last.answered).as_secs_f64() * 1e3);
            }
        }
        Ok(spans)
    }
}

// === the validator ===

/// A process that is killed with this value.
struct Validator(Child);

impl Drop for Validator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Validator {
    /// Starts one and waits until it reports that it is up: by then its queue is restored.
    fn start(folder: &Path, others: Option<(SocketAddr, SocketAddr)>) -> Result<Self> {
        let file = folder.join("ready.json");
        if file.exists() {
            std::fs::remove_file(&file)?;
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ROLE, folder);
        if let Some((facilitator, miner)) = others {
            command.env(OTHERS, format!("{facilitator} {miner}"));
        }
        let started = Self(command.spawn()?);
        soon("the validator", || ready::read(&file).ok().flatten())?;
        Ok(started)
    }
}

fn config(folder: &Path) -> Config {
    let mut config = Config {
        bind: ([127, 0, 0, 1], 0).into(),
        ready_file: Some(folder.join("ready.json")),
        operator_token: folder.join("operator.token"),
        store: format!("sqlite:{}", folder.join("validator.db").display()),
        ..Config::default()
    };
    config.dial.allow = vec!["127.0.0.1".to_owned()];
    config.facilitator.url = "ws://127.0.0.1:1/ws/v0/".to_owned();
    config.routing.max_attempts = 1;
    config.routing.max_incidents = u32::MAX;
    // The miner answers when it is allowed to, and nobody gives up before.
    config.timing.reservation_s = 3_600;
    config.chain.wait_s = 3_600;
    config
}

async fn be_validator(folder: &Path) -> Result<()> {
    let clock: SharedClock = Arc::new(SystemClock::new());
    let key = |uri: &str| Keypair::from_uri(uri).map_err(anyhow::Error::msg);
    let (validator, miner) = (key("//Validator")?, key("//Miner")?);
    let mut config = config(folder);
    let chain: Arc<dyn Chain> = match std::env::var(OTHERS) {
        Ok(others) => {
            let (facilitator, address) = others.split_once(' ').context("two addresses")?;
            config.facilitator.url = format!("ws://{facilitator}/ws/v0/");
            let metagraph = metagraph(&validator, &miner, address.parse()?);
            Arc::new(StillChain { metagraph })
        }
        Err(_) => Arc::new(NoChain),
    };
    run_on(config, validator, chain, Tasks::new(), clock).await?;
    Ok(())
}

/// Writes the store that a killed validator leaves: every job waits.
async fn fill(folder: &Path, count: usize) -> Result<()> {
    let pool = muster_store::open(&config(folder).store).await?;
    let store = Store::with_pool(pool.clone()).await?;
    let now = SystemClock::new().now();
    let deadline = now.plus(Duration::from_secs(24 * 3_600));
    let mut tx = begin(&pool).await?;
    for number in 0..count {
        let job = JobId::from_uuid(Uuid::from_u128(u128::try_from(number)?));
        let account = u64::try_from(number % ACCOUNTS)?;
        let mut key = [8; 32];
        key[..8].copy_from_slice(&account.to_be_bytes());
        let user = Hotkey::from_bytes(key);
        sqlx::query("INSERT INTO jobs (job_id, request, status, created_at) VALUES ($1, $2, 'received', $3)")
            .bind(job.to_string())
            .bind(request(job, user))
            .bind(now.micros())
            .execute(&mut *tx)
            .await?;
        sqlx::query(
            "INSERT INTO queue (job_id, account, class, priority, ticket, since, deadline) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(job.to_string())
        .bind(user.to_string())
        .bind(CLASS.as_str())
        .bind(i64::try_from(1 + number % 10)?)
        .bind(i64::try_from(number + 1)?)
        .bind(now.micros())
        .bind(deadline.micros())
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    let waiting = store.waiting_after(None).await?.len();
    ensure!(waiting == count.min(10_000), "{waiting} jobs of {count} wait");
    store.close().await;
    Ok(())
}

fn request(job: JobId, user: Hotkey) -> String {
    json!({
        "signature": {
            "signature_type": "bittensor", "signatory": user, "timestamp_ns": 1,
            "signature": muster_protocol::Signature::from_bytes([1; 64]).to_base64(),
            "signature_scope": "SignedFields",
        },
        "type": "job.new", "message_type": "V2JobRequest", "uuid": job, "executor_class": CLASS,
        "docker_image": "ghcr.io/example/image@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "args": ["--input", "/volume/input", "--output", "/output"], "env": {"A": "1", "B": "2"}, "use_gpu": false,
        "volume": {"volume_type": "multi_volume", "volumes": [
            {"volume_type": "single_file", "url": "https://files.example/input", "relative_path": "input"}]},
        "download_time_limit": 60, "execution_time_limit": 60, "upload_time_limit": 60,
        "streaming_start_time_limit": 1,
    })
    .to_string()
}
