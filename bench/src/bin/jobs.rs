//! A trivial job on a persistent executor, from its offer until the executor is free again, against the bare engine:
//! create, start, wait, remove. Once with nothing made ahead, once with a container that waits, and once with a journal
//! against none. Then a thousand jobs in a row, and what they leave behind.
//!
//! Wants an engine with the demo image (`muster up` loads it; `MUSTER_BENCH_IMAGE` names another that takes its words),
//! and `muster-hold`, which it builds; `MUSTER_BENCH_JOBS` sets how many in a row.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptions, ListContainersOptions, RemoveContainerOptions, StartContainerOptions,
    WaitContainerOptions,
};
use futures_util::StreamExt as _;
use muster_bench::{Direction, Report, Row, Turns, take_turns, timed};
use muster_containers::image_settings::ImageSettings;
use muster_enrollment::{ExecutorCredentials, StoredIdentity};
use muster_executor::Config;
use muster_executor::persistent::serve;
use muster_process::{SharedClock, SystemClock, Tasks, tls};
use muster_protocol::wire::decode;
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_protocol::{AttemptId, Digest};
use muster_websocket::{Greeting, Limits, Peer, PeerSession, Socket};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use uuid::Uuid;

const ROUNDS: usize = 25;
const IN_A_ROW: usize = 1_000;
/// Jobs before the first look at what is left behind: allocators and caches fill up first.
const SETTLING: usize = 50;
const COMMAND: [&str; 3] = ["probe", "print", "0"];

