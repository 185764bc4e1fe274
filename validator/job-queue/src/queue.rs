//! The queue of all lines.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use muster_protocol::{JobId, Timestamp};

use crate::class_line::ClassLine;
use crate::{ExecutorLine, QueueAccount, QueueTicket, WaitingJob};

/// The most jobs that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Jobs of all accounts together.
    pub jobs: usize,
    /// Jobs of one account.
    pub per_account: usize,
}

/// Why no further job may wait. Jobs that are only reserved for count too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueFull {
    /// The account has as many waiting jobs as one account may have.
    #[error(
        "{0} jobs of this account wait already, which is the most that may; submit it again when some have started"
    )]
    Account(usize),
    /// As many jobs wait as may in all.
    #[error("{0} jobs wait already, which is the most that this validator keeps; submit it again later")]
    All(usize),
}

/// The place of a job in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    /// The line in which the job waits.
    pub line: ExecutorLine,
    /// Jobs of the line that start before this one.
    pub ahead: usize,
    /// Jobs in the line, this one included.
    pub waiting: usize,
}

/// The waiting jobs, in order.
///
/// With `n` waiting jobs of `a` accounts, adding, taking or removing a job costs O(log n · log a) comparisons at most,
/// and so does [`Self::position`]: about a dozen searches in sets of accounts. The order of accounts and the number of
/// their jobs are independent of each other, so the position is a count in two dimensions, for which no structure
/// answers and changes in O(log n). [`Self::next`] costs O(log n), and so does each job of [`Self::in_order`] after the
/// first of each account.
#[derive(Clone, Debug)]
pub struct JobQueue {
    limits: QueueLimits,
    jobs: HashMap<JobId, WaitingJob>,
    lines: BTreeMap<ExecutorLine, ClassLine>,
    deadlines: BTreeSet<(Timestamp, JobId)>,
    /// Jobs of each account, reserved ones included.
    counts: BTreeMap<QueueAccount, usize>,
    /// Jobs that are about to be added, by line.
    reserved: BTreeMap<ExecutorLine, usize>,
    last: QueueTicket,
}

