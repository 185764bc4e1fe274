//! The pool's sessions: how they start, serve, are replaced and end.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_protocol::Timestamp;

use super::{CloseReason, Effect, Limits, NoRoomSince, RequestNumber, SessionNumber, SessionPool, earlier};

/// A session that was drained on request is followed by another one after this multiple of the pause after a failed
/// start. Its container ends meanwhile, and whatever wants its executor leases it.
const DRAIN_PAUSE: u32 = 8;

/// The doublings of the pause between starts stop here.
const MAX_DOUBLINGS: u32 = 5;

/// The doublings of the pause between starts that find no executor stop here.
const MAX_ROOM_DOUBLINGS: u32 = 3;

/// Once an executor may be free, the pause is this part of the one after a failed start.
const ROOM_SHARE: u32 = 8;

/// A session that was asked for and is not closed.
#[derive(Clone, Debug)]
pub(super) struct PooledSession {
    pub(super) phase: SessionPhase,
    /// When its start began.
    pub(super) begun: Timestamp,
    /// Requests that it serves.
    pub(super) active: BTreeSet<RequestNumber>,
    /// When a request was last assigned to it or left it.
    pub(super) used: Timestamp,
    /// Until when it is wanted, although nobody uses it.
    pub(super) held_until: Timestamp,
    /// When a request last failed on it before its first byte; `None` once a later answer has begun.
    pub(super) failed: Option<Timestamp>,
    /// Health checks that it has failed one after another.
    misses: u32,
    /// It replaces a session that ends soon.
    is_replacement: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SessionPhase {
    /// Not ready yet.
    Starting,
    /// Takes requests until its drain time.
    Live { until: Timestamp },
    /// Serves the requests it has and takes no more.
    Draining { until: Timestamp },
}

impl SessionPool {
    pub(super) fn mark_live(&mut self, number: SessionNumber, until: Timestamp, now: Timestamp) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        match session.phase {
            SessionPhase::Starting => {
                session.phase = SessionPhase::Live { until };
                session.used = now;
                self.starts.note(now.since(session.begun));
                self.failures = 0;
                self.no_room = None;
                self.not_before = None;
                self.last_failure.clear();
            }
            SessionPhase::Live { .. } | SessionPhase::Draining { .. } => {}
        }
    }

    pub(super) fn drop_unusable(
        &mut self,
        number: SessionNumber,
        reason: String,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Some(session) = self.sessions.remove(&number) else {
            return;
        };
        effects.push(Effect::Close(number, CloseReason::Unusable));
        self.failures = self.failures.saturating_add(1);
        let doublings = self.failures.saturating_sub(1).min(MAX_DOUBLINGS);
        self.not_before = Some(now.plus(self.limits.backoff.saturating_mul(1 << doublings)));
        self.last_failure = reason;
        for request in session.active {
            self.reassign(request, now, effects);
        }
        let others_may_serve = !self.sessions.is_empty();
        if self.failures >= self.limits.max_tries.max(1) && !others_may_serve {
            let error = self.unavailable(&format!("no session could be started: {}", self.last_failure));
            self.refuse_all_waiting(&error, effects);
        }
    }

    /// No executor was free for a session. That says nothing about its service, so the requests wait, and a session is
    /// tried again after a pause, or once an executor may be free.
    pub(super) fn drop_without_room(
        &mut self,
        number: SessionNumber,
        (why, expected): (String, Option<Timestamp>),
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        if !self.drop_starting(number, effects) {
            return;
        }
        let times = self.no_room.map_or(0, |earlier| earlier.times).saturating_add(1);
        let doublings = times.saturating_sub(1).min(MAX_ROOM_DOUBLINGS);
        let pause = now.plus(self.limits.backoff.saturating_mul(1 << doublings));
        self.not_before = Some(self.not_before.map_or(pause, |at| at.max(pause)));
        self.no_room = Some(NoRoomSince {
            at: now,
            pause,
            times,
            expected,
        });
        self.last_failure = why;
    }

    /// The session is started anew, shorter.
    pub(super) fn drop_too_long(&mut self, number: SessionNumber, effects: &mut Vec<Effect>) {
        self.drop_starting(number, effects);
    }

