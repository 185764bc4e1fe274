//! The invariants of every schedule, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_miner::lease_table::LeaseStatus;
use muster_protocol::job::Outcome;
use muster_protocol::receipt::ReceiptPayload;
use muster_protocol::{AttemptId, JobId, JobStatus};

use crate::faults::Fault;
use crate::queue_model::QueueModel;
use crate::world::World;

/// A promise of the subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    /// No attempt is started twice.
    RunOnce,
    /// A job's effect outside happens at most once in each attempt.
    OneSideEffect,
    /// An attempt, and a job, ends once and stays as it ended.
    OneEnd,
    /// The status shown to a user only moves forward.
    OnlyForward,
    /// Nothing is said that is not written down.
    WrittenBeforeSaid,
    /// No miner has more leases at work than executors; a lease that fetches its image is not at work.
    WithinCapacity,
    /// Every job that was taken has an end that its user sees, the one that its validator wrote down.
    EveryJobEnds,
    /// A job that nothing happened to that it must not survive succeeds.
    ResultsArrive,
    /// In the end there is no executor, no lease and no debt.
    NothingOrphaned,
    /// No miner is asked for a job that its user called off.
    NobodyAskedAfterCancel,
    /// Both sides hold the same receipts, and only success is paid.
    ReceiptsAgree,
    /// Waiting jobs start in the order of the queue, also after a restart, and no newcomer overtakes them.
    QueueOrder,
    /// As many jobs wait as may, and none is turned away while there is room.
    QueueBound,
    /// No job sees more others start than its account's jobs and the other accounts' turns allow.
    NobodyStarves,
    /// No job starts long after its time in the queue is over.
    WaitsNoLonger,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) broken: Invariant,
    /// Since the beginning.
    pub(crate) at: Duration,
    pub(crate) how: String,
}

/// The events outside, which no process can forget.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) submitted: BTreeSet<JobId>,
    pub(crate) started: BTreeMap<AttemptId, u32>,
    pub(crate) marks: BTreeMap<AttemptId, u32>,
    /// The jobs that wait.
    pub(crate) queue: QueueModel,
    /// Jobs that found no room in the queue, and jobs that waited too long.
    pub(crate) turned_away: BTreeSet<JobId>,
}

impl World {
    /// Checks the invariants that must hold once everything has come to rest.
    pub(crate) fn judge(&mut self, struck: &BTreeSet<Fault>) {
        let submitted: Vec<_> = self.ledger.submitted.iter().copied().collect();
        for job in submitted {
            self.judge_job(job, struck);
        }
        self.judge_leftovers();
        self.judge_receipts();
    }

    fn judge_job(&mut self, job: JobId, struck: &BTreeSet<Fault>) {
        let shown = self.facilitator.shown(job).unwrap_or_default();
        let written = self
            .validator
            .jobs
            .get(&job)
            .and_then(|stored| stored.closed.as_ref())
            .map(Outcome::status);
        if !shown.is_terminal() || written != Some(shown) {
            let how = format!("job {job} is shown as {shown} and written down as {written:?}");
            self.violate(Invariant::EveryJobEnds, how);
        }
        let called_off = self.facilitator.called_off.contains(&job);
        let wanted = !called_off && !self.ledger.turned_away.contains(&job);
        let must = wanted && struck.iter().all(|fault| fault.is_survivable());
        if must && shown != JobStatus::Completed {
            let reason = self
                .validator
                .jobs
                .get(&job)
                .and_then(|stored| stored.closed.clone());
            self.violate(
                Invariant::ResultsArrive,
                format!("job {job} ended as {shown}: {reason:?}"),
            );
        }
        if shown == JobStatus::Completed {
            let ran = self
                .validator
                .jobs
                .get(&job)
                .into_iter()
                .flat_map(|stored| &stored.attempts);
            let marks: u32 = ran.filter_map(|tried| self.ledger.marks.get(&tried.id)).sum();
            if marks == 0 {
                self.violate(
                    Invariant::OneSideEffect,
                    format!("job {job} succeeded and left no mark"),
                );
            }
        }
    }

    fn judge_leftovers(&mut self) {
        let (alive, leases) = (self.alive(), self.open_leases());
        if !alive.is_empty() || leases > 0 {
            let how = format!("{leases} leases are open and executors of {alive:?} at work");
            self.violate(Invariant::NothingOrphaned, how);
        }
        if !self.ledger.queue.is_empty() {
            let how = format!("{:?} still wait", self.ledger.queue.order());
            self.violate(Invariant::NothingOrphaned, how);
        }
        let links = self.open_links();
        if !links.is_empty() {
            self.violate(
                Invariant::NothingOrphaned,
                format!("the validator keeps connections for {links:?}"),
            );
        }
        let debts: Vec<_> = self
            .miners
            .iter()
            .flat_map(|miner| miner.records())
            .filter(|record| match record.standing {
                LeaseStatus::Open | LeaseStatus::Owed => true,
                LeaseStatus::Settled | LeaseStatus::Cancelled => false,
            })
            .map(|record| record.attempt)
            .collect();
        if !debts.is_empty() {
            let how = format!("miners still owe the ends of {debts:?}");
            self.violate(Invariant::NothingOrphaned, how);
        }
    }

    fn judge_receipts(&mut self) {
        let mut broken = Vec::new();
        for miner in &self.miners {
            for theirs in miner.receipts() {
                let attempt = theirs.payload.attempt();
                let Some(tried) = self.validator.attempt(attempt) else {
                    broken.push(format!(
                        "a miner holds a receipt of attempt {attempt}, which nobody made"
                    ));
                    continue;
                };
                let own = tried
                    .receipts
                    .iter()
                    .find(|own| own.payload.kind() == theirs.payload.kind());
                if own.is_none_or(|own| own.payload != theirs.payload) {
                    broken.push(format!(
                        "the {} of attempt {attempt} differs",
                        theirs.payload.kind()
                    ));
                }
            }
        }
        for tried in self.validator.jobs.values().flat_map(|job| &job.attempts) {
            let success = matches!(tried.machine.outcome(), Some(Outcome::Completed(_)));
            for own in &tried.receipts {
                if let ReceiptPayload::Finished(receipt) = &own.payload
                    && success != (receipt.score_str != "0.000000")
                {
                    broken.push(format!("attempt {} is paid {}", tried.id, receipt.score_str));
                }
            }
        }
        if let Some(how) = broken.into_iter().next() {
            self.violate(Invariant::ReceiptsAgree, how);
        }
    }
}
