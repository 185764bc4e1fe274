//! A miner's restart under persistent executors that all have a job: from the start of the new process until each
//! executor is connected again and has its lease back, and the memory of the process then.
//!
//! `MUSTER_BENCH_EXECUTORS` says how many executors (1,000 unless it does). All of them and the validator are in this
//! process; each executor dials again every tenth of a second, so what is measured is the miner.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use muster_bench::process::{raise, soon};
use muster_bench::stage::{CLASS, now, resident};
use muster_bench::{Direction, Report, Row};
use muster_enrollment::{ExecutorRegistry, StoredIdentity};
use muster_identity::{Keypair, offer_receipt, sign_validator_auth};
use muster_miner::{Config, run_with};
use muster_process::{Clock as _, SharedClock, SystemClock, Tasks, ready, tls};
use muster_protocol::receipt::{StartedReceipt, StartedTag};
use muster_protocol::wire::executor::{ExecutorHello, LeaseHeld, Reattach};
use muster_protocol::wire::miner::{ExecutorReady, FromMiner, InitialJobRequest, ToMiner};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{AttemptId, MinerKey, ReceiptPayload, ValidatorKey};
use muster_provisioning::LocalProcesses;
use muster_websocket::tls::connect_known;
use muster_websocket::{Limits, Socket, connect};
use tokio::runtime::Runtime;
use uuid::Uuid;

const ROUNDS: usize = 5;
const EXECUTORS: usize = 1_000;
/// The folder of the miner that is killed, and its port for persistent executors.
const ROLE: &str = "MUSTER_BENCH_REATTACH_IN";
const PORT: &str = "MUSTER_BENCH_REATTACH_PORT";
/// The pause of an executor before it dials again.
const PAUSE: Duration = Duration::from_millis(100);

fn main() -> Result<()> {
    tls::install_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Some(folder) = std::env::var_os(ROLE) {
        return runtime.block_on(miner(Path::new(&folder)));
    }
    raise()?;
    let count = std::env::var("MUSTER_BENCH_EXECUTORS").ok();
    let count = count.and_then(|text| text.parse().ok()).unwrap_or(EXECUTORS);
    measure(&runtime, count)
}

/// The process that is killed.
async fn miner(folder: &Path) -> Result<()> {
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
    config.executor.count = 0;
    let port: u16 = std::env::var(PORT)?.parse()?;
    config.standing.bind = Some(([127, 0, 0, 1], port).into());
    config.standing.roll = folder.join("standing");
    config.tls.certificate = folder.join("tls/port.pem");
    let clock: SharedClock = Arc::new(SystemClock::new());
    let manager = LocalProcesses::new(vec![], Arc::clone(&clock));
    run_with(config, key("//Miner")?, Arc::new(manager), Tasks::new(), clock).await?;
    Ok(())
}

fn key(name: &str) -> Result<Keypair> {
    Ok(Keypair::from_uri(name)?)
}

fn measure(runtime: &Runtime, count: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (tasks, clock) = (Tasks::new(), Arc::new(SystemClock::new()));
    let roll = ExecutorRegistry::new(folder.join("standing"));
    let _context = runtime.enter();
    let mut child = start(folder, port)?;
    let held = Arc::new(AtomicUsize::new(0));
    for number in 0..count {
        let identity = StoredIdentity::generate("executor")?.open("memory")?;
        let (address, now) = (format!("127.0.0.1:{port}"), clock.now());
        let lifetime = Duration::from_secs(3600);
        let invitation = roll.invite(
            address.clone(),
            muster_enrollment::InvitationTerms {
                class: CLASS,
                capacity: 1,
                lives: lifetime,
                uses: 1,
            },
            now,
        )?;
        let name = format!("executor-{number}");
        roll.enroll(&invitation.secret, identity.fingerprint(), &name, now)?;
        let executor = Executor {
            address,
            config: Arc::new(tls::client(&identity, invitation.miner)?),
            lease: None,
            held: Arc::clone(&held),
        };
        drop(tasks.spawn("executor", executor.run()));
    }
    let address = ready::read(&folder.join("ready.json"))?.context("the miner is gone")?;
    let url = format!(
        "ws://{address}/v0.1/validator_interface/{}",
        key("//Validator")?.hotkey()
    );
    runtime.block_on(occupy(&url, count))?;
    soon("every lease", || {
        (held.load(Ordering::SeqCst) == count).then_some(())
    })?;
    let (mut seconds, mut memory) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        child.kill()?;
        child.wait()?;
        held.store(0, Ordering::SeqCst);
        std::fs::remove_file(folder.join("ready.json"))?;
        let started = now();
        child = start(folder, port)?;
        soon("every executor", || {
            (held.load(Ordering::SeqCst) == count).then_some(())
        })?;
        // The first one brings the files into the machine's cache.
        if round > 0 {
            seconds.push(started.elapsed().as_secs_f64());
            memory.push(resident(child.id())? / 1024.0);
        }
    }
    child.kill()?;
    child.wait()?;
    let time = format!("{count} persistent executors, each with a job, back after a miner's kill -9");
    let size = format!("memory of the miner that has {count} executors back");
    Report {
        rows: vec![
            Row::alone(&time, "s", Direction::LowerIsBetter, seconds),
            Row::alone(&size, "MiB", Direction::LowerIsBetter, memory),
        ],
        notes: vec![
            "from the start of the process until the last lease is held again: TLS 1.3 with a certificate of each executor's own, its hello, its secret, a durable write each".to_owned(),
        ],
    }
    .print()
}

