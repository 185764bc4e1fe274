//! The sessions of one model: how many there are, who is served by which, and what happens when one of them dies.
//!
//! [`Pool::apply`] takes what happened and says what is to be done. What holds after every step, whatever happens:
//!
//! * **Never more than the maximum**: at most `max` sessions are open, and one more only while it replaces another.
//! * **Nothing unsealed serves**: a request goes only to a session that was attested and is not being drained.
//! * **No request is lost**: each is waiting, is with a session, or has been answered exactly once.
//! * **Nobody starves**: users take turns (see [`FairQueue`]).
//! * **Nothing idles while somebody waits**: a free place in a session is given away at once.
//! * **What has begun stays where it is**: once its first byte has left, a request is never given to another session, nor does it
//!   wait for one, even if its session was taken for dead in the same moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_openai::OpenAiError;
use muster_protocol::{Digest, Timestamp};

use crate::queue::{FairQueue, Full};

/// Why a session is closed that fails its health checks; whatever else a pool closes one for is no fault of the session's.
pub const UNWELL: &str = "it does not answer health checks";

/// A session, by the pool's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionNo(pub u64);

/// A request, by whatever number the gateway gave it. Numbers are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestNo(pub u64);

/// What bounds a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions that are kept even if nobody asks.
    pub min: usize,
    /// Sessions at most.
    pub max: usize,
    /// Requests that one session serves at a time.
    pub per_session: usize,
    /// Requests that wait, of all users.
    pub queue: usize,
    /// Requests that wait, of one user.
    pub queue_of_one: usize,
    /// How long one waits before it is told to come back.
    pub patience: Duration,
    /// How long a session may be unused.
    pub idle: Duration,
    /// How long before a session's end another one takes its place.
    pub replace: Duration,
    /// How long before its end a session gets nothing new.
    pub drain: Duration,
    /// Checks of its health that a session may fail one after another.
    pub misses: u32,
    /// Sessions that a request is given to, one after another, if they die before its first byte.
    pub tries: u32,
    /// How long after a failed start the next one is made; doubled with each failure, up to 32 times as long.
    pub backoff: Duration,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody asks.
    Arrived {
        /// The request.
        request: RequestNo,
        /// Whose.
        user: Digest,
    },
    /// The one who asked has gone, whether it waited or was being served.
    Left(RequestNo),
    /// The first byte of the answer is on its way to the client.
    FirstByte(RequestNo, SessionNo),
    /// The answer has ended, in whatever way the session meant it to.
    Served(RequestNo, SessionNo),
    /// The session did not answer, or broke off.
    Broke(RequestNo, SessionNo),
    /// The session is up, attested and sealed, until then.
    Ready(SessionNo, Timestamp),
    /// The session cannot be started, or cannot seal; why.
    Unusable(SessionNo, String),
    /// The session is gone.
    Died(SessionNo),
    /// It was asked how it is, and this is whether it answered well.
    Health(SessionNo, bool),
    /// Nothing new is to begin: everything is drained.
    Stop,
    /// Time has passed.
    Tick,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Begin a session of this number.
    Start(SessionNo),
    /// Give the request to the session.
    Route(RequestNo, SessionNo),
    /// Tell the client why not.
    Refuse(RequestNo, OpenAiError),
    /// The answer has begun and its session is taken for dead: whoever passes it on gives it up unless it goes on, and says so
    /// inside the stream.
    BreakOff(RequestNo),
    /// End the session; why, in words for its log.
    Close(SessionNo, &'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Asked for, and not there yet.
    Starting,
    /// Serves.
    Live { until: Timestamp },
    /// Serves what it has and gets nothing new.
    Draining { until: Timestamp },
}

#[derive(Clone, Debug)]
struct Session {
    phase: Phase,
    active: BTreeSet<RequestNo>,
    used: Timestamp,
    misses: u32,
    /// It takes the place of one that ends soon.
    replaces: bool,
}

#[derive(Clone, Debug)]
enum Place {
    Waiting { since: Timestamp },
    With { session: SessionNo, begun: bool },
}

#[derive(Clone, Debug)]
struct Request {
    user: Digest,
    place: Place,
    tries: u32,
    arrived: Timestamp,
}

