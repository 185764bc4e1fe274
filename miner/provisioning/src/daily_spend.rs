//! The machine time of a day against the operator's limit. Pure.
//!
//! A machine counts from its record on: with the time that it has taken, and with what it may still take until its
//! deadline. So the machines of any 24 hours together never take more than the limit, whatever their jobs do. A machine
//! that could not be released by its deadline goes on counting.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::{AttemptId, Timestamp};
use serde::{Deserialize, Serialize};

/// The time over which machine time is counted.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The time of one machine: until its deadline while it runs, until its release afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineTime {
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
}

/// The machines that run, and those of the last day.
#[derive(Clone, Debug, Default)]
pub(crate) struct DailySpend {
    running: BTreeMap<AttemptId, MachineTime>,
    released: BTreeMap<AttemptId, MachineTime>,
}

/// No further machine fits into the day's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this miner's machines have taken or may still take {} s of the {} machine-seconds that its operator allows in 24 \
     hours (executor.daily_machine_s), and a machine for this lease may take {} s",
    taken.as_secs(), limit.as_secs(), wanted.as_secs()
)]
pub struct SpendExceeded {
    taken: Duration,
    limit: Duration,
    wanted: Duration,
}

impl DailySpend {
    /// Checks that a machine fits which may take `lasts`.
    pub(crate) fn check(
        &self,
        lasts: Duration,
        limit: Duration,
        now: Timestamp,
    ) -> Result<(), SpendExceeded> {
        let (taken, wanted) = (self.taken(now), lasts.min(DAY));
        if taken.saturating_add(wanted) > limit {
            return Err(SpendExceeded { taken, limit, wanted });
        }
        Ok(())
    }

    /// The most that the known machines take of any 24 hours that end now or later.
    pub(crate) fn taken(&self, now: Timestamp) -> Duration {
        let day_ago = now.minus(DAY);
        let running = self.running.values().map(|time| MachineTime {
            until: time.until.max(now),
            ..*time
        });
        let machines = running.chain(self.released.values().copied());
        let times = machines.map(|time| time.until.since(time.since.max(day_ago)).min(DAY));
        times.fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Notes a machine that may run until its deadline.
    pub(crate) fn begin(&mut self, attempt: AttemptId, time: MachineTime) {
        self.running.insert(attempt, time);
    }

    /// Notes that a machine is gone; its time, if it was known to run.
    pub(crate) fn end(&mut self, attempt: AttemptId, now: Timestamp) -> Option<MachineTime> {
        let time = self.running.remove(&attempt)?;
        // A clock that was set back must not make the machine cost less than nothing.
        let until = now.max(time.since);
        let time = MachineTime { until, ..time };
        self.add_released(attempt, time, now);
        Some(time)
    }

    /// Notes a machine that was released before.
    pub(crate) fn add_released(&mut self, attempt: AttemptId, time: MachineTime, now: Timestamp) {
        let day_ago = now.minus(DAY);
        self.released.retain(|_, old| old.until > day_ago);
        if time.until > day_ago {
            self.released.insert(attempt, time);
        }
    }

    /// The machines of the last day that are gone.
    pub(crate) fn released(&self) -> &BTreeMap<AttemptId, MachineTime> {
        &self.released
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn attempt(number: u128) -> AttemptId {
        AttemptId::from_uuid(Uuid::from_u128(number))
    }

    #[test]
    fn a_machine_reserves_its_deadline_and_costs_what_it_took() {
        let (mut spend, limit, start) = (
            DailySpend::default(),
            secs(1_000),
            Timestamp::from_secs(1_000_000),
        );
        let until = start.plus(secs(700));
        spend.begin(attempt(1), MachineTime { since: start, until });
        assert_eq!(spend.check(secs(300), limit, start), Ok(()));
        let refused = spend.check(secs(301), limit, start).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "this miner's machines have taken or may still take 700 s of the 1000 machine-seconds that its operator \
             allows in 24 hours (executor.daily_machine_s), and a machine for this lease may take 301 s"
        );
        let later = start.plus(secs(100));
        spend.end(attempt(1), later).unwrap();
        assert_eq!(spend.taken(later), secs(100));
        assert_eq!(spend.taken(later.plus(secs(86_350))), secs(50));
        assert_eq!(spend.taken(later.plus(secs(86_400))), Duration::ZERO);
    }

    #[test]
    fn a_machine_that_cannot_be_released_counts_beyond_its_deadline() {
        let (mut spend, start) = (DailySpend::default(), Timestamp::from_secs(1_000_000));
        let until = start.plus(secs(3_600));
        spend.begin(attempt(1), MachineTime { since: start, until });
        let later = start.plus(secs(36_000));
        assert_eq!(spend.taken(later), secs(36_000));
        assert!(spend.check(secs(1), secs(36_000), later).is_err());
        spend.end(attempt(1), later).unwrap();
        assert_eq!(spend.taken(later), secs(36_000), "and it took as long");
    }

    #[test]
    fn a_machine_of_thirty_days_takes_a_whole_day_of_each() {
        let (mut spend, start) = (DailySpend::default(), Timestamp::from_secs(1_000_000));
        let month = secs(30 * 86_400);
        assert_eq!(spend.check(month, DAY, start), Ok(()));
        let until = start.plus(month);
        spend.begin(attempt(1), MachineTime { since: start, until });
        assert!(spend.check(secs(1), DAY, start.plus(secs(86_400 * 7))).is_err());
    }

    proptest! {
        /// Machines come as the check admits them, and go at their deadline or before. They took no more than the
        /// limit, in any 24 hours. (One whose release fails takes more, and keeps others from coming.)
        #[test]
        fn no_day_takes_more_than_the_limit(
            limit in 1_000_u64..200_000,
            steps in proptest::collection::vec((0_u64..20_000, 1_u64..50_000, 0_u64..=100), 1..60),
        ) {
            let (mut spend, mut now) = (DailySpend::default(), Timestamp::from_secs(1_000_000));
            let mut ends = BTreeMap::<AttemptId, Timestamp>::new();
            let mut all = Vec::<MachineTime>::new();
            for (number, (passed, lasts, percent)) in steps.into_iter().enumerate() {
                now = now.plus(secs(passed));
                let due: Vec<_> = ends.iter().filter(|(_, end)| **end <= now).map(|(id, end)| (*id, *end)).collect();
                for (id, end) in due {
                    ends.remove(&id);
                    all.push(spend.end(id, end).unwrap());
                }
                if spend.check(secs(lasts), secs(limit), now).is_ok() {
                    let id = attempt(number as u128);
                    spend.begin(id, MachineTime { since: now, until: now.plus(secs(lasts)) });
                    ends.insert(id, now.plus(secs(lasts * percent / 100)));
                }
            }
            for (id, end) in ends {
                all.push(spend.end(id, end).unwrap());
            }
            let starts: Vec<_> = all.iter().map(|time| time.since).collect();
            let edges = all.iter().map(|time| time.until.minus(DAY)).chain(starts);
            for from in edges {
                let to = from.plus(DAY);
                let taken: u64 = all.iter().map(|time| time.until.min(to).since(time.since.max(from)).as_secs()).sum();
                prop_assert!(taken <= limit, "{taken} of {limit} from {from:?}");
            }
        }
    }
}
