//! The invariants of every schedule, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_miner::lease_table::LeaseStatus;
use muster_protocol::job::Outcome;
use muster_protocol::receipt::ReceiptPayload;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{AttemptId, JobId, JobStatus};

use crate::faults::Fault;
use crate::fencing::FenceModel;
use crate::network::Line;
use crate::queue_model::QueueModel;
use crate::world::World;

/// A promise of the subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    /// No attempt is started twice, and none gets a second process while one is at work on it.
    RunOnce,
    /// A job's effect outside happens at most once in each attempt.
    OneSideEffect,
    /// An attempt, and a job, ends once and stays as it ended.
    OneEnd,
    /// The status shown to a user only moves forward.
    OnlyForward,
    /// Nothing is sent that is not written down.
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
    /// Both sides hold the same receipts, and an attempt is paid by its end.
    ReceiptsAgree,
    /// Waiting jobs start in the order of the queue, also after a restart, and no newcomer overtakes them.
    QueueOrder,
    /// As many jobs wait as may, and none is turned away while there is room.
    QueueBound,
    /// No job sees more others start than its account's jobs and the other accounts' turns allow.
    NobodyStarves,
    /// No job starts long after its time in the queue is over.
    WaitsNoLonger,
    /// An attempt has one container, whichever processes serve it.
    OneContainer,
    /// No container runs for long without a process, or without a miner.
    OrphansEnd,
    /// Only the admitted connection speaks for a lease, and only a secret of the lease admits one.
    Fenced,
    /// The end that a miner has reported is never replaced.
    SameEnd,
    /// A result that an executor has is not lost with a connection or a process.
    WorkCounts,
    /// At most one attempt of a job is paid.
    PaidOnce,
}

/// A way in which an attempt outlives a connection or a process. Together the schedules reach all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Milestone {
    /// An executor came back to its lease.
    CameBack,
    /// A process took over a job of one that had ended.
    TakenOver,
    /// A process delivered the end that another one had written down.
    EndDelivered,
    /// A miner opened a lease of its earlier process.
    LeaseRestored,
    /// An executor gave up because its miner stayed away.
    GaveUp,
    /// A job that no process took over was removed.
    Reaped,
    /// A report came over a connection that did not serve the lease any more.
    FencedOff,
    /// An executor came back to a lease that had ended.
    TurnedAway,
}

impl Milestone {
    pub(crate) const ALL: [Self; 8] = [
        Self::CameBack,
        Self::TakenOver,
        Self::EndDelivered,
        Self::LeaseRestored,
        Self::GaveUp,
        Self::Reaped,
        Self::FencedOff,
        Self::TurnedAway,
    ];
}

/// The executors of one attempt that a miner replaces.
const MAX_KILLED: u32 = 3;

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
    /// How many containers each attempt got.
    pub(crate) containers: BTreeMap<AttemptId, u64>,
    /// The attempts whose executors had a result to report.
    pub(crate) results: BTreeSet<AttemptId>,
    /// How many executors of each attempt were killed.
    pub(crate) killed: BTreeMap<AttemptId, u32>,
    pub(crate) reached: BTreeSet<Milestone>,
    /// The end that a miner has reported of each attempt.
    pub(crate) told: BTreeMap<AttemptId, MinerToValidator>,
    /// The connection that was admitted last to each lease.
    pub(crate) serving: BTreeMap<AttemptId, Line>,
    /// The secrets that admit an executor to each lease.
    pub(crate) fences: BTreeMap<AttemptId, FenceModel>,
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
        self.judge_results(struck);
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

    /// Where executors come back, faults of a few seconds cost no result.
    fn judge_results(&mut self, struck: &BTreeSet<Fault>) {
        let mild = |fault: &Fault| fault.spares_results(self.traits.remote);
        if !self.traits.reattaches || !struck.iter().all(mild) {
            return;
        }
        let mut lost = Vec::new();
        for (job, stored) in &self.validator.jobs {
            for tried in &stored.attempts {
                let killed = self.ledger.killed.get(&tried.id).copied().unwrap_or_default();
                let ended_well = matches!(tried.machine.outcome(), Some(Outcome::Completed(_)));
                let worked = self.ledger.results.contains(&tried.id);
                if worked && !ended_well && !stored.called_off && killed <= MAX_KILLED {
                    lost.push(format!(
                        "attempt {} of job {job} had a result and ended as {:?}",
                        tried.id,
                        tried.machine.outcome()
                    ));
                }
            }
        }
        if let Some(how) = lost.into_iter().next() {
            self.violate(Invariant::WorkCounts, how);
        }
    }

    fn judge_leftovers(&mut self) {
        let folders = self.kept_folders();
        if !folders.is_empty() {
            let how = format!("folders are left: {folders:?}");
            self.violate(Invariant::NothingOrphaned, how);
        }
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
            .filter(|record| match record.status {
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
            let ready = tried.machine.ready_at().is_some();
            let is_paid = ready && tried.machine.outcome().is_some_and(Outcome::is_paid);
            for own in &tried.receipts {
                if let ReceiptPayload::Finished(receipt) = &own.payload
                    && is_paid != (receipt.score_str != "0.000000")
                {
                    broken.push(format!("attempt {} is paid {}", tried.id, receipt.score_str));
                }
            }
        }
        self.judge_payments();
        if let Some(how) = broken.into_iter().next() {
            self.violate(Invariant::ReceiptsAgree, how);
        }
    }
    /// Counts the finished receipts that pay: the validator's, with the miners' half or without it.
    fn judge_payments(&mut self) {
        let mut twice = None;
        for (job, stored) in &self.validator.jobs {
            let receipts = stored.attempts.iter().flat_map(|tried| &tried.receipts);
            let paid = receipts.filter(|own| match &own.payload {
                ReceiptPayload::Finished(receipt) => receipt.score_str != "0.000000",
                ReceiptPayload::Started(_) | ReceiptPayload::Accepted(_) => false,
            });
            if paid.count() > 1 {
                twice = Some(format!("job {job} is paid more than once"));
            }
        }
        if let Some(how) = twice {
            self.violate(Invariant::PaidOnce, how);
        }
    }
}
