//! The connection of one attempt to its miner, as far as the attempt's steps depend on it. Pure.

use std::time::Duration;

use muster_protocol::job::{Attempt, Event};
use muster_protocol::{ReceiptKind, Timestamp};

use crate::incoming::implied_events;

/// The history of an attempt's connection to its miner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptConnection {
    interrupted: bool,
    lenient_until: Option<Timestamp>,
}

impl AttemptConnection {
    /// The connection of an attempt that an earlier process began. For `reconnect` no deadline is enforced, so that the
    /// miner can deliver what it finished meanwhile.
    pub fn resumed(now: Timestamp, reconnect: Duration) -> Self {
        Self {
            interrupted: true,
            lenient_until: Some(now.plus(reconnect)),
        }
    }

    /// Whether messages may have been lost with a connection.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// The miner is connected. A miner that was waited for has another `receipt_wait` for what it finished.
    pub fn come_up(&mut self, now: Timestamp, receipt_wait: Duration) {
        if let Some(until) = &mut self.lenient_until {
            *until = now.plus(receipt_wait);
        }
    }

    /// The miner is not connected.
    pub fn go_down(&mut self) {
        self.interrupted = true;
    }

    /// When the attempt is looked at if nothing comes; `None` if the attempt is over.
    pub fn due(&self, attempt: &Attempt) -> Option<Timestamp> {
        let deadline = attempt.deadline()?;
        Some(self.lenient_until.map_or(deadline, |until| deadline.max(until)))
    }

    /// The events whose messages were lost with a connection, to be applied before `event`.
    pub fn events_before(&self, attempt: &Attempt, event: &Event) -> Vec<Event> {
        if !self.interrupted {
            return Vec::new();
        }
        implied_events(attempt.state(), event, attempt.plan().streaming)
    }
}

/// Whether a receipt is sent again over a new connection: it may not have arrived over an earlier one, and a miner
/// takes each receipt once. A started receipt is sent again with the offer.
pub fn is_repeated(kind: ReceiptKind, countersigned: bool) -> bool {
    match kind {
        ReceiptKind::Started => false,
        ReceiptKind::Accepted | ReceiptKind::Finished => !countersigned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plan;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn ready() -> Attempt {
        let mut attempt = Attempt::new(plan(), at(0));
        for event in [Event::Connected, Event::Accepted, Event::ExecutorReady] {
            attempt = attempt.apply(event, at(1)).unwrap().0;
        }
        attempt
    }

    #[test]
    fn a_resumed_attempt_is_not_late_before_its_miner_had_time_to_deliver() {
        let attempt = Attempt::new(plan(), at(0));
        let deadline = attempt.deadline().unwrap();
        assert_eq!(AttemptConnection::default().due(&attempt), Some(deadline));

        let late = deadline.plus(Duration::from_secs(500));
        let mut resumed = AttemptConnection::resumed(late, Duration::from_secs(60));
        assert_eq!(resumed.due(&attempt), Some(late.plus(Duration::from_secs(60))));
        resumed.come_up(late, Duration::from_secs(2));
        assert_eq!(resumed.due(&attempt), Some(late.plus(Duration::from_secs(2))));
    }

    #[test]
    fn a_new_attempt_gets_no_grace_from_a_connection_that_comes() {
        let attempt = Attempt::new(plan(), at(0));
        let mut connection = AttemptConnection::default();
        connection.come_up(at(5), Duration::from_secs(1000));
        assert_eq!(connection.due(&attempt), attempt.deadline());
    }

    #[test]
    fn lost_stages_are_implied_only_after_an_interruption() {
        let (attempt, mut connection) = (ready(), AttemptConnection::default());
        assert_eq!(connection.events_before(&attempt, &Event::ExecutionDone), []);
        connection.go_down();
        assert_eq!(
            connection.events_before(&attempt, &Event::ExecutionDone),
            [Event::VolumesReady]
        );
    }

    #[test]
    fn receipts_without_the_miners_signature_are_repeated_but_for_the_offer() {
        assert!(is_repeated(ReceiptKind::Finished, false));
        assert!(!is_repeated(ReceiptKind::Finished, true));
        assert!(!is_repeated(ReceiptKind::Started, false));
    }
}
