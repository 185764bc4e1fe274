//! The simulated machine of an executor: the folder of each attempt with its lock, its journal and its container, which
//! outlive the executor's process.

use std::time::Duration;

use muster_protocol::wire::executor::LeaseHeld;
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_protocol::{AttemptId, ExecutorToken, Timestamp};

use crate::executor_link::ORPHAN;
use crate::faults::Mutation;
use crate::invariants::{Invariant, Milestone};
use crate::world::{Happening, World};

/// How long after its time an orphaned container may run: a reaper has to come by.
const MARGIN: Duration = Duration::from_secs(15);

/// The record by which another process goes on with a job.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    pub(crate) held: LeaseHeld,
    pub(crate) reports: Vec<ExecutorToMiner>,
    /// The last report is the end of the attempt.
    pub(crate) over: bool,
    pub(crate) job_since: Timestamp,
}

/// The container of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    /// Different for every container of the world.
    pub(crate) number: u64,
    pub(crate) runs: bool,
}

/// The folder of an attempt.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) container: Container,
    /// `None` if no other process may go on with the job.
    pub(crate) journal: Option<Journal>,
    /// The process that holds the lock.
    owner: Option<u64>,
    /// Since when the container has no process, or its process no miner.
    unattended: Option<Timestamp>,
}

/// Something that happens on a machine.
#[derive(Clone, Debug)]
pub(crate) enum MachineEvent {
    /// The program in this container ends.
    ProgramEnds(u64),
    /// A reaper finds the folder without a process since then.
    Reap(Timestamp),
    /// The time is over for a container that has been unattended since then.
    CheckAttended(Timestamp),
    /// The machine starts another process in place of one that was killed.
    Restart(usize, ExecutorToken),
}

impl World {
    /// Creates the container of an attempt, and the folder with the journal before it.
    pub(crate) fn create_container(&mut self, id: u64, journal: Option<Journal>) {
        let Some(attempt) = self.executors.get(&id).map(|executor| executor.attempt) else {
            return;
        };
        let number = self.ledger.containers.values().sum::<u64>();
        let created = self.ledger.containers.entry(attempt).or_default();
        *created += 1;
        if *created > 1 {
            let how = format!("attempt {attempt} got container number {created}");
            self.violate(Invariant::OneContainer, how);
        }
        let folder = Folder {
            container: Container { number, runs: true },
            journal,
            owner: Some(id),
            unattended: None,
        };
        self.folders.insert(attempt, folder);
        let runs_for = if self.traits.reattaches && self.dice.one_in(4) {
            self.dice.millis(10_000, 300_000)
        } else {
            self.dice.millis(10, 6000)
        };
        let ends = MachineEvent::ProgramEnds(number);
        self.after(runs_for, Happening::Machine(attempt, ends));
    }

    pub(crate) fn machine_event(&mut self, attempt: AttemptId, event: MachineEvent) {
        match event {
            MachineEvent::ProgramEnds(number) => self.program_ends(attempt, number),
            MachineEvent::Reap(since) => {
                let waits = |folder: &Folder| folder.owner.is_none() && folder.unattended == Some(since);
                if self.folders.get(&attempt).is_some_and(waits) && !self.mutated(Mutation::OrphansNeverEnd) {
                    let orphan = self.folders.remove(&attempt);
                    if orphan.is_some_and(|folder| folder.journal.is_some()) {
                        self.ledger.reached.insert(Milestone::Reaped);
                    }
                }
            }
            MachineEvent::CheckAttended(since) => {
                let orphaned = |folder: &Folder| folder.unattended == Some(since) && folder.container.runs;
                if self.folders.get(&attempt).is_some_and(orphaned) {
                    let how = format!("the container of attempt {attempt} runs without a miner or a process");
                    self.violate(Invariant::OrphansEnd, how);
                }
            }
            MachineEvent::Restart(miner, token) => {
                let free = |folder: &Folder| folder.owner.is_none();
                if self.folders.get(&attempt).is_some_and(free) {
                    self.spawn(miner, None, token);
                }
            }
        }
    }

