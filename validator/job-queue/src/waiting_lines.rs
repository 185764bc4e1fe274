//! The waiting jobs with the dispatcher's knowledge about them, and its decisions: whether it looks at a job that
//! arrives, which job of a line starts next, and what becomes of a line without room.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use muster_protocol::{JobId, MinerKey, Timestamp};
use muster_routing::availability::{Availability, LaterReasons, availability};
use muster_routing::{Candidate, Route};

use crate::{DurationRecord, ExecutorLine, JobQueue, QueueLimits, QueueTicket, WaitingJob};

/// The waiting jobs and the dispatcher's knowledge about them.
#[derive(Debug)]
pub struct WaitingLines {
    /// The order of the jobs. Jobs enter and leave it by the methods of the lines, so that nothing is forgotten.
    pub queue: JobQueue,
    /// The miners that must not be asked (again), for each waiting job that has had an attempt.
    tried: HashMap<JobId, BTreeSet<MinerKey>>,
    /// Waiting jobs with an image from an archive or with a login. Those of an earlier process are added when their
    /// turn comes and no executor that is free takes such an image.
    private_images: HashSet<JobId>,
    /// Jobs that are too long for the miners that are free, until when those are not asked for such a job.
    held: HashMap<JobId, Timestamp>,
    /// Jobs that have arrived since the dispatcher last looked at their line. They are refused if no miner could run
    /// them; a job that has waited goes on waiting.
    unexamined: BTreeMap<ExecutorLine, Vec<JobId>>,
    /// Why the lines wait that cannot go on before something happens.
    blocked: BTreeMap<ExecutorLine, LaterReasons>,
    /// The executors that each line waits for, when it was last found blocked.
    executors: BTreeMap<ExecutorLine, u32>,
    /// How long recent attempts took.
    durations: BTreeMap<ExecutorLine, DurationRecord>,
}

/// A job that has left the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftJob {
    /// The place that it had.
    pub waiting: WaitingJob,
    /// Whether it has had attempts.
    pub has_attempts: bool,
}

/// The consequence of a job's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueArrival {
    /// Whether the dispatcher must look at the queue.
    pub wakes: bool,
    /// Whether the line is known to wait, so that the dispatcher does not look at the job.
    pub is_blocked: bool,
}

/// The dispatcher's next step in a line in which jobs wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineStep {
    /// This job starts.
    Start(JobId),
    /// All that wait have been tried on the miners that are free, are too long for them, or have images which these do
    /// not take.
    PassOver {
        /// The jobs that have arrived since the dispatcher last looked.
        arrived: Vec<JobId>,
        /// When a reason ends for which private images or long jobs wait.
        again: Option<Timestamp>,
    },
    /// No miner may be asked now: [`WaitingLines::block`] follows.
    Block(LaterReasons),
    /// No miner can run the jobs that have arrived: [`WaitingLines::remove_unexamined`] follows.
    Refuse,
    /// As [`Self::Refuse`], for those with private images only.
    RefusePrivate,
}

