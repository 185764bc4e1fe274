//! A miner with ten thousand persistent executors: its start-up until all of them are connected, its memory and
//! processor time while they only report their machines, how long a job's offer takes to reach one of them, and its
//! restart after `kill -9` while each of them has a job.
//!
//! The executors are simulated; their sockets and TLS are real, each has a certificate of its own, and they live in
//! processes of their own. `MUSTER_BENCH_EXECUTORS` lists the numbers of executors that are measured.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use muster_bench::process::{CORE_OF_OTHERS, CORE_OF_PROXY, Process, raise, soon, write_address};
use muster_bench::stage::{CLASS, now};
use muster_bench::{Direction, Report, Row, quantile};
use muster_enrollment::{ExecutorRegistry, InvitationTerms, StoredIdentity};
use muster_identity::{Keypair, offer_receipt, sign_validator_auth};
use muster_miner::{Config, run_with};
use muster_process::{Clock as _, SharedClock, SystemClock, Tasks, ready, tls};
use muster_protocol::receipt::{StartedReceipt, StartedTag};
use muster_protocol::wire::executor::{ExecutorHello, LeaseHeld, Reattach};
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::miner::{ExecutorReady, InitialJobRequest};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{AttemptId, MinerKey, ReceiptPayload, ValidatorKey};
use muster_provisioning::LocalProcesses;
use muster_websocket::tls::connect_known;
use muster_websocket::{Limits, Socket, connect};
use rustls::ClientConfig;
use tokio::runtime::Runtime;
use uuid::Uuid;

/// The numbers of executors, unless the environment lists others.
const SIZES: &str = "1000,2000,5000,10000";
/// The most executors of one process. Each takes a file, and 16,384 files may be open.
const PER_PROCESS: usize = 5_000;
/// Offers that are timed at each size, one after another.
const OFFERS: usize = 100;
/// Offers that are made at once at each size, again and again until every executor has a job.
const BURST: usize = 300;
/// How long the processor time of a miner without jobs is counted.
const IDLE: Duration = Duration::from_secs(20);
/// How often an executor reports its machine, as `muster executor` does.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// The pause of an executor before it dials again.
const PAUSE: Duration = Duration::from_millis(500);

/// The words by which this program is started as a miner and as executors.
const MINER: &str = "miner";
const EXECUTORS: &str = "executors";
/// The file in which a process of executors writes how many of their leases the miner's present process holds.
const HELD: &str = "held";

/// A report of a machine.
const METRICS: &str = concat!(
    r#"{"message_type":"MusterExecutorMetrics","at":"2026-01-21T12:34:56Z","cpu_permille":250,"#,
    r#""memory_total":68719476736,"memory_used":17179869184,"disk_total":1099511627776,"disk_used":549755813888,"#,
    r#""network_received":8589934592,"network_sent":4294967296,"gpus":[]}"#
);

fn main() -> Result<()> {
    tls::install_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.as_slice() {
        [role, folder] if role == MINER => return runtime.block_on(serve(Path::new(folder))),
        [role, folder] if role == EXECUTORS => return runtime.block_on(populate(Path::new(folder))),
        _ => {}
    }
    raise()?;
    let sizes = std::env::var("MUSTER_BENCH_EXECUTORS").unwrap_or_else(|_| SIZES.to_owned());
    let sizes = sizes
        .split(',')
        .map(str::parse)
        .collect::<Result<Vec<usize>, _>>();
    measure(
        &runtime,
        &sizes.context("MUSTER_BENCH_EXECUTORS is a list of numbers")?,
    )
}

fn key(name: &str) -> Result<Keypair> {
    Ok(Keypair::from_uri(name)?)
}

// === the miner ===

