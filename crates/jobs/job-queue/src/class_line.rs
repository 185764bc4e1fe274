//! The line of one class of executor: its accounts, which take turns.

use std::collections::BTreeMap;

use muster_protocol::JobId;

use crate::account_line::AccountLine;
use crate::{QueueAccount, QueueTicket, WaitingJob};

/// The jobs that wait for one class of executor.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClassLine {
    accounts: BTreeMap<QueueAccount, AccountLine>,
    /// The accounts that have jobs, in the order of their turns.
    turns: BTreeMap<QueueTicket, QueueAccount>,
    /// Number of accounts by the number of their jobs.
    lengths: BTreeMap<usize, usize>,
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

    /// The jobs in the order in which they start.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = JobId> + '_ {
        let mut lines: Vec<&AccountLine> = self
            .turns
            .values()
            .filter_map(|account| self.accounts.get(account))
            .collect();
        let mut round = 0;
        let mut at = 0;
        std::iter::from_fn(move || {
            if at >= lines.len() {
                round += 1;
                at = 0;
                lines.retain(|line| line.len() > round);
            }
            let job = lines.get(at)?.get(round);
            at += 1;
            job
        })
    }

    /// Number of jobs that start before this one; `None` if it is not here.
    pub(crate) fn ahead_of(&self, job: &WaitingJob) -> Option<usize> {
        let line = self.accounts.get(&job.account)?;
        let own = line.index_of(job)?;
        let place = line.place()?;
        // In each of the `own` rounds before the job's, every account has a turn as long as it has jobs. This account
        // is counted like any other.
        let rounds = self
            .lengths
            .iter()
            .map(|(length, accounts)| length.min(&own).saturating_mul(*accounts));
        let earlier = rounds.fold(0, usize::saturating_add);
        // In the job's own round, the accounts go first whose turn comes before.
        let same_round = self
            .turns
            .range(..place)
            .filter(|(_, account)| self.accounts.get(*account).is_some_and(|line| line.len() > own));
        Some(earlier.saturating_add(same_round.count()))
    }

    /// The most jobs that start before a new one of an account which has so many jobs here. The new one is the last of
    /// its account.
    pub(crate) fn ahead_of_next(&self, own: usize) -> usize {
        let rounds = self.lengths.iter().map(|(length, accounts)| {
            // In the new job's own round, each account that still has a job may have its turn before.
            let starts = (*length).min(own.saturating_add(1));
            starts.saturating_mul(*accounts)
        });
        rounds.fold(0, usize::saturating_add)
    }

    /// The most jobs that one account has here.
    pub(crate) fn longest(&self) -> usize {
        self.lengths.last_key_value().map_or(0, |(length, _)| *length)
    }

    /// Changes the jobs of an account, and gives the account the place that follows from them. An account without jobs
    /// is forgotten: its last turn came before every later arrival, so it decides nothing any more.
    fn change(&mut self, account: &QueueAccount, change: impl FnOnce(&mut AccountLine)) {
        let mut line = self.accounts.remove(account).unwrap_or_default();
        if let Some(place) = line.place() {
            self.turns.remove(&place);
            self.count_length(line.len(), false);
        }
        self.waiting = self.waiting.saturating_sub(line.len());
        change(&mut line);
        self.waiting = self.waiting.saturating_add(line.len());
        if let Some(place) = line.place() {
            self.count_length(line.len(), true);
            self.turns.insert(place, account.clone());
            self.accounts.insert(account.clone(), line);
        }
    }

    fn count_length(&mut self, length: usize, add: bool) {
        let accounts = self.lengths.entry(length).or_default();
        *accounts = if add {
            accounts.saturating_add(1)
        } else {
            accounts.saturating_sub(1)
        };
        if *accounts == 0 {
            self.lengths.remove(&length);
        }
    }
}
