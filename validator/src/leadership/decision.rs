//! The decisions about leading, without IO: when a process that stands by may lead, and what the leader does about its
//! lease.

use std::time::Duration;

use muster_protocol::{BlockNumber, Timestamp};
use muster_store::StoreError;

use crate::store::{LEASE, LeaseState};

/// The greatest difference of this machine's clock from others with which a process begins to lead.
const MAX_CLOCK_OFFSET: Duration = Duration::from_secs(5);
/// Time after which the last new block says nothing any more: the chain stands still.
const STALE_BLOCK: Duration = Duration::from_secs(30);
/// Time after which the leader renews its lease.
const RENEW_AFTER: Duration = Duration::from_secs(2);

/// This machine's clock minus another one, in microseconds: between the two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockOffset {
    at_least: i64,
    at_most: i64,
}

/// The newest block that was seen, and the offset of this machine's clock from its time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockClock {
    /// The newest block, and this machine's time when the chain was last asked and had no newer one.
    newest: Option<(BlockNumber, Timestamp)>,
    /// The offset by the last new block, and the time at which that was seen.
    offset: Option<(ClockOffset, Timestamp)>,
}

/// A clock that forbids to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockFault {
    /// The other clock.
    from: &'static str,
    /// This machine's clock minus the other one, in microseconds: at least this far from zero.
    offset: i64,
}

/// The next step of a process that stands by, after a look at the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StandbyStep {
    /// Look again later: another process leads.
    Wait,
    /// Look again later: no process leads, and this machine's clock is wrong.
    Refuse(ClockFault),
    /// Take the lease: no process leads.
    Lead,
}

/// The next step of the leader about its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaderStep {
    /// Looks whether another process leads.
    Look,
    Renew,
    /// Another process may lead.
    End,
}

/// Decides by the lease, by the database's clock, and by that of the newest block where one was seen.
pub(super) fn standby_step(
    lease: &LeaseState,
    database: ClockOffset,
    block: Option<ClockOffset>,
) -> StandbyStep {
    if matches!(lease, LeaseState::Held { .. }) {
        return StandbyStep::Wait;
    }
    let fault = database.fault("the database");
    let fault = fault.or_else(|| block.and_then(|block| block.fault("the newest block")));
    fault.map_or(StandbyStep::Lead, StandbyStep::Refuse)
}

/// Decides by the time since the last renewal was asked for.
pub(super) fn leader_step(since_renewal: Duration) -> LeaderStep {
    if since_renewal >= LEASE {
        LeaderStep::End
    } else if since_renewal >= RENEW_AFTER {
        LeaderStep::Renew
    } else {
        LeaderStep::Look
    }
}

// === impl ClockOffset ===

impl ClockOffset {
    /// The offset from a clock that showed `other` at a moment between two readings of this machine's.
    pub(super) fn between(before: Timestamp, after: Timestamp, other: Timestamp) -> Self {
        Self {
            at_least: before.micros().saturating_sub(other.micros()),
            at_most: after.micros().saturating_sub(other.micros()),
        }
    }

    /// The fault, if the clocks differ too much wherever in the bounds the offset lies.
    fn fault(self, from: &'static str) -> Option<ClockFault> {
        let bound = i64::try_from(MAX_CLOCK_OFFSET.as_micros()).unwrap_or(i64::MAX);
        let offset = match (self.at_least > bound, self.at_most < -bound) {
            (true, _) => self.at_least,
            (false, true) => self.at_most,
            (false, false) => return None,
        };
        Some(ClockFault { from, offset })
    }
}

// === impl BlockClock ===

impl BlockClock {
    /// The offset by the last new block; `None` before one was seen.
    pub(super) fn offset(&self) -> Option<ClockOffset> {
        self.offset.map(|(offset, _)| offset)
    }

    /// Notes that the chain, asked at `asked`, answered at `answered` that its newest block is `block`, made at `time`.
    ///
    /// A block appears soon after its time. It appeared after the look before this one, which did not show it, and
    /// before this answer. The first block that is seen may be old, so it only shows a clock that is behind. A chain
    /// that stands still says nothing new.
    pub(super) fn note(
        &mut self,
        asked: Timestamp,
        answered: Timestamp,
        block: BlockNumber,
        time: Timestamp,
    ) {
        match self.newest {
            Some((newest, _)) if block <= newest => {
                self.newest = Some((newest, asked));
                self.offset = self.offset.filter(|(_, seen)| asked.since(*seen) < STALE_BLOCK);
                return;
            }
            Some((_, looked)) => {
                self.offset = Some((ClockOffset::between(looked, answered, time), answered));
            }
            None => {
                let earliest = Timestamp::from_micros(i64::MIN);
                self.offset = Some((ClockOffset::between(earliest, answered, time), answered));
            }
        }
        self.newest = Some((block, asked));
    }
}

