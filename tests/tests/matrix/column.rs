//! One column: a subnet, a fault, and a job in each state that the fault strikes.

use std::collections::HashSet;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use muster_miner::lease_table::LeaseStatus;
use muster_miner::store::Store;
use muster_process::{Clock as _, SystemClock};
use muster_protocol::rest::CreateJob;
use muster_protocol::wire::decode;
use muster_protocol::{AttemptId, JobId, JobStatus, Receipt, ReceiptKind, ReceiptPayload};
use muster_tests::{
    BUSYBOX, Cluster, Dockerd, HeldDoor, Layout, Parts, Registry, Relay, Role, User, Weather, free_address,
    run, shell_image, wait_for,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cells::{Hold, Party, Strike, Wire, allowed, holds};
use crate::outside::Outside;

/// No condition takes this long unless it never comes.
const PATIENCE: Duration = Duration::from_secs(100);
/// How late a late frame is.
const LATE: Duration = Duration::from_millis(400);
/// How long the program of a job takes that is struck while it runs, in seconds.
const BUSY: u64 = 4;
/// Jobs that the miner runs at once.
const EXECUTORS: u32 = 2;
/// Bytes of the image that is kept back: more than a held door lets pass.
const IMAGE_BYTES: usize = 256 * 1024;

pub(crate) struct Column {
    strike: Strike,
    runtime: Runtime,
    parts: Parts,
    user: User,
    outside: Outside,
    gate: PathBuf,
    /// Between the validator and the miner, and between the validator and its facilitator.
    relays: [Relay; 2],
    cluster: Option<Cluster>,
    engine: Option<Dockerd>,
    image: &'static str,
    registry: Registry,
    /// Every job so far, with the state it was struck in.
    jobs: Vec<(JobId, String, JobStatus)>,
    _folder: tempfile::TempDir,
}

impl Column {
    /// Every cell of a column.
    pub(crate) fn run(strike: Strike) {
        let mut column = Self::start(strike);
        let cells: Vec<_> = JobStatus::ALL
            .iter()
            .flat_map(|state| holds(*state).iter().map(|at| (*state, *at)))
            .collect();
        assert!(cells.len() >= 7, "cells are missing: {cells:?}");
        for (state, at) in cells {
            column.cell(state, at);
        }
        column.afterwards();
    }

    fn start(strike: Strike) -> Self {
        let kills = |party| strike == Strike::Kill(party);
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
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("gate");
        std::fs::write(&gate, "").unwrap();
        let [miner, facilitator] = [(); 2].map(|()| free_address().unwrap());
        let relays = [miner, facilitator].map(|to| runtime.block_on(Relay::start(to)).unwrap());
        let names = Role::ALL.map(Role::name);
        let layout = Layout {
            store: cluster.as_ref().map(|cluster| cluster.stores(&names).unwrap()),
            miner_port: Some(miner),
            miner_announces: Some(relays[0].address()),
            facilitator_port: Some(facilitator),
            facilitator_through: Some(relays[1].address()),
            gate: Some(gate.clone()),
            engine: engine.as_ref().map(Dockerd::address),
            executors: EXECUTORS,
            validators: vec![],
        };
        let address = engine.as_ref().map(Dockerd::address).unwrap_or_default();
        let image = runtime.block_on(shell_image(&address)).unwrap();
        let parts = Parts::start(&layout).unwrap();
        let key = parts.keys().user.clone();
        let user = runtime
            .block_on(User::login(parts.address(Role::Facilitator), key))
            .unwrap();
        let outside = runtime.block_on(Outside::start());
        Self {
            strike,
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
            _folder: folder,
        }
    }

    /// Brings a job into a state, strikes, lets go, and waits for its end.
    fn cell(&mut self, state: JobStatus, at: Hold) {
        let name = format!("{state}-{at:?}");
        self.outside
            .begin(&name, at != Hold::InputHeld, at != Hold::OutputHeld);
        let (mut others, mut door) = (Vec::new(), None);
        let mut image = self.image.to_owned();
        match at {
            Hold::MinerStopped => self.parts.signal(Role::Miner, Signal::SIGSTOP).unwrap(),
            Hold::Queued => others = self.occupy(),
            Hold::Fetching => {
                let (held, held_image) = self.hold_image();
                (door, image) = (Some(held), held_image);
            }
            Hold::ExecutorGated | Hold::InputHeld | Hold::ProgramBusy | Hold::OutputHeld | Hold::Over => {}
        }
        let busy = if at == Hold::ProgramBusy { BUSY } else { 0 };
        let job = self.submit(&name, &image, busy);
        self.jobs.push((job, name.clone(), state));
        self.wait_for(job, &format!("{state} of job {job}"), |history| {
            history.iter().any(|status| status == state.as_str())
        });
        self.held(job, at, &name, door.as_ref());

        self.strikes(others.first().copied().unwrap_or(job), at);
        if at == Hold::MinerStopped {
            // A killed one has been replaced by one that goes.
            self.parts.signal(Role::Miner, Signal::SIGCONT).unwrap();
        }
        std::fs::write(&self.gate, "").unwrap();
        self.outside.release(&name);
        if let Some(door) = &door {
            door.release();
        }

        let history = self.end_of(job);
        let others: Vec<_> = others
            .into_iter()
            .map(|other| (other, self.end_of(other)))
            .collect();
        self.calm();
        for (number, (other, history)) in others.into_iter().enumerate() {
            // Only the executor of the first of them is killed.
            let is_spared = number > 0 && self.strike == Strike::Kill(Party::Executor);
            let at = if is_spared {
                Hold::Queued
            } else {
                Hold::ExecutorGated
            };
            self.expect(other, &history, at);
        }
        self.expect(job, &history, at);
        if at == Hold::Fetching {
            // Nobody needs it again. It is not there if it never came.
            let _ = run(self.docker().args(["image", "rm", "--force", &image]));
        }
    }

    /// Waits for the end of a job; its history.
    fn end_of(&mut self, job: JobId) -> Vec<String> {
        self.wait_for(job, &format!("the end of job {job}"), |history| {
            history
                .iter()
                .any(|status| JobStatus::from_wire(status).is_terminal())
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
            "{:?} at {at:?}: {end}, not {expected:?}\n{}",
            self.strike,
            self.logs()
        );
        eprintln!("{:?} at {at:?}: {end}", self.strike);
    }

    /// Keeps every executor behind the gate with a job of its own.
    fn occupy(&mut self) -> Vec<JobId> {
        std::fs::remove_file(&self.gate).unwrap();
        let accepted = JobStatus::Accepted;
        let mut others = Vec::new();
        for number in 0..EXECUTORS {
            let name = format!("other-{number}");
            self.outside.begin(&name, true, true);
            let other = self.submit(&name, self.image, 0);
            self.jobs.push((other, name, accepted));
            others.push(other);
        }
        for other in &others {
            self.wait_for(*other, &format!("{accepted} of job {other}"), |history| {
                history.iter().any(|status| status == accepted.as_str())
            });
            self.held(*other, Hold::ExecutorGated, "", None);
        }
        others
    }

    /// A door that keeps an image back, and the image's name.
    fn hold_image(&self) -> (HeldDoor, String) {
        let published = self.runtime.block_on(self.registry.publish(IMAGE_BYTES)).unwrap();
        let listener = match &self.engine {
            Some(engine) => engine.listen().unwrap(),
            None => TcpListener::bind("127.0.0.1:0").unwrap(),
        };
        let _runtime = self.runtime.enter();
        let door = HeldDoor::relay(listener, self.registry.address()).unwrap();
        let image = format!("{}/{}", door.address(), published.place);
        (door, image)
    }

    fn submit(&self, cell: &str, image: &str, busy: u64) -> JobId {
        let script = format!(
            "{BUSYBOX} cat /volume/input /proc/sys/kernel/random/uuid > /output/mark; {BUSYBOX} sleep {busy}; {BUSYBOX} cat /output/mark"
        );
        let job: CreateJob = serde_json::from_value(json!({
            "target_validator_hotkey": self.parts.keys().validator.hotkey().to_string(),
            "executor_class": "always_on.test",
            "docker_image": image,
            "args": ["-c", script],
            "artifacts_dir": "/artifacts",
            "download_time_limit": 30,
            "execution_time_limit": 20,
            "streaming_start_time_limit": 0,
            "upload_time_limit": 20,
            "volumes": [{"volume_type": "single_file", "url": self.outside.url("input", cell), "relative_path": "input"}],
            "uploads": [{"output_upload_type": "single_file_put", "url": self.outside.url("output", cell), "relative_path": "mark"}],
        }))
        .unwrap();
        let now = SystemClock::default().now();
        self.runtime.block_on(self.user.submit(&job, now)).unwrap()
    }

    /// Waits for something in what the user sees, and starts whatever has ended meanwhile, as a supervisor would.
    fn wait_for(&mut self, job: JobId, what: &str, mut holds: impl FnMut(&[String]) -> bool) -> Vec<String> {
        let (parts, runtime, user) = (&mut self.parts, &self.runtime, &self.user);
        let found = wait_for(what, PATIENCE, || {
            parts.keep_running()?;
            // While the facilitator is away nobody answers.
            let history = runtime.block_on(user.history(job)).unwrap_or_default();
            Ok(holds(&history).then_some(history))
        });
        found.unwrap_or_else(|error| {
            let history = self.runtime.block_on(self.user.history(job));
            panic!("{:?}: {error}: {history:?}\n{}", self.strike, self.logs())
        })
    }

    /// Waits until the state is really reached, where the status comes before it.
    fn held(&mut self, job: JobId, at: Hold, cell: &str, door: Option<&HeldDoor>) {
        let (parts, outside) = (&self.parts, &self.outside);
        match at {
            Hold::Queued => {
                wait_for("the job in the queue", PATIENCE, || {
                    Ok(parts.waiting_jobs()?.contains(&job).then_some(()))
                })
                .unwrap();
            }
            Hold::Fetching => {
                wait_for("the fetch of the image", PATIENCE, || {
                    Ok(door.is_some_and(|door| door.held() > 0).then_some(()))
                })
                .unwrap();
            }
            Hold::ExecutorGated => {
                wait_for("an executor behind the gate", PATIENCE, || {
                    let there = !parts.executors_of(&job.to_string())?.is_empty();
                    Ok(there.then_some(()))
                })
                .unwrap();
            }
            Hold::OutputHeld => {
                wait_for("the output", PATIENCE, || {
                    Ok((!outside.marks(cell).is_empty()).then_some(()))
                })
                .unwrap();
            }
            // On the engine that is killed, where one is.
            Hold::ProgramBusy => {
                wait_for("the job's container", PATIENCE, || {
                    let there = !self.containers(&job.to_string()).is_empty();
                    Ok(there.then_some(()))
                })
                .unwrap();
            }
            Hold::MinerStopped | Hold::InputHeld | Hold::Over => {}
        }
    }

    /// The containers of an attempt in the executors' engine.
    fn containers(&self, attempt: &str) -> String {
        let label = format!("label=muster.attempt={attempt}");
        run(self.docker().args(["ps", "--all", "--quiet", "--filter", &label]))
            .unwrap()
            .stdout
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
        let role = |party| match party {
            Party::Facilitator => Some(Role::Facilitator),
            Party::Validator => Some(Role::Validator),
            Party::Miner => Some(Role::Miner),
            Party::Executor | Party::Engine | Party::Database => None,
        };
        match self.strike {
            Strike::Kill(party @ (Party::Facilitator | Party::Validator | Party::Miner)) => {
                let role = role(party).unwrap();
                self.parts.kill(role).unwrap();
                self.parts.begin(role).unwrap();
            }
            Strike::Kill(Party::Executor) => {
                let killed = self.parts.kill_executor(&job.to_string()).unwrap();
                match at {
                    // In the queue's cell it is the executor of a job before it.
                    Hold::Queued
                    | Hold::ExecutorGated
                    | Hold::Fetching
                    | Hold::InputHeld
                    | Hold::ProgramBusy
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
                wait_for("the end of every connection", PATIENCE, || {
                    Ok(relays.iter().all(|relay| relay.open() == 0).then_some(()))
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

    /// The one end that facilitator and validator agree on.
    fn agreed(&mut self, job: JobId, history: &[String]) -> JobStatus {
        let statuses: Vec<_> = history.iter().map(|word| JobStatus::from_wire(word)).collect();
        for pair in statuses.windows(2) {
            assert!(pair[1].may_follow(pair[0]), "job {job} went back: {history:?}");
        }
        let end = *statuses.last().unwrap();
        assert!(end.is_terminal(), "{history:?}");
        let parts = &mut self.parts;
        wait_for("the validator's agreement", PATIENCE, || {
            parts.keep_running()?;
            let Ok(state) = parts.validator_state() else {
                return Ok(None);
            };
            let waiting = state["updates_waiting"].as_u64();
            let told = job_in(&state, job).map(|job| job["status"].as_str() == Some(end.as_str()));
            Ok((told == Some(true) && waiting == Some(0)).then_some(()))
        })
        .unwrap_or_else(|error| {
            panic!(
                "{error}: the user saw {history:?}, the validator says {:?}",
                self.parts.validator_state()
            )
        });
        end
    }

    /// After all cells: the subnet works on, nobody owes anything, the receipts agree, and nothing is left.
    fn afterwards(mut self) {
        for number in 0..2 {
            let name = format!("last-{number}");
            self.outside.begin(&name, true, true);
            let job = self.submit(&name, self.image, 0);
            let history = self.end_of(job);
            assert_eq!(
                self.agreed(job, &history),
                JobStatus::Completed,
                "{history:?}\n{}",
                self.logs()
            );
            self.jobs.push((job, name, JobStatus::Completed));
        }
        let state = self.parts.validator_state().unwrap();
        let store = self.miners_settled(&state);
        let theirs = self.runtime.block_on(store.lines_since(0)).unwrap();
        let theirs: Vec<Receipt> = theirs.iter().map(|line| decode(&line.line).unwrap()).collect();
        for (job, cell, at) in &self.jobs {
            let told = job_in(&state, *job).unwrap();
            let end = JobStatus::from_wire(told["status"].as_str().unwrap());
            let attempts: Vec<AttemptId> = told["attempts"]
                .as_array()
                .unwrap()
                .iter()
                .map(|attempt| attempt["attempt"].as_str().unwrap().parse().unwrap())
                .collect();
            self.one_mark(cell, end, attempts.len());
            for attempt in &attempts {
                receipts_agree(&state, &theirs, *attempt, end, *at);
                self.nothing_left(*attempt);
            }
        }
        let left = std::fs::read_dir(self.parts.work_dir())
            .map(Iterator::count)
            .unwrap_or_default();
        assert_eq!(left, 0, "folders of jobs are left");
    }

    /// The miner's store, once it has no open lease and owes no end.
    fn miners_settled(&mut self, state: &Value) -> Store {
        let store = self
            .runtime
            .block_on(Store::open(self.parts.store(Role::Miner)))
            .unwrap();
        let runtime = &self.runtime;
        let settled = wait_for("a miner that owes nothing", PATIENCE, || {
            let records = runtime.block_on(store.records())?;
            let open = records.iter().any(|record| match record.standing {
                LeaseStatus::Open | LeaseStatus::Owed => true,
                LeaseStatus::Settled | LeaseStatus::Cancelled => false,
            });
            Ok((!open).then_some(()))
        });
        settled.unwrap_or_else(|error| {
            let records = self.runtime.block_on(store.records());
            panic!("{error}: {records:#?}\n{state:#}\n{}", self.logs())
        });
        store
    }

    /// A job's effect outside happened at most once in each run, and it happened for a job that succeeded.
    fn one_mark(&self, cell: &str, end: JobStatus, attempts: usize) {
        let marks = self.outside.marks(cell);
        let different: HashSet<_> = marks.iter().collect();
        assert_eq!(
            different.len(),
            marks.len(),
            "a run left its mark twice: {marks:?}"
        );
        assert!(
            marks.len() <= attempts,
            "{attempts} attempts left {} marks",
            marks.len()
        );
        if end == JobStatus::Completed {
            assert!(!marks.is_empty(), "a job succeeded and left no mark");
        }
    }

    fn nothing_left(&self, attempt: AttemptId) {
        let parts = &self.parts;
        wait_for("the end of its executor", PATIENCE, || {
            let left = parts.executors_of(&attempt.to_string())?;
            Ok(left.is_empty().then_some(()))
        })
        .unwrap();
        let left = self.containers(&attempt.to_string());
        assert_eq!(left, "", "a container of attempt {attempt} is left");
    }

    fn logs(&self) -> String {
        let log = |role: Role| format!("== {}\n{}\n", role.name(), self.parts.log(role));
        Role::ALL.map(log).concat()
    }
}

fn job_in(state: &Value, job: JobId) -> Option<&Value> {
    state["jobs"]
        .as_array()?
        .iter()
        .find(|known| known["job"].as_str() == Some(job.to_string().as_str()))
}

/// Both sides hold the same receipts of an attempt, and only success is paid.
fn receipts_agree(state: &Value, theirs: &[Receipt], attempt: AttemptId, end: JobStatus, at: JobStatus) {
    for kind in ReceiptKind::ALL {
        let held: Vec<_> = theirs
            .iter()
            .filter(|receipt| receipt.payload.attempt() == attempt && receipt.payload.kind() == kind)
            .collect();
        assert!(held.len() <= 1, "{kind} of {attempt} is held twice");
        let own = state["receipts"].as_array().unwrap().iter().find(|receipt| {
            receipt["payload"]["job_uuid"].as_str() == Some(attempt.to_string().as_str())
                && receipt["payload"]["receipt_type"].as_str() == Some(kind.as_str())
        });
        let own = own.map(|own| serde_json::from_value::<ReceiptPayload>(own["payload"].clone()).unwrap());
        if let Some(held) = held.first() {
            assert_eq!(
                Some(&held.payload),
                own.as_ref(),
                "{kind} of {attempt}, struck at {at}"
            );
        }
        let taken = theirs.iter().any(|receipt| {
            receipt.payload.attempt() == attempt && receipt.payload.kind() == ReceiptKind::Started
        });
        // A miner owes no end of an attempt that it never accepted.
        if kind == ReceiptKind::Finished && taken {
            let held = held
                .first()
                .unwrap_or_else(|| panic!("no {kind} of {attempt}, struck at {at}"));
            let ReceiptPayload::Finished(receipt) = &held.payload else {
                panic!("{held:?}")
            };
            assert_eq!(
                receipt.score_str != "0.000000",
                end == JobStatus::Completed,
                "{receipt:?}"
            );
        }
    }
}