    /// Drops a session that has not started for want of an executor; `false` if there is none of this number.
    fn drop_starting(&mut self, number: SessionNumber, effects: &mut Vec<Effect>) -> bool {
        let session = self.sessions.get(&number);
        let is_starting = session.is_some_and(|session| session.phase == SessionPhase::Starting);
        if is_starting {
            self.sessions.remove(&number);
            effects.push(Effect::Close(number, CloseReason::NoRoom));
        }
        is_starting
    }

    /// An executor may be free: a session that found none is tried again soon. The least pause keeps a decline that is
    /// taken for room from being followed by the next one at once.
    pub(super) fn note_room(&mut self, now: Timestamp) {
        // A pause for another reason goes on: a start failed, or the executor is wanted for something else.
        if let Some(no_room) = self.no_room
            && self.not_before == Some(no_room.pause)
        {
            let least = no_room.at.plus(self.limits.backoff / ROOM_SHARE);
            self.not_before = Some(least.max(now));
        }
    }

    pub(super) fn drop_dead(&mut self, number: SessionNumber, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get(&number) else {
            return;
        };
        if session.phase == SessionPhase::Starting {
            self.drop_unusable(number, "it ended before it was up".to_owned(), now, effects);
            return;
        }
        if let Some(session) = self.sessions.remove(&number) {
            for request in session.active {
                self.reassign(request, now, effects);
            }
        }
    }

    pub(super) fn record_health(
        &mut self,
        number: SessionNumber,
        passed: bool,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        session.misses = if passed {
            0
        } else {
            session.misses.saturating_add(1)
        };
        if session.misses > self.limits.max_misses {
            effects.push(Effect::Close(number, CloseReason::Unhealthy));
            self.drop_dead(number, now, effects);
        }
    }

    pub(super) fn hold(&mut self, number: SessionNumber, until: Timestamp) {
        if let Some(session) = self.sessions.get_mut(&number) {
            session.held_until = session.held_until.max(until);
        }
    }

