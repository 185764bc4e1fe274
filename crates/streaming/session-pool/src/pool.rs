//! The sessions of one model: how many there are, which session serves which request, and what happens when one dies.
//!
//! [`SessionPool::apply`] takes an event and returns its effects. These invariants hold after every event:
//!
//! * **Never more than the maximum**: at most `max` sessions are open, and one more only while it replaces another.
//! * **Nothing unsealed serves**: a request goes only to a session that was attested and is not being drained.
//! * **No request is lost**: each is waiting, is assigned to a session, or has been answered exactly once.
//! * **Nobody starves**: users take turns (see [`FairQueue`]).
//! * **Nothing idles while a request waits**: a free place is given away at once, unless its session rests after a
//!   failure.
//! * **An answer that has begun stays where it is**: once its first byte has left, a request is never given to another
//!   session, nor does it wait for one, even if its session was presumed dead in the same moment.

mod event;
mod sessions;
mod waiting_place;
mod waiting_requests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_protocol::{Digest, Timestamp};

pub use self::event::{CloseReason, Effect, Event, RequestNumber, SessionNumber};
use self::sessions::{PooledSession, SessionPhase};
use self::waiting_place::MeanTime;
pub use self::waiting_place::{WaitingFor, WaitingPlace};
use self::waiting_requests::{PooledRequest, RequestPosition};
use crate::queue::FairQueue;

/// The bounds of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions that are kept even if there are no requests.
    pub min: usize,
    /// Sessions at most.
    pub max: usize,
    /// Requests that one session serves at a time.
    pub per_session: usize,
    /// Requests that wait, of all users.
    pub queue: usize,
    /// Requests that wait, of one user.
    pub queue_of_one: usize,
    /// How long a request for one session waits before it is refused.
    pub max_wait: Duration,
    /// How long a session may be unused before it is closed.
    pub idle: Duration,
    /// The same while jobs wait for executors of the session's class.
    pub idle_beside_jobs: Duration,
    /// How long before a session's end its replacement is started.
    pub replace: Duration,
    /// How long before its end a session gets no more requests.
    pub drain: Duration,
    /// Health checks that a session may fail one after another.
    pub max_misses: u32,
    /// Sessions that a request is given to, one after another, if they fail before its first byte. As many failed
    /// starts in a row, with no session left, refuse every request that waits.
    pub max_tries: u32,
    /// How long a session gets no request after one failed on it before its first byte. The end of a session becomes
    /// known a moment after its connections break; without the rest, a dying session would take the same request until
    /// the request's tries are used up.
    pub rest: Duration,
    /// The pause after a failed start; it doubles with each further failure, up to 32 times as long. Where no executor
    /// was free, it doubles up to 8 times, and ends once one may be free.
    pub backoff: Duration,
}

/// The sessions and requests of one model.
#[derive(Clone, Debug)]
pub struct SessionPool {
    limits: Limits,
    sessions: BTreeMap<SessionNumber, PooledSession>,
    requests: BTreeMap<RequestNumber, PooledRequest>,
    queue: FairQueue<Digest, RequestNumber>,
    /// Requests that wait for a place of one session, in the order in which they came.
    bound: VecDeque<RequestNumber>,
    next_session: u64,
    /// Failed starts since a session was last ready.
    failures: u32,
    /// The earliest time of the next start, after a failed one.
    not_before: Option<Timestamp>,
    last_failure: String,
    /// Set while no executor is free for a session.
    no_room: Option<NoRoomSince>,
    /// How long sessions took to start.
    starts: MeanTime,
    /// How long answers kept their places.
    answers: MeanTime,
    /// Whether jobs wait for executors of the class.
    jobs_wait: bool,
    is_stopping: bool,
}

/// No executor was free for the last sessions that were to start.
#[derive(Clone, Copy, Debug)]
struct NoRoomSince {
    /// When the last one was declined.
    at: Timestamp,
    /// The end of the pause that followed.
    pause: Timestamp,
    /// Sessions in a row that were declined.
    times: u32,
    /// When an executor is likely to be free.
    expected: Option<Timestamp>,
}

/// How many sessions and requests a pool has, for status pages and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Sessions that are being started.
    pub starting: usize,
    /// Sessions that take requests.
    pub live: usize,
    /// Sessions that serve the requests they have and take no more.
    pub draining: usize,
    /// Requests that wait for any session.
    pub waiting: usize,
    /// Requests that wait for one session.
    pub bound: usize,
    /// Requests that are being served.
    pub serving: usize,
}