    /// The job's effect outside is the program's.
    fn program_ends(&mut self, attempt: AttemptId, number: u64) {
        let Some(folder) = self.folders.get_mut(&attempt) else {
            return;
        };
        if folder.container != (Container { number, runs: true }) {
            return;
        }
        folder.container.runs = false;
        let owner = folder.owner;
        let marks = self.ledger.marks.entry(attempt).or_default();
        *marks += 1;
        if *marks > 1 {
            let how = format!("attempt {attempt} left its mark again");
            self.violate(Invariant::OneSideEffect, how);
        }
        if let Some(id) = owner {
            self.step(id);
        }
    }

    /// Locks the folder of an attempt whose process has ended, if there is one. Returns its journal.
    pub(crate) fn adopt(&mut self, id: u64) -> Option<Journal> {
        let attempt = self.executors.get(&id)?.attempt;
        let folder = self.folders.get_mut(&attempt)?;
        if folder.owner.is_some() {
            return None;
        }
        let journal = folder.journal.clone()?;
        folder.owner = Some(id);
        folder.unattended = None;
        let milestone = if journal.over {
            Milestone::EndDelivered
        } else {
            Milestone::TakenOver
        };
        self.ledger.reached.insert(milestone);
        if self.mutated(Mutation::SuccessorStartsAnother) && !journal.over {
            self.create_container(id, Some(journal.clone()));
        }
        Some(journal)
    }

    /// The folder that this process holds.
    pub(crate) fn folder_of(&mut self, id: u64) -> Option<&mut Folder> {
        let attempt = self.executors.get(&id)?.attempt;
        let folder = self.folders.get_mut(&attempt)?;
        (folder.owner == Some(id)).then_some(folder)
    }

    /// Notes that the process of the container has lost its miner, or has found it again.
    pub(crate) fn note_attended(&mut self, id: u64, attended: bool) {
        let now = self.now;
        let Some(folder) = self.folder_of(id) else { return };
        folder.unattended = (!attended).then_some(now);
        if !attended {
            self.check_attended_later(id);
        }
    }

    fn check_attended_later(&mut self, id: u64) {
        let (now, when) = (self.now, self.now.plus(ORPHAN).plus(MARGIN));
        if let Some(executor) = self.executors.get(&id) {
            let event = MachineEvent::CheckAttended(now);
            self.at(when, Happening::Machine(executor.attempt, event));
        }
    }

    /// The container goes; its folder stays.
    pub(crate) fn remove_container(&mut self, id: u64) {
        if let Some(folder) = self.folder_of(id) {
            folder.container.runs = false;
        }
    }

    /// The folder goes with everything in it.
    pub(crate) fn remove_folder(&mut self, id: u64) {
        let Some(attempt) = self.executors.get(&id).map(|executor| executor.attempt) else {
            return;
        };
        if self.folder_of(id).is_some() {
            self.folders.remove(&attempt);
        }
    }

    /// The kernel releases the lock of a process that was killed. Reapers leave a folder with a journal alone for a
    /// while.
    pub(crate) fn release_folder(&mut self, id: u64) {
        let now = self.now;
        let Some(folder) = self.folder_of(id) else { return };
        folder.owner = None;
        folder.unattended = Some(now);
        let adoptable = folder.journal.is_some();
        let Some(executor) = self.executors.get(&id) else {
            return;
        };
        let (attempt, miner, token) = (executor.attempt, executor.miner, executor.token.clone());
        *self.ledger.killed.entry(attempt).or_default() += 1;
        let comes_by = self.dice.millis(10, 10_000);
        let patience = if adoptable { ORPHAN } else { Duration::ZERO };
        let reap = Happening::Machine(attempt, MachineEvent::Reap(now));
        self.after(patience.saturating_add(comes_by), reap);
        self.check_attended_later(id);
        if adoptable && self.traits.remote && self.dice.one_in(2) {
            let soon = self.dice.millis(500, 140_000);
            let restart = MachineEvent::Restart(miner, token);
            self.after(soon, Happening::Machine(attempt, restart));
        }
    }

    /// The attempts whose folders are there, with their processes.
    pub(crate) fn kept_folders(&self) -> Vec<(AttemptId, Option<u64>)> {
        let folders = self.folders.iter();
        folders
            .map(|(attempt, folder)| (*attempt, folder.owner))
            .collect()
    }
}
