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

use muster_process::{Clock as _, SystemClock};
use muster_protocol::{JobId, JobStatus};
use muster_testbed::wait_for;
use muster_tests::{
    BUSYBOX, Dockerd, Layout, Parts, Role, User, held_limit_s, muster, release, run, shell_image, while_held,
};
use serde_json::json;
use tokio::runtime::Runtime;

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

/// A subnet with one job in it, which counts until the test releases it.
struct CountingJob {
    runtime: Runtime,
    parts: Parts,
    engine: Dockerd,
    user: User,
    job: JobId,
    /// The container that runs the job.
    container: String,
    /// The mark of its run: the first line that the program printed there.
    mark: String,
    /// The starts of jobs' containers that the engine had listed when it was killed last.
    starts: Vec<String>,
}

impl CountingJob {
    /// Starts a job, and waits until its program counts.
    fn start() -> Self {
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
        let counts = while_held("echo tick $beat;");
        let script = format!("{BUSYBOX} cat /proc/sys/kernel/random/uuid; {counts} echo over");
        let job = parts.shell_job(image, &script, held_limit_s()).unwrap();
        let now = SystemClock::default().now();
        let job = runtime.block_on(user.submit(&job, now)).unwrap();
        let mut this = Self {
            runtime,
            parts,
            engine,
            user,
            job,
            container: String::new(),
            mark: String::new(),
            starts: vec![],
        };
        this.wait_for_status("the program", |history| {
            history
                .iter()
                .any(|status| status == JobStatus::VolumesReady.as_str())
        });
        // An engine that is killed while it starts a container knows the container no more.
        this.container = this.wait("the job's container", |this| {
            let label = format!("label=muster.attempt={job}");
            let found = this.docker(&["ps", "--quiet", "--no-trunc", "--filter", &label]);
            Some(found.trim().to_owned()).filter(|found| !found.is_empty())
        });
        this.mark = this.wait("the mark of the run", |this| {
            let printed = this.docker(&["logs", &this.container]);
            let (mark, ticks) = printed.split_once('\n')?;
            ticks.contains("tick 1\n").then(|| mark.to_owned())
        });
        assert_eq!(this.mark.len(), 36, "the mark of the run: {:?}", this.mark);
        this
    }

    /// Waits for something that is looked for.
    fn wait<T>(&self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        wait_for(what, || anyhow::Ok(look(self))).unwrap()
    }

    fn wait_for_status(&mut self, what: &str, holds: impl Fn(&[String]) -> bool) -> Vec<String> {
        let (parts, runtime, user, job) = (&mut self.parts, &self.runtime, &self.user, self.job);
        let found = wait_for(what, || {
            parts.keep_running()?;
            // While the facilitator is away nobody answers.
            let history = runtime.block_on(user.history(job)).unwrap_or_default();
            anyhow::Ok(holds(&history).then_some(history))
        });
        found.unwrap()
    }

    /// The output of a command of the job's engine.
    fn docker(&self, arguments: &[&str]) -> String {
        let mut docker = Command::new("docker");
        docker.args(["--host", &self.engine.address()]).args(arguments);
        run(&mut docker).unwrap().stdout
    }

