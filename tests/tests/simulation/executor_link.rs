//! The line from a simulated executor to its miner, which outlives its connections as the real one does: it keeps every
//! report, dials again, and repeats them.

use std::time::Duration;

use muster_protocol::Timestamp;
use muster_protocol::wire::executor::{LeaseHeld, Reattach};
use muster_protocol::wire::executor_socket::ExecutorToMiner;

use crate::faults::Mutation;
use crate::invariants::Milestone;
use crate::machine::Journal;
use crate::network::Line;
use crate::world::{Frame, Happening, Node, World};

/// How long an attempt goes on without a miner, and a container without a process.
pub(crate) const ORPHAN: Duration = Duration::from_secs(120);
/// How long the miner may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// The longest pause between two attempts to reach the miner, in milliseconds.
const MAX_PAUSE: u64 = 5000;

/// A time that an executor set itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// It dials again, after this loss.
    Redial(u64),
    /// Its miner has not answered over this connection.
    Answer(Line),
    /// It has been without a miner for too long since this loss.
    GivesUp(u64),
    /// Its miner has not confirmed the end in time.
    EndLimit,
    /// Its miner ends it with a signal.
    Terminate,
}

/// The line of one lease.
#[derive(Debug, Default)]
pub(crate) struct MinerLink {
    /// The connection on which it shows its token.
    pub(crate) first: Option<Line>,
    /// The connection of the moment.
    pub(crate) open: Option<Line>,
    /// A connection over which it asks to come back.
    pub(crate) returning: Option<Line>,
    pub(crate) held: Option<LeaseHeld>,
    pub(crate) reports: Vec<ExecutorToMiner>,
    pub(crate) job_since: Option<Timestamp>,
    /// The last report is the end of the attempt.
    pub(crate) over: bool,
    /// How many reports were sent over the connection of the moment.
    sent: usize,
    /// How many connections were lost.
    losses: u64,
    failures: u32,
}

impl MinerLink {
    /// The line of a process that goes on with what another one began. It is away.
    pub(crate) fn of(journal: Journal) -> Self {
        Self {
            held: Some(journal.held),
            reports: journal.reports,
            job_since: Some(journal.job_since),
            over: journal.over,
            ..Self::default()
        }
    }

    /// The journal of a job that another process may go on with.
    pub(crate) fn journal(&self) -> Option<Journal> {
        Some(Journal {
            held: self.held.clone()?,
            reports: self.reports.clone(),
            over: self.over,
            job_since: self.job_since?,
        })
    }
}

impl World {
    pub(crate) fn link(&mut self, id: u64) -> Option<&mut MinerLink> {
        self.executors
            .get_mut(&id)
            .filter(|executor| executor.alive)
            .map(|executor| &mut executor.link)
    }

    /// Adds a report to the others, in the journal too, and sends it if there is a connection.
    pub(crate) fn report(&mut self, id: u64, message: ExecutorToMiner) {
        if let Some(link) = self.link(id) {
            link.reports.push(message);
        }
        self.note(id);
        self.flush(id);
    }

    /// Writes the journal, if the job has one.
    pub(crate) fn note(&mut self, id: u64) {
        let journal = self.link(id).and_then(|link| link.journal());
        if let Some(folder) = self.folder_of(id)
            && folder.journal.is_some()
        {
            folder.journal = journal;
        }
    }

    pub(crate) fn flush(&mut self, id: u64) {
        let Some(link) = self.link(id) else { return };
        let Some(line) = link.open else { return };
        let unsent = link.reports.get(link.sent..).unwrap_or_default().to_vec();
        link.sent = link.reports.len();
        for message in unsent {
            self.send(line, 0, Frame::FromExecutor(Box::new(message)));
        }
    }

    /// The connection of the moment is lost: it comes back if it can, and ends otherwise.
    pub(crate) fn go_away(&mut self, id: u64) {
        let Some(link) = self.link(id) else { return };
        link.open = None;
        if link.held.is_none() {
            return self.leave(id);
        }
        link.losses += 1;
        link.failures = 0;
        let losses = link.losses;
        self.note_attended(id, false);
        self.after(ORPHAN, Happening::Alarm(id, Alarm::GivesUp(losses)));
        self.dial_back(id);
    }

    fn dial_back(&mut self, id: u64) {
        let Some(executor) = self.executors.get(&id).filter(|executor| executor.alive) else {
            return;
        };
        let miner = executor.miner;
        let Some(held) = executor.link.held.clone() else {
            return;
        };
        let age = executor.link.job_since.map(|since| self.now.since(since));
        let Some(line) = self.connect(Node::Executor(id), Node::Miner(miner)) else {
            return self.dial_later(id);
        };
        if let Some(link) = self.link(id) {
            link.returning = Some(line);
        }
        let ticket = Reattach {
            job_uuid: held.job_uuid,
            epoch: held.epoch,
            secret: held.secret,
            job_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        };
        let message = ExecutorToMiner::MusterReattach(ticket);
        self.send(line, 0, Frame::FromExecutor(Box::new(message)));
        self.after(ANSWER_LIMIT, Happening::Alarm(id, Alarm::Answer(line)));
    }

    fn dial_later(&mut self, id: u64) {
        let Some(link) = self.link(id) else { return };
        let pause = MAX_PAUSE.min(200 << link.failures.min(10));
        link.failures += 1;
        let losses = link.losses;
        let pause = self.dice.millis(pause / 2, pause);
        self.after(pause, Happening::Alarm(id, Alarm::Redial(losses)));
    }

    pub(crate) fn executor_wakes(&mut self, id: u64, alarm: Alarm) {
        let Some(link) = self.link(id) else { return };
        let away = link.open.is_none();
        match alarm {
            Alarm::Redial(losses) => {
                if away && link.losses == losses && link.returning.is_none() {
                    self.dial_back(id);
                }
            }
            Alarm::Answer(line) => {
                if link.returning == Some(line) {
                    self.close(line, 0);
                    self.executor_loses(id, line);
                }
            }
            Alarm::GivesUp(losses) => {
                if away && link.losses == losses && !self.mutated(Mutation::OrphansNeverEnd) {
                    self.ledger.reached.insert(Milestone::GaveUp);
                    self.leave(id);
                }
            }
            Alarm::EndLimit | Alarm::Terminate => self.leave(id),
        }
    }

    /// A connection of this executor is lost.
    pub(crate) fn executor_loses(&mut self, id: u64, line: Line) {
        let Some(link) = self.link(id) else { return };
        if link.open == Some(line) {
            self.go_away(id);
        } else if link.returning == Some(line) {
            link.returning = None;
            self.dial_later(id);
        }
    }

    /// The miner has taken the executor back.
    pub(crate) fn come_back(&mut self, id: u64, line: Line, held: LeaseHeld) {
        let repeats = !self.mutated(Mutation::ExecutorNeverRepeats);
        let Some(link) = self.link(id) else { return };
        link.returning = None;
        link.open = Some(line);
        link.held = Some(held);
        if repeats {
            link.sent = 0;
        }
        self.ledger.reached.insert(Milestone::CameBack);
        self.note_attended(id, true);
        self.note(id);
        self.flush(id);
    }
}
