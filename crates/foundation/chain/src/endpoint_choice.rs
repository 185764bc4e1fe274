//! The choice among several endpoints: the one in use stays in use while it answers and its head moves. Pure.
//!
//! The first endpoint in the list is preferred at the start. After that the choice is sticky: an endpoint that came
//! back is not returned to, because two endpoints are seldom at the same height and every change may look like a step
//! back.

use std::time::Duration;

use muster_process::backoff::Backoff;
use muster_protocol::Timestamp;

/// The waits between two tries of one endpoint.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(200),
    max: Duration::from_secs(10),
};

/// The state of every endpoint.
#[derive(Debug)]
pub(crate) struct EndpointRoster {
    records: Vec<EndpointRecord>,
    current: usize,
    /// Time for which a head may stand still.
    stall: Duration,
}

#[derive(Clone, Debug, Default)]
struct EndpointRecord {
    failures: u32,
    /// The endpoint is not dialled before this time.
    retry_at: Option<Timestamp>,
    /// The highest head that the endpoint showed, and the time at which it showed it first.
    head: Option<(u64, Timestamp)>,
    stalled: bool,
}

/// The state of an endpoint that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointHealth {
    /// Its head moves or has not stood still for long.
    Good,
    /// Its head has stood still for too long.
    Stalled,
}

impl EndpointRoster {
    pub(crate) fn new(count: usize, stall: Duration) -> Self {
        Self {
            records: vec![EndpointRecord::default(); count],
            current: 0,
            stall,
        }
    }

    /// The order in which to ask: the current endpoint if it is healthy, then endpoints that may be dialled now, then
    /// those whose head stands still, then those that wait, the soonest first.
    pub(crate) fn order(&self, now: Timestamp) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.records.len()).collect();
        order.sort_by_key(|at| {
            let record = self.records.get(*at);
            let waits = record
                .and_then(|record| record.retry_at)
                .filter(|retry| *retry > now);
            let stalled = record.is_some_and(|record| record.stalled);
            let rank = match (waits, stalled) {
                (Some(_), _) => 3,
                (None, true) => 2,
                (None, false) => u8::from(*at != self.current),
            };
            (rank, waits, *at)
        });
        order
    }

    /// The time until this endpoint may be dialled; `None` if it may be dialled now.
    pub(crate) fn wait_before_dial(&self, at: usize, now: Timestamp) -> Option<Duration> {
        let retry = self.records.get(at)?.retry_at?;
        Some(retry.since(now)).filter(|wait| !wait.is_zero())
    }

    /// Notes that the endpoint answered with this head. A healthy one is asked first from now on.
    pub(crate) fn record_answer(&mut self, at: usize, head: u64, now: Timestamp) -> EndpointHealth {
        let stall = self.stall;
        let Some(record) = self.records.get_mut(at) else {
            return EndpointHealth::Good;
        };
        record.failures = 0;
        record.retry_at = None;
        match record.head {
            Some((known, since)) if head == known => record.stalled = now.since(since) >= stall,
            // The head may be lower: a restarted development chain moves as well.
            Some(_) | None => {
                record.head = Some((head, now));
                record.stalled = false;
            }
        }
        if record.stalled {
            return EndpointHealth::Stalled;
        }
        self.current = at;
        EndpointHealth::Good
    }

    /// Asks this endpoint first although its head stands still, because no better one was found.
    pub(crate) fn settle_for(&mut self, at: usize) {
        self.current = at;
    }

    /// Notes that the endpoint could not be dialled or did not answer in time.
    pub(crate) fn record_failure(&mut self, at: usize, now: Timestamp, jitter: u32) {
        if let Some(record) = self.records.get_mut(at) {
            record.retry_at = Some(now.plus(BACKOFF.delay(record.failures, jitter)));
            record.failures = record.failures.saturating_add(1);
        }
    }

    /// Notes that the endpoint serves another chain: it is asked again only after the longest wait.
    pub(crate) fn record_foreign_chain(&mut self, at: usize, now: Timestamp) {
        if let Some(record) = self.records.get_mut(at) {
            record.failures = u32::MAX;
            record.retry_at = Some(now.plus(BACKOFF.max));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT: fn(i64) -> Timestamp = Timestamp::from_secs;

    fn roster() -> EndpointRoster {
        EndpointRoster::new(3, Duration::from_secs(60))
    }

    #[test]
    fn the_choice_is_sticky() {
        let mut roster = roster();
        assert_eq!(roster.order(AT(0)), [0, 1, 2]);
        roster.record_failure(0, AT(0), u32::MAX);
        assert_eq!(roster.order(AT(0)), [1, 2, 0]);
        assert_eq!(roster.record_answer(1, 7, AT(0)), EndpointHealth::Good);
        assert_eq!(
            roster.order(AT(100)),
            [1, 0, 2],
            "the first came back; the second is asked on"
        );
    }

    #[test]
    fn a_head_that_stands_still_is_a_failure_until_it_moves() {
        let mut roster = roster();
        assert_eq!(roster.record_answer(0, 7, AT(0)), EndpointHealth::Good);
        assert_eq!(roster.record_answer(0, 7, AT(59)), EndpointHealth::Good);
        assert_eq!(roster.record_answer(0, 7, AT(60)), EndpointHealth::Stalled);
        assert_eq!(roster.order(AT(60)), [1, 2, 0]);
        assert_eq!(roster.record_answer(0, 8, AT(61)), EndpointHealth::Good);
        assert_eq!(roster.order(AT(61)), [0, 1, 2]);
    }

    #[test]
    fn failures_wait_longer_and_longer_and_another_chain_longest() {
        let mut roster = roster();
        let wait =
            |roster: &EndpointRoster, at| roster.wait_before_dial(at, AT(0)).map(|wait| wait.as_millis());
        roster.record_failure(0, AT(0), u32::MAX);
        assert_eq!(wait(&roster, 0), Some(200));
        roster.record_failure(0, AT(0), u32::MAX);
        assert_eq!(wait(&roster, 0), Some(400));
        roster.record_foreign_chain(1, AT(0));
        assert_eq!(wait(&roster, 1), Some(10_000));
        assert_eq!(roster.order(AT(0)), [2, 0, 1]);
        roster.record_answer(0, 1, AT(0));
        assert_eq!(wait(&roster, 0), None);
    }

    proptest! {
        #[test]
        fn every_endpoint_is_in_the_order_once(
            events in proptest::collection::vec((0_usize..4, 0_usize..5, 0_u64..9, 0_i64..200), 0..60),
        ) {
            let mut roster = EndpointRoster::new(4, Duration::from_secs(60));
            let mut now = 0;
            for (what, at, head, later) in events {
                now += later;
                match what {
                    0 => { roster.record_answer(at, head, AT(now)); }
                    1 => roster.record_failure(at, AT(now), 0),
                    2 => roster.record_foreign_chain(at, AT(now)),
                    _ => roster.settle_for(at.min(3)),
                }
                let mut order = roster.order(AT(now));
                order.sort_unstable();
                prop_assert_eq!(order, vec![0, 1, 2, 3]);
            }
        }
    }
}