    /// The number of the last beat that the program has counted.
    fn ticks(&self) -> u64 {
        let last = self.docker(&["logs", "--tail", "1", &self.container]);
        let number = last.trim().strip_prefix("tick ");
        number.and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    /// Notes the starts of jobs' containers since the engine's process began. The engine forgets them with its process.
    fn note_starts(&mut self) {
        // A duration such as `0s` would leave out the present second.
        let now = SystemClock::default().now().micros();
        let now = format!("{}.{:06}", now / 1_000_000, now % 1_000_000);
        let told = self.docker(&[
            "events",
            "--since",
            "0",
            "--until",
            &now,
            "--filter",
            "event=start",
            "--filter",
            "label=muster.attempt",
            "--format",
            "{{.Actor.ID}}",
        ]);
        self.starts.extend(told.lines().map(str::to_owned));
    }

    /// Kills a process, starts it again where no other process does, and waits until the program has counted on.
    fn kill(&mut self, victim: Victim) {
        let before = self.ticks();
        match victim {
            Victim::Role(role) => {
                self.parts.kill(role).unwrap();
                self.parts.begin(role).unwrap();
            }
            Victim::Engine => {
                self.note_starts();
                self.engine.kill().unwrap();
                self.engine.begin().unwrap();
            }
            Victim::Executor => {
                let attempt = self.job.to_string();
                let executors = |this: &Self| this.parts.executors_of(&attempt).unwrap();
                // One that was killed before may have no successor yet.
                let earlier = self.wait("an executor", |this| {
                    Some(executors(this)).filter(|there| !there.is_empty())
                });
                self.parts.kill_executor(&attempt).unwrap();
                self.wait("the executor's successor", |this| {
                    let new = executors(this).iter().any(|pid| !earlier.contains(pid));
                    new.then_some(())
                });
            }
        }
        self.wait("a program that counts on", |this| {
            (this.ticks() > before).then_some(())
        });
    }

    /// The number of times that an executor has come back to its lease, from the miner's log.
    fn returns(&self) -> usize {
        let log = self.parts.config_file(Role::Miner).with_extension("log");
        let told = std::fs::read_to_string(log).unwrap();
        told.matches("an executor came back to its lease").count()
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
        let killed = self.docker(&["kill", &self.container]);
        assert_eq!(killed.trim(), self.container);
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

    /// Lets the program end, and waits for the end: one attempt, one start of one container, and every line of its one
    /// run once and in order.
    fn assert_ran_once(&mut self) {
        let label = format!("label=muster.attempt={}", self.job);
        let there = self.docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &label]);
        assert_eq!(there.trim(), self.container, "the container that ran first");
        let (engine, job) = (self.engine.address(), self.job.to_string());
        assert_eq!(release(&engine, &job).unwrap(), 1, "the program is at work");
        let history = self.wait_for_status("the end of the job", |history| {
            history
                .iter()
                .any(|status| JobStatus::from_wire(status).is_terminal())
        });
        assert_eq!(
            history.last().map(String::as_str),
            Some(JobStatus::Completed.as_str()),
            "{history:?}"
        );
        self.note_starts();
        assert_eq!(
            self.starts,
            std::slice::from_ref(&self.container),
            "the starts of containers"
        );
        let attempts = self.parts.attempts_of(self.job).unwrap();
        assert_eq!(attempts.len(), 1, "{attempts:?}");
        let view = self.runtime.block_on(self.user.job(self.job)).unwrap();
        let metadata = view["status_history"].as_array().unwrap().last().unwrap();
        let stdout = metadata["metadata"]["miner_response"]["docker_process_stdout"]
            .as_str()
            .unwrap_or_else(|| panic!("no output in {view:#}"));
        let mut lines = stdout.lines();
        assert_eq!(lines.next(), Some(self.mark.as_str()), "the mark of the run");
        assert_eq!(lines.next_back(), Some("over"));
        let ticks: Vec<_> = lines.map(str::to_owned).collect();
        let expected: Vec<_> = (1..=ticks.len()).map(|tick| format!("tick {tick}")).collect();
        assert_eq!(ticks, expected);
        let receipts = metadata["metadata"]["muster"]["receipts"].as_array().unwrap();
        assert_eq!(receipts.len(), 3, "{receipts:#?}");
        for receipt in receipts {
            for side in ["validator_signature", "miner_signature"] {
                assert!(receipt[side].is_string(), "{receipt}");
            }
        }
    }
}

#[test]
fn a_job_outlives_every_process_and_runs_once() {
    let mut job = CountingJob::start();
    for victim in VICTIMS {
        job.kill(victim);
    }
    job.assert_ran_once();
}

#[test]
fn a_job_outlives_the_restoration_of_every_role_from_backups_made_meanwhile() {
    let mut job = CountingJob::start();
    for role in [Role::Miner, Role::Validator, Role::Facilitator] {
        job.restore(role);
    }
    job.assert_ran_once();
}

#[test]
fn one_of_several_rival_executor_processes_takes_a_container_over() {
    let mut job = CountingJob::start();
    let before = job.returns();
    let rivals = job.kill_executor_before_rivals();
    job.wait("an executor that takes the container over", |job| {
        (job.returns() > before).then_some(())
    });
    job.assert_ran_once();
    let ended = rivals.into_iter().map(|mut rival| {
        let ended = wait_for("the end of a rival", || rival.try_wait());
        ended.unwrap().success()
    });
    // The others had nothing to take over, and the miner has no use for them.
    let took_over = ended.filter(|well| *well).count();
    assert!(took_over <= 1, "{took_over} rivals took the container over");
}

#[test]
fn a_machine_that_was_restarted_is_no_mistake_of_the_user() {
    let mut job = CountingJob::start();
    job.restart_machine();
    let history = job.wait_for_status("the end of the job", |history| {
        history
            .iter()
            .any(|status| JobStatus::from_wire(status).is_terminal())
    });
    assert_eq!(
        history.last().map(String::as_str),
        Some(JobStatus::HordeFailed.as_str()),
        "{history:?}"
    );
    let view = job.runtime.block_on(job.user.job(job.job)).unwrap();
    assert!(view.to_string().contains("the machine was restarted"), "{view:#}");
}

#[test]
#[ignore = "soak: the job takes three minutes, so `cargo xtask soak` runs it"]
fn a_job_of_three_minutes_outlives_two_kills_of_every_process() {
    let mut job = CountingJob::start();
    for victim in VICTIMS.into_iter().chain(VICTIMS) {
        job.kill(victim);
    }
    // Five ticks are a second at least.
    job.wait("three minutes", |job| (job.ticks() >= 900).then_some(()));
    job.assert_ran_once();
}