impl SessionPool {
    /// A pool without sessions.
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            sessions: BTreeMap::new(),
            requests: BTreeMap::new(),
            queue: FairQueue::new(limits.queue, limits.queue_of_one),
            bound: VecDeque::new(),
            next_session: 0,
            failures: 0,
            not_before: None,
            last_failure: String::new(),
            no_room: None,
            starts: MeanTime::NONE,
            answers: MeanTime::NONE,
            jobs_wait: false,
            is_stopping: false,
        }
    }

    /// Takes an event that happened at `now`. The effects are to be carried out in their order.
    pub fn apply(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut arrived = None;
        match event {
            Event::Arrived {
                request,
                user,
                patience,
            } => {
                arrived = Some(request);
                self.add_request(request, (user, patience), now, &mut effects);
            }
            Event::ArrivedFor {
                request,
                user,
                session,
            } => self.add_bound_request(request, user, session, now, &mut effects),
            Event::FirstByte(request, session) => self.mark_begun(request, session, now, &mut effects),
            // A finished request stays finished even if its session is later declared dead.
            Event::Left(request) | Event::Served(request, _) => self.remove_request(request, now),
            Event::Failed(request, session) => self.fail_request(request, session, now, &mut effects),
            Event::Ready(session, until) => self.mark_live(session, until, now),
            Event::Unusable(session, why) => self.drop_unusable(session, why, now, &mut effects),
            Event::NoRoom {
                session,
                why,
                expected,
            } => self.drop_without_room(session, (why, expected), now, &mut effects),
            Event::TooLong(session) => self.drop_too_long(session, &mut effects),
            Event::Room => self.note_room(now),
            Event::JobsWait(jobs_wait) => self.jobs_wait = jobs_wait,
            Event::Died(session) => self.drop_dead(session, now, &mut effects),
            Event::Health(session, passed) => self.record_health(session, passed, now, &mut effects),
            Event::Hold(session, until) => self.hold(session, until),
            Event::Drain(session) => self.drain(session, now),
            Event::Stop => self.is_stopping = true,
            Event::Tick => {}
        }
        self.settle(now, &mut effects);
        if let Some(request) = arrived {
            self.refuse_hopeless(request, now, &mut effects);
        }
        effects
    }

    /// The time at which [`Event::Tick`] is due unless another event comes first.
    pub fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        let waits = self
            .requests
            .values()
            .filter_map(|request| match request.position {
                RequestPosition::Waiting { since } => Some(since.plus(request.patience)),
                RequestPosition::Assigned { .. } => None,
            });
        let sessions = self.sessions.values().flat_map(|session| match session.phase {
            SessionPhase::Starting => [None; 4],
            SessionPhase::Live { until } => [
                Some(earlier(until, self.limits.replace)),
                Some(earlier(until, self.limits.drain)),
                session
                    .active
                    .is_empty()
                    .then(|| session.idle_end(self.idle()).max(session.held_until)),
                session
                    .rest_end(&self.limits)
                    .filter(|_| !self.queue.is_empty() || !self.bound.is_empty()),
            ],
            SessionPhase::Draining { until } => [Some(until), None, None, None],
        });
        let all = waits.chain(sessions.flatten()).chain(self.not_before);
        all.filter(|at| *at > now).min()
    }

    /// The number of sessions and requests in each state.
    pub fn counts(&self) -> PoolCounts {
        let mut counts = PoolCounts {
            waiting: self.queue.len(),
            bound: self.bound.len(),
            ..PoolCounts::default()
        };
        for session in self.sessions.values() {
            counts.serving += session.active.len();
            match session.phase {
                SessionPhase::Starting => counts.starting += 1,
                SessionPhase::Live { .. } => counts.live += 1,
                SessionPhase::Draining { .. } => counts.draining += 1,
            }
        }
        counts
    }

    /// Why the last start failed; empty once a session is ready.
    pub fn last_failure(&self) -> &str {
        &self.last_failure
    }

    /// Whether a session takes requests, and clients have used it within the time in which an unused one is closed.
    pub fn is_used(&self, number: SessionNumber, now: Timestamp) -> bool {
        let session = self.sessions.get(&number);
        session.is_some_and(|session| session.is_live() && now < session.idle_end(self.idle()))
    }

    /// Whether this session takes requests.
    pub fn is_live(&self, number: SessionNumber) -> bool {
        self.sessions.get(&number).is_some_and(PooledSession::is_live)
    }

    /// Whether the pool was stopped and its last session is closed.
    pub fn is_over(&self) -> bool {
        self.is_stopping && self.sessions.is_empty()
    }

    /// How long a session may be unused at present.
    fn idle(&self) -> Duration {
        match self.jobs_wait {
            true => self.limits.idle.min(self.limits.idle_beside_jobs),
            false => self.limits.idle,
        }
    }

    /// Brings sessions and requests into line with the limits and the time.
    fn settle(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.not_before.is_some_and(|at| at <= now) {
            self.not_before = None;
        }
        self.retire_sessions(now, effects);
        self.refuse_overdue(now, effects);
        self.assign_bound(now, effects);
        self.assign_waiting(now, effects);
        self.start_sessions(now, effects);
    }
}

/// The time that lies `span` before `time`.
fn earlier(time: Timestamp, span: Duration) -> Timestamp {
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(time.micros().saturating_sub(micros))
}
