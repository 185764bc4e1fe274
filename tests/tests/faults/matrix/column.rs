//! A subnet, its faults one after the other, and a job in each state that each fault strikes.

use std::collections::HashSet;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use muster_process::certificate::make_self_signed;
use muster_process::{Clock as _, SystemClock};
use muster_protocol::job::{CheckpointTerms, JobTerms};
use muster_protocol::rest::CreateJob;
use muster_protocol::{AttemptId, JobId, JobStatus};
use muster_testbed::{free_address, wait_for};
use muster_tests::{
    BUSYBOX, Cluster, Dockerd, HeldRelay, Layout, Parts, Registry, Relay, Role, SpareMiner, User, Weather,
    add_terms, held_limit_s, release, run, shell_image, while_held,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::runtime::Runtime;

use super::cells::{Hold, Party, Strike, Wire, allowed, holds, stays};
use super::outside::Outside;

/// How late a late frame is. The frames of a job wait for one another, so a cell takes many times as long.
const LATE: Duration = Duration::from_millis(100);
/// Jobs that each miner runs at once.
const EXECUTORS: u32 = 1;
/// The miners, each of another owner.
pub(crate) const MINERS: [Role; 2] = [Role::Miner, Role::SpareMiner];
/// Bytes of the image that is kept back: more than a held relay lets pass.
const IMAGE_BYTES: usize = 256 * 1024;

/// The program of a job, between its input and its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Short,
    /// Goes on until it is released.
    Busy,
    /// Saves its state, goes on until it is released, and begins after that if it is run again.
    Saving,
    /// Answers its user until it is released.
    Serving,
}

/// A job that was struck.
pub(crate) struct StruckJob {
    pub(crate) job: JobId,
    /// The name of its cell.
    pub(crate) cell: String,
    pub(crate) strike: Strike,
    /// The state in which its user saw it.
    pub(crate) state: JobStatus,
    pub(crate) at: Hold,
}

pub(crate) struct Column {
    strike: Strike,
    pub(crate) runtime: Runtime,
    pub(crate) parts: Parts,
    user: User,
    pub(crate) outside: Outside,
    gate: PathBuf,
    /// Before each miner, for its validator and its executors, and between the validator and its facilitator.
    relays: [Relay; 3],
    cluster: Option<Cluster>,
    engine: Option<Dockerd>,
    pub(crate) image: &'static str,
    registry: Registry,
    /// Every job so far.
    pub(crate) jobs: Vec<StruckJob>,
    /// The executors that were killed last.
    killed: Vec<i32>,
    /// The attempts whose programs were released.
    released: HashSet<AttemptId>,
    /// The certificate of the user's client, for jobs that serve.
    certificate: String,
    _folder: tempfile::TempDir,
}

impl Column {
    /// Every cell of these columns, on one subnet.
    pub(crate) fn run(strikes: &[Strike]) {
        let mut column = Self::start(strikes);
        let cells: Vec<_> = JobStatus::ALL
            .iter()
            .flat_map(|state| holds(*state).iter().map(|at| (*state, *at)))
            .collect();
        assert!(cells.len() >= 7, "cells are missing: {cells:?}");
        for strike in strikes {
            column.strike = *strike;
            for (state, at) in &cells {
                column.cell(*state, *at);
            }
        }
        column.afterwards();
    }

