//! One job outlives every process that carries it: facilitator, validator, miner, executor and engine are killed
//! without warning while its program counts. The program runs once, and its output is whole.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use muster_process::{Clock as _, SystemClock};
use muster_protocol::rest::CreateJob;
use muster_protocol::{JobId, JobStatus};
use muster_tests::{BUSYBOX, Dockerd, Layout, Parts, Role, User, muster, run, shell_image, wait_for};
use serde_json::json;
use tokio::runtime::Runtime;

/// No condition takes this long unless it never comes.
const PATIENCE: Duration = Duration::from_secs(100);

/// A process that is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Role(Role),
    Executor,
    Engine,
}

const VICTIMS: [Victim; 5] = [
    Victim::Executor,
    Victim::Role(Role::Miner),
    Victim::Engine,
    Victim::Role(Role::Facilitator),
    Victim::Role(Role::Validator),
];

/// A subnet with one job in it, which counts seconds.
struct CountingJob {
    runtime: Runtime,
    parts: Parts,
    engine: Dockerd,
    user: User,
    job: JobId,
}

impl CountingJob {
    /// Starts a job that counts to `seconds`, and waits until its program counts.
    fn start(seconds: u64) -> Self {
        let runtime = Runtime::new().unwrap();
        muster_process::tls::install_provider();
        let engine = Dockerd::start_with_live_restore().unwrap();
        let layout = Layout {
            engine: Some(engine.address()),
            executors: 1,
            ..Layout::default()
        };
        let image = runtime.block_on(shell_image(&engine.address())).unwrap();
        let parts = Parts::start(&layout).unwrap();
        let key = parts.keys().user.clone();
        let user = runtime
            .block_on(User::login(parts.address(Role::Facilitator), key))
            .unwrap();
        let script = format!(
            "{BUSYBOX} cat /proc/sys/kernel/random/uuid; i=0; while [ $i -lt {seconds} ]; do i=$((i+1)); echo tick $i; {BUSYBOX} sleep 1; done"
        );
        let job: CreateJob = serde_json::from_value(json!({
            "target_validator_hotkey": parts.keys().validator.hotkey().to_string(),
            "executor_class": "always_on.test",
            "docker_image": image,
            "args": ["-c", script],
            "download_time_limit": 30,
            "execution_time_limit": seconds + 120,
            "streaming_start_time_limit": 0,
            "upload_time_limit": 20,
        }))
        .unwrap();
        let now = SystemClock::default().now();
        let job = runtime.block_on(user.submit(&job, now)).unwrap();
        let mut this = Self {
            runtime,
            parts,
            engine,
            user,
            job,
        };
        this.wait_for_status("the program", PATIENCE, |history| {
            history
                .iter()
                .any(|status| status == JobStatus::VolumesReady.as_str())
        });
        // An engine that is killed while it starts a container knows the container no more.
        wait_for("the job's container", PATIENCE, || {
            let label = format!("label=muster.attempt={job}");
            let mut docker = Command::new("docker");
            docker.args([
                "--host",
                &this.engine.address(),
                "ps",
                "--quiet",
                "--filter",
                &label,
            ]);
            Ok((!run(&mut docker)?.stdout.is_empty()).then_some(()))
        })
        .unwrap();
        this
    }

    fn wait_for_status(
        &mut self,
        what: &str,
        patience: Duration,
        holds: impl Fn(&[String]) -> bool,
    ) -> Vec<String> {
        let (parts, runtime, user, job) = (&mut self.parts, &self.runtime, &self.user, self.job);
        let found = wait_for(what, patience, || {
            parts.keep_running()?;
            // While the facilitator is away nobody answers.
            let history = runtime.block_on(user.history(job)).unwrap_or_default();
            Ok(holds(&history).then_some(history))
        });
        found.unwrap_or_else(|error| {
            let logs = self.parts.logs();
            panic!("{error}\n{logs}")
        })
    }

