//! When to ping a silent peer and when to give it up: a pure decision over the moments something was heard.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::Limits;

/// What a reader that has waited until now should do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait until then.
    Wait(Instant),
    /// Ask for a sign of life, then wait.
    Ping,
    /// The peer is gone.
    GiveUp,
}

/// How long the peer has been silent while we listened.
#[derive(Debug)]
pub(crate) struct Liveness {
    heard: Instant,
    pinged: Option<Instant>,
    /// When the reader stopped listening: silence is not the peer's fault while nobody listens.
    away_since: Option<Instant>,
}

impl Liveness {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            heard: now,
            pinged: None,
            away_since: Some(now),
        }
    }

    /// Any frame is a sign of life.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.pinged = None;
    }

    pub(crate) fn pinged(&mut self, now: Instant) {
        self.pinged = Some(now);
    }

    /// The reader listens again; the time in between does not count.
    pub(crate) fn back(&mut self, now: Instant) {
        if let Some(since) = self.away_since.take() {
            let away = now.saturating_duration_since(since);
            self.heard = later(self.heard, away).min(now);
            self.pinged = self.pinged.map(|at| later(at, away).min(now));
        }
    }

    /// The reader does something else.
    pub(crate) fn away(&mut self, now: Instant) {
        self.away_since = Some(now);
    }

    pub(crate) fn next(&self, limits: &Limits, now: Instant) -> Next {
        let end = later(self.heard, limits.idle);
        if now >= end {
            return Next::GiveUp;
        }
        let ping = later(self.pinged.unwrap_or(self.heard), limits.heartbeat);
        if now >= ping {
            Next::Ping
        } else {
            Next::Wait(ping.min(end))
        }
    }
}

/// An absurdly long limit is as good as none.
fn later(at: Instant, span: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(86_400 * 365);
    at + span.min(FAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        heartbeat: Duration::from_secs(10),
        idle: Duration::from_secs(25),
        ..Limits::miner()
    };

    fn secs(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_pinged_and_then_given_up() {
        let t = Instant::now();
        let mut peer = Liveness::new(t);
        peer.back(t);
        assert_eq!(peer.next(&LIMITS, secs(t, 3)), Next::Wait(secs(t, 10)));
        assert_eq!(peer.next(&LIMITS, secs(t, 10)), Next::Ping);
        peer.pinged(secs(t, 10));
        assert_eq!(peer.next(&LIMITS, secs(t, 11)), Next::Wait(secs(t, 20)));
        assert_eq!(peer.next(&LIMITS, secs(t, 20)), Next::Ping);
        peer.pinged(secs(t, 20));
        assert_eq!(peer.next(&LIMITS, secs(t, 21)), Next::Wait(secs(t, 25)));
        assert_eq!(peer.next(&LIMITS, secs(t, 25)), Next::GiveUp);
        peer.heard(secs(t, 26));
        assert_eq!(peer.next(&LIMITS, secs(t, 26)), Next::Wait(secs(t, 36)));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_listened_does_not_count() {
        let t = Instant::now();
        let mut peer = Liveness::new(t);
        peer.back(t);
        peer.away(secs(t, 5));
        peer.back(secs(t, 1_000));
        assert_eq!(peer.next(&LIMITS, secs(t, 1_000)), Next::Wait(secs(t, 1_005)));
        // Coming and going does not keep a silent peer alive.
        for second in 1_000..1_020 {
            peer.away(secs(t, second));
            peer.back(secs(t, second));
        }
        assert_eq!(peer.next(&LIMITS, secs(t, 1_020)), Next::GiveUp);
    }
}