impl JobQueue {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            jobs: HashMap::new(),
            lines: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            counts: BTreeMap::new(),
            reserved: BTreeMap::new(),
            last: QueueTicket(0),
        }
    }

    /// Reserves room for a job that is going to be stored, and draws the number of its arrival. [`Self::add_reserved`]
    /// or [`Self::release`] must follow. Until then the line counts as occupied, so that no newcomer overtakes the job.
    ///
    /// # Errors
    /// The account, or the queue, has as many jobs as it may have.
    pub fn reserve(
        &mut self,
        line: impl Into<ExecutorLine>,
        account: &QueueAccount,
    ) -> Result<QueueTicket, QueueFull> {
        let reserved = self.reserved.values().copied().fold(0, usize::saturating_add);
        if self.jobs.len().saturating_add(reserved) >= self.limits.jobs {
            return Err(QueueFull::All(self.limits.jobs));
        }
        if self.counts.get(account).copied().unwrap_or(0) >= self.limits.per_account {
            return Err(QueueFull::Account(self.limits.per_account));
        }
        self.count(account, true);
        let reserved = self.reserved.entry(line.into()).or_default();
        *reserved = reserved.saturating_add(1);
        Ok(self.draw())
    }

    /// Adds a job for which [`Self::reserve`] has made room. A job that waits already stays as it is.
    pub fn add_reserved(&mut self, job: WaitingJob) {
        self.release(job.line, &job.account);
        self.restore(job);
    }

    /// Gives back what [`Self::reserve`] has reserved.
    pub fn release(&mut self, line: impl Into<ExecutorLine>, account: &QueueAccount) {
        self.count(account, false);
        if let Some(reserved) = self.reserved.get_mut(&line.into()) {
            *reserved = reserved.saturating_sub(1);
        }
    }

    /// Draws the number of a job that returns, or of a turn.
    pub fn draw(&mut self) -> QueueTicket {
        self.last = QueueTicket(self.last.0.saturating_add(1));
        self.last
    }

    /// Adds a job that was admitted before, whatever the limits: one that a store has kept, or one that returns after a
    /// failed attempt. A job that waits already stays as it is.
    pub fn restore(&mut self, mut job: WaitingJob) {
        if self.jobs.contains_key(&job.job) {
            return;
        }
        // One text serves all jobs of an account.
        if let Some((known, _)) = self.counts.get_key_value(&job.account) {
            job.account = known.clone();
        }
        self.last = self.last.max(job.ticket);
        self.count(&job.account, true);
        self.deadlines.insert((job.deadline, job.job));
        self.lines.entry(job.line).or_default().insert(&job);
        self.jobs.insert(job.job, job);
    }

    /// Notes the last turn that an account had before a restart. Call it once all its jobs are restored.
    pub fn restore_turn(&mut self, line: impl Into<ExecutorLine>, account: &QueueAccount, turn: QueueTicket) {
        self.last = self.last.max(turn);
        if let Some(line) = self.lines.get_mut(&line.into()) {
            line.restore_turn(account, turn);
        }
    }

    /// Removes a job that does not start; `None` if it does not wait.
    pub fn remove(&mut self, job: JobId) -> Option<WaitingJob> {
        let job = self.forget(job)?;
        self.change_line(job.line, |line| line.remove(&job));
        Some(job)
    }

    /// Removes a job that starts, and gives the number of the turn that its account has had with it; `None` if it does
    /// not wait.
    pub fn take(&mut self, job: JobId) -> Option<(WaitingJob, QueueTicket)> {
        let job = self.forget(job)?;
        let turn = self.draw();
        self.change_line(job.line, |line| line.take(&job, turn));
        Some((job, turn))
    }

    /// Takes the next job of a line.
    pub fn pop(&mut self, line: impl Into<ExecutorLine>) -> Option<(WaitingJob, QueueTicket)> {
        let next = self.lines.get(&line.into())?.next()?;
        self.take(next)
    }

    /// The next job of a line.
    pub fn next(&self, line: impl Into<ExecutorLine>) -> Option<&WaitingJob> {
        self.jobs.get(&self.lines.get(&line.into())?.next()?)
    }

    /// The first job of a line that is accepted. An account whose jobs are all refused misses its turn; an account with
    /// an accepted job does not, so that a job which must be passed over holds up no other job of its account.
    pub fn first_where(
        &self,
        line: impl Into<ExecutorLine>,
        mut accept: impl FnMut(&WaitingJob) -> bool,
    ) -> Option<&WaitingJob> {
        let line = self.lines.get(&line.into())?;
        let first = line.first_where(|job| self.jobs.get(&job).is_some_and(&mut accept))?;
        self.jobs.get(&first)
    }

    /// The jobs of a line in the order in which they start.
    pub fn in_order(&self, line: ExecutorLine) -> impl Iterator<Item = &WaitingJob> {
        let order = self.lines.get(&line).map(ClassLine::in_order);
        order.into_iter().flatten().filter_map(|job| self.jobs.get(&job))
    }

    /// Removes the jobs whose deadline has come, the oldest deadline first.
    pub fn expire(&mut self, now: Timestamp) -> Vec<WaitingJob> {
        let mut expired = Vec::new();
        while let Some((_, job)) = self
            .deadlines
            .first()
            .copied()
            .filter(|(deadline, _)| *deadline <= now)
        {
            // Every deadline is of a job that waits; should it not be, the deadline must go all the same.
            match self.remove(job) {
                Some(job) => expired.push(job),
                None => drop(self.deadlines.pop_first()),
            }
        }
        expired
    }

    /// The earliest deadline; `None` if nothing waits.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The place of a job in its line; `None` if it does not wait.
    pub fn position(&self, job: JobId) -> Option<QueuePosition> {
        let job = self.jobs.get(&job)?;
        let line = self.lines.get(&job.line)?;
        Some(QueuePosition {
            line: job.line,
            ahead: line.ahead_of(job)?,
            waiting: line.waiting(),
        })
    }

    /// The most jobs of a line that would start before a new one: the first entry is for an account without a job in
    /// the line, the next one for an account with one, and so on, `limit` entries at most. An account with more jobs
    /// than there are entries is behind all jobs of the line. The new job is the last of its account.
    pub fn ahead_of_next(&self, line: impl Into<ExecutorLine>, limit: usize) -> Vec<usize> {
        let line = self.lines.get(&line.into());
        let mut places = Vec::new();
        for own in 0..limit {
            let ahead = line.map_or(0, |line| line.ahead_of_next(own));
            // An entry that is no larger than the one before it is behind all jobs of the line.
            let is_last = ahead == 0 || places.last() == Some(&ahead);
            places.push(ahead);
            if is_last {
                break;
            }
        }
        places
    }

    /// A waiting job.
    pub fn get(&self, job: JobId) -> Option<&WaitingJob> {
        self.jobs.get(&job)
    }

    /// Whether a newcomer to this line would overtake nobody.
    pub fn is_free_for_all(&self, line: impl Into<ExecutorLine>) -> bool {
        let line = line.into();
        self.waiting_for(line) == 0 && self.reserved.get(&line).is_none_or(|reserved| *reserved == 0)
    }

    /// Number of jobs in a line.
    pub fn waiting_for(&self, line: impl Into<ExecutorLine>) -> usize {
        self.lines.get(&line.into()).map_or(0, ClassLine::waiting)
    }

    /// The lines in which jobs wait.
    pub fn lines(&self) -> Vec<ExecutorLine> {
        self.lines.keys().copied().collect()
    }

    /// All waiting jobs, in no order.
    pub fn jobs(&self) -> impl Iterator<Item = &WaitingJob> {
        self.jobs.values()
    }

    /// Number of waiting jobs.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether no job waits.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn forget(&mut self, job: JobId) -> Option<WaitingJob> {
        let job = self.jobs.remove(&job)?;
        self.deadlines.remove(&(job.deadline, job.job));
        self.count(&job.account, false);
        Some(job)
    }

    fn change_line(&mut self, of: ExecutorLine, change: impl FnOnce(&mut ClassLine)) {
        if let Some(line) = self.lines.get_mut(&of) {
            change(line);
            if line.waiting() == 0 {
                self.lines.remove(&of);
            }
        }
    }

    fn count(&mut self, account: &QueueAccount, add: bool) {
        match (self.counts.get_mut(account), add) {
            (Some(count), true) => *count = count.saturating_add(1),
            (Some(count), false) if *count > 1 => *count = count.saturating_sub(1),
            (Some(_), false) => drop(self.counts.remove(account)),
            (None, true) => drop(self.counts.insert(account.clone(), 1)),
            (None, false) => {}
        }
    }
}