    /// Kills a process, and starts it again where no other process does.
    fn kill(&mut self, victim: Victim) {
        match victim {
            Victim::Role(role) => {
                self.parts.kill(role).unwrap();
                self.parts.begin(role).unwrap();
            }
            Victim::Engine => {
                self.engine.kill().unwrap();
                self.engine.begin().unwrap();
            }
            Victim::Executor => {
                let attempt = self.job.to_string();
                let parts = &self.parts;
                // One that was killed before may have no successor yet.
                let before = wait_for("an executor", PATIENCE, || {
                    let there = parts.executors_of(&attempt)?;
                    Ok((!there.is_empty()).then_some(there))
                })
                .unwrap();
                parts.kill_executor(&attempt).unwrap();
                wait_for("the executor's successor", PATIENCE, || {
                    let there = parts.executors_of(&attempt)?;
                    let new = there.iter().any(|pid| !before.contains(pid));
                    Ok(new.then_some(()))
                })
                .unwrap();
            }
        }
    }

    /// Kills the executor, and starts three of its kind at the same time as the miner starts its successor.
    fn kill_executor_before_rivals(&mut self) -> Vec<Child> {
        let attempt = self.job.to_string();
        let pids = self.parts.executors_of(&attempt).unwrap();
        let words_of = |file: &str| -> Vec<String> {
            let text = std::fs::read(format!("/proc/{}/{file}", pids[0])).unwrap();
            let text = String::from_utf8(text).unwrap();
            text.trim_end_matches('\0')
                .split('\0')
                .map(str::to_owned)
                .collect()
        };
        let (words, variables) = (words_of("cmdline"), words_of("environ"));
        self.parts.kill_executor(&attempt).unwrap();
        let rival = |_| {
            let mut rival = Command::new(&words[0]);
            rival.args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::null());
            rival.envs(variables.iter().filter_map(|variable| variable.split_once('=')));
            rival.spawn().unwrap()
        };
        (0..3).map(rival).collect()
    }

    /// Ends the container and its executor as a restart of their machine would: the journal is of an earlier run of the
    /// machine then.
    fn restart_machine(&mut self) {
        let attempt = self.job.to_string();
        let journal = self.journal();
        let text = std::fs::read_to_string(&journal).unwrap();
        let mut job: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(job["boot"].is_string(), "{job}");
        job["boot"] = json!("an earlier run of the machine");
        std::fs::write(&journal, job.to_string()).unwrap();
        self.parts.kill_executor(&attempt).unwrap();
        let label = format!("label=muster.attempt={attempt}");
        let docker = |arguments: &[&str]| {
            let mut docker = Command::new("docker");
            docker.args(["--host", &self.engine.address()]).args(arguments);
            run(&mut docker).unwrap()
        };
        let containers = docker(&["ps", "--quiet", "--filter", &label]);
        let killed = docker(&["kill", containers.stdout.trim()]);
        assert_eq!(killed.code, Some(0), "{killed:?}");
    }

    /// The journal of the job, in the folder of its container.
    fn journal(&self) -> PathBuf {
        let mut folders = vec![self.parts.work_dir()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.ends_with("job.json") {
                    return path;
                }
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path);
                }
            }
        }
        panic!("no journal\n{}", self.parts.logs())
    }

    /// Backs a role up, kills it, takes its files away, and starts it again from the backup.
    fn restore(&mut self, role: Role) {
        let name = role.name();
        let backup = self.parts.folder().join(format!("{name}-backup"));
        let config = self.parts.config_file(role);
        let call = |command: &str, place: &str| {
            let mut muster = Command::new(muster().unwrap());
            muster.args([command, name, place]).arg(&backup);
            let done = run(muster.arg("--config").arg(&config)).unwrap();
            assert_eq!(done.code, Some(0), "{done:?}");
        };
        call("backup", "--to");
        self.parts.kill(role).unwrap();
        let lost = self.parts.folder().join(format!("{name}-lost"));
        std::fs::create_dir(&lost).unwrap();
        for entry in std::fs::read_dir(self.parts.folder()).unwrap() {
            let entry = entry.unwrap();
            let file = entry.file_name().into_string().unwrap();
            let is_state = ["db", "db-wal", "db-shm"].map(|kind| format!("{name}.{kind}"));
            let is_folder = ["standing", "receipts", "tls"].map(|kind| format!("{name}-{kind}"));
            if is_state.contains(&file) || is_folder.contains(&file) {
                std::fs::rename(entry.path(), lost.join(file)).unwrap();
            }
        }
        call("restore", "--from");
        self.parts.begin(role).unwrap();
    }

    /// Waits for the end: one run, and every line of it once and in order.
    fn assert_ran_once(mut self, seconds: u64) -> Self {
        let patience = PATIENCE + Duration::from_secs(seconds);
        let history = self.wait_for_status("the end of the job", patience, |history| {
            history
                .iter()
                .any(|status| JobStatus::from_wire(status).is_terminal())
        });
        let logs = || self.parts.logs();
        assert_eq!(
            history.last().map(String::as_str),
            Some(JobStatus::Completed.as_str()),
            "{history:?}\n{}",
            logs()
        );
        let view = self.runtime.block_on(self.user.job(self.job)).unwrap();
        let metadata = view["status_history"].as_array().unwrap().last().unwrap();
        let stdout = metadata["metadata"]["miner_response"]["docker_process_stdout"]
            .as_str()
            .unwrap_or_else(|| panic!("no output in {view:#}"));
        let mut lines = stdout.lines();
        let run = lines.next().unwrap();
        assert_eq!(run.len(), 36, "the mark of the run: {run:?}");
        let ticks: Vec<_> = lines.map(str::to_owned).collect();
        let expected: Vec<_> = (1..=seconds).map(|tick| format!("tick {tick}")).collect();
        assert_eq!(ticks, expected, "{}", logs());
        let receipts = metadata["metadata"]["muster"]["receipts"].as_array().unwrap();
        assert_eq!(receipts.len(), 3, "{receipts:#?}");
        for receipt in receipts {
            for side in ["validator_signature", "miner_signature"] {
                assert!(receipt[side].is_string(), "{receipt}");
            }
        }
        self
    }
}