    fn start(strikes: &[Strike]) -> Self {
        let kills = |party| strikes.contains(&Strike::Kill(party));
        let cluster = if kills(Party::Database) {
            Some(Cluster::start().unwrap())
        } else {
            None
        };
        let engine = if kills(Party::Engine) {
            Some(Dockerd::start().unwrap())
        } else {
            None
        };
        let runtime = Runtime::new().unwrap();
        muster_process::tls::install_provider();
        let outside = runtime.block_on(Outside::start());
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("gate");
        std::fs::write(&gate, "").unwrap();
        let [miner, facilitator, spare] = [(); 3].map(|()| free_address().unwrap());
        let relays = [miner, facilitator, spare].map(|to| runtime.block_on(Relay::start(to)).unwrap());
        let names = Role::ALL.map(Role::name);
        let layout = Layout {
            store: cluster.as_ref().map(|cluster| cluster.stores(&names).unwrap()),
            miner_port: Some(miner),
            miner_announces: Some(relays[0].address()),
            executors_dial: Some(relays[0].address()),
            facilitator_port: Some(facilitator),
            public_url: Some(outside.gate_of_blocks(facilitator)),
            facilitator_through: Some(relays[1].address()),
            gate: Some(gate.clone()),
            engine: engine.as_ref().map(Dockerd::address),
            executors: EXECUTORS,
            spare_miner: Some(SpareMiner {
                port: spare,
                announces: relays[2].address(),
                executors_dial: relays[2].address(),
            }),
            // A greeting whose frames are swapped gets no answer, and neither does an offer.
            miner_answer_s: strikes.contains(&Strike::Socket(Wire::Reordered)).then_some(8),
            ..Layout::default()
        };
        let address = engine.as_ref().map(Dockerd::address).unwrap_or_default();
        let image = runtime.block_on(shell_image(&address)).unwrap();
        let parts = Parts::start(&layout).unwrap();
        let key = parts.keys().user.clone();
        let user = runtime
            .block_on(User::login(parts.address(Role::Facilitator), key))
            .unwrap();
        Self {
            strike: strikes[0],
            runtime,
            parts,
            user,
            outside,
            gate,
            relays,
            cluster,
            engine,
            image,
            registry: Registry::start().unwrap(),
            jobs: vec![],
            killed: vec![],
            released: HashSet::new(),
            certificate: make_self_signed(&["localhost".to_owned()]).unwrap().pem,
            _folder: folder,
        }
    }

    /// Brings a job into a state, strikes, lets go, and waits for its end.
    fn cell(&mut self, state: JobStatus, at: Hold) {
        let name = format!("{}-{state}-{at:?}", self.jobs.len());
        self.outside
            .begin(&name, at != Hold::InputHeld, at != Hold::OutputHeld);
        self.outside.hold_blocks(at == Hold::CheckpointHeld);
        let (mut others, mut relay) = (Vec::new(), None);
        let mut image = self.image.to_owned();
        match at {
            Hold::MinerStopped => self.signal_miners(Signal::SIGSTOP),
            Hold::Queued => others = self.occupy(),
            Hold::Fetching => {
                let (held, held_image) = self.hold_image();
                (relay, image) = (Some(held), held_image);
            }
            Hold::ExecutorGated
            | Hold::InputHeld
            | Hold::ProgramBusy
            | Hold::CheckpointHeld
            | Hold::CheckpointKept
            | Hold::Serving
            | Hold::OutputHeld
            | Hold::Over => {}
        }
        let program = match at {
            Hold::ProgramBusy => Program::Busy,
            Hold::Serving => Program::Serving,
            Hold::CheckpointHeld | Hold::CheckpointKept => Program::Saving,
            Hold::MinerStopped
            | Hold::Queued
            | Hold::ExecutorGated
            | Hold::Fetching
            | Hold::InputHeld
            | Hold::OutputHeld
            | Hold::Over => Program::Short,
        };
        let job = self.submit(&name, &image, program);
        self.keep(job, name.clone(), state, at);
        self.wait_for(job, &format!("{state} of job {job}"), |_, history| {
            history.iter().any(|status| status == state.as_str())
        });
        self.held(job, at, &name, relay.as_ref());
        let attempts = self.parts.attempts_of(job).unwrap();
        let mark = self.mark_of_run(job, at);

        self.strikes(others.first().copied().unwrap_or(job), at);
        if let (Strike::Kill(Party::Engine), Some(relay), Some(engine)) = (self.strike, &relay, &self.engine)
        {
            let _runtime = self.runtime.enter();
            let again = engine.listen(relay.address().port()).unwrap();
            relay.open_again(again).unwrap();
        }
        if at == Hold::MinerStopped {
            // A killed one has been replaced by one that goes.
            self.signal_miners(Signal::SIGCONT);
        }
        std::fs::write(&self.gate, "").unwrap();
        self.outside.release(&name);
        self.outside.hold_blocks(false);
        if let Some(relay) = &relay {
            relay.release();
        }

        if program != Program::Short {
            self.wait_until_found(job);
        }
        let history = self.end_of(job, program);
        let others: Vec<_> = others
            .into_iter()
            .map(|other| (other, self.end_of(other, Program::Short)))
            .collect();
        self.calm();
        for (other, history) in others {
            self.expect(other, &history, Hold::ExecutorGated);
        }
        self.expect(job, &history, at);
        if stays(self.strike, at) {
            let now = self.parts.attempts_of(job).unwrap();
            assert_eq!(now, attempts, "{:?} at {at:?}", self.strike);
            let marks = self.outside.marks(&name);
            let is_own = |left| mark.as_ref().is_none_or(|mark| left == mark);
            assert!(
                marks.iter().all(is_own),
                "{:?} at {at:?}: {marks:?} of {mark:?}",
                self.strike
            );
        }
        if at == Hold::Fetching {
            // Nobody needs it again. It is not there if it never came.
            let _ = run(self.docker().args(["image", "rm", "--force", &image]));
        }
    }

