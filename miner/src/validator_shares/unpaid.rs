//! Unpaid time: how long one validator may keep executors beyond its share without paying for them. Pure.
//!
//! A validator leases every executor of a class when it grades, and pays nothing for it. A validator with a crumb of
//! stake could do so all day, and nobody else would get an executor. Only leases beyond its share count: its share it
//! may keep in any case.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::{ExecutorClass, ValidatorKey};

use crate::validator_shares::shares::ValidatorStakes;

/// The operator's rules about unpaid time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpaidRules {
    /// The unpaid time of each executor that every validator gets within the window, whatever its stake.
    pub course: Duration,
    /// The part of all executors' time in the window that all validators together get by their stakes, in per cent.
    pub percent: u32,
    /// The time over which unpaid leases are remembered.
    pub window: Duration,
}

/// The time of ended leases beyond their validators' shares that were not paid, by validator and class.
#[derive(Debug, Default)]
pub struct UnpaidTime(BTreeMap<(ValidatorKey, ExecutorClass), Duration>);

/// The unpaid time that a validator may take of `count` executors of a class within the window.
#[must_use]
pub fn unpaid_allowance(count: u32, stakes: &ValidatorStakes, rules: &UnpaidRules) -> Duration {
    let own = u128::from(stakes.own);
    let all = own.saturating_add(stakes.others).max(1);
    let shared = rules.window.saturating_mul(rules.percent) / 100;
    let micros = shared.as_micros().saturating_mul(own) / all;
    let by_stake = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
    by_stake.max(rules.course).saturating_mul(count)
}

impl UnpaidTime {
    /// Notes a lease that has ended.
    pub fn add(&mut self, validator: ValidatorKey, class: ExecutorClass, held: Duration) {
        let taken = self.0.entry((validator, class)).or_default();
        *taken = taken.saturating_add(held);
    }

    /// Takes back a lease that was paid after all, or that ended before the window.
    pub fn remove(&mut self, validator: ValidatorKey, class: ExecutorClass, held: Duration) {
        if let Some(taken) = self.0.get_mut(&(validator, class)) {
            *taken = taken.saturating_sub(held);
            if taken.is_zero() {
                self.0.remove(&(validator, class));
            }
        }
    }

    /// The unpaid time that a validator has taken of a class.
    #[must_use]
    pub fn of(&self, validator: ValidatorKey, class: ExecutorClass) -> Duration {
        self.0.get(&(validator, class)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;

    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
    const RULES: UnpaidRules = UnpaidRules {
        course: Duration::from_secs(600),
        percent: 5,
        window: Duration::from_secs(86_400),
    };

    #[test]
    fn a_course_a_day_is_everybodys_and_more_goes_by_stake() {
        let allowed = |own, others| {
            let stakes = ValidatorStakes {
                own,
                others,
                rivals: 3,
            };
            unpaid_allowance(2, &stakes, &RULES).as_secs()
        };
        assert_eq!(allowed(0, 100), 1_200, "a course for each of two executors");
        assert_eq!(allowed(10, 90), 1_200, "a tenth of 4,320 s is less than a course");
        assert_eq!(allowed(50, 50), 4_320);
        assert_eq!(allowed(7, 0), 8_640);
        assert_eq!(allowed(0, 0), 1_200);
        let rules = UnpaidRules {
            percent: u32::MAX,
            window: Duration::MAX,
            ..RULES
        };
        let most = ValidatorStakes {
            own: u64::MAX,
            others: u128::MAX,
            rivals: 1,
        };
        assert!(unpaid_allowance(u32::MAX, &most, &rules) >= Duration::from_secs(600));
    }

    #[test]
    fn unpaid_time_that_is_paid_later_does_not_count() {
        let validator = ValidatorKey(Hotkey::from_bytes([1; 32]));
        let mut unpaid = UnpaidTime::default();
        let (short, long) = (Duration::from_secs(5), Duration::from_secs(60));
        unpaid.add(validator, CLASS, short);
        unpaid.add(validator, CLASS, long);
        assert_eq!(unpaid.of(validator, CLASS).as_secs(), 65);
        assert_eq!(
            unpaid.of(validator, ExecutorClass::AlwaysOnLlmA6000),
            Duration::ZERO
        );
        unpaid.remove(validator, CLASS, long);
        assert_eq!(unpaid.of(validator, CLASS), short);
        unpaid.remove(validator, CLASS, short);
        assert!(unpaid.0.is_empty());
    }
}