#[test]
fn a_job_of_twenty_seconds_outlives_every_process_and_runs_once() {
    let mut job = CountingJob::start(20);
    for victim in VICTIMS {
        job.kill(victim);
    }
    job.assert_ran_once(20);
}

#[test]
fn a_job_outlives_the_restoration_of_every_role_from_backups_made_meanwhile() {
    let mut job = CountingJob::start(15);
    for role in [Role::Miner, Role::Validator, Role::Facilitator] {
        job.restore(role);
    }
    job.assert_ran_once(15);
}

#[test]
fn of_all_executor_processes_that_race_for_a_container_one_takes_it_over() {
    let mut job = CountingJob::start(12);
    let rivals = job.kill_executor_before_rivals();
    let _subnet = job.assert_ran_once(12);
    let ended = rivals.into_iter().map(|mut rival| {
        let ended = wait_for("the end of a rival", PATIENCE, || Ok(rival.try_wait()?));
        ended.unwrap().success()
    });
    // The others had nothing to take over, and the miner has no use for them.
    let took_over = ended.filter(|well| *well).count();
    assert!(took_over <= 1, "{took_over} rivals took the container over");
}

#[test]
fn a_machine_that_was_restarted_is_no_mistake_of_the_user() {
    let mut job = CountingJob::start(60);
    job.restart_machine();
    let history = job.wait_for_status("the end of the job", PATIENCE, |history| {
        history
            .iter()
            .any(|status| JobStatus::from_wire(status).is_terminal())
    });
    assert_eq!(
        history.last().map(String::as_str),
        Some(JobStatus::HordeFailed.as_str()),
        "{history:?}\n{}",
        job.parts.logs()
    );
    let view = job.runtime.block_on(job.user.job(job.job)).unwrap();
    assert!(view.to_string().contains("the machine was restarted"), "{view:#}");
}

#[test]
#[ignore = "soak: the job takes three minutes, so `cargo xtask soak` runs it"]
fn a_job_of_three_minutes_outlives_two_kills_of_every_process() {
    let mut job = CountingJob::start(180);
    for victim in VICTIMS.into_iter().chain(VICTIMS) {
        job.kill(victim);
    }
    job.assert_ran_once(180);
}
