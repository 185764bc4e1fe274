//! A simulated executor: it does what a real one says on the wire, and its upload leaves a mark outside.

use std::collections::BTreeMap;

use muster_protocol::wire::executor::ExecutorUp;
use muster_protocol::wire::miner::{
    AttemptNotice, ExecutorReady, FromMiner, HordeFailed, JobFinished, MachineSpecs, ToMiner,
};
use muster_protocol::{AttemptId, ExecutorToken, HordeFailureReason, ParticipantType};

use crate::faults::Mutation;
use crate::invariants::Invariant;
use crate::world::{Frame, Happening, Line, Node, World};

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
    Over,
}

#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) attempt: AttemptId,
    pub(crate) token: ExecutorToken,
    pub(crate) miner: usize,
    /// The life of the miner that started it.
    pub(crate) life: u64,
    pub(crate) alive: bool,
    stage: Stage,
    line: Option<Line>,
}

impl World {
    pub(crate) fn start_executor(&mut self, miner: usize, life: u64, token: ExecutorToken) -> u64 {
        let id = self.next_executor;
        self.next_executor += 1;
        let attempt = token.attempt();
        let started = self.ledger.started.entry(attempt).or_default();
        *started += 1;
        if *started > 1 {
            self.violate(Invariant::RunOnce, format!("attempt {attempt} was started again"));
        }
        self.executors.insert(
            id,
            Executor {
                attempt,
                token,
                miner,
                life,
                alive: true,
                stage: Stage::Starting,
                line: None,
            },
        );
        let span = self.dice.millis(50, 2500);
        self.after(span, Happening::Step(id));
        id
    }

    /// The next thing that it does by itself.
    pub(crate) fn step(&mut self, id: u64) {
        let Some(executor) = self.executors.get(&id).filter(|executor| executor.alive) else {
            return;
        };
        let (attempt, stage, line, miner) = (executor.attempt, executor.stage, executor.line, executor.miner);
        let notice = AttemptNotice { job_uuid: attempt };
        match stage {
            Stage::Starting => match self.connect(Node::Executor(id), Node::Miner(miner)) {
                Some(line) => {
                    if let Some(executor) = self.executors.get_mut(&id) {
                        executor.line = Some(line);
                        executor.stage = Stage::Dialled;
                    }
                }
                None => self.kill(Node::Executor(id)),
            },
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
                self.say(line, FromMiner::V0HordeFailedRequest(failure));
                self.over(id);
            }
            Stage::Preparing if self.dice.one_in(2) => {
                let up = ExecutorUp {
                    job_uuid: attempt,
                    registry: "registry.example.org".to_owned(),
                    image_s: 600,
                };
                self.say(line, FromMiner::MusterExecutorUp(up));
                self.becomes(id, Stage::AwaitingFetch);
            }
            Stage::Preparing | Stage::Pulling => {
                let ready = ExecutorReady {
                    job_uuid: attempt,
                    executor_token: None,
                };
                self.say(line, FromMiner::V0ExecutorReadyRequest(ready));
                self.becomes(id, Stage::Waiting);
            }
            Stage::Fetching => {
                self.say(line, FromMiner::V0VolumesReadyRequest(notice));
                self.goes_on(id, Stage::Running, 6000);
            }
            Stage::Running => {
                self.say(line, FromMiner::V0ExecutionDoneRequest(notice));
                self.goes_on(id, Stage::Uploading, 2000);
            }
            Stage::Uploading => {
                let marks = self.ledger.marks.entry(attempt).or_default();
                *marks += 1;
                if *marks > 1 {
                    self.violate(
                        Invariant::OneSideEffect,
                        format!("attempt {attempt} left its mark again"),
                    );
                }
                let specs = serde_json::json!({"specs": {}});
                self.say(
                    line,
                    FromMiner::V0MachineSpecsRequest(MachineSpecs {
                        job_uuid: attempt,
                        specs,
                    }),
                );
                let result = JobFinished {
                    job_uuid: attempt,
                    docker_process_stdout: "done\n".to_owned(),
                    docker_process_stderr: String::new(),
                    artifacts: None,
                    upload_results: None,
                    image: None,
                };
                self.say(line, FromMiner::V0JobFinishedRequest(result));
                self.over(id);
            }
        }
    }

    fn say(&mut self, line: Option<Line>, message: FromMiner) {
        if let Some(line) = line {
            self.send(line, 0, Frame::From(Box::new(message)));
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

    /// It has said its last word and leaves once it is out.
    fn over(&mut self, id: u64) {
        self.becomes(id, Stage::Over);
        if self.mutated(Mutation::ExecutorNeverLeaves) {
            return;
        }
        self.leave(id);
    }

    /// Ends in order: what it has sent is heard first.
    pub(crate) fn leave(&mut self, id: u64) {
        if self.mutated(Mutation::ExecutorNeverLeaves) {
            return;
        }
        self.kill(Node::Executor(id));
    }

    pub(crate) fn executor_hears(&mut self, id: u64, frame: Frame) {
        let Frame::To(message) = frame else { return };
        let Some(stage) = self.executors.get(&id).map(|executor| executor.stage) else {
            return;
        };
        match (*message, stage) {
            (ToMiner::V0InitialJobRequest(_), Stage::Dialled) => self.goes_on(id, Stage::Preparing, 3000),
            (ToMiner::MusterFetchImage(_), Stage::AwaitingFetch) => self.goes_on(id, Stage::Pulling, 20_000),
            (ToMiner::V0JobRequest(_), Stage::Waiting) => self.goes_on(id, Stage::Fetching, 3000),
            (ToMiner::MusterCancelJob(_), _) => self.leave(id),
            (
                ToMiner::V0InitialJobRequest(_)
                | ToMiner::V0JobRequest(_)
                | ToMiner::ValidatorAuthForMiner(_)
                | ToMiner::V0MainHotkeyMessage(_)
                | ToMiner::V0JobAcceptedReceiptRequest(_)
                | ToMiner::V0JobFinishedReceiptRequest(_)
                | ToMiner::GenericError(_)
                | ToMiner::MusterExecutorEnrolled(_)
                | ToMiner::MusterSessionSealed(_)
                | ToMiner::MusterWhitelist(_)
                | ToMiner::MusterFetchImage(_),
                _,
            ) => {}
        }
    }

    /// Its miner is gone: it stops and removes its container.
    pub(crate) fn executor_loses(&mut self, id: u64) {
        self.leave(id);
    }

    pub(crate) fn executor_dies(&mut self, id: u64) {
        let Some(executor) = self.executors.get_mut(&id) else {
            return;
        };
        executor.alive = false;
        let (miner, life, attempt) = (executor.miner, executor.life, executor.attempt);
        self.executor_exited(miner, life, attempt);
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