impl From<ClockFault> for StoreError {
    fn from(fault: ClockFault) -> Self {
        Self::ClockDiffers {
            from: fault.from,
            offset_ms: fault.offset / 1_000,
            bound_ms: i64::try_from(MAX_CLOCK_OFFSET.as_millis()).unwrap_or(i64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(i64) -> Timestamp = Timestamp::from_secs;
    const RIGHT: ClockOffset = ClockOffset {
        at_least: -10_000,
        at_most: 10_000,
    };

    fn refuses(step: StandbyStep) -> bool {
        matches!(step, StandbyStep::Refuse(_))
    }

    #[test]
    fn a_lease_is_waited_for_whatever_the_clock_shows() {
        let held = LeaseState::Held {
            holder: "a:1".to_owned(),
            left: Duration::from_micros(1),
        };
        let wrong = ClockOffset::between(AT(100), AT(100), AT(0));
        assert_eq!(standby_step(&held, RIGHT, None), StandbyStep::Wait);
        assert_eq!(standby_step(&held, wrong, Some(wrong)), StandbyStep::Wait);
        for free in [LeaseState::Free, LeaseState::Unknown] {
            assert_eq!(standby_step(&free, RIGHT, None), StandbyStep::Lead);
            assert!(refuses(standby_step(&free, wrong, None)));
            assert!(refuses(standby_step(&free, RIGHT, Some(wrong))));
        }
    }

    #[test]
    fn a_clock_is_wrong_only_if_it_is_wrong_for_certain() {
        let step = |before, after, other| {
            let offset = ClockOffset::between(AT(before), AT(after), AT(other));
            refuses(standby_step(&LeaseState::Free, offset, None))
        };
        assert!(!step(100, 100, 95), "five seconds are allowed");
        assert!(step(100, 100, 94));
        assert!(!step(100, 100, 105));
        assert!(step(100, 100, 106));
        assert!(
            !step(100, 110, 108),
            "an answer that was on its way for long says little"
        );
        assert!(step(100, 110, 116));
    }

    #[test]
    fn a_new_block_shows_a_clock_that_is_ahead_and_an_old_one_does_not() {
        let mut clock = BlockClock::default();
        let step = |clock: &BlockClock| refuses(standby_step(&LeaseState::Free, RIGHT, clock.offset()));
        let block = BlockNumber;
        clock.note(AT(1_000), AT(1_001), block(7), AT(900));
        assert!(!step(&clock), "the chain may have stood still for long");
        clock.note(AT(1_006), AT(1_007), block(8), AT(1_006));
        assert!(!step(&clock));
        clock.note(AT(1_017), AT(1_018), block(8), AT(1_006));
        clock.note(AT(1_019), AT(1_020), block(9), AT(1_011));
        assert!(step(&clock), "it appeared six seconds or more after its time");
        clock.note(AT(1_021), AT(1_022), block(9), AT(1_011));
        assert!(step(&clock), "no newer block has said anything else");
        let mut halted = clock;
        halted.note(AT(1_051), AT(1_052), block(9), AT(1_011));
        assert!(!step(&halted), "a chain that stands still accuses nobody");
        clock.note(AT(1_030), AT(1_031), block(10), AT(1_030));
        assert!(!step(&clock));
    }

    #[test]
    fn a_block_of_the_future_shows_a_clock_that_is_behind() {
        let mut clock = BlockClock::default();
        clock.note(AT(1_000), AT(1_001), BlockNumber(7), AT(1_007));
        assert!(refuses(standby_step(&LeaseState::Free, RIGHT, clock.offset())));
    }

    #[test]
    fn a_leader_renews_in_time_and_ends_when_its_lease_has_run_out() {
        let step = |ms| leader_step(Duration::from_millis(ms));
        assert_eq!(step(0), LeaderStep::Look);
        assert_eq!(step(1_999), LeaderStep::Look);
        assert_eq!(step(2_000), LeaderStep::Renew);
        assert_eq!(step(5_999), LeaderStep::Renew);
        assert_eq!(step(6_000), LeaderStep::End);
    }
}
