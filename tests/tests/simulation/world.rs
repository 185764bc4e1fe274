//! The world of a simulation: its time, its chance, its network, and who lives in it.
//!
//! One thread and one queue of events in the order of their time. Everything that differs from one schedule to the next
//! is drawn from the seed, so a seed is a schedule.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::facilitator::JobStatusUpdate;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{AttemptId, JobId, Timestamp};

use crate::executor::Executor;
use crate::executor_link::Alarm;
use crate::facilitator::Facilitator;
use crate::faults::{Fault, Mutation};
use crate::invariants::{Invariant, Ledger, Violation};
use crate::machine::{Folder, MachineEvent};
use crate::miner::Miner;
use crate::network::{Connection, Line, Partition};
use crate::validator::Validator;
use crate::waiting::WaitTerms;

/// Miners of every world: so many that a job may be tried on a second one.
pub(crate) const MINERS: usize = 2;
/// When every world begins.
pub(crate) fn start() -> Timestamp {
    Timestamp::from_secs(1_767_225_600)
}

/// Chance, from a seed: `SplitMix64`.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// One of `0..sides`.
    pub(crate) fn below(&mut self, sides: u64) -> u64 {
        self.draw() % sides.max(1)
    }

    /// True once in `times`.
    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// From `least` to `most` milliseconds.
    pub(crate) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most.saturating_sub(least) + 1))
    }

    pub(crate) fn uuid(&mut self) -> uuid::Uuid {
        uuid::Uuid::from_u128(u128::from(self.draw()) << 64 | u128::from(self.draw()))
    }
}

/// A process at an end of a connection, which can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    Facilitator,
    Validator,
    Miner(usize),
    Executor(u64),
}

/// A message on its way.
#[derive(Clone, Debug)]
pub(crate) enum Frame {
    /// A job for the validator.
    Job(JobId),
    /// A job that its user called off.
    Cancel(JobId),
    /// How a job fares.
    Status(Box<JobStatusUpdate>),
    /// The answer to the oldest of those without one.
    Answer,
    /// A validator's message to a miner.
    ToMiner(Box<ValidatorToMiner>),
    /// A miner's message to a validator.
    FromMiner(Box<MinerToValidator>),
    /// A miner's message to an executor.
    ToExecutor(Box<MinerToExecutor>),
    /// An executor's message to its miner.
    FromExecutor(Box<ExecutorToMiner>),
}

/// An event of the schedule.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A user submits.
    Submit(JobId),
    /// And calls it off.
    CallOff(JobId),
    /// A connection stands, at the end that was dialled.
    Arrive(Line),
    Deliver {
        line: Line,
        to: usize,
        frame: Frame,
    },
    Closed {
        line: Line,
        at: usize,
    },
    /// A node looks at its deadlines; for the life that set it only.
    Wake(Node, u64),
    /// A validator dials for an attempt, or its facilitator.
    Dial(crate::validator::Call, u64),
    /// A validator looks for another miner for a job.
    Begin(JobId, u64),
    /// A validator starts the waiting jobs for which there is room.
    Dispatch(u64),
    /// An executor goes on.
    Step(u64),
    /// A time has come that an executor set itself.
    Alarm(u64, Alarm),
    /// Something happens to the folder and the container of an attempt.
    Machine(AttemptId, MachineEvent),
    /// The miner of this life learns that it has no process for an attempt any more.
    Exited {
        miner: usize,
        life: u64,
        attempt: AttemptId,
    },
    Strike(Fault),
    Restart(Node),
    Mend(Fault),
}

/// The facts of a world that are fixed before it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldTraits {
    /// The executors of each miner.
    pub(crate) capacity: u32,
    /// Executors of each miner by the validator's manifests, which may be older than the miners.
    pub(crate) believed: u32,
    /// The peers know the feature `reattach`.
    pub(crate) reattaches: bool,
    /// Executors run on other machines than their miners, which cannot end or replace them.
    pub(crate) remote: bool,
}

/// One simulated world.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) dice: Dice,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) facilitator: Facilitator,
    pub(crate) validator: Validator,
    pub(crate) miners: Vec<Miner>,
    pub(crate) executors: BTreeMap<u64, Executor>,
    /// The folder of each attempt on its miner's machine.
    pub(crate) folders: BTreeMap<AttemptId, Folder>,
    pub(crate) lines: BTreeMap<Line, Connection>,
    pub(crate) partitions: Vec<Partition>,
    pub(crate) ledger: Ledger,
    /// The terms of the jobs, as far as they are not the usual ones.
    pub(crate) terms: BTreeMap<JobId, WaitTerms>,
    pub(crate) traits: WorldTraits,
    /// The chain answers.
    pub(crate) chain: bool,
    /// The machines' engines answer.
    pub(crate) engine: bool,
    /// Faults that are in force until they are mended, with how many times.
    pub(crate) weather: BTreeMap<Fault, u32>,
    pub(crate) violation: Option<Violation>,
    queue: BTreeMap<(Timestamp, u64), Happening>,
    sequence: u64,
    pub(crate) next_line: Line,
    pub(crate) next_executor: u64,
}

