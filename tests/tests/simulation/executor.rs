//! A simulated executor: it sends on the wire what a real one sends, goes on without its miner for a while, and takes
//! over the job of a process that was killed.

use std::collections::BTreeMap;

use muster_protocol::wire::executor::ExecutorUp;
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::miner::{AttemptNotice, ExecutorReady, HordeFailed, JobFinished, MachineSpecs};
use muster_protocol::{AttemptId, ExecutorToken, HordeFailureReason, ParticipantType};

use crate::executor_link::{Alarm, MinerLink, ORPHAN};
use crate::faults::Mutation;
use crate::invariants::Invariant;
use crate::network::Line;
use crate::world::{Frame, Happening, Node, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Starting,
    Dialled,
    Preparing,
    /// The image is missing, and the miner has not granted its fetch.
    AwaitingFetch,
    Pulling,
    Waiting,
    Fetching,
    Running,
    Uploading,
    /// The end is reported, and the miner has not confirmed it.
    Over,
}

#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) attempt: AttemptId,
    pub(crate) token: ExecutorToken,
    pub(crate) miner: usize,
    /// The life of the miner that started it or watches it; `None` if its machine started it.
    pub(crate) life: Option<u64>,
    pub(crate) alive: bool,
    pub(crate) link: MinerLink,
    stage: Stage,
}

impl World {
    /// A miner starts an executor, or another one in the place of one whose process has ended.
    pub(crate) fn start_executor(&mut self, miner: usize, life: u64, token: ExecutorToken) -> u64 {
        let attempt = token.attempt();
        let started = self.ledger.started.entry(attempt).or_default();
        *started += 1;
        let again = *started > 1;
        if again && !self.traits.reattaches {
            self.violate(Invariant::RunOnce, format!("attempt {attempt} was started again"));
        }
        let mut others = self.executors.values();
        if again && others.any(|other| other.attempt == attempt && other.alive) {
            let how = format!("attempt {attempt} was started beside a process that is at work on it");
            self.violate(Invariant::RunOnce, how);
        }
        self.spawn(miner, Some(life), token)
    }

    pub(crate) fn spawn(&mut self, miner: usize, life: Option<u64>, token: ExecutorToken) -> u64 {
        let id = self.next_executor;
        self.next_executor += 1;
        let executor = Executor {
            attempt: token.attempt(),
            token,
            miner,
            life,
            alive: true,
            link: MinerLink::default(),
            stage: Stage::Starting,
        };
        self.executors.insert(id, executor);
        let span = self.dice.millis(50, 2500);
        self.after(span, Happening::Step(id));
        id
    }

    /// The next thing that it does by itself.
    pub(crate) fn step(&mut self, id: u64) {
        let Some(executor) = self.executors.get(&id).filter(|executor| executor.alive) else {
            return;
        };
        let (attempt, stage) = (executor.attempt, executor.stage);
        let notice = AttemptNotice { job_uuid: attempt };
        match stage {
            Stage::Starting => self.begin_executor(id),
            Stage::Dialled | Stage::AwaitingFetch | Stage::Waiting | Stage::Over => {}
            Stage::Preparing | Stage::Pulling | Stage::Fetching | Stage::Running | Stage::Uploading
                if !self.engine =>
            {
                let failure = HordeFailed {
                    job_uuid: attempt,
                    reported_by: ParticipantType::Executor,
                    message: "the engine does not answer".to_owned(),
                    reason: HordeFailureReason::GenericError,
                    context: None,
                };
                self.conclude(id, vec![ExecutorToMiner::V0HordeFailedRequest(failure)]);
            }
            Stage::Preparing if self.dice.one_in(2) => {
                let up = ExecutorUp {
                    job_uuid: attempt,
                    registry: "registry.example.org".to_owned(),
                    image_s: 600,
                };
                self.becomes(id, Stage::AwaitingFetch);
                self.report(id, ExecutorToMiner::MusterExecutorUp(up));
            }
            Stage::Preparing | Stage::Pulling => {
                let ready = ExecutorReady {
                    job_uuid: attempt,
                    executor_token: None,
                };
                self.becomes(id, Stage::Waiting);
                self.report(id, ExecutorToMiner::V0ExecutorReadyRequest(ready));
            }
            Stage::Fetching => {
                self.report(id, ExecutorToMiner::V0VolumesReadyRequest(notice));
                self.becomes(id, Stage::Running);
                let journal = self.link(id).and_then(|link| link.journal());
                self.create_container(id, journal);
                if self.dice.one_in(2) {
                    self.may_die_here(Node::Executor(id));
                }
            }
            Stage::Running => {
                if self.folder_of(id).is_some_and(|folder| folder.container.runs) {
                    return;
                }
                self.report(id, ExecutorToMiner::V0ExecutionDoneRequest(notice));
                if !self.may_die_here(Node::Executor(id)) {
                    self.goes_on(id, Stage::Uploading, 2000);
                }
            }
            Stage::Uploading => {
                let specs = MachineSpecs {
                    job_uuid: attempt,
                    specs: serde_json::json!({"specs": {}}),
                };
                let number = self.folder_of(id).map(|folder| folder.container.number);
                let result = JobFinished {
                    job_uuid: attempt,
                    docker_process_stdout: format!("printed in container {number:?}\n"),
                    docker_process_stderr: String::new(),
                    artifacts: None,
                    upload_results: None,
                    image: None,
                    trace: None,
                    completion: None,
                };
                self.ledger.results.insert(attempt);
                let messages = vec![
                    ExecutorToMiner::V0MachineSpecsRequest(specs),
                    ExecutorToMiner::V0JobFinishedRequest(result),
                ];
                self.conclude(id, messages);
            }
        }
    }