    /// Keeps a job for the checks after all cells.
    pub(crate) fn keep(&mut self, job: JobId, cell: String, state: JobStatus, at: Hold) {
        let strike = self.strike;
        self.jobs.push(StruckJob {
            job,
            cell,
            strike,
            state,
            at,
        });
    }

    /// The mark that the run of a program has made by now, if it is held after that.
    fn mark_of_run(&self, job: JobId, at: Hold) -> Option<String> {
        match at {
            Hold::ProgramBusy | Hold::CheckpointHeld | Hold::CheckpointKept | Hold::Serving => {}
            Hold::MinerStopped
            | Hold::Queued
            | Hold::ExecutorGated
            | Hold::Fetching
            | Hold::InputHeld
            | Hold::OutputHeld
            | Hold::Over => return None,
        }
        let marked = wait_for("the mark of the run", || {
            let attempts = self.parts.attempts_of(job)?;
            let (attempt, _) = attempts.last().context("the job has an attempt")?;
            let container = self.containers(&attempt.to_string());
            let mut read = self.docker();
            read.args(["exec", container.trim(), BUSYBOX, "cat", "/output/mark"]);
            let mark = run(&mut read)?.stdout;
            anyhow::Ok((mark.lines().count() == 2).then(|| mark.trim().to_owned()))
        });
        Some(marked.unwrap())
    }

    /// Waits until the struck party has found the program of a job at work, or the job is over.
    fn wait_until_found(&mut self, job: JobId) {
        match self.strike {
            Strike::Kill(
                Party::Facilitator | Party::Validator | Party::Miner | Party::Executor | Party::Database,
            )
            | Strike::Socket(Wire::Cut) => {}
            // Nobody has to come back, or nothing is left to be found.
            Strike::Kill(Party::Engine)
            | Strike::Socket(Wire::Duplicated | Wire::Reordered | Wire::Delayed)
            | Strike::ChainGone => return,
        }
        self.wait_for(job, "the struck party at the job again", |column, history| {
            is_over(history) || column.is_connected(job)
        });
    }

    /// Whether facilitator, validator, miner and executor of a job are connected with one another.
    fn is_connected(&self, job: JobId) -> bool {
        let Ok(attempts) = self.parts.attempts_of(job) else {
            return false;
        };
        let Some((attempt, miner)) = attempts.last() else {
            return false;
        };
        let executors = self.parts.executors_of(&attempt.to_string()).unwrap_or_default();
        let is_new = executors.iter().any(|pid| !self.killed.contains(pid));
        let [miners, facilitators, spares] = self.relays.each_ref().map(Relay::open);
        let both = if *miner == Role::SpareMiner {
            spares
        } else {
            miners
        };
        is_new && facilitators >= 1 && both >= 2
    }

