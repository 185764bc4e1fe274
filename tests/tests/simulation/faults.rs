//! The faults of a schedule, and the rules that a test breaks on purpose.

use crate::world::{Happening, MINERS, Node, World};

/// A fault in a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    KillFacilitator,
    KillValidator,
    KillMiner,
    KillExecutor,
    /// The engines stop answering for a while.
    KillEngine,
    /// A store is away: its process ends before it has written what it decided.
    LoseDatabase,
    /// Every connection is cut.
    Cut,
    /// A miner and its executors, or a miner and the validator, do not reach each other for less than a minute.
    ShortPartition,
    /// The same, for up to some minutes: shorter and longer than each of them waits for the other.
    LongPartition,
    /// An executor loses a connection whose other end stays open at the miner.
    HalfOpen,
    /// Somebody without a secret tries to serve a lease.
    Intruder,
    /// Frames come twice for a while.
    Duplicated,
    /// Frames pass each other for a while.
    Reordered,
    /// Frames take long for a while.
    Delayed,
    /// The chain does not answer for a while.
    ChainGone,
}

impl Fault {
    pub(crate) const ALL: [Self; 15] = [
        Self::KillFacilitator,
        Self::KillValidator,
        Self::KillMiner,
        Self::KillExecutor,
        Self::KillEngine,
        Self::LoseDatabase,
        Self::Cut,
        Self::ShortPartition,
        Self::LongPartition,
        Self::HalfOpen,
        Self::Intruder,
        Self::Duplicated,
        Self::Reordered,
        Self::Delayed,
        Self::ChainGone,
    ];

    /// Whether every job must succeed although this happened to it: nobody who runs it was hurt, and what was sent is
    /// sent again.
    pub(crate) fn is_survivable(self) -> bool {
        match self {
            Self::KillFacilitator
            | Self::KillValidator
            | Self::Intruder
            | Self::Duplicated
            | Self::Delayed
            | Self::ChainGone => true,
            // An executor whose socket is lost may not have been admitted yet. Frames that pass each other are
            // a broken peer's.
            Self::Cut
            | Self::ShortPartition
            | Self::LongPartition
            | Self::HalfOpen
            | Self::KillMiner
            | Self::KillExecutor
            | Self::KillEngine
            | Self::LoseDatabase
            | Self::Reordered => false,
        }
    }

    /// Whether a result that an executor has must arrive although this happened, where executors come back to their
    /// leases.
    pub(crate) fn spares_results(self, remote: bool) -> bool {
        match self {
            Self::KillFacilitator
            | Self::KillValidator
            | Self::KillMiner
            | Self::LoseDatabase
            | Self::Cut
            | Self::ShortPartition
            | Self::HalfOpen
            | Self::Intruder
            | Self::Duplicated
            | Self::Delayed
            | Self::ChainGone => true,
            // Another machine may start the next process late.
            Self::KillExecutor => !remote,
            Self::KillEngine | Self::LongPartition | Self::Reordered => false,
        }
    }
}

/// A rule that a test breaks, to see that the invariants notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// A miner speaks before it has written down.
    MinerSpeaksFirst,
    /// A validator speaks before it has written down.
    ValidatorSpeaksFirst,
    /// A miner opens an empty book after a restart.
    MinerForgetsLeases,
    /// A miner reports an end only once.
    MinerTellsOnce,
    /// A facilitator answers before it has written down.
    FacilitatorAnswersFirst,
    /// A facilitator takes any status after any other.
    FacilitatorTakesAnything,
    /// A validator gives a further attempt the id of the one before.
    ValidatorReusesIds,
    /// A validator does not take up what an earlier process left open.
    ValidatorForgetsJobs,
    /// A validator goes on looking for a miner although the user called the job off.
    ValidatorIgnoresCancel,
    /// An executor works on although nobody wants it.
    ExecutorNeverLeaves,
    /// A miner runs whatever it is offered, however full it is.
    MinerTakesEverything,
    /// A miner takes an executor back whatever secret it shows.
    MinerTakesAnySecret,
    /// A miner takes reports from connections that another one has replaced.
    MinerIgnoresFence,
    /// An executor that comes back does not repeat its reports.
    ExecutorNeverRepeats,
    /// An executor deletes the journal before its miner has stored the end.
    ExecutorForgetsEarly,
    /// A process that takes a job over creates another container.
    SuccessorStartsAnother,
    /// Containers without a process or a miner run on.
    OrphansNeverEnd,
    /// A validator pays a result that comes after it has tried another miner.
    ValidatorPaysLateResults,
    /// A validator does not restore its queue.
    ValidatorForgetsQueue,
    /// A validator does not write down which account had the last turn.
    ValidatorForgetsTurns,
    /// A validator gives a free executor to a newcomer although others wait.
    ValidatorStartsNewcomersFirst,
    /// A validator lets more jobs wait than may.
    ValidatorIgnoresLimits,
    /// A validator lets jobs wait for longer than they may.
    ValidatorNeverExpires,
    /// A validator takes the turn from an account whose first job must be passed over.
    ValidatorWaitsForTheFirst,
}