/// Starts the miner and waits until it says that it is up.
fn start(folder: &Path, port: u16) -> Result<Child> {
    let mut program = Command::new(std::env::current_exe()?);
    let child = program.env(ROLE, folder).env(PORT, port.to_string()).spawn()?;
    soon("the miner", || {
        ready::read(&folder.join("ready.json")).ok().flatten()
    })?;
    Ok(child)
}

// === the validator ===

/// Gives each executor a job, once the miner's manifest has all of them.
async fn occupy(url: &str, count: usize) -> Result<()> {
    let mut socket = loop {
        let mut socket = connect(url, &Limits::miner()).await?;
        let clock = SystemClock::new();
        let auth = sign_validator_auth(
            &key("//Validator")?,
            MinerKey(key("//Miner")?.hotkey()),
            clock.now(),
        );
        socket.send(encode(&ToMiner::ValidatorAuthForMiner(auth))).await?;
        let FromMiner::V0ExecutorManifestRequest(manifest) = hear(&mut socket).await? else {
            bail!("the manifest comes first")
        };
        if usize::try_from(manifest.manifest.count(CLASS))? == count {
            break socket;
        }
        // Greetings are taken once each, and their times are in whole seconds.
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    for _ in 0..count {
        socket.send(encode(&offer()?)).await?;
        loop {
            let heard = hear(&mut socket).await?;
            if let FromMiner::V0DeclineJobRequest(declined) = &heard {
                bail!("{declined:?}");
            }
            if matches!(heard, FromMiner::V0AcceptJobRequest(_)) {
                break;
            }
        }
    }
    // Its connection is not needed any more: the miner keeps the leases.
    Ok(())
}

async fn hear(socket: &mut Socket) -> Result<FromMiner> {
    let frame = socket.recv().await?.context("the miner closed the connection")?;
    Ok(decode(&frame)?)
}

fn offer() -> Result<ToMiner> {
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
    Ok(ToMiner::V0InitialJobRequest(Box::new(InitialJobRequest {
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
    })))
}

// === an executor ===

/// A persistent executor with at most one job.
struct Executor {
    address: String,
    config: Arc<rustls::ClientConfig>,
    lease: Option<LeaseHeld>,
    /// Executors whose leases are held by the miner's present process.
    held: Arc<AtomicUsize>,
}

impl Executor {
    async fn run(mut self) {
        loop {
            // The miner was killed, or is not there yet.
            let _ = self.visit().await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn visit(&mut self) -> Result<()> {
        let config = Arc::clone(&self.config);
        let mut socket = connect_known(&self.address, "/v0/standing", config, &Limits::miner()).await?;
        let hello = ExecutorHello {
            class: CLASS,
            capacity: 1,
            version: "bench".to_owned(),
            busy: u32::from(self.lease.is_some()),
        };
        socket
            .send(encode(&FromMiner::MusterExecutorHello(hello)))
            .await?;
        if let Some(lease) = &self.lease {
            let back = Reattach {
                job_uuid: lease.job_uuid,
                epoch: lease.epoch,
                secret: lease.secret.clone(),
                job_ms: None,
            };
            socket.send(encode(&FromMiner::MusterReattach(back))).await?;
        }
        while let Some(frame) = socket.recv().await? {
            let message = decode::<ToMiner>(&frame)?;
            if let ToMiner::MusterCancelJob(cancel) = &message {
                ensure!(self.lease.take().is_none(), "a lease was lost: {}", cancel.reason);
            }
            if let ToMiner::MusterLeaseHeld(held) = message {
                let ready = ExecutorReady {
                    job_uuid: held.job_uuid,
                    executor_token: None,
                };
                self.lease = Some(held);
                self.held.fetch_add(1, Ordering::SeqCst);
                socket
                    .send(encode(&FromMiner::V0ExecutorReadyRequest(ready)))
                    .await?;
            }
        }
        Ok(())
    }
}