    /// Lets the programs of a job end that run now.
    fn let_programs_end(&mut self, job: JobId) {
        let engine = self.engine.as_ref().map(Dockerd::address).unwrap_or_default();
        for (attempt, _) in self.parts.attempts_of(job).unwrap_or_default() {
            if !self.released.contains(&attempt) && release(&engine, &attempt.to_string()).unwrap() > 0 {
                self.released.insert(attempt);
            }
        }
    }

    /// Waits for the end of a job, whose programs may end now; its history.
    pub(crate) fn end_of(&mut self, job: JobId, program: Program) -> Vec<String> {
        self.wait_for(job, &format!("the end of job {job}"), |column, history| {
            let is_over = is_over(history);
            // A later attempt runs a program that was not released yet.
            if program != Program::Short && !is_over {
                column.let_programs_end(job);
            }
            is_over
        })
    }

    /// Checks the end of a job that was struck in a held state.
    #[expect(
        clippy::print_stderr,
        reason = "the outcome of each cell is printed for the reader of the test's output"
    )]
    fn expect(&mut self, job: JobId, history: &[String], at: Hold) {
        let end = self.agreed(job, history);
        let expected = allowed(self.strike, at);
        assert!(
            expected.contains(&end),
            "{:?} at {at:?}: {end}, not {expected:?}",
            self.strike
        );
        eprintln!("{:?} at {at:?}: {end}", self.strike);
    }

    /// Keeps every executor behind the gate with a job of its own.
    fn occupy(&mut self) -> Vec<JobId> {
        std::fs::remove_file(&self.gate).unwrap();
        let accepted = JobStatus::Accepted;
        let mut others = Vec::new();
        for number in 0..MINERS.len() {
            let name = format!("{}-other-{number}", self.jobs.len());
            self.outside.begin(&name, true, true);
            let other = self.submit(&name, self.image, Program::Short);
            self.keep(other, name, accepted, Hold::ExecutorGated);
            others.push(other);
        }
        for other in &others {
            self.wait_for(*other, &format!("{accepted} of job {other}"), |_, history| {
                history.iter().any(|status| status == accepted.as_str())
            });
            self.held(*other, Hold::ExecutorGated, "", None);
        }
        others
    }

    /// A relay that keeps an image back, and the image's name.
    fn hold_image(&self) -> (HeldRelay, String) {
        let published = self.runtime.block_on(self.registry.publish(IMAGE_BYTES)).unwrap();
        let listener = match &self.engine {
            Some(engine) => engine.listen(0).unwrap(),
            None => TcpListener::bind("127.0.0.1:0").unwrap(),
        };
        let _runtime = self.runtime.enter();
        let relay = HeldRelay::relay(listener, self.registry.address()).unwrap();
        let image = format!("{}/{}", relay.address(), published.place);
        (relay, image)
    }

    pub(crate) fn submit(&self, cell: &str, image: &str, program: Program) -> JobId {
        let goes_on = while_held("");
        let does = match program {
            Program::Short => String::new(),
            Program::Busy => goes_on,
            Program::Saving => format!(
                "if [ -z \"$MUSTER_RESUME\" ]; then echo 1 > $MUSTER_CHECKPOINT_DIR/one.tmp; \
                 {BUSYBOX} mv $MUSTER_CHECKPOINT_DIR/one.tmp $MUSTER_CHECKPOINT_DIR/one; \
                 echo '{{\"step\":1,\"checkpoint\":\"one\"}}' >> $MUSTER_PROGRESS; {goes_on} fi;"
            ),
            Program::Serving => {
                format!("echo well > /tmp/health; {BUSYBOX} httpd -p 127.0.0.1:8000 -h /tmp; {goes_on}")
            }
        };
        let script = format!(
            "{BUSYBOX} cat /volume/input /proc/sys/kernel/random/uuid > /output/mark; {does} {BUSYBOX} cat /output/mark"
        );
        let client = (program == Program::Serving).then(|| json!({"public_key": self.certificate}));
        let mut job: CreateJob = serde_json::from_value(json!({
            "target_validator_hotkey": self.parts.keys().validator.hotkey().to_string(),
            "executor_class": "always_on.test",
            "docker_image": image,
            "args": ["-c", script],
            "artifacts_dir": "/artifacts",
            "download_time_limit": 30,
            "execution_time_limit": if program == Program::Short { 30 } else { held_limit_s() },
            "streaming_start_time_limit": if client.is_some() { 20 } else { 0 },
            "streaming_details": client,
            "upload_time_limit": 20,
            "volumes": [{"volume_type": "single_file", "url": self.outside.url("input", cell), "relative_path": "input"}],
            "uploads": [{"output_upload_type": "single_file_put", "url": self.outside.url("output", cell), "relative_path": "mark"}],
        }))
        .unwrap();
        let now = SystemClock::default().now();
        if program == Program::Saving {
            let terms = JobTerms {
                checkpoints: Some(CheckpointTerms::default()),
                ..JobTerms::default()
            };
            add_terms(&mut job, &self.parts.keys().user, terms, now);
        }
        self.runtime.block_on(self.user.submit(&job, now)).unwrap()
    }

    /// Waits for something in what the user sees, and starts whatever has ended meanwhile, as a supervisor would.
    fn wait_for(
        &mut self,
        job: JobId,
        what: &str,
        mut holds: impl FnMut(&mut Self, &[String]) -> bool,
    ) -> Vec<String> {
        let found = wait_for(&format!("{:?}: {what}", self.strike), || {
            self.parts.keep_running()?;
            // While the facilitator is away nobody answers.
            let history = self.runtime.block_on(self.user.history(job));
            let history = history.unwrap_or_default();
            anyhow::Ok(holds(self, &history).then_some(history))
        });
        found.unwrap()
    }

    /// Waits until the state is really reached, where the status comes before it.
    fn held(&mut self, job: JobId, at: Hold, cell: &str, relay: Option<&HeldRelay>) {
        let (parts, outside) = (&self.parts, &self.outside);
        match at {
            Hold::Queued => {
                wait_for("the job in the queue", || {
                    anyhow::Ok(parts.waiting_jobs()?.contains(&job).then_some(()))
                })
                .unwrap();
            }
            Hold::Fetching => {
                wait_for("the fetch of the image", || {
                    anyhow::Ok(relay.is_some_and(|relay| relay.held() > 0).then_some(()))
                })
                .unwrap();
            }
            Hold::ExecutorGated => {
                wait_for("an executor behind the gate", || {
                    let there = !parts.executors_of(&job.to_string())?.is_empty();
                    anyhow::Ok(there.then_some(()))
                })
                .unwrap();
            }
            Hold::OutputHeld => {
                wait_for("the output", || {
                    anyhow::Ok((!outside.marks(cell).is_empty()).then_some(()))
                })
                .unwrap();
            }
            Hold::CheckpointHeld => {
                wait_for("a checkpoint that is not taken", || {
                    anyhow::Ok((outside.held_blocks() > 0).then_some(()))
                })
                .unwrap();
            }
            Hold::CheckpointKept => {
                let runtime = &self.runtime;
                let opened = runtime.block_on(muster_store::open(parts.store(Role::Validator)));
                let pool = opened.unwrap();
                wait_for("a checkpoint that is kept", || {
                    let rows = sqlx::query("SELECT facts FROM checkpoints WHERE job_id = $1")
                        .bind(job.to_string())
                        .fetch_all(&pool);
                    anyhow::Ok((!runtime.block_on(rows)?.is_empty()).then_some(()))
                })
                .unwrap();
            }
            // A program that is at work is recognised by its mark.
            Hold::ProgramBusy => {}
            Hold::MinerStopped | Hold::InputHeld | Hold::Serving | Hold::Over => {}
        }
    }

    fn signal_miners(&self, signal: Signal) {
        for miner in MINERS {
            self.parts.signal(miner, signal).unwrap();
        }
    }

    /// The miner that has a job; the first one if none has it yet.
    fn miner_of(&self, job: JobId) -> Role {
        let attempts = self.parts.attempts_of(job).unwrap();
        attempts.last().map_or(Role::Miner, |(_, miner)| *miner)
    }

    /// The containers of an attempt in the executors' engine.
    pub(crate) fn containers(&self, attempt: &str) -> String {
        let label = format!("label=muster.attempt={attempt}");
        run(self.docker().args(["ps", "--all", "--quiet", "--filter", &label]))
            .unwrap()
            .stdout
    }

    /// The attempts that have a container in the executors' engine, which other tests may use as well.
    pub(crate) fn attempts_with_containers(&self) -> HashSet<String> {
        let mut listed = self.docker();
        listed.args(["ps", "--all", "--filter", "label=muster.attempt"]);
        listed.args(["--format", "{{.Label \"muster.attempt\"}}"]);
        let listed = run(&mut listed).unwrap();
        assert_eq!(listed.code, Some(0), "{listed:?}");
        listed.stdout.lines().map(str::to_owned).collect()
    }

    /// The command line of the executors' engine.
    fn docker(&self) -> Command {
        let mut docker = Command::new("docker");
        if let Some(engine) = &self.engine {
            docker.args(["--host", &engine.address()]);
        }
        docker
    }

    /// The fault strikes. If it kills an executor, it is that of `job`.
    fn strikes(&mut self, job: JobId, at: Hold) {
        match self.strike {
            Strike::Kill(Party::Facilitator) => self.restart(Role::Facilitator),
            Strike::Kill(Party::Validator) => self.restart(Role::Validator),
            Strike::Kill(Party::Miner) => self.restart(self.miner_of(job)),
            Strike::Kill(Party::Executor) => {
                self.killed = self.parts.executors_of(&job.to_string()).unwrap();
                let killed = self.parts.kill_executor(&job.to_string()).unwrap();
                match at {
                    // In the queue's cell it is the executor of a job before it.
                    Hold::Queued
                    | Hold::ExecutorGated
                    | Hold::Fetching
                    | Hold::InputHeld
                    | Hold::ProgramBusy
                    | Hold::CheckpointHeld
                    | Hold::CheckpointKept
                    | Hold::Serving
                    | Hold::OutputHeld => {
                        assert!(killed > 0, "there was no executor to kill");
                    }
                    Hold::MinerStopped | Hold::Over => {}
                }
            }
            Strike::Kill(Party::Engine) => {
                let engine = self.engine.as_mut().unwrap();
                engine.kill().unwrap();
                engine.begin().unwrap();
            }
            Strike::Kill(Party::Database) => {
                let cluster = self.cluster.as_mut().unwrap();
                cluster.kill().unwrap();
                cluster.begin().unwrap();
            }
            Strike::Socket(Wire::Cut) => {
                self.set(Weather::Cut);
                let relays = &self.relays;
                wait_for("the end of every connection", || {
                    anyhow::Ok(relays.iter().all(|relay| relay.open() == 0).then_some(()))
                })
                .unwrap();
                self.set(Weather::Fair);
            }
            Strike::Socket(Wire::Duplicated) => self.set(Weather::Duplicated),
            Strike::Socket(Wire::Reordered) => self.set(Weather::Reordered),
            Strike::Socket(Wire::Delayed) => self.set(Weather::Delayed(LATE)),
            Strike::ChainGone => self.chain(Signal::SIGSTOP),
        }
    }

    fn restart(&mut self, role: Role) {
        self.parts.kill(role).unwrap();
        self.parts.begin(role).unwrap();
    }

    fn set(&self, weather: Weather) {
        for relay in &self.relays {
            relay.set(weather);
        }
    }

    fn chain(&self, signal: Signal) {
        let pid = i32::try_from(self.parts.chain().pid()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// The fault is over, if it is one that lasts.
    fn calm(&self) {
        match self.strike {
            Strike::Socket(_) => self.set(Weather::Fair),
            Strike::ChainGone => self.chain(Signal::SIGCONT),
            Strike::Kill(_) => {}
        }
    }
}

/// Whether a job with this history has ended.
fn is_over(history: &[String]) -> bool {
    let mut statuses = history.iter().map(|status| JobStatus::from_wire(status));
    statuses.any(JobStatus::is_terminal)
}
