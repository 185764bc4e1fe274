//! A subnet of two miners with one executor each, and a job on it.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;

use muster_process::{Clock as _, SystemClock};
use muster_protocol::job::{CheckpointTerms, JobTerms, MetricRule};
use muster_protocol::rest::{CreateJob, JobCheckpointsView};
use muster_protocol::{AttemptId, JobId, JobStatus};
use muster_testbed::{free_address, wait_for};
use muster_tests::{Absences, Layout, Parts, Role, SpareMiner, User, add_terms, muster, release, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Short, so that a test can outlast them, and in the order of the real ones.
const ABSENCES: Absences = Absences {
    orphan_s: 2,
    miner_s: 3,
    validator_s: 4,
};

/// A program and what it runs in.
pub(crate) struct Program {
    pub(crate) image: &'static str,
    pub(crate) arguments: Vec<String>,
    /// The most that it may take, in seconds.
    pub(crate) limit_s: u64,
    /// The metrics that are read from its output, each with its pattern.
    pub(crate) metrics: Vec<(&'static str, &'static str)>,
    /// Whether it does not end before it is released.
    pub(crate) held: bool,
}

pub(crate) struct Subnet {
    pub(crate) runtime: Runtime,
    pub(crate) parts: Parts,
    pub(crate) user: User,
    pub(crate) job: JobId,
    /// Whether the job's program has to be released.
    held: bool,
    /// The attempts whose programs were released.
    released: RefCell<HashSet<AttemptId>>,
}

impl Subnet {
    /// Starts a subnet of two miners with these further settings, and a job of this program with these terms.
    pub(crate) fn start(layout: Layout, program: &Program, checkpoints: CheckpointTerms) -> Self {
        let runtime = Runtime::new().unwrap();
        muster_process::tls::install_provider();
        let spare = free_address().unwrap();
        let layout = Layout {
            executors: 1,
            spare_miner: Some(SpareMiner {
                port: spare,
                announces: spare,
                executors_dial: spare,
            }),
            absences: Some(ABSENCES),
            ..layout
        };
        let parts = Parts::start(&layout).unwrap();
        let key = parts.keys().user.clone();
        let user = runtime
            .block_on(User::login(parts.address(Role::Facilitator), key))
            .unwrap();
        let mut subnet = Self {
            runtime,
            parts,
            user,
            job: JobId::from_uuid(uuid::Uuid::nil()),
            held: false,
            released: RefCell::default(),
        };
        subnet.submit(program, Some(checkpoints));
        subnet
    }

    /// Submits another job, which is the one that is meant from then on.
    pub(crate) fn submit(&mut self, program: &Program, checkpoints: Option<CheckpointTerms>) {
        let mut job: CreateJob = serde_json::from_value(json!({
            "target_validator_hotkey": self.parts.keys().validator.hotkey().to_string(),
            "executor_class": "always_on.test",
            "docker_image": program.image,
            "args": program.arguments,
            "artifacts_dir": "/artifacts",
            "download_time_limit": 30,
            "execution_time_limit": program.limit_s,
            "streaming_start_time_limit": 0,
            "upload_time_limit": 30,
        }))
        .unwrap();
        let now = SystemClock::default().now();
        if let Some(checkpoints) = checkpoints {
            let rule = |(name, pattern): &(&str, &str)| MetricRule {
                name: name.parse().unwrap(),
                pattern: (*pattern).to_owned(),
            };
            let terms = JobTerms {
                checkpoints: Some(checkpoints),
                metrics: program.metrics.iter().map(rule).collect(),
                ..JobTerms::default()
            };
            add_terms(&mut job, &self.parts.keys().user, terms, now);
        }
        self.job = self.runtime.block_on(self.user.submit(&job, now)).unwrap();
        self.held = program.held;
    }

    pub(crate) fn wait_for<T>(&self, what: &str, holds: impl Fn() -> Option<T>) -> T {
        wait_for(what, || anyhow::Ok(holds())).unwrap()
    }

    /// Lets the program of the newest attempt end, if it is one that waits for that.
    fn let_program_end(&self) {
        let Some((attempt, _)) = self
            .parts
            .attempts_of(self.job)
            .ok()
            .and_then(|mut all| all.pop())
        else {
            return;
        };
        if self.held
            && !self.released.borrow().contains(&attempt)
            && release("", &attempt.to_string()).unwrap() > 0
        {
            self.released.borrow_mut().insert(attempt);
        }
    }

    /// Waits until the job keeps a checkpoint of this ordinal or a newer one.
    pub(crate) fn wait_for_checkpoint(&self, ordinal: u32) -> JobCheckpointsView {
        self.wait_for("a checkpoint", || {
            let view = self.runtime.block_on(self.user.checkpoints(self.job)).ok()?;
            let newest = view.checkpoints.last()?.ordinal;
            (newest >= ordinal).then_some(view)
        })
    }

    /// The container of the newest attempt, once its program runs: its process, and its folder of checkpoints on this
    /// machine.
    pub(crate) fn container(&self) -> (Pid, PathBuf) {
        let docker = |arguments: &[&str]| run(Command::new("docker").args(arguments)).unwrap();
        self.wait_for("a container", || {
            let (attempt, _) = self.parts.attempts_of(self.job).unwrap().pop()?;
            let label = format!("label=muster.attempt={attempt}");
            let found = docker(&["ps", "--quiet", "--filter", &label]);
            let asked = docker(&["inspect", found.stdout.trim()]);
            let facts: Value = serde_json::from_str(&asked.stdout).ok()?;
            let pid = facts[0]["State"]["Pid"].as_i64().filter(|pid| *pid > 0)?;
            let mut mounts = facts[0]["Mounts"].as_array()?.iter();
            let mount = mounts.find(|mount| mount["Destination"] == "/checkpoint")?;
            let folder = PathBuf::from(mount["Source"].as_str()?);
            Some((Pid::from_raw(i32::try_from(pid).unwrap()), folder))
        })
    }

    /// Loses the machine and the miner of the newest attempt for good. Returns the miner.
    pub(crate) fn lose_machine(&mut self) -> Role {
        let (pid, _) = self.container();
        self.lose_container(pid)
    }

    /// As [`Self::lose_machine`], with the process of the container.
    pub(crate) fn lose_container(&mut self, pid: Pid) -> Role {
        let (attempt, miner) = self.parts.attempts_of(self.job).unwrap().pop().unwrap();
        self.parts.kill(miner).unwrap();
        self.parts.kill_executor(&attempt.to_string()).unwrap();
        kill(pid, Signal::SIGKILL).unwrap();
        miner
    }

    /// The job's last status, once it has ended. A program that is held is released.
    pub(crate) fn end(&self) -> (JobStatus, Value) {
        self.wait_for("the end of the job", || {
            self.let_program_end();
            let view = self.runtime.block_on(self.user.job(self.job)).ok()?;
            let last = view["status_history"].as_array()?.last()?.clone();
            let status = JobStatus::from_wire(last["status"].as_str()?);
            status.is_terminal().then(|| (status, last["metadata"].clone()))
        })
    }

    /// The response of the job, which must end well.
    pub(crate) fn response(&self) -> Value {
        let (status, metadata) = self.end();
        assert_eq!(status, JobStatus::Completed, "{metadata:#}");
        metadata["miner_response"].clone()
    }

    /// The microseconds for which the validator's receipt pays an attempt, once there is one.
    pub(crate) fn paid_us(&self, attempt: AttemptId) -> u64 {
        let pool = self
            .runtime
            .block_on(muster_store::open(self.parts.store(Role::Validator)))
            .unwrap();
        self.wait_for("a receipt", || {
            let row = sqlx::query_as(
                "SELECT payload FROM receipts WHERE attempt_id = $1 AND kind = 'JobFinishedReceipt'",
            );
            let row = row.bind(attempt.to_string()).fetch_optional(&pool);
            let (payload,): (String,) = self.runtime.block_on(row).unwrap()?;
            let payload: Value = serde_json::from_str(&payload).unwrap();
            payload["time_took_us"].as_u64()
        })
    }

    /// Runs `muster job checkpoints` of the job with these arguments.
    pub(crate) fn list_checkpoints(&self, arguments: &[&str]) -> String {
        let key = self.runtime.block_on(self.user.create_key("test")).unwrap();
        let url = format!("http://{}", self.parts.address(Role::Facilitator));
        let mut command = Command::new(muster().unwrap());
        command
            .args(["job", "checkpoints", &self.job.to_string(), "--facilitator", &url])
            .args(arguments)
            .env("MUSTER_API_KEY", key)
            .current_dir(self.parts.folder());
        let ran = run(&mut command).unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout
    }

    pub(crate) fn attempts(&self) -> Vec<(AttemptId, Role)> {
        self.parts.attempts_of(self.job).unwrap()
    }
}
