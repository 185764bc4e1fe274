//! Open jobs taken up again after `kill -9`: from the start of the process until every job has its driver back, with
//! its attempt, its receipts and its deadline.
//!
//! `MUSTER_BENCH_OPEN` sets how many jobs (100,000 unless it does). The miners of these jobs are not there: what is
//! measured is the validator and its store, and it is killed again while it dials.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use muster_bench::stage::NoChain;
use muster_bench::{Direction, Report, Row, timed};
use muster_identity::Keypair;
use muster_process::{Clock as _, SharedClock, SystemClock, Tasks};
use muster_protocol::job::{Attempt, AttemptPlan, Event};
use muster_protocol::receipt::{StartedReceipt, StartedTag};
use muster_protocol::wire::miner::ExecutorTiming;
use muster_protocol::{
    AttemptId, ExecutorClass, Hotkey, JobId, MinerKey, ReceiptPayload, Timestamp, ValidatorKey,
};
use muster_store::{begin, open};
use muster_validator::store::Store;
use muster_validator::{Config, run_on};
use serde_json::json;
use uuid::Uuid;

const ROUNDS: usize = 5;
const OPEN: u128 = 100_000;
/// Longer than any machine should take.
const PATIENCE: Duration = Duration::from_secs(300);
/// The folder of the child that is to be killed.
const ROLE: &str = "MUSTER_BENCH_RESUME_IN";

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Some(folder) = std::env::var_os(ROLE) {
        return runtime.block_on(validator(Path::new(&folder)));
    }
    let open = std::env::var("MUSTER_BENCH_OPEN")
        .ok()
        .and_then(|text| text.parse().ok());
    let open: u128 = open.unwrap_or(OPEN);
    let folder = tempfile::tempdir()?;
    let (filled, spent) = timed(|| runtime.block_on(fill(folder.path(), open)));
    filled?;
    let mut samples = Vec::new();
    for round in 0..=ROUNDS {
        let (child, spent) = timed(|| started(folder.path()));
        killed(child?)?;
        // The first one brings the file into the machine's cache.
        if round > 0 {
            samples.push(spent.as_secs_f64());
        }
    }
    let left = runtime.block_on(still_open(folder.path()))?;
    ensure!(left == open, "{left} of {open} jobs are open after the last kill");
    let what = format!("{open} open jobs resumed after kill -9, process start included");
    let row = Row::alone(&what, "s", Direction::LowerIsBetter, samples);
    let note = format!(
        "each job runs on a miner, with an attempt and a receipt; filling the store took {:.1} s",
        spent.as_secs_f64()
    );
    Report {
        rows: vec![row.target(2.0)],
        notes: vec![note],
    }
    .print()
}

fn config(folder: &Path) -> Config {
    let mut config = Config {
        bind: ([127, 0, 0, 1], 0).into(),
        ready_file: Some(folder.join("ready.json")),
        operator_token: folder.join("operator.token"),
        store: format!("sqlite:{}", folder.join("validator.db").display()),
        ..Config::default()
    };
    // Nobody is there either.
    config.dial.allow = vec!["127.0.0.1".to_owned()];
    config.facilitator.url = "ws://127.0.0.1:1/ws/v0/".to_owned();
    config
}

/// The process that is killed.
async fn validator(folder: &Path) -> anyhow::Result<()> {
    let clock: SharedClock = Arc::new(SystemClock::new());
    let keypair = Keypair::from_uri("//Validator")?;
    run_on(config(folder), keypair, Arc::new(NoChain), Tasks::new(), clock).await?;
    Ok(())
}

/// Starts it and waits until it reports that it is up: by then every open job has been taken up.
fn started(folder: &Path) -> anyhow::Result<Child> {
    let ready = folder.join("ready.json");
    if ready.exists() {
        std::fs::remove_file(&ready)?;
    }
    let child = Command::new(std::env::current_exe()?).env(ROLE, folder).spawn()?;
    let (mut waited, step) = (Duration::ZERO, Duration::from_millis(2));
    while !ready.exists() {
        ensure!(waited < PATIENCE, "the validator does not come up");
        #[expect(
            clippy::disallowed_methods,
            reason = "another process says that it is up by a file; two milliseconds are the figure's grain"
        )]
        std::thread::sleep(step);
        waited += step;
    }
    Ok(child)
}

fn killed(mut child: Child) -> anyhow::Result<()> {
    child.kill().context("kill the validator")?;
    child.wait()?;
    Ok(())
}