impl World {
    pub(crate) fn new(seed: u64, traits: WorldTraits, mutation: Option<Mutation>) -> Self {
        let mut world = Self {
            now: start(),
            dice: Dice::new(seed),
            mutation,
            facilitator: Facilitator::default(),
            validator: Validator::default(),
            miners: (0..MINERS).map(|index| Miner::new(index, traits)).collect(),
            executors: BTreeMap::new(),
            folders: BTreeMap::new(),
            lines: BTreeMap::new(),
            partitions: Vec::new(),
            ledger: Ledger::default(),
            terms: BTreeMap::new(),
            traits,
            chain: true,
            engine: true,
            weather: BTreeMap::new(),
            violation: None,
            queue: BTreeMap::new(),
            sequence: 0,
            next_line: 0,
            next_executor: 0,
        };
        for index in 0..MINERS {
            world.open_miner(index);
        }
        world.open_validator();
        world
    }

    pub(crate) fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub(crate) fn violate(&mut self, broken: Invariant, how: String) {
        if self.violation.is_none() {
            self.violation = Some(Violation {
                broken,
                at: self.now.since(start()),
                how,
            });
        }
    }

    pub(crate) fn at(&mut self, when: Timestamp, what: Happening) {
        self.sequence += 1;
        self.queue.insert((when.max(self.now), self.sequence), what);
    }

    pub(crate) fn after(&mut self, span: Duration, what: Happening) {
        self.at(self.now.plus(span), what);
    }

    /// Lets everything happen that happens until `until`, unless a rule is broken first.
    pub(crate) fn run(&mut self, until: Timestamp) {
        while self.violation.is_none() {
            let Some(entry) = self.queue.first_entry() else {
                break;
            };
            if entry.key().0 > until {
                break;
            }
            let ((when, _), what) = entry.remove_entry();
            self.now = when;
            self.happen(what);
        }
        self.now = self.now.max(until);
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Submit(job) => self.submit(job),
            Happening::CallOff(job) => self.call_off(job),
            Happening::Arrive(line) => self.arrived(line),
            Happening::Deliver { line, to, frame } => self.delivered(line, to, frame),
            Happening::Closed { line, at } => self.closed(line, at),
            Happening::Wake(node, life) => {
                if self.life(node) == Some(life) {
                    self.wake(node);
                }
            }
            Happening::Dial(call, life) => {
                if self.life(Node::Validator) == Some(life) {
                    self.dial(call);
                }
            }
            Happening::Begin(job, life) => {
                if self.life(Node::Validator) == Some(life) {
                    self.begin(job);
                }
            }
            Happening::Dispatch(life) => {
                if self.life(Node::Validator) == Some(life) {
                    self.dispatch();
                }
            }
            Happening::Step(executor) => self.step(executor),
            Happening::Alarm(executor, alarm) => self.executor_wakes(executor, alarm),
            Happening::Machine(attempt, event) => self.machine_event(attempt, event),
            Happening::Exited { miner, life, attempt } => self.executor_exited(miner, life, attempt),
            Happening::Strike(fault) => self.strike(fault),
            Happening::Restart(node) => self.restart(node),
            Happening::Mend(fault) => self.mend(fault),
        }
    }

    fn wake(&mut self, node: Node) {
        match node {
            Node::Validator => self.validator_wakes(),
            Node::Miner(index) => self.miner_wakes(index),
            Node::Facilitator | Node::Executor(_) => {}
        }
    }

    /// Which life of it this is; `None` while it is dead.
    pub(crate) fn life(&self, node: Node) -> Option<u64> {
        match node {
            Node::Facilitator => Some(self.facilitator.life).filter(|_| self.facilitator.up),
            Node::Validator => Some(self.validator.life).filter(|_| self.validator.up),
            Node::Miner(index) => self
                .miners
                .get(index)
                .filter(|miner| miner.up)
                .map(|miner| miner.life),
            Node::Executor(id) => self
                .executors
                .get(&id)
                .filter(|executor| executor.alive)
                .map(|_| 0),
        }
    }

    /// A process dies: its sockets close, whatever it had not written down is gone.
    pub(crate) fn kill(&mut self, node: Node) {
        if self.life(node).is_none() {
            return;
        }
        match node {
            Node::Facilitator => self.facilitator.die(),
            Node::Validator => self.validator.die(),
            Node::Miner(index) => {
                if let Some(miner) = self.miners.get_mut(index) {
                    miner.die();
                }
            }
            Node::Executor(id) => self.executor_dies(id),
        }
        let of_it = |(line, connection): (&Line, &Connection)| {
            let at = connection.ends.iter().position(|end| *end == node)?;
            Some((*line, at))
        };
        let lines: Vec<_> = self.lines.iter().filter_map(of_it).collect();
        for (line, at) in lines {
            self.close(line, at);
        }
        match node {
            Node::Executor(_) => {}
            Node::Facilitator | Node::Validator | Node::Miner(_) => {
                let span = self.dice.millis(100, 8000);
                self.after(span, Happening::Restart(node));
            }
        }
    }

    fn restart(&mut self, node: Node) {
        match node {
            Node::Facilitator => self.facilitator.up = true,
            Node::Validator => {
                self.validator.up = true;
                self.open_validator();
            }
            Node::Miner(index) => self.open_miner(index),
            Node::Executor(_) => {}
        }
    }

    /// A point between two steps of a process where it may be killed while faults strike. True if it was.
    pub(crate) fn may_die_here(&mut self, node: Node) -> bool {
        let fault = match node {
            Node::Facilitator => Fault::KillFacilitator,
            Node::Validator => Fault::KillValidator,
            Node::Miner(_) => Fault::KillMiner,
            Node::Executor(_) => Fault::KillExecutor,
        };
        let armed = self.weather.contains_key(&fault);
        if armed && self.dice.one_in(4) {
            self.weather.remove(&fault);
            self.kill(node);
            return true;
        }
        false
    }
}
