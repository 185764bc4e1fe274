//! The queue as a list of rows, in which every answer is found by looking at everything. The simulated validator's
//! queue is held against it; a kill of the validator leaves it as it is.

use std::collections::{BTreeMap, BTreeSet};

use muster_job_queue::{AGE_STEP, QueueAccount, QueueLimits, QueueTicket, WaitingJob, most_starts_before};
use muster_protocol::JobId;

use crate::invariants::Invariant;

/// A broken promise of the queue.
pub(crate) type Broken = (Invariant, String);

/// The starts that a job has seen while it waited.
#[derive(Clone, Copy, Debug, Default)]
struct Starts {
    /// Of all accounts.
    all: usize,
    /// Of its own account.
    own: usize,
    /// The most other accounts that had waiting jobs at any time.
    most_others: usize,
    /// The job was passed over, because the miners that were free had tried it.
    passed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct QueueModel {
    rows: Vec<WaitingJob>,
    turns: BTreeMap<QueueAccount, QueueTicket>,
    seen: BTreeMap<JobId, Starts>,
}

fn of<'a>(rows: &'a [WaitingJob], account: &QueueAccount) -> Vec<&'a WaitingJob> {
    let step = i64::try_from(AGE_STEP.as_micros()).unwrap_or(i64::MAX);
    let mut jobs: Vec<_> = rows.iter().filter(|job| job.account == *account).collect();
    jobs.sort_by_key(|job| {
        (
            job.since.micros() - step * i64::from(job.priority.get()),
            job.ticket,
        )
    });
    jobs
}

impl QueueModel {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether a newcomer of this account may wait.
    pub(crate) fn has_room(&self, account: &QueueAccount, limits: QueueLimits) -> bool {
        let own = self.rows.iter().filter(|row| row.account == *account).count();
        self.rows.len() < limits.jobs && own < limits.per_account
    }

    pub(crate) fn arrive(&mut self, waiting: &WaitingJob) {
        self.rows.push(waiting.clone());
        self.seen.insert(waiting.job, Starts::default());
        let accounts: BTreeSet<_> = self.rows.iter().map(|row| &row.account).collect();
        let others = accounts.len() - 1;
        for starts in self.seen.values_mut() {
            starts.most_others = starts.most_others.max(others);
        }
    }

    /// A job leaves that does not start.
    pub(crate) fn leave(&mut self, job: JobId) {
        self.rows.retain(|row| row.job != job);
        self.seen.remove(&job);
        self.forget_turns();
    }

    /// A job starts. The jobs before it must be such that `may_pass` allows to pass them over.
    pub(crate) fn start(
        &mut self,
        job: JobId,
        turn: QueueTicket,
        may_pass: impl Fn(JobId) -> bool,
    ) -> Result<(), Broken> {
        let Some(row) = self.rows.iter().find(|row| row.job == job).cloned() else {
            return Err((
                Invariant::QueueOrder,
                format!("job {job} starts and does not wait"),
            ));
        };
        // Account by account, and in each the jobs in order: the first that may not be passed over starts.
        let line = accounts(&self.rows, &self.turns)
            .into_iter()
            .flat_map(|account| of(&self.rows, &account));
        let line: Vec<_> = line.map(|row| row.job).collect();
        for passed in line.iter().take_while(|other| **other != job) {
            if !may_pass(*passed) {
                let how = format!("job {job} starts before job {passed}; the order is {line:?}");
                return Err((Invariant::QueueOrder, how));
            }
            if let Some(starts) = self.seen.get_mut(passed) {
                starts.passed = true;
            }
        }
        let starts = self.seen.get(&job).copied().unwrap_or_default();
        let most = most_starts_before(starts.own, starts.most_others);
        if starts.all > most && !starts.passed {
            let how = format!("job {job} starts after {starts:?}, which is more than {most}");
            return Err((Invariant::NobodyStarves, how));
        }
        self.leave(job);
        self.turns.insert(row.account.clone(), turn);
        self.forget_turns();
        for other in &self.rows {
            if let Some(starts) = self.seen.get_mut(&other.job) {
                starts.all += 1;
                starts.own += usize::from(other.account == row.account);
            }
        }
        Ok(())
    }

    /// The jobs in the order in which they start, found by starting them one by one.
    pub(crate) fn order(&self) -> Vec<JobId> {
        let (mut rows, mut turns) = (self.rows.clone(), self.turns.clone());
        let mut order = Vec::new();
        let mut last = i64::MAX / 2;
        while let Some(next) = next_of(&rows, &turns) {
            last += 1;
            turns.insert(next.account.clone(), QueueTicket(last));
            rows.retain(|row| row.job != next.job);
            order.push(next.job);
        }
        order
    }

    /// The turn of an account that has no waiting job comes before every later arrival, and decides nothing.
    fn forget_turns(&mut self) {
        let rows = &self.rows;
        self.turns
            .retain(|account, _| rows.iter().any(|row| row.account == *account));
    }
}

/// The accounts in the order of their turns.
fn accounts(rows: &[WaitingJob], turns: &BTreeMap<QueueAccount, QueueTicket>) -> Vec<QueueAccount> {
    let accounts: BTreeSet<_> = rows.iter().map(|row| row.account.clone()).collect();
    let mut accounts: Vec<_> = accounts.into_iter().collect();
    accounts.sort_by_key(|account| {
        let first = of(rows, account).iter().map(|row| row.ticket).min();
        first.max(turns.get(account).copied())
    });
    accounts
}

fn next_of(rows: &[WaitingJob], turns: &BTreeMap<QueueAccount, QueueTicket>) -> Option<WaitingJob> {
    let first = accounts(rows, turns).into_iter().next()?;
    of(rows, &first).first().copied().cloned()
}
