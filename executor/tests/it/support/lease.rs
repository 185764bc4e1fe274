//! One lease: its token, the messages that describe its job, the executor that serves it, and checks that nothing is
//! left.

use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_executor::{Config, ContainerEngine, Error, Invocation, run};
use muster_process::task::Task;
use muster_process::{SystemClock, Tasks};
use muster_protocol::{AttemptId, ExecutorToken};
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use super::miner::{FakeMiner, Wire};

/// Seconds for each stage of a job. No test waits for their end: a slow machine has them for itself.
const STAGE_SECS: u64 = 600;

pub(crate) struct Lease {
    pub(crate) token: ExecutorToken,
    pub(crate) config: Config,
    pub(crate) tasks: Tasks,
    work_dir: TempDir,
    _records: TempDir,
}

/// The image, arguments and time limits of a job; the other fields are as in most jobs.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) image: String,
    pub(crate) args: Vec<String>,
    pub(crate) execution_secs: u64,
    pub(crate) volume: Value,
    pub(crate) artifacts_dir: Value,
    /// How the program is started; null where the image decides.
    pub(crate) start: Value,
}

impl Job {
    pub(crate) fn new(args: &[&str]) -> Self {
        Self {
            image: super::image::NAME.into(),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            execution_secs: STAGE_SECS,
            volume: Value::Null,
            artifacts_dir: Value::Null,
            start: Value::Null,
        }
    }
}

/// Allows what these tests need: images that they loaded themselves, and registries of this machine.
pub(crate) fn allow_test_images(config: &mut Config) {
    config.images.local = vec!["*".to_owned()];
    config.images.allow = vec!["127.0.0.1".to_owned()];
    config.images.login_repositories = vec!["*".to_owned()];
}

impl Lease {
    pub(crate) fn new() -> Self {
        let work_dir = tempfile::tempdir().unwrap();
        let records = tempfile::tempdir().unwrap();
        let mut config = Config {
            work_dir: work_dir.path().to_owned(),
            stop_grace_s: 1,
            ..Config::default()
        };
        config.images.cache_dir = records.path().join("images");
        allow_test_images(&mut config);
        let token = ExecutorToken::new(AttemptId::from_uuid(Uuid::new_v4()), Uuid::new_v4());
        Self {
            token,
            config,
            tasks: Tasks::new(),
            work_dir,
            _records: records,
        }
    }

    /// Starts the executor and returns its socket once it has connected.
    pub(crate) async fn start(&self, miner: &FakeMiner) -> (Task<Result<(), Error>>, Wire) {
        let invocation = Invocation {
            miner_address: miner.address(),
            token: self.token.clone(),
        };
        let clock = Arc::new(SystemClock::new());
        let executor = self.tasks.spawn(
            "executor",
            run(self.config.clone(), invocation, self.tasks.clone(), clock),
        );
        let wire = miner.accept().await;
        assert_eq!(wire.path, format!("/v0.1/executor_interface/{}", self.token));
        (executor, wire)
    }

    /// `V0InitialJobRequest` as a Python miner relays it, but for the start of the program.
    pub(crate) fn offer(&self, job: &Job) -> Value {
        let job_uuid = self.token.attempt();
        let mut offer = json!({
            "message_type": "V0InitialJobRequest",
            "job_uuid": job_uuid,
            "executor_class": "always_on.test",
            "docker_image": job.image,
            "timeout_seconds": 300,
            "volume": job.volume,
            "job_started_receipt_payload": {
                "job_uuid": job_uuid,
                "miner_hotkey": "5CA3onFpA75kRSgNkF6twsDeumSA5NhLhxQWSdraSEL8vScn",
                "validator_hotkey": "5CzRdZLnRxWkyWoGZZbfvSCY4mbw1cmsow5q8cgZyGg1aiDq",
                "timestamp": "2026-01-21T12:34:56.789000Z",
                "receipt_type": "JobStartedReceipt",
                "executor_class": "always_on.test",
                "is_organic": true,
                "ttl": 7,
            },
            "job_started_receipt_signature": format!("0x{}", "5a".repeat(64)),
            "streaming_details": null,
            "executor_timing": {
                "allowed_leeway": 0,
                "download_time_limit": STAGE_SECS,
                "execution_time_limit": job.execution_secs,
                "upload_time_limit": STAGE_SECS,
                "streaming_start_time_limit": 600,
            },
        });
        if !job.start.is_null() {
            offer["muster"] = json!({ "start": job.start });
        }
        offer
    }

    /// `V0JobRequest` as a Python miner relays it.
    pub(crate) fn request(&self, job: &Job) -> Value {
        json!({
            "message_type": "V0JobRequest",
            "job_uuid": self.token.attempt(),
            "executor_class": "always_on.test",
            "docker_image": job.image,
            "raw_script": null,
            "docker_run_options_preset": "none",
            "docker_run_cmd": job.args,
            "env": {"GREETING": "hello"},
            "volume": null,
            "output_upload": null,
            "artifacts_dir": job.artifacts_dir,
        })
    }

    /// Drives the socket to a running job.
    pub(crate) async fn to_running(&self, wire: &mut Wire, job: &Job) {
        wire.send(&self.offer(job)).await;
        wire.expect("V0ExecutorReadyRequest").await;
        wire.send(&self.request(job)).await;
        wire.expect("V0VolumesReadyRequest").await;
    }

    /// Runs a job for a Muster miner that sends `offer`, to the end. Returns all messages of the executor.
    pub(crate) async fn run_offered(&self, offer: &Value, job: &Job) -> Vec<Value> {
        let miner = FakeMiner::muster().await;
        let (executor, mut wire) = self.start(&miner).await;
        wire.send(offer).await;
        let mut messages = Vec::new();
        while let Some(message) = wire.recv().await {
            if message["message_type"] == "V0ExecutorReadyRequest" {
                wire.send(&self.request(job)).await;
            }
            messages.push(message);
        }
        executor.join().await.unwrap().unwrap();
        messages
    }

    /// Checks that nothing of the lease is left: no container, no folder.
    pub(crate) async fn assert_clean(&self, engine: &ContainerEngine) {
        let label = format!("muster.attempt={}", self.token.attempt());
        assert_eq!(engine.list_labelled(&label).await.unwrap(), Vec::<String>::new());
        assert_eq!(entries(self.work_dir.path()), Vec::<String>::new());
    }

    /// Waits until the engine has the job's container.
    pub(crate) async fn container_appears(&self, engine: &ContainerEngine) {
        let label = format!("muster.attempt={}", self.token.attempt());
        while engine.list_labelled(&label).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

/// An inline volume of these files.
pub(crate) fn inline_volume(files: &[(&str, &str)]) -> Value {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in files {
        zip.start_file(*name, zip::write::SimpleFileOptions::default())
            .unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    let bytes = zip.finish().unwrap().into_inner();
    json!({"volume_type": "inline", "contents": STANDARD.encode(bytes), "relative_path": null})
}
