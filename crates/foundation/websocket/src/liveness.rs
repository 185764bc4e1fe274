//! When a silent peer is pinged and when it counts as gone: a pure decision over the times of its frames.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::Limits;

/// The next action of a reader that has waited until now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LivenessAction {
    /// Wait until this time.
    Wait(Instant),
    /// Send a ping, then wait.
    Ping,
    /// The peer is gone.
    GiveUp,
}

/// The silence of a peer, counted only while a reader waits.
#[derive(Debug)]
pub(crate) struct Liveness {
    last_frame: Instant,
    pinged: Option<Instant>,
    /// Since when no reader waits: frames cannot be noticed meanwhile, so the time does not count.
    unread_since: Option<Instant>,
}

impl Liveness {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            last_frame: now,
            pinged: None,
            unread_since: Some(now),
        }
    }

    /// Any frame is a sign of life.
    pub(crate) fn note_frame(&mut self, now: Instant) {
        self.last_frame = now;
        self.pinged = None;
    }

    pub(crate) fn note_ping(&mut self, now: Instant) {
        self.pinged = Some(now);
    }

    /// A reader waits again; the time in between does not count.
    pub(crate) fn resume(&mut self, now: Instant) {
        if let Some(since) = self.unread_since.take() {
            let pause = now.saturating_duration_since(since);
            self.last_frame = later(self.last_frame, pause).min(now);
            self.pinged = self.pinged.map(|at| later(at, pause).min(now));
        }
    }

    /// No reader waits any more.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.unread_since = Some(now);
    }

    pub(crate) fn action(&self, limits: &Limits, now: Instant) -> LivenessAction {
        let end = later(self.last_frame, limits.idle);
        if now >= end {
            return LivenessAction::GiveUp;
        }
        let ping = later(self.pinged.unwrap_or(self.last_frame), limits.heartbeat);
        if now >= ping {
            LivenessAction::Ping
        } else {
            LivenessAction::Wait(ping.min(end))
        }
    }
}

/// `at` plus `span`; a limit too long to add is left out.
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
        peer.resume(t);
        assert_eq!(
            peer.action(&LIMITS, secs(t, 3)),
            LivenessAction::Wait(secs(t, 10))
        );
        assert_eq!(peer.action(&LIMITS, secs(t, 10)), LivenessAction::Ping);
        peer.note_ping(secs(t, 10));
        assert_eq!(
            peer.action(&LIMITS, secs(t, 11)),
            LivenessAction::Wait(secs(t, 20))
        );
        assert_eq!(peer.action(&LIMITS, secs(t, 20)), LivenessAction::Ping);
        peer.note_ping(secs(t, 20));
        assert_eq!(
            peer.action(&LIMITS, secs(t, 21)),
            LivenessAction::Wait(secs(t, 25))
        );
        assert_eq!(peer.action(&LIMITS, secs(t, 25)), LivenessAction::GiveUp);
        peer.note_frame(secs(t, 26));
        assert_eq!(
            peer.action(&LIMITS, secs(t, 26)),
            LivenessAction::Wait(secs(t, 36))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_listened_does_not_count() {
        let t = Instant::now();
        let mut peer = Liveness::new(t);
        peer.resume(t);
        peer.pause(secs(t, 5));
        peer.resume(secs(t, 1_000));
        assert_eq!(
            peer.action(&LIMITS, secs(t, 1_000)),
            LivenessAction::Wait(secs(t, 1_005))
        );
        // Coming and going does not keep a silent peer alive.
        for second in 1_000..1_020 {
            peer.pause(secs(t, second));
            peer.resume(secs(t, second));
        }
        assert_eq!(peer.action(&LIMITS, secs(t, 1_020)), LivenessAction::GiveUp);
    }
}
