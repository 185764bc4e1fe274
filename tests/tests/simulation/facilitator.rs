//! A simulated facilitator: the real connections and the real history.

use std::collections::{BTreeMap, BTreeSet};

use muster_facilitator_core::connections::{ConnectionId, Trust, ValidatorConnections};
use muster_facilitator_core::history::{HistoryEntry, JobHistory};
use muster_protocol::wire::facilitator::JobStatusUpdate;
use muster_protocol::{JobId, JobStatus};

use crate::faults::Mutation;
use crate::invariants::Invariant;
use crate::miner::validator_key;
use crate::network::Line;
use crate::world::{Frame, Node, World};

#[derive(Debug)]
pub(crate) struct Facilitator {
    pub(crate) up: bool,
    pub(crate) life: u64,
    /// The facilitator's stored jobs.
    pub(crate) jobs: BTreeMap<JobId, JobHistory>,
    pub(crate) called_off: BTreeSet<JobId>,
    connections: ValidatorConnections,
    links: BTreeMap<Line, ConnectionId>,
}

impl Default for Facilitator {
    fn default() -> Self {
        Self {
            up: true,
            life: 0,
            jobs: BTreeMap::new(),
            called_off: BTreeSet::new(),
            connections: ValidatorConnections::default(),
            links: BTreeMap::new(),
        }
    }
}

impl Facilitator {
    pub(crate) fn die(&mut self) {
        self.up = false;
        self.life += 1;
        self.connections = ValidatorConnections::default();
        self.links.clear();
    }

    pub(crate) fn shown(&self, job: JobId) -> Option<JobStatus> {
        self.jobs.get(&job).map(JobHistory::visible_status)
    }
}

impl World {
    /// A user submits. A facilitator that is away answers nobody, so its user comes again.
    pub(crate) fn submit(&mut self, job: JobId) {
        if !self.facilitator.up {
            let span = self.dice.millis(500, 2000);
            return self.after(span, crate::world::Happening::Submit(job));
        }
        let sent = HistoryEntry {
            status: JobStatus::Sent,
            metadata: None,
            at: self.now,
        };
        self.facilitator
            .jobs
            .entry(job)
            .or_insert_with(|| JobHistory::new(vec![sent]));
        self.ledger.submitted.insert(job);
        if self.may_die_here(Node::Facilitator) {
            return;
        }
        let lines: Vec<_> = self.facilitator.links.keys().copied().collect();
        for line in lines {
            self.deliver_due(line);
        }
    }

    /// A user cancels a job. A user whose job is not accepted yet, or who reaches no validator, tries again.
    pub(crate) fn call_off(&mut self, job: JobId) {
        let shown = self.facilitator.shown(job).filter(|_| self.facilitator.up);
        let Some(shown) = shown else {
            let span = self.dice.millis(500, 2000);
            return self.after(span, crate::world::Happening::CallOff(job));
        };
        if shown.is_terminal() {
            return;
        }
        self.facilitator.called_off.insert(job);
        if self.may_die_here(Node::Facilitator) {
            return;
        }
        let lines: Vec<_> = self.facilitator.links.keys().copied().collect();
        for line in lines {
            self.send(line, 1, Frame::Cancel(job));
        }
    }

    /// Sent again on each connection until the job has ended.
    fn cancel_again(&mut self, line: Line) {
        let unheard = |job: &&JobId| {
            let shown = self.facilitator.shown(**job);
            shown.is_some_and(|status| !status.is_terminal())
        };
        let jobs: Vec<_> = self
            .facilitator
            .called_off
            .iter()
            .filter(unheard)
            .copied()
            .collect();
        for job in jobs {
            self.send(line, 1, Frame::Cancel(job));
        }
    }

    fn deliver_due(&mut self, line: Line) {
        let Some(link) = self.facilitator.links.get(&line).copied() else {
            return;
        };
        let unanswered: Vec<_> = self
            .facilitator
            .jobs
            .iter()
            .filter(|(_, history)| history.visible_status() == JobStatus::Sent)
            .map(|(job, _)| *job)
            .collect();
        let now = self.now;
        for job in self
            .facilitator
            .connections
            .take_due(validator_key(), link, &unanswered, now)
        {
            self.send(line, 1, Frame::Job(job));
        }
    }

    pub(crate) fn facilitator_notices(&mut self, line: Line) {
        let now = self.now;
        let link = self
            .facilitator
            .connections
            .connect(validator_key(), Trust::Proven, now);
        self.facilitator.links.insert(line, link);
        self.deliver_due(line);
        self.cancel_again(line);
    }

    pub(crate) fn facilitator_loses(&mut self, line: Line) {
        if let Some(link) = self.facilitator.links.remove(&line) {
            self.facilitator.connections.disconnect(validator_key(), link);
        }
    }

    pub(crate) fn facilitator_receives(&mut self, line: Line, frame: Frame) {
        let Frame::Status(update) = frame else {
            return;
        };
        let now = self.now;
        if let Some(link) = self.facilitator.links.get(&line).copied() {
            self.facilitator
                .connections
                .record_frame(validator_key(), link, now);
        }
        let answers_first = self.mutated(Mutation::FacilitatorAnswersFirst);
        if answers_first {
            self.send(line, 1, Frame::Answer);
            if self.may_die_here(Node::Facilitator) {
                return;
            }
        }
        self.take(&update);
        if answers_first || self.may_die_here(Node::Facilitator) {
            return;
        }
        self.send(line, 1, Frame::Answer);
    }

    fn take(&mut self, update: &JobStatusUpdate) {
        let (now, anything) = (self.now, self.mutated(Mutation::FacilitatorTakesAnything));
        let Some(history) = self.facilitator.jobs.get_mut(&update.uuid) else {
            return;
        };
        if !anything && history.check(update).is_err() {
            return;
        }
        let before = history.visible_status();
        history.push(HistoryEntry {
            status: update.status,
            metadata: update.metadata.clone(),
            at: now,
        });
        if !update.status.may_follow(before) {
            let how = format!(
                "job {} was shown as {before}, then as {}",
                update.uuid, update.status
            );
            self.violate(Invariant::OnlyForward, how);
        }
    }
}
