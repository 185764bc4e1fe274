//! The queue of jobs that wait for an executor, as a data structure without a clock, IO or randomness.
//!
//! Each class of executor has a line of its own, so a class without a free executor holds up no other class. Jobs for
//! the trusted miner have lines of theirs. Within a line, accounts take turns. Within an account, the job with the
//! lowest *rank* goes first: the time of its arrival, put back by [`AGE_STEP`] for each step of its priority. So a
//! waiting job gains a step of priority on later arrivals per [`AGE_STEP`], and nothing in the structure changes while
//! time passes.
//!
//! The order is a function of the waiting jobs and of the last turn of each account, all of which have numbers
//! ([`QueueTicket`]). A store that keeps both restores the same order after a restart.
//!
//! [`JobQueue`] is the order, [`most_starts_before`] is the bound on starvation. [`WaitingLines`] decides by it and by
//! routes which job starts next.

mod account_line;
mod class_line;
mod estimate;
mod executor_line;
mod length_index;
mod queue;
mod ranked_set;
mod views;
mod waiting_lines;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use muster_protocol::job::Priority;
use muster_protocol::{JobId, Timestamp};

pub use estimate::{DurationRecord, estimate_wait};
pub use executor_line::{ExecutorLine, UnknownLine};
pub use queue::{JobQueue, QueueFull, QueueLimits, QueuePosition};
pub use views::{LineView, QueueView, WaitingJobView};
pub use waiting_lines::{LeftJob, LineStep, QueueArrival, WaitingLines};

/// The waiting time that counts as much as one step of priority.
pub const AGE_STEP: Duration = Duration::from_secs(300);

/// The name of an account as the queue keeps it: jobs of one account share its turns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueAccount(Arc<str>);

impl QueueAccount {
    /// The account with this name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name that the account was made with.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QueueAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A number that the queue draws for each arrival and for each turn of an account; later ones are higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueTicket(pub i64);

/// A job that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingJob {
    /// The job's id.
    pub job: JobId,
    /// The account that the job counts towards.
    pub account: QueueAccount,
    /// The line in which the job waits.
    pub line: ExecutorLine,
    /// The job's priority among its account's jobs; higher goes first.
    pub priority: Priority,
    /// The number of the job's arrival in the queue.
    pub ticket: QueueTicket,
    /// Since when the job has waited; a job that returns after a failed attempt keeps the time of its first arrival.
    pub since: Timestamp,
    /// When the job has waited too long.
    pub deadline: Timestamp,
}

/// The most jobs of a line that start before a given job does.
///
/// `ahead_in_account` is the number of jobs of its own account that go before it, `other_accounts` the most other
/// accounts that have jobs in the line at any time while it waits. Between two turns of an account, every other account
/// has one turn at most.
pub fn most_starts_before(ahead_in_account: usize, other_accounts: usize) -> usize {
    let turns = ahead_in_account.saturating_add(1);
    turns
        .saturating_mul(other_accounts.saturating_add(1))
        .saturating_sub(1)
}