    pub(super) fn drain(&mut self, number: SessionNumber, now: Timestamp) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        match session.phase {
            SessionPhase::Live { until } => {
                session.phase = SessionPhase::Draining { until };
                let pause = now.plus(self.limits.backoff.saturating_mul(DRAIN_PAUSE));
                self.not_before = Some(self.not_before.map_or(pause, |at| at.max(pause)));
            }
            SessionPhase::Starting | SessionPhase::Draining { .. } => {}
        }
    }

    /// Drains the sessions that end soon, and closes those that are drained, expired or idle.
    pub(super) fn retire_sessions(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for (number, reason) in self.find_retired(now) {
            effects.push(Effect::Close(number, reason));
            if let Some(session) = self.sessions.remove(&number) {
                for request in session.active {
                    self.reassign(request, now, effects);
                }
            }
        }
        // A replacement is an ordinary session once the session that it replaces is closed.
        let any_ending = self
            .sessions
            .values()
            .any(|session| session.is_ending(now, &self.limits));
        if !any_ending {
            for session in self.sessions.values_mut() {
                session.is_replacement = false;
            }
        }
    }

    fn find_retired(&mut self, now: Timestamp) -> Vec<(SessionNumber, CloseReason)> {
        let has_replacement = self
            .sessions
            .values()
            .any(|session| session.is_replacement && session.is_live());
        let mut kept = self
            .sessions
            .values()
            .filter(|session| session.is_starting_or_live())
            .count();
        let idle = self.idle();
        let mut retired = Vec::new();
        for (number, session) in &mut self.sessions {
            if let SessionPhase::Live { until } = session.phase {
                let ends_soon = now >= earlier(until, self.limits.replace);
                let must_drain = now >= earlier(until, self.limits.drain);
                let idle_end = session.idle_end(idle).max(session.held_until);
                let is_idle = session.active.is_empty() && now >= idle_end;
                let is_replaced = ends_soon && has_replacement && !session.is_replacement;
                if self.is_stopping || must_drain || is_replaced {
                    session.phase = SessionPhase::Draining { until };
                    kept = kept.saturating_sub(1);
                } else if is_idle && kept > self.limits.min {
                    retired.push((*number, CloseReason::Idle));
                    kept = kept.saturating_sub(1);
                }
            }
            match session.phase {
                SessionPhase::Draining { .. } if session.active.is_empty() => {
                    retired.push((*number, CloseReason::Drained));
                }
                SessionPhase::Draining { until } if now >= until => {
                    retired.push((*number, CloseReason::Expired));
                }
                SessionPhase::Starting if self.is_stopping => {
                    retired.push((*number, CloseReason::GatewayStopping));
                }
                SessionPhase::Starting | SessionPhase::Live { .. } | SessionPhase::Draining { .. } => {}
            }
        }
        retired
    }

    /// Starts as many sessions as the requests need, and the replacement of one that ends soon.
    pub(super) fn start_sessions(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.is_stopping || self.not_before.is_some() {
            return;
        }
        let available = self
            .sessions
            .values()
            .filter(|session| session.is_starting_or_live())
            .count();
        let serving: usize = self.sessions.values().map(|session| session.active.len()).sum();
        let requests = self.queue.len() + serving;
        let wanted = requests
            .div_ceil(self.limits.per_session.max(1))
            .clamp(self.limits.min.min(self.limits.max), self.limits.max);
        for _ in available..wanted {
            if self.sessions.len() < self.limits.max {
                self.start_session(false, now, effects);
            }
        }
        // A session that ends soon is replaced before, if it was used lately or a minimum is kept; one at a time.
        let is_replacing = self.sessions.values().any(|session| session.is_replacement);
        let needs_replacement = self.sessions.values().any(|session| {
            let used_lately = now < session.idle_end(self.idle()) || !session.active.is_empty();
            session.is_ending(now, &self.limits) && (used_lately || self.limits.min > 0)
        });
        let fresh = self
            .sessions
            .values()
            .filter(|session| session.is_starting_or_live() && !session.is_ending(now, &self.limits))
            .count();
        let has_room = self.sessions.len() <= self.limits.max;
        if needs_replacement && !is_replacing && fresh < wanted.max(1) && has_room {
            self.start_session(true, now, effects);
        }
    }

    fn start_session(&mut self, is_replacement: bool, now: Timestamp, effects: &mut Vec<Effect>) {
        let number = SessionNumber(self.next_session);
        self.next_session += 1;
        self.sessions.insert(
            number,
            PooledSession {
                phase: SessionPhase::Starting,
                begun: now,
                active: BTreeSet::new(),
                used: now,
                held_until: now,
                failed: None,
                misses: 0,
                is_replacement,
            },
        );
        effects.push(Effect::Start(number));
    }
}

impl PooledSession {
    pub(super) const fn is_live(&self) -> bool {
        match self.phase {
            SessionPhase::Live { .. } => true,
            SessionPhase::Starting | SessionPhase::Draining { .. } => false,
        }
    }

    /// When it is closed if nobody uses it until then.
    pub(super) fn idle_end(&self, idle: Duration) -> Timestamp {
        self.used.plus(idle)
    }

    /// When it gets requests again after the last failure.
    pub(super) fn rest_end(&self, limits: &Limits) -> Option<Timestamp> {
        self.failed.map(|failed| failed.plus(limits.rest))
    }

    /// Whether it takes another request now.
    pub(super) fn has_free_place(&self, now: Timestamp, limits: &Limits) -> bool {
        let rests = self.rest_end(limits).is_some_and(|end| now < end);
        self.is_live() && !rests && self.active.len() < limits.per_session
    }

    const fn is_starting_or_live(&self) -> bool {
        match self.phase {
            SessionPhase::Starting | SessionPhase::Live { .. } => true,
            SessionPhase::Draining { .. } => false,
        }
    }

    /// Whether its replacement is due.
    fn is_ending(&self, now: Timestamp, limits: &Limits) -> bool {
        match self.phase {
            SessionPhase::Starting => false,
            SessionPhase::Live { until } => now >= earlier(until, limits.replace),
            SessionPhase::Draining { .. } => true,
        }
    }
}