    /// It takes over what another process left, or dials with its token.
    fn begin_executor(&mut self, id: u64) {
        if let Some(journal) = self.adopt(id) {
            let over = journal.over;
            let done =
                |report: &ExecutorToMiner| matches!(report, ExecutorToMiner::V0ExecutionDoneRequest(_));
            let delivers = journal.reports.iter().any(done);
            if let Some(link) = self.link(id) {
                *link = MinerLink::of(journal);
            }
            self.go_away(id);
            match (over, delivers) {
                (true, _) => self.await_stored(id),
                (false, true) => self.goes_on(id, Stage::Uploading, 2000),
                (false, false) => self.goes_on(id, Stage::Running, 10),
            }
            return;
        }
        let executor = self.executors.get(&id);
        // A process that its machine started has no other use.
        let miner = executor.and_then(|executor| executor.life.map(|_| executor.miner));
        let line = miner.and_then(|miner| self.connect(Node::Executor(id), Node::Miner(miner)));
        match (line, self.link(id)) {
            (Some(line), Some(link)) => {
                link.first = Some(line);
                link.open = Some(line);
                self.becomes(id, Stage::Dialled);
            }
            (None, _) | (_, None) => self.leave(id),
        }
    }

    fn becomes(&mut self, id: u64, stage: Stage) {
        if let Some(executor) = self.executors.get_mut(&id) {
            executor.stage = stage;
        }
    }

    fn goes_on(&mut self, id: u64, stage: Stage, most: u64) {
        self.becomes(id, stage);
        let span = self.dice.millis(10, most);
        self.after(span, Happening::Step(id));
    }

    /// It reports the end: in the journal before the container goes, to the miner after it.
    fn conclude(&mut self, id: u64, messages: Vec<ExecutorToMiner>) {
        if let Some(link) = self.link(id) {
            link.reports.extend(messages);
            link.over = true;
        }
        self.note(id);
        if self.mutated(Mutation::ExecutorForgetsEarly)
            && let Some(folder) = self.folder_of(id)
        {
            folder.journal = None;
        }
        self.remove_container(id);
        if self.may_die_here(Node::Executor(id)) {
            return;
        }
        self.flush(id);
        if self.may_die_here(Node::Executor(id)) {
            return;
        }
        if self.link(id).is_some_and(|link| link.held.is_some()) {
            self.await_stored(id);
        } else {
            self.becomes(id, Stage::Over);
            self.leave(id);
        }
    }

    fn await_stored(&mut self, id: u64) {
        self.becomes(id, Stage::Over);
        self.remove_container(id);
        self.after(ORPHAN, Happening::Alarm(id, Alarm::EndLimit));
    }

    /// Ends in order: its container and its folder go first, and the miner receives what it has sent.
    pub(crate) fn leave(&mut self, id: u64) {
        if self.mutated(Mutation::ExecutorNeverLeaves) {
            return;
        }
        self.remove_folder(id);
        self.kill(Node::Executor(id));
    }

    pub(crate) fn executor_receives(&mut self, id: u64, line: Line, frame: Frame) {
        let Frame::ToExecutor(message) = frame else { return };
        let Some(executor) = self.executors.get_mut(&id) else {
            return;
        };
        let stage = executor.stage;
        if executor.link.returning == Some(line) {
            if let MinerToExecutor::MusterLeaseHeld(held) = *message {
                self.come_back(id, line, held);
            } else if matches!(*message, MinerToExecutor::MusterCancelJob(_)) {
                self.leave(id);
            }
            return;
        }
        if executor.link.open != Some(line) {
            return;
        }
        match (*message, stage) {
            (MinerToExecutor::MusterLeaseHeld(held), _) => {
                executor.link.held = Some(held);
                self.note(id);
            }
            (MinerToExecutor::V0InitialJobRequest(_), Stage::Dialled) => {
                self.goes_on(id, Stage::Preparing, 3000);
            }
            (MinerToExecutor::MusterFetchImage(_), Stage::AwaitingFetch) => {
                self.goes_on(id, Stage::Pulling, 20_000);
            }
            (MinerToExecutor::V0JobRequest(_), Stage::Waiting) => {
                executor.link.job_since = Some(self.now);
                self.goes_on(id, Stage::Fetching, 3000);
            }
            (MinerToExecutor::MusterCancelJob(_), _)
            | (MinerToExecutor::MusterEndStored(_), Stage::Over)
            | (MinerToExecutor::GenericError(_), Stage::Dialled) => self.leave(id),
            (_, _) => {}
        }
    }

    pub(crate) fn executor_dies(&mut self, id: u64) {
        self.release_folder(id);
        let Some(executor) = self.executors.get_mut(&id) else {
            return;
        };
        executor.alive = false;
        let (miner, life, attempt) = (executor.miner, executor.life, executor.attempt);
        // A miner sees no process of another machine. It learns only that none was admitted.
        let seen = !self.traits.remote || executor.link.held.is_none();
        if let Some(life) = life.filter(|_| seen) {
            self.executor_exited(miner, life, attempt);
        }
    }

    /// How many times each attempt has an executor at work.
    pub(crate) fn alive(&self) -> BTreeMap<AttemptId, usize> {
        let mut count = BTreeMap::new();
        for executor in self.executors.values().filter(|executor| executor.alive) {
            *count.entry(executor.attempt).or_default() += 1;
        }
        count
    }
}