/// Writes the store that a killed validator leaves: every job on a miner, its program running.
async fn fill(folder: &Path, count: u128) -> anyhow::Result<()> {
    let pool = open(&config(folder).store).await?;
    let store = Store::with_pool(pool.clone()).await?;
    let keypair = Keypair::from_uri("//Validator")?;
    let miner = MinerKey(Hotkey::from_bytes([7; 32]));
    let now = SystemClock::new().now();
    let machine = serde_json::to_string(&running(now)?)?;
    let mut tx = begin(&pool).await?;
    for n in 1..=count {
        let job = JobId::from_uuid(Uuid::from_u128(n));
        let attempt = AttemptId::first_of(job);
        sqlx::query(
            "INSERT INTO jobs (job_id, request, status, created_at) VALUES ($1, $2, 'volumes_ready', $3)",
        )
        .bind(job.to_string())
        .bind(request(job))
        .bind(now.micros())
        .execute(&mut *tx)
        .await?;
        sqlx::query(
            "INSERT INTO attempts (attempt_id, job_id, ordinal, miner, uid, address, class, machine, started_at) \
             VALUES ($1, $2, 1, $3, 1, '127.0.0.1:1', 'always_on.test', $4, $5)",
        )
        .bind(attempt.to_string())
        .bind(job.to_string())
        .bind(miner.to_string())
        .bind(machine.clone())
        .bind(now.micros())
        .execute(&mut *tx)
        .await?;
        let payload = ReceiptPayload::Started(StartedReceipt {
            job_uuid: attempt,
            miner_hotkey: miner,
            validator_hotkey: ValidatorKey(keypair.hotkey()),
            timestamp: now,
            receipt_type: StartedTag,
            executor_class: ExecutorClass::AlwaysOnTest,
            is_organic: true,
            ttl: 7,
        });
        // Its signature is not looked at again; one stands for all.
        sqlx::query(
            "INSERT INTO receipts (attempt_id, kind, miner, payload, validator_signature, written_at, chain, block) \
             VALUES ($1, 'JobStartedReceipt', $2, $3, $4, $5, '', 1)",
        )
        .bind(attempt.to_string())
        .bind(miner.to_string())
        .bind(serde_json::to_string(&payload)?)
        .bind(muster_protocol::Signature::from_bytes([1; 64]).to_prefixed_hex())
        .bind(now.micros())
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    store.close().await;
    Ok(())
}

async fn still_open(folder: &Path) -> anyhow::Result<u128> {
    let store = Store::open(&config(folder).store).await?;
    let count = store.open_jobs().await?.len();
    store.close().await;
    Ok(u128::try_from(count)?)
}

/// An attempt whose program runs for another month.
fn running(now: Timestamp) -> anyhow::Result<Attempt> {
    let second = Duration::from_secs(1);
    let timing = ExecutorTiming {
        allowed_leeway: 5,
        download_time_limit: 60,
        execution_time_limit: 2_500_000,
        upload_time_limit: 60,
        streaming_start_time_limit: 1,
    };
    let plan = AttemptPlan {
        class: ExecutorClass::AlwaysOnTest,
        streaming: false,
        timing,
        dial: second,
        reservation: second,
        startup: second,
        reconnect: Duration::from_secs(3_600),
        image: None,
    };
    let mut attempt = Attempt::new(plan, now);
    for event in [
        Event::Connected,
        Event::Accepted,
        Event::ExecutorReady,
        Event::VolumesReady,
    ] {
        attempt = attempt.apply(event, now)?.0;
    }
    Ok(attempt)
}

fn request(job: JobId) -> String {
    json!({
        "signature": {
            "signature_type": "bittensor", "signatory": Hotkey::from_bytes([8; 32]), "timestamp_ns": 1,
            "signature": muster_protocol::Signature::from_bytes([1; 64]).to_base64(),
            "signature_scope": "SignedFields",
        },
        "type": "job.new", "message_type": "V2JobRequest", "uuid": job, "executor_class": "always_on.test",
        "docker_image": "ghcr.io/example/image@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "args": ["--input", "/volume/input", "--output", "/output"], "env": {"A": "1", "B": "2"}, "use_gpu": false,
        "volume": {"volume_type": "multi_volume", "volumes": [
            {"volume_type": "single_file", "url": "https://files.example/input", "relative_path": "input"}]},
        "download_time_limit": 60, "execution_time_limit": 2_500_000, "upload_time_limit": 60,
        "streaming_start_time_limit": 1,
    })
    .to_string()
}