/// The process that is measured. Its folder holds the port for executors.
async fn serve(folder: &Path) -> Result<()> {
    let mut config = Config {
        bind: ([127, 0, 0, 1], 0).into(),
        store: format!("sqlite:{}", folder.join("miner.db").display()),
        receipts_dir: folder.join("receipts"),
        drain_file: folder.join("drain"),
        ready_file: Some(folder.join("ready.json")),
        validators: vec![ValidatorKey(key("//Validator")?.hotkey())],
        ..Config::default()
    };
    config.chain.url = String::new();
    // Only Muster validators sign each message of a job.
    config.require_validator_signature = false;
    config.executor.count = 0;
    config.persistent.bind = Some(([127, 0, 0, 1], read_port(folder)?).into());
    config.persistent.roll = folder.join("standing");
    config.tls.certificate = folder.join("tls/port.pem");
    let tasks = Tasks::new();
    let clock: SharedClock = Arc::new(SystemClock::new());
    let manager = LocalProcesses::new(vec![], Arc::clone(&clock));
    let running = run_with(config, key("//Miner")?, Arc::new(manager), tasks, clock);
    let up = async {
        loop {
            if let Some(address) = ready::read(&folder.join("ready.json"))? {
                return write_address(folder, MINER, &address.to_string());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let (ended, said) = tokio::join!(running, up);
    ended?;
    said
}

fn read_port(folder: &Path) -> Result<u16> {
    Ok(std::fs::read_to_string(folder.join("port"))?.parse()?)
}

/// Starts the miner and waits until it reports that it is up.
fn start_miner(folder: &Path) -> Result<Process> {
    for stale in ["ready.json", "miner.address"] {
        // Neither is there before the first start.
        let _ = std::fs::remove_file(folder.join(stale));
    }
    Process::own(folder, MINER, CORE_OF_PROXY)
}

// === the executors ===

/// Executors as a process of their own: a folder in the miner's folder states how many.
async fn populate(folder: &Path) -> Result<()> {
    let miner = folder.parent().context("a folder in the miner's")?;
    let count: usize = std::fs::read_to_string(folder.join("count"))?.parse()?;
    let address = format!("127.0.0.1:{}", read_port(miner)?);
    let roll = ExecutorRegistry::new(miner.join("standing"));
    let terms = InvitationTerms {
        class: CLASS,
        capacity: 1,
        lives: Duration::from_secs(3_600),
        uses: 1,
    };
    let clock = SystemClock::new();
    let part = folder
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let held = Arc::new(AtomicUsize::new(0));
    let mut executors = Vec::with_capacity(count);
    for number in 0..count {
        let identity = StoredIdentity::generate("executor")?.open("memory")?;
        let invitation = roll.invite(address.clone(), terms, clock.now())?;
        let name = format!("{part}-{number}");
        roll.enroll(&invitation.secret, identity.fingerprint(), &name, clock.now())?;
        let config = Arc::new(tls::client(&identity, invitation.miner)?);
        let executor = Executor {
            address: address.clone(),
            config,
            lease: None,
            held: Arc::clone(&held),
        };
        executors.push(executor.keep_connected());
    }
    let tasks = Tasks::new();
    for executor in executors {
        drop(tasks.spawn("executor", executor));
    }
    write_address(folder, EXECUTORS, &address)?;
    let mut told = None;
    loop {
        let now = held.load(Ordering::Relaxed);
        if told.replace(now) != Some(now) {
            let draft = folder.join("held.draft");
            std::fs::write(&draft, now.to_string())?;
            std::fs::rename(draft, folder.join(HELD))?;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A persistent executor with at most one job, which it keeps.
struct Executor {
    address: String,
    config: Arc<ClientConfig>,
    lease: Option<LeaseHeld>,
    /// Leases of this process that the miner's present process holds.
    held: Arc<AtomicUsize>,
}

impl Executor {
    async fn keep_connected(mut self) {
        loop {
            let mut is_held = false;
            // The miner was killed, or is not there yet.
            let _ = self.visit(&mut is_held).await;
            if is_held {
                self.held.fetch_sub(1, Ordering::Relaxed);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One connection: reports the machine every few seconds, and is ready for every job at once.
    async fn visit(&mut self, is_held: &mut bool) -> Result<()> {
        let config = Arc::clone(&self.config);
        let mut socket = connect_known(&self.address, "/v0/standing", config, &Limits::miner()).await?;
        let hello = ExecutorHello {
            class: CLASS,
            capacity: 1,
            version: "bench".to_owned(),
            busy: u32::from(self.lease.is_some()),
        };
        socket
            .send(encode(&ExecutorToMiner::MusterExecutorHello(hello)))
            .await?;
        if let Some(lease) = &self.lease {
            let back = Reattach {
                job_uuid: lease.job_uuid,
                epoch: lease.epoch,
                secret: lease.secret.clone(),
                job_ms: None,
            };
            socket
                .send(encode(&ExecutorToMiner::MusterReattach(back)))
                .await?;
        }
        let mut beat = tokio::time::interval(MEASURE_EVERY);
        loop {
            tokio::select! {
                _ = beat.tick() => {
                    socket.send(METRICS.to_owned()).await?;
                }
                heard = socket.recv() => {
                    let Some(frame) = heard? else { return Ok(()) };
                    let message = decode::<MinerToExecutor>(&frame)?;
                    if let MinerToExecutor::MusterCancelJob(cancel) = &message {
                        bail!("a lease was lost: {}", cancel.reason);
                    }
                    if let MinerToExecutor::MusterLeaseHeld(lease) = message {
                        let ready = ExecutorReady { job_uuid: lease.job_uuid, executor_token: None };
                        self.lease = Some(lease);
                        self.held.fetch_add(1, Ordering::Relaxed);
                        *is_held = true;
                        socket.send(encode(&ExecutorToMiner::V0ExecutorReadyRequest(ready))).await?;
                    }
                }
            }
        }
    }
}

/// Starts processes with `count` executors in all. Returns them with their folders.
fn start_executors(folder: &Path, mut count: usize) -> Result<Vec<Process>> {
    let mut processes = Vec::new();
    while count > 0 {
        let part = count.min(PER_PROCESS);
        let own = folder.join(format!("part-{}", processes.len()));
        std::fs::create_dir(&own)?;
        std::fs::write(own.join("count"), part.to_string())?;
        processes.push(Process::own(&own, EXECUTORS, CORE_OF_OTHERS)?);
        count -= part;
    }
    Ok(processes)
}

/// The leases of all processes that the miner's present process holds.
fn held(folder: &Path, processes: usize) -> usize {
    let of = |part: usize| {
        let text = std::fs::read_to_string(folder.join(format!("part-{part}")).join(HELD)).ok()?;
        text.parse::<usize>().ok()
    };
    (0..processes).filter_map(of).sum()
}

// === the measurement ===

fn measure(runtime: &Runtime, sizes: &[usize]) -> Result<()> {
    let mut rows = Vec::new();
    for &size in sizes {
        ensure!(size > OFFERS, "{size} executors are too few for {OFFERS} offers");
        let folder = tempfile::tempdir()?;
        rows.extend(runtime.block_on(measure_one(folder.path(), size))?);
    }
    Report {
        rows,
        notes: vec![
            "one miner on one core, executors in other processes on the other: TLS 1.3 with a certificate of each executor's own, a report of the machine every 5 s".to_owned(),
            format!("{OFFERS} offers one after another, then {BURST} at a time, each with a signed receipt and a durable write"),
            "after kill -9: until the last lease is held again, with the executor's secret and a durable write each".to_owned(),
        ],
    }
    .print()
}

/// The rows of one number of executors.
async fn measure_one(folder: &Path, size: usize) -> Result<Vec<Row>> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    std::fs::write(folder.join("port"), port.to_string())?;
    let processes = start_executors(folder, size)?;
    let lower = Direction::LowerIsBetter;
    let row = |what: &str, unit: &str, sample: f64| {
        Row::alone(&format!("{size} executors: {what}"), unit, lower, vec![sample])
    };
    let mut rows = Vec::new();

    let started = now();
    let miner = start_miner(folder)?;
    let mut validator = greet(&miner.address).await?;
    wait_for_manifest(&mut validator, size).await?;
    let start_s = started.elapsed().as_secs_f64();
    rows.push(row(
        "from the miner's start until all are connected",
        "s",
        start_s,
    ));

    // The handshakes are over; from here on the miner is at rest.
    tokio::time::sleep(MEASURE_EVERY).await;
    let before = miner.processor()?;
    tokio::time::sleep(IDLE).await;
    let share = (miner.processor()? - before) / IDLE.as_secs_f64();
    rows.push(row("the miner's memory", "MiB", miner.resident()? / 1024.0));
    rows.push(row("the miner's processor time without jobs", "cores", share));

    let mut ready_ms = Vec::new();
    for _ in 0..OFFERS {
        let asked = now();
        make_ready(&mut validator, 1).await?;
        ready_ms.push(asked.elapsed().as_secs_f64() * 1_000.0);
    }
    for (name, share) in [("P50", 0.5), ("P99", 0.99)] {
        let sample = quantile(&ready_ms, share).unwrap_or_default();
        let what = format!("from an offer to an executor that is ready, {name}");
        rows.push(row(&what, "ms", sample));
    }
    let asked = now();
    let mut left = size - OFFERS;
    while left > 0 {
        let burst = left.min(BURST);
        make_ready(&mut validator, burst).await?;
        left -= burst;
    }
    let rate = (size - OFFERS) as f64 / asked.elapsed().as_secs_f64();
    let what = format!("{size} executors: ready with a job, {BURST} offers at a time");
    let higher = Direction::HigherIsBetter;
    rows.push(Row::alone(&what, "1/s", higher, vec![rate]));

    // Its drop kills it.
    drop(miner);
    soon("the end of every connection", || {
        (held(folder, processes.len()) == 0).then_some(())
    })?;
    let started = now();
    let miner = start_miner(folder)?;
    soon("every lease", || {
        (held(folder, processes.len()) == size).then_some(())
    })?;
    let back_s = started.elapsed().as_secs_f64();
    rows.push(row("each with a job, all back after kill -9", "s", back_s));
    rows.push(row("the miner's memory then", "MiB", miner.resident()? / 1024.0));
    Ok(rows)
}

// === the validator ===

async fn greet(address: &str) -> Result<Socket> {
    let validator = key("//Validator")?;
    let url = format!("ws://{address}/v0.1/validator_interface/{}", validator.hotkey());
    let mut socket = connect(&url, &Limits::miner()).await?;
    let miner = MinerKey(key("//Miner")?.hotkey());
    let auth = sign_validator_auth(&validator, miner, SystemClock::new().now());
    socket
        .send(encode(&ValidatorToMiner::ValidatorAuthForMiner(auth)))
        .await?;
    Ok(socket)
}

/// Waits until the miner reports that `size` executors are connected.
async fn wait_for_manifest(socket: &mut Socket, size: usize) -> Result<()> {
    loop {
        if let MinerToValidator::V0ExecutorManifestRequest(told) = receive(socket).await?
            && usize::try_from(told.manifest.count(CLASS))? == size
        {
            return Ok(());
        }
    }
}

async fn receive(socket: &mut Socket) -> Result<MinerToValidator> {
    let frame = socket.recv().await?.context("the miner closed the connection")?;
    Ok(decode(&frame)?)
}

/// Makes `offers` offers at once, and waits until an executor is ready for each.
async fn make_ready(socket: &mut Socket, mut offers: usize) -> Result<()> {
    for _ in 0..offers {
        socket.send(encode(&offer()?)).await?;
    }
    while offers > 0 {
        let heard = receive(socket).await?;
        offers -= usize::from(matches!(heard, MinerToValidator::V0ExecutorReadyRequest(_)));
        if let MinerToValidator::V0DeclineJobRequest(declined) = &heard {
            bail!("{declined:?}");
        }
    }
    Ok(())
}

fn offer() -> Result<ValidatorToMiner> {
    let (validator, job_uuid) = (key("//Validator")?, AttemptId::from_uuid(Uuid::new_v4()));
    let payload = StartedReceipt {
        job_uuid,
        miner_hotkey: MinerKey(key("//Miner")?.hotkey()),
        validator_hotkey: ValidatorKey(validator.hotkey()),
        timestamp: SystemClock::new().now(),
        receipt_type: StartedTag,
        executor_class: CLASS,
        is_organic: true,
        ttl: 7,
    };
    let signed = offer_receipt(&validator, ReceiptPayload::Started(payload.clone()))?;
    Ok(ValidatorToMiner::V0InitialJobRequest(Box::new(
        InitialJobRequest {
            job_uuid,
            executor_class: CLASS,
            docker_image: Some("hello:latest".to_owned()),
            timeout_seconds: Some(3_600),
            volume: None,
            job_started_receipt_payload: payload,
            job_started_receipt_signature: signed.validator_signature,
            streaming_details: None,
            executor_timing: None,
            muster: None,
        },
    )))
}