impl WaitingLines {
    /// The lines of a validator in which at most `limits` jobs wait.
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            queue: JobQueue::new(limits),
            tried: HashMap::new(),
            private_images: HashSet::new(),
            held: HashMap::new(),
            unexamined: BTreeMap::new(),
            blocked: BTreeMap::new(),
            executors: BTreeMap::new(),
            durations: BTreeMap::new(),
        }
    }

    /// Adds a new job, whose place was reserved.
    pub fn add_reserved(&mut self, waiting: WaitingJob, private_image: bool) -> QueueArrival {
        let (job, line, deadline) = (waiting.job, waiting.line, waiting.deadline);
        self.queue.add_reserved(waiting);
        // That a line is blocked proves nothing about a private image: it may be that no miner takes one.
        if private_image {
            self.private_images.insert(job);
        }
        let is_blocked = self.blocked.contains_key(&line) && !private_image;
        if !is_blocked {
            self.unexamined.entry(line).or_default().push(job);
        }
        // The dispatcher looks at a new job, and must not sleep past the deadline of one that it need not look at.
        let wakes = !is_blocked || self.queue.next_deadline() == Some(deadline);
        QueueArrival { wakes, is_blocked }
    }

    /// Adds a job that has had attempts; the miners in `tried` must not be asked.
    pub fn add_again(&mut self, waiting: WaitingJob, tried: BTreeSet<MinerKey>, private_image: bool) {
        if private_image {
            self.private_images.insert(waiting.job);
        }
        self.restore(waiting, Some(tried));
    }

    /// Adds a job as an earlier process left it; the miners in `tried` must not be asked if it has had attempts.
    pub fn restore(&mut self, waiting: WaitingJob, tried: Option<BTreeSet<MinerKey>>) {
        if let Some(tried) = tried {
            self.tried.insert(waiting.job, tried);
        }
        self.queue.restore(waiting);
    }

    /// Notes that there may be room now: an attempt ended, or a miner showed its executors. Returns whether the
    /// dispatcher must look.
    pub fn note_room(&mut self) -> bool {
        self.blocked.clear();
        self.held.clear();
        !self.queue.is_empty()
    }

    /// Notes how long an attempt kept its executor.
    pub fn note_duration(&mut self, line: ExecutorLine, duration: Duration) {
        self.durations.entry(line).or_default().note(duration);
    }

    /// How long recent attempts took.
    pub fn durations(&self, line: ExecutorLine) -> DurationRecord {
        self.durations.get(&line).cloned().unwrap_or_default()
    }

    /// When the first of the benched miners that a line waits for may be asked again.
    pub fn back_at(&self, line: ExecutorLine) -> Option<Timestamp> {
        let reasons = self.blocked.get(&line)?;
        reasons.until.filter(|_| reasons.failing > 0)
    }

    /// The executors that a line waits for, when it was last found blocked.
    pub fn executors(&self, line: ExecutorLine) -> u32 {
        self.executors.get(&line).copied().unwrap_or(0)
    }

    /// Why a line waits, as text; `None` if it does not, or if the dispatcher is just looking.
    pub fn why(&self, line: ExecutorLine) -> Option<String> {
        let reasons = self.blocked.get(&line)?;
        if line.on_trusted_miner && reasons.full > 0 {
            return Some("the trusted miner does not answer, or has no executor free".to_owned());
        }
        Some(reasons.to_string())
    }

    /// Removes a job that starts; returns its place and its account's turn.
    pub fn start(&mut self, job: JobId) -> Option<(WaitingJob, QueueTicket)> {
        let taken = self.queue.take(job)?;
        self.forget(job);
        Some(taken)
    }

    /// Removes a job that does not start; `None` if it does not wait.
    pub fn remove(&mut self, job: JobId) -> Option<LeftJob> {
        let waiting = self.queue.remove(job)?;
        let has_attempts = self.forget(job);
        Some(LeftJob {
            waiting,
            has_attempts,
        })
    }

    /// Removes the jobs that have waited too long at `now`.
    pub fn expire(&mut self, now: Timestamp) -> Vec<LeftJob> {
        let expired = self.queue.expire(now).into_iter().map(|waiting| {
            let has_attempts = self.forget(waiting.job);
            LeftJob {
                waiting,
                has_attempts,
            }
        });
        expired.collect()
    }

    /// Removes the jobs that have arrived in a line since the dispatcher last looked; with `private_image` only those
    /// with private images.
    pub fn remove_unexamined(&mut self, line: ExecutorLine, private_image: bool) -> Vec<LeftJob> {
        let mut jobs = self.unexamined.remove(&line).unwrap_or_default();
        if private_image {
            let (private, others) = jobs
                .into_iter()
                .partition(|job| self.private_images.contains(job));
            jobs = private;
            self.unexamined.insert(line, others);
        }
        jobs.into_iter().filter_map(|job| self.remove(job)).collect()
    }

    /// Forgets what is known of a job that waits no more; returns whether it has had attempts.
    fn forget(&mut self, job: JobId) -> bool {
        self.private_images.remove(&job);
        self.held.remove(&job);
        self.tried.remove(&job).is_some()
    }

    /// Whether a job of the line waits that needs an executor which takes private images.
    pub fn needs_private_images(&self, line: ExecutorLine) -> bool {
        let mut jobs = self.private_images.iter();
        jobs.any(|job| self.queue.get(*job).is_some_and(|waiting| waiting.line == line))
    }

    /// The dispatcher's next step in a line in which jobs wait. `found` is the route of a job that no miner was asked
    /// for yet, `private` that of one with a private image, if such a job waits.
    pub fn next_step(&mut self, line: ExecutorLine, found: &Route, private: Option<&Route>) -> LineStep {
        if private.map(availability) == Some(Availability::Never) && self.has_unexamined_private_image(line) {
            return LineStep::RefusePrivate;
        }
        match availability(found) {
            Availability::Later(reasons) => return LineStep::Block(reasons),
            Availability::Never => return LineStep::Refuse,
            Availability::Now(_) => {}
        }
        let takers = private.map_or(&found.candidates, |private| &private.candidates);
        match self.first_startable(line, &found.candidates, takers) {
            Some(job) => LineStep::Start(job),
            None => LineStep::PassOver {
                arrived: self.unexamined.remove(&line).unwrap_or_default(),
                again: [private.and_then(end_of_wait), self.release_of(line)]
                    .into_iter()
                    .flatten()
                    .min(),
            },
        }
    }

    /// Notes that no miner may be asked for a line that waits for `executors`; returns the jobs that have arrived since
    /// the dispatcher last looked.
    pub fn block(&mut self, line: ExecutorLine, reasons: LaterReasons, executors: u32) -> Vec<JobId> {
        self.executors.insert(line, executors);
        self.blocked.insert(line, reasons);
        self.unexamined.remove(&line).unwrap_or_default()
    }

    /// Notes why a job that was found startable on these miners does not start, so that others may. Returns `false` if
    /// nothing more is known of it than before.
    pub fn pass_over(
        &mut self,
        job: JobId,
        line: ExecutorLine,
        private_image: bool,
        candidates: &[Candidate],
    ) -> bool {
        // A job of an earlier process whose image not every executor takes.
        if private_image && self.private_images.insert(job) {
            return true;
        }
        // The trusted miner is asked again later.
        if line.on_trusted_miner {
            return false;
        }
        // The subnet has changed since a job with attempts was found startable: it avoids an owner's miners that were
        // not known as such.
        let Some(tried) = self.tried.get_mut(&job) else {
            return false;
        };
        tried.extend(candidates.iter().map(|candidate| candidate.miner));
        true
    }

    /// Passes a job over until this time, or until there is room: it is too long for the miners that are free.
    pub fn hold(&mut self, job: JobId, until: Timestamp) {
        self.held.insert(job, until);
    }

    /// Looks again at the jobs that were held until `now`.
    pub fn release_held(&mut self, now: Timestamp) {
        self.held.retain(|_, until| now < *until);
    }

    /// When the first of the held jobs of a line is looked at again.
    fn release_of(&self, line: ExecutorLine) -> Option<Timestamp> {
        let is_of_line = |job: &JobId| self.queue.get(*job).is_some_and(|waiting| waiting.line == line);
        let held = self.held.iter().filter(|(job, _)| is_of_line(job));
        held.map(|(_, until)| *until).min()
    }

    /// Whether a job with a private image has arrived since the line was last looked at.
    fn has_unexamined_private_image(&self, line: ExecutorLine) -> bool {
        let mut arrived = self.unexamined.get(&line).into_iter().flatten();
        arrived.any(|job| self.private_images.contains(job))
    }

    /// The first job of a line that one of these miners may run; `takers` are those that take private images. Only jobs
    /// that have had an attempt, have a private image, or are held are ever passed over.
    fn first_startable(
        &self,
        line: ExecutorLine,
        candidates: &[Candidate],
        takers: &[Candidate],
    ) -> Option<JobId> {
        let is_startable = |job: &JobId| {
            if self.held.contains_key(job) {
                return false;
            }
            let candidates = if self.private_images.contains(job) {
                takers
            } else {
                candidates
            };
            match self.tried.get(job) {
                None => !candidates.is_empty(),
                Some(tried) => candidates
                    .iter()
                    .any(|candidate| !tried.contains(&candidate.miner)),
            }
        };
        // The turn of an account goes to its next job where its first one is passed over.
        let first = self.queue.first_where(line, |waiting| is_startable(&waiting.job));
        first.map(|waiting| waiting.job)
    }
}

