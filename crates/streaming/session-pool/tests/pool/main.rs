//! The pool: its effects step by step, and its invariants under random events.

use std::time::Duration;

use muster_protocol::{Digest, Timestamp};
use muster_session_pool::{Effect, Event, Limits, RequestNumber, SessionNumber};

#[cfg(test)]
mod invariants;
#[cfg(test)]
mod steps;

pub(crate) const LIMITS: Limits = Limits {
    min: 0,
    max: 2,
    per_session: 2,
    queue: 6,
    queue_of_one: 3,
    max_wait: Duration::from_secs(60),
    idle: Duration::from_secs(100),
    idle_beside_jobs: Duration::from_secs(20),
    replace: Duration::from_secs(120),
    drain: Duration::from_secs(30),
    max_misses: 1,
    max_tries: 2,
    rest: Duration::from_secs(1),
    backoff: Duration::from_secs(4),
};

pub(crate) fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(secs)
}

pub(crate) fn user(byte: u8) -> Digest {
    Digest::from_bytes([byte; 32])
}

pub(crate) fn arrived(request: u64, from: u8) -> Event {
    Event::Arrived {
        request: RequestNumber(request),
        user: user(from),
        patience: LIMITS.max_wait,
    }
}

pub(crate) const fn route(request: u64, session: u64) -> Effect {
    Effect::Route(RequestNumber(request), SessionNumber(session))
}