/// The sessions and requests of one model.
#[derive(Clone, Debug)]
pub struct Pool {
    limits: Limits,
    sessions: BTreeMap<SessionNo, Session>,
    requests: BTreeMap<RequestNo, Request>,
    queue: FairQueue<Digest, RequestNo>,
    next: u64,
    failures: u32,
    not_before: Option<Timestamp>,
    last_failure: String,
    stopping: bool,
}

/// How a pool stands, for people and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Sessions that are being started.
    pub starting: usize,
    /// That serve.
    pub live: usize,
    /// That serve out what they have.
    pub draining: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// That are being served.
    pub serving: usize,
}

impl Event {
    /// The request that is over with it.
    pub const fn over(&self) -> Option<RequestNo> {
        match self {
            Self::Left(request) | Self::Served(request, _) => Some(*request),
            Self::Arrived { .. }
            | Self::FirstByte(..)
            | Self::Broke(..)
            | Self::Ready(..)
            | Self::Unusable(..)
            | Self::Died(_)
            | Self::Health(..)
            | Self::Stop
            | Self::Tick => None,
        }
    }

    /// The session that is gone with it, without having been closed.
    pub const fn death(&self) -> Option<SessionNo> {
        match self {
            Self::Died(session) => Some(*session),
            Self::Arrived { .. }
            | Self::Left(_)
            | Self::FirstByte(..)
            | Self::Served(..)
            | Self::Broke(..)
            | Self::Ready(..)
            | Self::Unusable(..)
            | Self::Health(..)
            | Self::Stop
            | Self::Tick => None,
        }
    }
}