fn main() -> anyhow::Result<()> {
    tls::install_provider();
    let image = std::env::var("MUSTER_BENCH_IMAGE").unwrap_or_else(|_| "muster/hello:latest".to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (cold_folder, folder) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let holder = holder()?;
    let docker = Docker::connect_with_defaults()?;
    let mut cold = runtime.block_on(Miner::start(cold_folder.path(), &image, None))?;
    let turns = take_turns(
        ROUNDS,
        || millis(&runtime, cold.job(Lease::Plain)),
        || millis(&runtime, bare(&docker, &image)),
    )?;
    let ordinary = Row::against(
        "a trivial job, executor idle before",
        "ms",
        Direction::LowerIsBetter,
        "bare engine API",
        turns,
    );
    let journaled = journal_row(&runtime, &mut cold)?;
    let mut miner = runtime.block_on(Miner::start(folder.path(), &image, Some(holder)))?;
    runtime.block_on(miner.job(Lease::Plain))?;
    let work = folder.path().join("work").canonicalize()?;
    let turns = take_turns(
        ROUNDS,
        || {
            runtime.block_on(one_waits(&docker, &work))?;
            millis(&runtime, miner.job(Lease::Plain))
        },
        || millis(&runtime, bare(&docker, &image)),
    )?;
    let warm = Row::against(
        "a trivial job, a container waits",
        "ms",
        Direction::LowerIsBetter,
        "bare engine API",
        turns,
    );
    for _ in 0..SETTLING {
        runtime.block_on(miner.job(Lease::Plain))?;
    }
    runtime.block_on(one_waits(&docker, &work))?;
    let before = Left::now(&work)?;
    let jobs = std::env::var("MUSTER_BENCH_JOBS")
        .ok()
        .and_then(|text| text.parse().ok());
    let jobs: usize = jobs.unwrap_or(IN_A_ROW);
    let mut ended = Ok(());
    let (_, spent) = timed(|| {
        for _ in 0..jobs {
            if ended.is_ok() {
                ended = runtime.block_on(miner.job(Lease::Plain));
            }
        }
    });
    ended?;
    runtime.block_on(one_waits(&docker, &work))?;
    let after = Left::now(&work)?;
    let containers = runtime.block_on(ours(&docker, &work))?.len();
    let note = format!(
        "{jobs} jobs in a row after {SETTLING}, one container kept warm: {:.1} s; open files {} to {}, resident memory {} to {} KiB, \
         job folders {} to {}, containers at the end {containers} (the one that waits)",
        spent.as_secs_f64(),
        before.files,
        after.files,
        before.resident,
        after.resident,
        before.folders,
        after.folders,
    );
    Report {
        rows: vec![ordinary.target(1.15), journaled.target(1.05), warm.target(0.5)],
        notes: vec![note],
    }
    .print()
}

/// A job with a journal against the same without.
fn journal_row(runtime: &Runtime, miner: &mut Miner) -> anyhow::Result<Row> {
    // Both sides need the one executor.
    let mut turns = Turns::default();
    for round in 0..=ROUNDS {
        let held = millis(runtime, miner.job(Lease::Held))?;
        let plain = millis(runtime, miner.job(Lease::Plain))?;
        // The first round warms up.
        if round > 0 {
            turns.ours.push(held);
            turns.peer.push(plain);
        }
    }
    let what = "a trivial job whose miner keeps the lease, so that it has a journal";
    Ok(Row::against(
        what,
        "ms",
        Direction::LowerIsBetter,
        "the same without",
        turns,
    ))
}

/// The program that holds containers, static.
fn holder() -> anyhow::Result<PathBuf> {
    let target = std::env::temp_dir().join("muster-bench-static");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let built = std::process::Command::new("cargo")
        .args(["build", "--quiet", "--release", "--package", "muster-hold"])
        .args(["--target", &triple, "--target-dir"])
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .status()?;
    ensure!(built.success(), "muster-hold does not build");
    Ok(target.join(triple).join("release/muster-hold"))
}

/// The running containers of the executor of this folder, by its label.
async fn ours(docker: &Docker, work: &Path) -> anyhow::Result<Vec<String>> {
    let options = ListContainersOptions {
        all: true,
        ..ListContainersOptions::default()
    };
    let under = work.display().to_string();
    let found = docker.list_containers(Some(options)).await?;
    let ours = found.into_iter().filter(|container| {
        let label = container
            .labels
            .as_ref()
            .and_then(|labels| labels.get("muster.executor"));
        label.is_some_and(|folder| folder.starts_with(&under))
    });
    Ok(ours.filter_map(|container| container.status).collect())
}

/// Until exactly one container of the executor is there and has been started.
async fn one_waits(docker: &Docker, work: &Path) -> anyhow::Result<()> {
    let waiting = async {
        loop {
            let found = ours(docker, work).await?;
            if matches!(found.as_slice(), [status] if status.starts_with("Up")) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await; // polls until it waits
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .context("no container waits")?
}

/// The resources of a process.
struct Left {
    files: usize,
    /// Resident memory in KiB.
    resident: u64,
    folders: usize,
}

impl Left {
    fn now(work: &Path) -> anyhow::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok());
        Ok(Self {
            files: std::fs::read_dir("/proc/self/fd")?.count(),
            resident: resident.context("no VmRSS")?,
            folders: std::fs::read_dir(work)?.count(),
        })
    }
}

fn millis(runtime: &Runtime, job: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<f64> {
    let (done, spent) = timed(|| runtime.block_on(job));
    done?;
    Ok(spent.as_secs_f64() * 1e3)
}

/// The requests to the engine that any program would make.
async fn bare(docker: &Docker, image: &str) -> anyhow::Result<()> {
    let name = format!("muster-bench-{}", Uuid::new_v4());
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        cmd: Some(COMMAND.map(str::to_owned).to_vec()),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptions {
        name: Some(name.clone()),
        ..CreateContainerOptions::default()
    };
    docker.create_container(Some(options), body).await?;
    docker
        .start_container(&name, None::<StartContainerOptions>)
        .await?;
    let waited = docker
        .wait_container(&name, None::<WaitContainerOptions>)
        .next()
        .await;
    waited.context("no exit code")??;
    docker
        .remove_container(&name, None::<RemoveContainerOptions>)
        .await?;
    Ok(())
}

/// Whether the miner keeps a lease whose connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    Plain,
    Held,
}

/// A miner as far as an executor can see.
struct Miner {
    session: PeerSession<Executor>,
    image: String,
}

struct Executor;

impl Peer for Executor {
    type In = ExecutorToMiner;
    type Out = String;
    type Malformed = muster_protocol::wire::WireError;

    fn decode(frame: &str) -> Result<ExecutorToMiner, Self::Malformed> {
        decode(frame)
    }

    fn encode(message: &String) -> String {
        message.clone()
    }
}

struct Hall(mpsc::UnboundedSender<Socket>);

impl muster_websocket::tls::Callers for Hall {
    async fn admits(&self, _certificate: Digest) -> bool {
        true
    }

    async fn serve(&self, socket: Socket, _certificate: Digest) {
        // The bench ends before this channel does.
        let _ = self.0.send(socket);
    }
}

impl Miner {
    /// With a program that keeps one container warm, or without any.
    async fn start(folder: &Path, image: &str, holder: Option<PathBuf>) -> anyhow::Result<Self> {
        let (tasks, clock): (_, SharedClock) = (Tasks::new(), Arc::new(SystemClock::new()));
        let identity = StoredIdentity::generate("miner")?.open("memory")?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let membership = ExecutorCredentials {
            address: listener.local_addr()?.to_string(),
            miner: identity.fingerprint(),
            own: StoredIdentity::generate("executor")?,
        };
        let config = Config {
            work_dir: folder.join("work"),
            persistent: muster_executor::config::PersistentSettings {
                membership: folder.join("membership.json"),
                warm: muster_executor::config::WarmSettings {
                    containers: usize::from(holder.is_some()),
                    holder: holder.unwrap_or_default(),
                    ..Default::default()
                },
                ..Default::default()
            },
            images: ImageSettings {
                cache_dir: folder.join("images"),
                local: vec!["*".to_owned()],
                ..ImageSettings::default()
            },
            ..Config::default()
        };
        membership.store(&config.persistent.membership)?;
        let (hall, mut sockets) = mpsc::unbounded_channel();
        let listening = muster_websocket::tls::listen(
            listener,
            tls::server(&identity)?,
            Limits::miner(),
            Arc::new(Hall(hall)),
            tasks.clone(),
            Arc::clone(&clock),
            tasks.token(),
        );
        tasks.spawn("miner", listening);
        tasks.spawn("executor", serve(config, None, tasks.clone(), clock));
        let socket = tokio::time::timeout(Duration::from_secs(30), sockets.recv()).await?;
        let session = Greeting::new(socket.context("no executor came")?).accept(Executor);
        let image = image.to_owned();
        Ok(Self { session, image })
    }

    /// One job from its offer until the executor is free again.
    async fn job(&mut self, lease: Lease) -> anyhow::Result<()> {
        let attempt = AttemptId::from_uuid(Uuid::new_v4());
        self.session.send(&offer(attempt, &self.image)).await?;
        if lease == Lease::Held {
            self.session.send(&held(attempt)).await?;
        }
        loop {
            let message = self.session.recv().await?.context("the executor left")?;
            if let ExecutorToMiner::V0JobFinishedRequest(finished) = &message {
                ensure!(finished.docker_process_stdout == "end\n", "{finished:?}");
                if lease == Lease::Held {
                    self.session.send(&end_stored(attempt)).await?;
                }
            }
            if matches!(message, ExecutorToMiner::V0ExecutorReadyRequest(_)) {
                self.session.send(&request(attempt, &self.image)).await?;
            }
            if matches!(
                message,
                ExecutorToMiner::V0JobFailedRequest(_) | ExecutorToMiner::V0HordeFailedRequest(_)
            ) {
                bail!("{message:?}");
            }
            if matches!(message, ExecutorToMiner::MusterLeaseOver(_)) {
                return Ok(());
            }
        }
    }
}

fn offer(attempt: AttemptId, image: &str) -> String {
    json!({
        "message_type": "V0InitialJobRequest",
        "job_uuid": attempt,
        "executor_class": "always_on.test",
        "docker_image": image,
        "job_started_receipt_payload": {
            "job_uuid": attempt,
            "miner_hotkey": "5CA3onFpA75kRSgNkF6twsDeumSA5NhLhxQWSdraSEL8vScn",
            "validator_hotkey": "5CzRdZLnRxWkyWoGZZbfvSCY4mbw1cmsow5q8cgZyGg1aiDq",
            "timestamp": "2026-01-21T12:34:56.789000Z",
            "receipt_type": "JobStartedReceipt",
            "executor_class": "always_on.test",
            "is_organic": true,
            "ttl": 7,
        },
        "job_started_receipt_signature": format!("0x{}", "5a".repeat(64)),
        "executor_timing": {
            "allowed_leeway": 5,
            "download_time_limit": 60,
            "execution_time_limit": 60,
            "upload_time_limit": 60,
            "streaming_start_time_limit": 5,
        },
    })
    .to_string()
}

fn held(attempt: AttemptId) -> String {
    json!({
        "message_type": "MusterLeaseHeld",
        "job_uuid": attempt,
        "epoch": 1,
        "secret": "5a".repeat(32),
        "reattach_s": 150,
    })
    .to_string()
}

fn end_stored(attempt: AttemptId) -> String {
    json!({"message_type": "MusterEndStored", "job_uuid": attempt}).to_string()
}

fn request(attempt: AttemptId, image: &str) -> String {
    json!({
        "message_type": "V0JobRequest",
        "job_uuid": attempt,
        "executor_class": "always_on.test",
        "docker_image": image,
        "docker_run_options_preset": "none",
        "docker_run_cmd": COMMAND,
    })
    .to_string()
}
