//! The waiting jobs of one account in one line.

use std::collections::BTreeSet;

use muster_protocol::JobId;

use crate::ranked_set::RankedSet;
use crate::{AGE_STEP, QueueTicket, WaitingJob};

/// The place of a job among its account's jobs: the lower rank first, then the earlier arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Microseconds since 1970: the arrival, put back by the job's priority.
    aged: i64,
    ticket: QueueTicket,
}

impl Rank {
    pub(crate) fn of(job: &WaitingJob) -> Self {
        let step = i64::try_from(AGE_STEP.as_micros()).unwrap_or(i64::MAX);
        let ahead = step.saturating_mul(i64::from(job.priority.get()));
        Self {
            aged: job.since.micros().saturating_sub(ahead),
            ticket: job.ticket,
        }
    }
}

/// The jobs of one account, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccountLine {
    jobs: RankedSet<(Rank, JobId)>,
    /// The numbers of the jobs' arrivals; the lowest decides the account's place until its first turn.
    tickets: BTreeSet<QueueTicket>,
    /// The number of the account's last turn.
    turn: Option<QueueTicket>,
}

impl AccountLine {
    pub(crate) fn insert(&mut self, job: &WaitingJob) {
        self.jobs.insert((Rank::of(job), job.job));
        self.tickets.insert(job.ticket);
    }

    pub(crate) fn remove(&mut self, job: &WaitingJob) {
        self.jobs.remove(&(Rank::of(job), job.job));
        self.tickets.remove(&job.ticket);
    }

    pub(crate) fn note_turn(&mut self, turn: QueueTicket) {
        self.turn = self.turn.max(Some(turn));
    }

    /// The account's place among the accounts of the line; `None` if it has no jobs there.
    pub(crate) fn place(&self) -> Option<QueueTicket> {
        self.tickets
            .first()
            .copied()
            .max(self.turn)
            .filter(|_| !self.jobs.is_empty())
    }

    /// Number of the account's jobs that go before this one; `None` if the job is not here.
    pub(crate) fn index_of(&self, job: &WaitingJob) -> Option<usize> {
        self.jobs.index_of(&(Rank::of(job), job.job))
    }

    pub(crate) fn get(&self, index: usize) -> Option<JobId> {
        self.jobs.get(index).map(|(_, job)| *job)
    }

    /// The jobs in order.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }
}