impl Mutation {
    pub(crate) const ALL: [Self; 24] = [
        Self::MinerSpeaksFirst,
        Self::ValidatorSpeaksFirst,
        Self::MinerForgetsLeases,
        Self::MinerTellsOnce,
        Self::FacilitatorAnswersFirst,
        Self::FacilitatorTakesAnything,
        Self::ValidatorReusesIds,
        Self::ValidatorForgetsJobs,
        Self::ValidatorIgnoresCancel,
        Self::ExecutorNeverLeaves,
        Self::MinerTakesEverything,
        Self::MinerTakesAnySecret,
        Self::MinerIgnoresFence,
        Self::ExecutorNeverRepeats,
        Self::ExecutorForgetsEarly,
        Self::SuccessorStartsAnother,
        Self::OrphansNeverEnd,
        Self::ValidatorPaysLateResults,
        Self::ValidatorForgetsQueue,
        Self::ValidatorForgetsTurns,
        Self::ValidatorStartsNewcomersFirst,
        Self::ValidatorIgnoresLimits,
        Self::ValidatorNeverExpires,
        Self::ValidatorWaitsForTheFirst,
    ];
}

impl World {
    pub(crate) fn strike(&mut self, fault: Fault) {
        let lasts = self.dice.millis(500, 20_000);
        match fault {
            // Half of the processes die between two events, the others inside one, between writing and speaking.
            Fault::KillFacilitator | Fault::KillValidator | Fault::KillMiner | Fault::LoseDatabase
                if self.dice.one_in(2) =>
            {
                self.weather.insert(fault, 1);
            }
            Fault::KillExecutor if !self.dice.one_in(4) => {
                self.weather.insert(fault, 1);
            }
            Fault::KillFacilitator => self.kill(Node::Facilitator),
            Fault::KillValidator => self.kill(Node::Validator),
            Fault::KillMiner | Fault::LoseDatabase => {
                let index = usize::try_from(self.dice.below(MINERS as u64)).unwrap_or_default();
                self.kill(Node::Miner(index));
            }
            Fault::KillExecutor => {
                let alive: Vec<_> = self
                    .executors
                    .iter()
                    .filter(|(_, executor)| executor.alive)
                    .map(|(id, _)| *id)
                    .collect();
                let chosen = usize::try_from(self.dice.below(alive.len() as u64)).unwrap_or_default();
                if let Some(id) = alive.get(chosen) {
                    self.kill(Node::Executor(*id));
                }
            }
            Fault::KillEngine => {
                self.engine = false;
                self.after(lasts, Happening::Mend(fault));
            }
            Fault::ChainGone => {
                self.chain = false;
                self.after(lasts, Happening::Mend(fault));
            }
            Fault::Cut => {
                let lines: Vec<_> = self.lines.keys().copied().collect();
                for line in lines {
                    self.cut(line);
                }
            }
            Fault::ShortPartition => {
                let lasts = self.dice.millis(1_000, 50_000);
                self.part(lasts);
            }
            Fault::LongPartition => {
                let lasts = self.dice.millis(60_000, 260_000);
                self.part(lasts);
            }
            Fault::HalfOpen => self.half_open(),
            Fault::Intruder => self.intrude(),
            Fault::Duplicated | Fault::Reordered | Fault::Delayed => {
                self.weather.insert(fault, 1);
                self.after(lasts, Happening::Mend(fault));
            }
        }
    }

    pub(crate) fn mend(&mut self, fault: Fault) {
        self.weather.remove(&fault);
        match fault {
            Fault::KillEngine => self.engine = true,
            Fault::ChainGone => self.chain = true,
            Fault::KillFacilitator
            | Fault::KillValidator
            | Fault::KillMiner
            | Fault::KillExecutor
            | Fault::LoseDatabase
            | Fault::Cut
            | Fault::ShortPartition
            | Fault::LongPartition
            | Fault::HalfOpen
            | Fault::Intruder
            | Fault::Duplicated
            | Fault::Reordered
            | Fault::Delayed => {}
        }
    }

    /// Nothing strikes any more.
    pub(crate) fn mend_everything(&mut self) {
        for fault in Fault::ALL {
            self.mend(fault);
        }
    }
}
