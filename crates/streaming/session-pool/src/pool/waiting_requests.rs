//! The pool's requests: how they wait, are assigned, fail and end.

use std::cmp::Reverse;
use std::time::Duration;

use muster_openai::OpenAiError;
use muster_protocol::{Digest, Timestamp};

use super::{Effect, RequestNumber, SessionNumber, SessionPool, WaitingPlace};
use crate::queue::QueueFull;

/// A request that has not ended.
#[derive(Clone, Debug)]
pub(super) struct PooledRequest {
    pub(super) user: Digest,
    /// The session that alone may serve it; `None` if any may.
    only: Option<SessionNumber>,
    pub(super) position: RequestPosition,
    /// How long it waits before it is refused.
    pub(super) patience: Duration,
    /// Sessions that it was assigned to until now.
    tries: u32,
    arrived: Timestamp,
}

#[derive(Clone, Debug)]
pub(super) enum RequestPosition {
    Waiting {
        since: Timestamp,
    },
    Assigned {
        session: SessionNumber,
        since: Timestamp,
        /// The first byte of its answer has left.
        has_begun: bool,
    },
}

impl SessionPool {
    pub(super) fn add_request(
        &mut self,
        request: RequestNumber,
        (user, patience): (Digest, Duration),
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        if self.is_stopping {
            let error = self.unavailable("the gateway is stopping");
            effects.push(Effect::Refuse(request, error));
            return;
        }
        if self.requests.contains_key(&request) {
            return;
        }
        if let Err(full) = self.queue.join(user, request) {
            // A full queue implies that no session has a free place, since free places are given away at once.
            let reason = match full {
                QueueFull::Everyone => "every place in the queue for this model is taken",
                QueueFull::User => {
                    "your requests have taken every place in the queue that one client may have"
                }
            };
            let error = OpenAiError::QueueFull {
                message: format!("{reason}; come back later"),
                retry_after: self.limits.max_wait / 4,
            };
            effects.push(Effect::Refuse(request, error));
            return;
        }
        self.requests.insert(
            request,
            PooledRequest {
                user,
                only: None,
                position: RequestPosition::Waiting { since: now },
                patience,
                tries: 0,
                arrived: now,
            },
        );
    }

    /// Has a request wait for the next free place of its session, which does not count as used by it; or refuses it.
    pub(super) fn add_bound_request(
        &mut self,
        request: RequestNumber,
        user: Digest,
        session: SessionNumber,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        if self.requests.contains_key(&request) {
            return;
        }
        if self.bound.len() >= self.limits.queue || !self.serves_bound(session) {
            let error = OpenAiError::UpstreamFailed("the session takes no requests".to_owned());
            effects.push(Effect::Refuse(request, error));
            return;
        }
        self.bound.push_back(request);
        self.requests.insert(
            request,
            PooledRequest {
                user,
                only: Some(session),
                position: RequestPosition::Waiting { since: now },
                patience: self.limits.max_wait,
                // No other session may serve it.
                tries: self.limits.max_tries,
                arrived: now,
            },
        );
    }

    fn serves_bound(&self, session: SessionNumber) -> bool {
        !self.is_stopping && self.is_live(session)
    }

    /// Gives free places to the requests that wait for one session, and refuses those whose session is gone.
    pub(super) fn assign_bound(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for request in std::mem::take(&mut self.bound) {
            let Some(number) = self.requests.get(&request).and_then(|known| known.only) else {
                continue;
            };
            if !self.serves_bound(number) {
                self.requests.remove(&request);
                let error = OpenAiError::UpstreamFailed("the session takes no requests any more".to_owned());
                effects.push(Effect::Refuse(request, error));
                continue;
            }
            let session = self.sessions.get_mut(&number);
            let free = session.filter(|session| session.has_free_place(now, &self.limits));
            match (free, self.requests.get_mut(&request)) {
                (Some(session), Some(known)) => {
                    session.active.insert(request);
                    known.position = RequestPosition::Assigned {
                        session: number,
                        since: now,
                        has_begun: false,
                    };
                    effects.push(Effect::Route(request, number));
                }
                (_, _) => self.bound.push_back(request),
            }
        }
    }

