//! The line of one class of executor: its accounts, which take turns.

use std::collections::BTreeMap;

use muster_protocol::JobId;

use crate::account_line::AccountLine;
use crate::length_index::{AccountEntry, LengthIndex};
use crate::{QueueAccount, QueueTicket, WaitingJob};

/// The jobs that wait for one class of executor.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClassLine {
    accounts: BTreeMap<QueueAccount, AccountLine>,
    /// The accounts that have jobs, in the order of their turns.
    turns: BTreeMap<QueueTicket, QueueAccount>,
    /// The same accounts by the number of their jobs.
    lengths: LengthIndex,
    waiting: usize,
}

impl ClassLine {
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn insert(&mut self, job: &WaitingJob) {
        self.change(&job.account, |line| line.insert(job));
    }

    pub(crate) fn remove(&mut self, job: &WaitingJob) {
        self.change(&job.account, |line| line.remove(job));
    }

    /// Removes a job and notes that its account had a turn.
    pub(crate) fn take(&mut self, job: &WaitingJob, turn: QueueTicket) {
        self.change(&job.account, |line| {
            line.remove(job);
            line.note_turn(turn);
        });
    }

    /// Notes a turn that an account had before a restart.
    pub(crate) fn restore_turn(&mut self, account: &QueueAccount, turn: QueueTicket) {
        if self.accounts.contains_key(account) {
            self.change(account, |line| line.note_turn(turn));
        }
    }

    /// The next job to start.
    pub(crate) fn next(&self) -> Option<JobId> {
        let (_, account) = self.turns.first_key_value()?;
        self.accounts.get(account)?.get(0)
    }

    /// The first job that is accepted, account by account in the order of their turns.
    pub(crate) fn first_where(&self, mut accept: impl FnMut(JobId) -> bool) -> Option<JobId> {
        let mut lines = self
            .turns
            .values()
            .filter_map(|account| self.accounts.get(account));
        lines.find_map(|line| line.jobs().find(|job| accept(*job)))
    }

    /// The jobs in the order in which they start.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = JobId> + '_ {
        let lines = || {
            self.turns
                .values()
                .filter_map(|account| self.accounts.get(account))
        };
        let first_round = lines().filter_map(|line| line.get(0));
        // Often only the head of the line is looked at.
        let later_rounds = std::iter::once_with(move || later_rounds(lines().collect())).flatten();
        first_round.chain(later_rounds)
    }

    /// Number of jobs that start before this one; `None` if it is not here.
    pub(crate) fn ahead_of(&self, job: &WaitingJob) -> Option<usize> {
        let line = self.accounts.get(&job.account)?;
        let own = line.index_of(job)?;
        let place = line.place()?;
        Some(self.lengths.starts_before(own, place))
    }

    /// The most jobs that start before a new one of an account which has `own` jobs here. The new one is the last of
    /// its account.
    pub(crate) fn ahead_of_next(&self, own: usize) -> usize {
        // In the new job's own round, each account that still has a job may have its turn before.
        self.lengths.starts_in(own.saturating_add(1))
    }

    /// Changes the jobs of an account, and gives the account the place that follows from them. An account without jobs
    /// is forgotten: its last turn came before every later arrival, so it decides nothing any more.
    fn change(&mut self, account: &QueueAccount, change: impl FnOnce(&mut AccountLine)) {
        let mut line = self.accounts.remove(account).unwrap_or_default();
        let before = entry_of(&line);
        change(&mut line);
        let after = entry_of(&line);
        self.lengths.replace(before, after);
        if let Some(before) = before {
            self.turns.remove(&before.place);
            self.waiting = self.waiting.saturating_sub(before.length);
        }
        if let Some(after) = after {
            self.turns.insert(after.place, account.clone());
            self.waiting = self.waiting.saturating_add(after.length);
            self.accounts.insert(account.clone(), line);
        }
    }
}

fn entry_of(line: &AccountLine) -> Option<AccountEntry> {
    let place = line.place()?;
    let length = line.len();
    Some(AccountEntry { place, length })
}

/// The jobs of these lines after the first of each, in the order in which they start.
fn later_rounds(mut lines: Vec<&AccountLine>) -> impl Iterator<Item = JobId> {
    let mut round: usize = 0;
    let mut at: usize = lines.len();
    std::iter::from_fn(move || {
        if at >= lines.len() {
            round = round.saturating_add(1);
            at = 0;
            lines.retain(|line| line.len() > round);
        }
        let job = lines.get(at)?.get(round);
        at = at.saturating_add(1);
        job
    })
}