impl Pool {
    /// A pool with no sessions.
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            sessions: BTreeMap::new(),
            requests: BTreeMap::new(),
            queue: FairQueue::new(limits.queue, limits.queue_of_one),
            next: 0,
            failures: 0,
            not_before: None,
            last_failure: String::new(),
            stopping: false,
        }
    }

    /// Takes what happened at `now` and says what is to be done, in this order.
    pub fn apply(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Arrived { request, user } => self.arrived(request, user, now, &mut effects),
            Event::FirstByte(request, session) => self.first_byte(request, session, now, &mut effects),
            // Who has its answer has it, even if its session was taken for dead meanwhile.
            Event::Left(request) | Event::Served(request, _) => self.left(request, now),
            Event::Broke(request, session) => self.broke(request, session, now, &mut effects),
            Event::Ready(session, until) => self.ready(session, until, now),
            Event::Unusable(session, why) => self.unusable(session, why, now, &mut effects),
            Event::Died(session) => self.died(session, now, &mut effects),
            Event::Health(session, well) => self.health(session, well, now, &mut effects),
            Event::Stop => self.stopping = true,
            Event::Tick => {}
        }
        self.settle(now, &mut effects);
        effects
    }

    /// When [`Event::Tick`] is due if nothing happens before.
    pub fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        let patience = self.requests.values().filter_map(|request| match request.place {
            Place::Waiting { since } => Some(since.plus(self.limits.patience)),
            Place::With { .. } => None,
        });
        let sessions = self.sessions.values().flat_map(|session| match session.phase {
            Phase::Starting => [None, None, None],
            Phase::Live { until } => [
                Some(before(until, self.limits.replace)),
                Some(before(until, self.limits.drain)),
                session
                    .active
                    .is_empty()
                    .then(|| session.used.plus(self.limits.idle)),
            ],
            Phase::Draining { until } => [Some(until), None, None],
        });
        let all = patience.chain(sessions.flatten()).chain(self.not_before);
        all.filter(|at| *at > now).min()
    }

    /// How it stands.
    pub fn census(&self) -> Census {
        let mut census = Census {
            waiting: self.queue.len(),
            ..Census::default()
        };
        for session in self.sessions.values() {
            census.serving += session.active.len();
            match session.phase {
                Phase::Starting => census.starting += 1,
                Phase::Live { .. } => census.live += 1,
                Phase::Draining { .. } => census.draining += 1,
            }
        }
        census
    }

    /// Why no session could be started lately; empty if one could.
    pub fn trouble(&self) -> &str {
        &self.last_failure
    }

    /// Whether this session gets requests.
    pub fn serves(&self, number: SessionNo) -> bool {
        self.sessions.get(&number).is_some_and(Session::is_live)
    }

    /// Whether nothing is left of it.
    pub fn is_over(&self) -> bool {
        self.stopping && self.sessions.is_empty()
    }

    // What happens to requests.

    fn arrived(&mut self, request: RequestNo, user: Digest, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.stopping {
            effects.push(Effect::Refuse(
                request,
                self.unavailable("the gateway is stopping"),
            ));
            return;
        }
        if self.requests.contains_key(&request) {
            return;
        }
        if let Err(full) = self.queue.join(user, request) {
            // With a free place it need not wait, and nobody else can be waiting for that place.
            let whose = match full {
                Full::Queue => "every place in the queue for this model is taken",
                Full::User => "as many of your requests wait for this model as may",
            };
            effects.push(Effect::Refuse(
                request,
                OpenAiError::QueueFull {
                    message: format!("{whose}; come back later"),
                    retry_after: self.limits.patience / 4,
                },
            ));
            return;
        }
        let place = Place::Waiting { since: now };
        let tries = 0;
        self.requests.insert(
            request,
            Request {
                user,
                place,
                tries,
                arrived: now,
            },
        );
    }

    fn left(&mut self, request: RequestNo, now: Timestamp) {
        let Some(known) = self.requests.remove(&request) else {
            return;
        };
        match known.place {
            Place::Waiting { .. } => {
                self.queue.leave(&known.user, &request);
            }
            Place::With { session, .. } => self.free(session, request, now),
        }
    }

    fn first_byte(&mut self, request: RequestNo, from: SessionNo, now: Timestamp, effects: &mut Vec<Effect>) {
        match self.requests.get_mut(&request).map(|known| &mut known.place) {
            None => {}
            Some(Place::With { session, begun }) if *session == from => *begun = true,
            Some(Place::Waiting { .. } | Place::With { .. }) => {
                // Its session was taken for dead while its answer began. It stays there and needs no other place.
                self.left(request, now);
                effects.push(Effect::BreakOff(request));
            }
        }
    }

    fn broke(&mut self, request: RequestNo, from: SessionNo, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.is_with(request, from) {
            self.free(from, request, now);
            self.let_down(request, now, effects);
        }
    }

    /// Its session failed it: it gets another one, unless its answer has begun.
    fn let_down(&mut self, request: RequestNo, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(known) = self.requests.get_mut(&request) else {
            return;
        };
        match known.place {
            Place::Waiting { .. } => {}
            Place::With { begun: true, .. } => {
                self.requests.remove(&request);
                effects.push(Effect::BreakOff(request));
            }
            Place::With { begun: false, .. } if known.tries >= self.limits.tries => {
                let tries = known.tries;
                self.requests.remove(&request);
                let message = format!("{tries} sessions failed before they answered");
                effects.push(Effect::Refuse(request, OpenAiError::UpstreamFailed(message)));
            }
            Place::With { begun: false, .. } => {
                known.place = Place::Waiting { since: now };
                self.queue.rejoin(known.user, request);
            }
        }
    }

    // What happens to sessions.

    fn ready(&mut self, number: SessionNo, until: Timestamp, now: Timestamp) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        match session.phase {
            Phase::Starting => {
                session.phase = Phase::Live { until };
                session.used = now;
                self.failures = 0;
                self.not_before = None;
                self.last_failure.clear();
            }
            Phase::Live { .. } | Phase::Draining { .. } => {}
        }
    }

    fn unusable(&mut self, number: SessionNo, why: String, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(session) = self.sessions.remove(&number) else {
            return;
        };
        effects.push(Effect::Close(number, "it cannot be used"));
        self.failures = self.failures.saturating_add(1);
        let doublings = self.failures.saturating_sub(1).min(5);
        self.not_before = Some(now.plus(self.limits.backoff.saturating_mul(1 << doublings)));
        self.last_failure = why;
        for request in session.active {
            self.let_down(request, now, effects);
        }
        let somebody_may_serve = !self.sessions.is_empty();
        if self.failures >= self.limits.tries.max(1) && !somebody_may_serve {
            let refusal = self.unavailable(&format!("no session could be started: {}", self.last_failure));
            self.refuse_all(&refusal, effects);
        }
    }

    fn died(&mut self, number: SessionNo, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get(&number) else {
            return;
        };
        if session.phase == Phase::Starting {
            self.unusable(number, "it ended before it was up".to_owned(), now, effects);
            return;
        }
        if let Some(session) = self.sessions.remove(&number) {
            for request in session.active {
                self.let_down(request, now, effects);
            }
        }
    }

    fn health(&mut self, number: SessionNo, well: bool, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        session.misses = if well { 0 } else { session.misses.saturating_add(1) };
        if session.misses > self.limits.misses {
            effects.push(Effect::Close(number, UNWELL));
            self.died(number, now, effects);
        }
    }

    // What follows from all of it.

    fn settle(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.not_before.is_some_and(|at| at <= now) {
            self.not_before = None;
        }
        self.retire(now, effects);
        self.give_up_on_time(now, effects);
        self.hand_out(now, effects);
        self.start_some(now, effects);
    }

    fn give_up_on_time(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let too_long = |request: &Request| match request.place {
            Place::Waiting { since } => now >= since.plus(self.limits.patience),
            Place::With { .. } => false,
        };
        let late: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, request)| too_long(request) || (self.stopping && request.waits()))
            .map(|(number, request)| (*number, request.user, request.arrived))
            .collect();
        for (request, user, arrived) in late {
            self.queue.leave(&user, &request);
            self.requests.remove(&request);
            let waited = now.since(arrived).as_secs();
            let why = if self.stopping {
                "the gateway is stopping".to_owned()
            } else if self.last_failure.is_empty() {
                format!("no session had a place for it within {waited} s")
            } else {
                format!(
                    "no session could be started within {waited} s: {}",
                    self.last_failure
                )
            };
            effects.push(Effect::Refuse(request, self.unavailable(&why)));
        }
    }

    fn retire(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let replaced = self
            .sessions
            .values()
            .any(|session| session.replaces && session.is_live());
        let mut kept = self
            .sessions
            .values()
            .filter(|session| session.is_on_duty())
            .count();
        let mut over = Vec::new();
        for (number, session) in &mut self.sessions {
            if let Phase::Live { until } = session.phase {
                let ends_soon = now >= before(until, self.limits.replace);
                let must_drain = now >= before(until, self.limits.drain);
                let unused = session.active.is_empty() && now >= session.used.plus(self.limits.idle);
                if self.stopping || must_drain || (ends_soon && replaced && !session.replaces) {
                    session.phase = Phase::Draining { until };
                    kept = kept.saturating_sub(1);
                } else if unused && kept > self.limits.min {
                    over.push((*number, "nobody used it"));
                    kept = kept.saturating_sub(1);
                }
            }
            match session.phase {
                Phase::Draining { .. } if session.active.is_empty() => over.push((*number, "it is drained")),
                Phase::Draining { until } if now >= until => over.push((*number, "its time is over")),
                Phase::Starting if self.stopping => over.push((*number, "the gateway is stopping")),
                Phase::Starting | Phase::Live { .. } | Phase::Draining { .. } => {}
            }
        }
        for (number, why) in over {
            effects.push(Effect::Close(number, why));
            if let Some(session) = self.sessions.remove(&number) {
                for request in session.active {
                    self.let_down(request, now, effects);
                }
            }
        }
        // Whose predecessor is gone replaces nobody any longer.
        let ending = self
            .sessions
            .values()
            .any(|session| session.is_ending(now, &self.limits));
        if !ending {
            for session in self.sessions.values_mut() {
                session.replaces = false;
            }
        }
    }

    fn hand_out(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        while !self.queue.is_empty() {
            let per_session = self.limits.per_session;
            let free = self
                .sessions
                .iter_mut()
                .filter(|(_, session)| session.is_live() && session.active.len() < per_session)
                // The least loaded; of equals the one used last, so that the others may fall idle.
                .min_by_key(|(number, session)| {
                    (session.active.len(), std::cmp::Reverse(session.used), **number)
                });
            let Some((number, session)) = free else { return };
            let Some(request) = self.queue.take() else { return };
            let Some(known) = self.requests.get_mut(&request) else {
                continue;
            };
            session.active.insert(request);
            session.used = now;
            known.tries = known.tries.saturating_add(1);
            known.place = Place::With {
                session: *number,
                begun: false,
            };
            effects.push(Effect::Route(request, *number));
        }
    }

    fn start_some(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.stopping || self.not_before.is_some() {
            return;
        }
        let on_duty = self
            .sessions
            .values()
            .filter(|session| session.is_on_duty())
            .count();
        let serving: usize = self.sessions.values().map(|session| session.active.len()).sum();
        let asked = self.queue.len() + serving;
        let wanted = asked
            .div_ceil(self.limits.per_session.max(1))
            .clamp(self.limits.min.min(self.limits.max), self.limits.max);
        for _ in on_duty..wanted {
            if self.sessions.len() < self.limits.max {
                self.start(false, now, effects);
            }
        }
        // One that ends soon and is in use, or must be there in any case, is replaced before it goes; one at a time.
        let replacing = self.sessions.values().any(|session| session.replaces);
        let ends = self.sessions.values().any(|session| {
            let used_lately = now < session.used.plus(self.limits.idle) || !session.active.is_empty();
            session.is_ending(now, &self.limits) && (used_lately || self.limits.min > 0)
        });
        let fresh = self
            .sessions
            .values()
            .filter(|session| session.is_on_duty() && !session.is_ending(now, &self.limits))
            .count();
        let needed = wanted.max(1);
        if ends && !replacing && fresh < needed && self.sessions.len() <= self.limits.max {
            self.start(true, now, effects);
        }
    }

    fn start(&mut self, replaces: bool, now: Timestamp, effects: &mut Vec<Effect>) {
        let number = SessionNo(self.next);
        self.next += 1;
        self.sessions.insert(
            number,
            Session {
                phase: Phase::Starting,
                active: BTreeSet::new(),
                used: now,
                misses: 0,
                replaces,
            },
        );
        effects.push(Effect::Start(number));
    }

    fn refuse_all(&mut self, refusal: &OpenAiError, effects: &mut Vec<Effect>) {
        while let Some(request) = self.queue.take() {
            self.requests.remove(&request);
            effects.push(Effect::Refuse(request, refusal.clone()));
        }
    }

    fn unavailable(&self, why: &str) -> OpenAiError {
        OpenAiError::Unavailable {
            message: why.to_owned(),
            retry_after: self.limits.backoff,
        }
    }

    fn is_with(&self, request: RequestNo, number: SessionNo) -> bool {
        self.requests
            .get(&request)
            .is_some_and(|known| match known.place {
                Place::Waiting { .. } => false,
                Place::With { session, .. } => session == number,
            })
    }

    fn free(&mut self, number: SessionNo, request: RequestNo, now: Timestamp) {
        if let Some(session) = self.sessions.get_mut(&number) {
            session.active.remove(&request);
            session.used = now;
        }
    }
}

impl Request {
    const fn waits(&self) -> bool {
        match self.place {
            Place::Waiting { .. } => true,
            Place::With { .. } => false,
        }
    }
}

impl Session {
    const fn is_live(&self) -> bool {
        match self.phase {
            Phase::Live { .. } => true,
            Phase::Starting | Phase::Draining { .. } => false,
        }
    }

    /// It serves, or will.
    const fn is_on_duty(&self) -> bool {
        match self.phase {
            Phase::Starting | Phase::Live { .. } => true,
            Phase::Draining { .. } => false,
        }
    }

    /// It is time for another one to take its place.
    fn is_ending(&self, now: Timestamp, limits: &Limits) -> bool {
        match self.phase {
            Phase::Starting => false,
            Phase::Live { until } => now >= before(until, limits.replace),
            Phase::Draining { .. } => true,
        }
    }
}

fn before(time: Timestamp, span: Duration) -> Timestamp {
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(time.micros().saturating_sub(micros))
}