    pub(super) fn remove_request(&mut self, request: RequestNumber, now: Timestamp) {
        let Some(known) = self.requests.remove(&request) else {
            return;
        };
        if let RequestPosition::Assigned {
            since,
            has_begun: true,
            ..
        } = known.position
        {
            self.answers.note(now.since(since));
        }
        match known.position {
            RequestPosition::Waiting { .. } => self.leave_queue(&known, request),
            RequestPosition::Assigned { session, .. } if known.only.is_some() => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.active.remove(&request);
                }
            }
            RequestPosition::Assigned { session, .. } => self.release(session, request, now),
        }
    }

    fn leave_queue(&mut self, known: &PooledRequest, request: RequestNumber) {
        match known.only {
            Some(_) => self.bound.retain(|waiting| *waiting != request),
            None => {
                self.queue.leave(&known.user, &request);
            }
        }
    }

    pub(super) fn mark_begun(
        &mut self,
        request: RequestNumber,
        from: SessionNumber,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        match self.requests.get_mut(&request).map(|known| &mut known.position) {
            None => {}
            Some(RequestPosition::Assigned {
                session, has_begun, ..
            }) if *session == from => {
                *has_begun = true;
                if let Some(session) = self.sessions.get_mut(&from) {
                    session.failed = None;
                }
            }
            Some(RequestPosition::Waiting { .. } | RequestPosition::Assigned { .. }) => {
                // Its session was presumed dead while its answer began. It stays there and needs no other place.
                self.remove_request(request, now);
                effects.push(Effect::BreakOff(request));
            }
        }
    }

    pub(super) fn fail_request(
        &mut self,
        request: RequestNumber,
        from: SessionNumber,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        if self.is_assigned(request, from) {
            self.release(from, request, now);
            if let Some(session) = self.sessions.get_mut(&from) {
                session.failed = Some(now);
            }
            self.reassign(request, now, effects);
        }
    }

    /// The request's session failed: the request waits for another one, unless its answer has begun.
    pub(super) fn reassign(&mut self, request: RequestNumber, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(known) = self.requests.get_mut(&request) else {
            return;
        };
        match known.position {
            RequestPosition::Waiting { .. } => {}
            RequestPosition::Assigned { has_begun: true, .. } => {
                self.requests.remove(&request);
                effects.push(Effect::BreakOff(request));
            }
            RequestPosition::Assigned { has_begun: false, .. } if known.tries >= self.limits.max_tries => {
                let tries = known.tries;
                self.requests.remove(&request);
                let message = format!("{tries} sessions failed before they answered");
                effects.push(Effect::Refuse(request, OpenAiError::UpstreamFailed(message)));
            }
            RequestPosition::Assigned { has_begun: false, .. } => {
                known.position = RequestPosition::Waiting { since: now };
                self.queue.rejoin(known.user, request);
            }
        }
    }

    /// Refuses the requests that have waited too long, and all that wait once the pool is stopping.
    pub(super) fn refuse_overdue(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let is_overdue = |request: &PooledRequest| match request.position {
            RequestPosition::Waiting { since } => self.is_stopping || now >= since.plus(request.patience),
            RequestPosition::Assigned { .. } => false,
        };
        let overdue: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, request)| is_overdue(request))
            .map(|(number, request)| (*number, request.clone(), self.waiting_place(*number, now)))
            .collect();
        for (request, known, place) in overdue {
            self.leave_queue(&known, request);
            self.requests.remove(&request);
            let arrived = known.arrived;
            let waited = now.since(arrived).as_secs();
            let reason = if self.is_stopping {
                "the gateway is stopping".to_owned()
            } else if self.last_failure.is_empty() {
                format!("no session had a place for it within {waited} s")
            } else {
                format!(
                    "no session could be started within {waited} s: {}",
                    self.last_failure
                )
            };
            let error = match known.only {
                None => self.unavailable_at(&reason, place.filter(|_| !self.is_stopping)),
                Some(_) => OpenAiError::QueueFull {
                    message: reason,
                    retry_after: self.limits.backoff,
                },
            };
            effects.push(Effect::Refuse(request, error));
        }
    }

    /// Refuses a request that has just arrived and is not likely to be served before its patience ends.
    pub(super) fn refuse_hopeless(
        &mut self,
        request: RequestNumber,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Some(place) = self.waiting_place(request, now) else {
            return;
        };
        let patience = self.requests.get(&request).map(|known| known.patience);
        if !place.is_measured() || place.expected <= patience {
            return;
        }
        if let Some(known) = self.requests.remove(&request) {
            self.leave_queue(&known, request);
            let error = self.unavailable_at("every session of this model is at work", Some(place));
            effects.push(Effect::Refuse(request, error));
        }
    }

    /// Gives the free places of sessions to the requests that wait.
    pub(super) fn assign_waiting(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        while !self.queue.is_empty() {
            let free = self
                .sessions
                .iter_mut()
                .filter(|(_, session)| session.has_free_place(now, &self.limits))
                // One without a failure, the least loaded; among equals the one used last, so that the others may
                // become idle.
                .min_by_key(|(number, session)| {
                    let load = session.active.len();
                    (session.failed.is_some(), load, Reverse(session.used), **number)
                });
            let Some((number, session)) = free else { return };
            let Some(request) = self.queue.take() else { return };
            let Some(known) = self.requests.get_mut(&request) else {
                continue;
            };
            session.active.insert(request);
            session.used = now;
            known.tries = known.tries.saturating_add(1);
            known.position = RequestPosition::Assigned {
                session: *number,
                since: now,
                has_begun: false,
            };
            effects.push(Effect::Route(request, *number));
        }
    }

    pub(super) fn refuse_all_waiting(&mut self, error: &OpenAiError, effects: &mut Vec<Effect>) {
        while let Some(request) = self.queue.take() {
            self.requests.remove(&request);
            effects.push(Effect::Refuse(request, error.clone()));
        }
    }

    pub(super) fn unavailable(&self, reason: &str) -> OpenAiError {
        OpenAiError::Unavailable {
            message: reason.to_owned(),
            retry_after: self.limits.backoff,
        }
    }

    /// A refusal that names the place of the request, and after which time a further try may go better.
    fn unavailable_at(&self, reason: &str, place: Option<WaitingPlace>) -> OpenAiError {
        let Some(place) = place else {
            return self.unavailable(reason);
        };
        OpenAiError::Unavailable {
            message: format!("{reason}; this request had {place}"),
            retry_after: place.expected.unwrap_or_default().max(self.limits.backoff),
        }
    }

    fn is_assigned(&self, request: RequestNumber, number: SessionNumber) -> bool {
        self.requests
            .get(&request)
            .is_some_and(|known| match known.position {
                RequestPosition::Waiting { .. } => false,
                RequestPosition::Assigned { session, .. } => session == number,
            })
    }

    /// Frees the place of a request in its session.
    fn release(&mut self, number: SessionNumber, request: RequestNumber, now: Timestamp) {
        if let Some(session) = self.sessions.get_mut(&number) {
            session.active.remove(&request);
            session.used = now;
        }
    }
}