/// When a reason ends for which no miner of a route may be asked now.
fn end_of_wait(found: &Route) -> Option<Timestamp> {
    match availability(found) {
        Availability::Later(reasons) => reasons.until,
        Availability::Now(_) | Availability::Never => None,
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::job::Priority;
    use muster_protocol::{ExecutorClass, Hotkey};
    use muster_routing::{ExcludedMiner, Exclusion, RouteCost};
    use uuid::Uuid;

    use super::*;
    use crate::QueueAccount;

    const LINE: ExecutorLine = ExecutorLine {
        class: ExecutorClass::AlwaysOnTest,
        on_trusted_miner: false,
    };

    fn job(number: u128) -> JobId {
        JobId::from_uuid(Uuid::from_u128(number))
    }

    fn miner(seed: u8) -> MinerKey {
        MinerKey(Hotkey::from_bytes([seed; 32]))
    }

    /// A route that leaves these miners.
    fn free(miners: &[u8]) -> Route {
        let candidates = miners.iter().map(|seed| Candidate {
            uid: u16::from(*seed),
            miner: miner(*seed),
            address: ([127, 0, 0, 1], 8_000).into(),
            cost: RouteCost::default(),
        });
        Route {
            candidates: candidates.collect(),
            ..Route::default()
        }
    }

    /// A route whose only miner is full until this second.
    fn full(until: i64) -> Route {
        Route {
            excluded: vec![ExcludedMiner {
                uid: 1,
                miner: miner(1),
                reason: Exclusion::FullLately,
                until: Some(Timestamp::from_secs(until)),
            }],
            ..Route::default()
        }
    }

    fn lines() -> WaitingLines {
        WaitingLines::new(QueueLimits {
            jobs: 10,
            per_account: 10,
        })
    }

    /// Lets a new job wait until second 99 and as many more as its number.
    fn arrive(lines: &mut WaitingLines, number: u128, private_image: bool) -> QueueArrival {
        let account = QueueAccount::new("alice");
        let ticket = lines.queue.reserve(LINE, &account).unwrap();
        let waiting = WaitingJob {
            job: job(number),
            account,
            line: LINE,
            priority: Priority::default(),
            ticket,
            since: Timestamp::from_secs(1),
            deadline: Timestamp::from_secs(99 + i64::try_from(number).unwrap()),
        };
        lines.add_reserved(waiting, private_image)
    }

    /// Blocks the line as the dispatcher does.
    fn block(lines: &mut WaitingLines, route: &Route) -> Vec<JobId> {
        match lines.next_step(LINE, route, None) {
            LineStep::Block(reasons) => lines.block(LINE, reasons, 3),
            step @ (LineStep::Start(_)
            | LineStep::PassOver { .. }
            | LineStep::Refuse
            | LineStep::RefusePrivate) => panic!("{step:?}"),
        }
    }

    #[test]
    fn a_job_that_arrives_in_a_blocked_line_wakes_nobody_until_there_is_room() {
        let mut lines = lines();
        assert!(!lines.note_room(), "nobody waits");
        assert!(arrive(&mut lines, 1, false).wakes);
        assert_eq!(block(&mut lines, &full(9)), [job(1)]);
        assert_eq!(lines.executors(LINE), 3);
        assert!(lines.why(LINE).is_some());
        let arrival = arrive(&mut lines, 2, false);
        assert!(arrival.is_blocked && !arrival.wakes, "{arrival:?}");
        let private = arrive(&mut lines, 3, true);
        assert!(private.wakes && !private.is_blocked, "{private:?}");
        assert!(lines.note_room());
        assert_eq!(lines.why(LINE), None);
        assert_eq!(lines.next_step(LINE, &free(&[1]), None), LineStep::Start(job(1)));
    }

    #[test]
    fn a_job_that_is_too_long_lets_shorter_ones_pass_until_its_time_or_room() {
        let at = Timestamp::from_secs;
        let mut lines = lines();
        arrive(&mut lines, 1, false);
        arrive(&mut lines, 2, false);
        assert_eq!(lines.next_step(LINE, &free(&[1]), None), LineStep::Start(job(1)));
        lines.hold(job(1), at(9));
        assert_eq!(lines.next_step(LINE, &free(&[1]), None), LineStep::Start(job(2)));
        assert!(lines.start(job(2)).is_some());
        let LineStep::PassOver { again, .. } = lines.next_step(LINE, &free(&[1]), None) else {
            panic!("nothing else waits")
        };
        assert_eq!(again, Some(at(9)));
        lines.release_held(at(8));
        assert_ne!(lines.next_step(LINE, &free(&[1]), None), LineStep::Start(job(1)));
        lines.release_held(at(9));
        assert_eq!(lines.next_step(LINE, &free(&[1]), None), LineStep::Start(job(1)));
        lines.hold(job(1), at(99));
        lines.note_room();
        assert_eq!(lines.next_step(LINE, &free(&[1]), None), LineStep::Start(job(1)));
    }

    #[test]
    fn a_job_is_passed_over_on_miners_that_have_tried_it() {
        let mut lines = lines();
        arrive(&mut lines, 1, false);
        let (waiting, _) = lines.start(job(1)).unwrap();
        lines.add_again(waiting, [miner(1)].into(), false);
        arrive(&mut lines, 2, false);
        assert_eq!(lines.next_step(LINE, &free(&[1]), None), LineStep::Start(job(2)));
        assert_eq!(
            lines.next_step(LINE, &free(&[1, 2]), None),
            LineStep::Start(job(1))
        );
        assert!(lines.pass_over(job(1), LINE, false, &free(&[2]).candidates));
        assert!(!lines.pass_over(job(2), LINE, false, &free(&[2]).candidates));
        lines.start(job(2)).unwrap();
        let passed = LineStep::PassOver {
            arrived: vec![job(1), job(2)],
            again: None,
        };
        assert_eq!(lines.next_step(LINE, &free(&[1, 2]), None), passed);
        let left = lines.remove(job(1)).unwrap();
        assert!(left.has_attempts);
    }

    #[test]
    fn private_images_wait_for_takers_and_are_refused_without_any() {
        let mut lines = lines();
        arrive(&mut lines, 1, true);
        arrive(&mut lines, 2, false);
        assert!(lines.needs_private_images(LINE));
        let found = free(&[1]);
        assert_eq!(
            lines.next_step(LINE, &found, Some(&full(9))),
            LineStep::Start(job(2))
        );
        assert_eq!(
            lines.next_step(LINE, &found, Some(&Route::default())),
            LineStep::RefusePrivate
        );
        let refused = lines.remove_unexamined(LINE, true);
        assert_eq!(refused.len(), 1);
        assert_eq!(lines.next_step(LINE, &found, None), LineStep::Start(job(2)));
        assert_eq!(lines.next_step(LINE, &Route::default(), None), LineStep::Refuse);
        assert_eq!(lines.remove_unexamined(LINE, false).len(), 1);
        assert!(lines.queue.is_empty());
    }

    #[test]
    fn a_job_that_waited_too_long_leaves() {
        let mut lines = lines();
        arrive(&mut lines, 1, false);
        assert_eq!(lines.expire(Timestamp::from_secs(99)), []);
        let left = lines.expire(Timestamp::from_secs(100));
        assert_eq!(left.len(), 1);
        assert!(left.iter().all(|left| !left.has_attempts));
    }
}
