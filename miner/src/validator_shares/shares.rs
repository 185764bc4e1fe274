//! Shares: how many executors of a class one validator may keep for as long as it likes. Pure.
//!
//! A job may last thirty days, so a validator that leased every executor would lock all others out. Its share is a part
//! of the executors by its stake. Beyond the share it gets an executor only for a short job, and only while no other
//! validator waits for its own share. So a validator that begins to use the miner waits for one short job at most.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::{ExecutorClass, Timestamp, ValidatorKey};

/// The time for which a validator that found no executor counts as waiting for one.
const WAITS: Duration = Duration::from_secs(600);

/// The operator's rules about shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRules {
    /// The least share of a validator, in executors of a class.
    pub floor: u32,
    /// The longest job that a validator gets beyond its share.
    pub beyond: Duration,
}

/// A validator beside the others that the miner serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValidatorStakes {
    /// Its own stake in rao.
    pub own: u64,
    /// The stakes of all others together, in rao.
    pub others: u128,
    /// The number of others.
    pub rivals: u32,
}

/// A validator's share of the executors of one class, as an offer finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidatorShare {
    /// The executors that it may keep for as long as it likes.
    pub places: u32,
    /// Its leases that have not ended, those that fetch an image among them.
    pub held: u32,
    /// Whether another validator waits for its own share.
    pub is_contested: bool,
    /// The most that the offered job may take.
    pub lasts: Duration,
    /// The most that a job may take beyond the share, as the operator's rules set it.
    pub beyond: Duration,
    /// The time of executors of the class that it took beyond its share and did not pay.
    pub unpaid: Duration,
    /// The most unpaid time that it may take.
    pub unpaid_allowance: Duration,
}

/// Why a validator gets no further executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRefusal {
    /// The reason as text.
    pub message: String,
    /// By how much shorter a job would be admitted; `None` if no job would be.
    pub shorter_by: Option<Duration>,
}

/// The validators that were declined for lack of an executor within their share.
#[derive(Debug, Default)]
pub struct WaitingValidators(BTreeMap<(ExecutorClass, ValidatorKey), Timestamp>);

/// The share of a validator among `count` executors of a class: by its stake, but not less than `floor`. A validator
/// without rivals has all of them. As long as `floor` allows it, a validator with rivals never has all of them.
#[must_use]
pub fn share_of(count: u32, stakes: &ValidatorStakes, floor: u32) -> u32 {
    if stakes.rivals == 0 {
        return count;
    }
    // One rao more for everybody, so that a rival without stake counts as well.
    let own = u128::from(stakes.own).saturating_add(1);
    let all = own
        .saturating_add(stakes.others)
        .saturating_add(u128::from(stakes.rivals));
    let by_stake = u128::from(count).saturating_mul(own) / all;
    u32::try_from(by_stake).unwrap_or(count).max(floor).min(count)
}

// === impl ValidatorShare, WaitingValidators ===

impl ValidatorShare {
    /// Decides whether one more lease fits.
    ///
    /// # Errors
    /// The validator has its share, and another validator waits or the job is too long.
    pub fn admit(&self, class: ExecutorClass) -> Result<(), ShareRefusal> {
        let Self { places, held, .. } = self;
        let refuse = |message| {
            Err(ShareRefusal {
                message,
                shorter_by: None,
            })
        };
        if held < places {
            return Ok(());
        }
        if self.unpaid >= self.unpaid_allowance {
            return refuse(format!(
                "this validator's share is {places} executors of class {class}, and it has {held}; beyond it, it has \
                 taken {} s of executors' time that it did not pay, and may take {} s here within a day",
                self.unpaid.as_secs(),
                self.unpaid_allowance.as_secs()
            ));
        }
        if self.is_contested {
            return refuse(format!(
                "this validator's share is {places} executors of class {class}, it has {held}, and another validator \
                 waits for one"
            ));
        }
        if self.lasts > self.beyond {
            let message = format!(
                "this validator's share is {places} executors of class {class}, and it has {held}; beyond it a job may \
                 take {} s here, not {} s",
                self.beyond.as_secs(),
                self.lasts.as_secs()
            );
            return Err(ShareRefusal {
                message,
                shorter_by: Some(self.lasts.saturating_sub(self.beyond)),
            });
        }
        Ok(())
    }
}

impl WaitingValidators {
    /// Notes that a validator below its share found no executor.
    pub fn note(&mut self, class: ExecutorClass, validator: ValidatorKey, now: Timestamp) {
        self.0.retain(|_, at| now.since(*at) < WAITS);
        self.0.insert((class, validator), now);
    }

    /// Notes that a validator has got an executor.
    pub fn remove(&mut self, class: ExecutorClass, validator: ValidatorKey) {
        self.0.remove(&(class, validator));
    }

    /// Whether a validator other than this one waits for an executor of the class.
    #[must_use]
    pub fn has_other(&self, class: ExecutorClass, validator: ValidatorKey, now: Timestamp) -> bool {
        self.0
            .iter()
            .any(|((wanted, other), at)| *wanted == class && *other != validator && now.since(*at) < WAITS)
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    fn stakes(own: u64, others: &[u64]) -> ValidatorStakes {
        ValidatorStakes {
            own,
            others: others.iter().copied().map(u128::from).sum(),
            rivals: u32::try_from(others.len()).unwrap(),
        }
    }

    #[test]
    fn a_share_follows_the_stake() {
        assert_eq!(share_of(10, &stakes(5, &[]), 1), 10, "nobody else is served");
        assert_eq!(share_of(10, &stakes(650, &[350]), 1), 6);
        assert_eq!(share_of(10, &stakes(1, &[1_000_000]), 1), 1, "the floor");
        assert_eq!(
            share_of(10, &stakes(u64::MAX, &[0]), 1),
            9,
            "the last one is the other's"
        );
        assert_eq!(
            share_of(1, &stakes(u64::MAX, &[0]), 1),
            1,
            "one executor cannot be shared"
        );
        assert_eq!(share_of(10, &stakes(0, &[0, 0, 0]), 1), 2);
        assert_eq!(share_of(10, &stakes(0, &[7]), 20), 10, "no more than there are");
    }

    fn share(held: u32, is_contested: bool, lasts: u64) -> ValidatorShare {
        ValidatorShare {
            places: 2,
            held,
            is_contested,
            lasts: Duration::from_secs(lasts),
            beyond: Duration::from_secs(3_600),
            unpaid: Duration::from_secs(599),
            unpaid_allowance: Duration::from_secs(600),
        }
    }

    #[test]
    fn beyond_its_share_a_validator_gets_short_jobs_while_nobody_waits() {
        assert_eq!(share(1, true, 2_592_000).admit(CLASS), Ok(()));
        assert_eq!(share(2, false, 3_600).admit(CLASS), Ok(()));
        let contested = share(2, true, 10).admit(CLASS).unwrap_err();
        assert_eq!(contested.shorter_by, None);
        let contested = contested.message;
        assert!(contested.contains("another validator waits"), "{contested}");
        let ShareRefusal {
            message: long,
            shorter_by,
        } = share(2, false, 3_601).admit(CLASS).unwrap_err();
        assert!(
            long.contains("share is 2 executors of class always_on.test, and it has 2"),
            "{long}"
        );
        assert!(long.contains("may take 3600 s here, not 3601 s"), "{long}");
        assert_eq!(shorter_by, Some(Duration::from_secs(1)));
        let unpaid = |held| ValidatorShare {
            unpaid: Duration::from_secs(600),
            ..share(held, false, 10)
        };
        assert_eq!(unpaid(1).admit(CLASS), Ok(()), "its share is its own");
        let refused = unpaid(2).admit(CLASS).unwrap_err().message;
        assert!(
            refused.contains("taken 600 s of executors' time that it did not pay"),
            "{refused}"
        );
    }

    #[test]
    fn a_validator_waits_until_it_is_served_or_its_time_is_over() {
        let validator = |n| ValidatorKey(Hotkey::from_bytes([n; 32]));
        let at = Timestamp::from_secs;
        let mut waiting = WaitingValidators::default();
        waiting.note(CLASS, validator(1), at(0));
        assert!(waiting.has_other(CLASS, validator(2), at(599)));
        assert!(
            !waiting.has_other(CLASS, validator(1), at(599)),
            "it is not its own rival"
        );
        assert!(!waiting.has_other(ExecutorClass::AlwaysOnLlmA6000, validator(2), at(0)));
        assert!(!waiting.has_other(CLASS, validator(2), at(600)));
        waiting.note(CLASS, validator(3), at(600));
        assert_eq!(waiting.0.len(), 1, "old entries go");
        waiting.remove(CLASS, validator(3));
        assert!(!waiting.has_other(CLASS, validator(2), at(600)));
    }

    proptest! {
        /// Validators whose shares come from their stakes have no more than all executors together; none has all of
        /// them, and more stake is never a smaller share.
        #[test]
        fn shares_fit(count in 2_u32..200, all in proptest::collection::vec(0_u64..1_000, 2..20)) {
            let shares: Vec<_> = (0..all.len())
                .map(|own| {
                    let others: Vec<_> = all.iter().enumerate().filter(|(n, _)| *n != own).map(|(_, s)| *s).collect();
                    share_of(count, &stakes(all[own], &others), 0)
                })
                .collect();
            prop_assert!(shares.iter().sum::<u32>() <= count);
            prop_assert!(shares.iter().all(|share| *share < count));
            for (one, first) in all.iter().zip(&shares) {
                for (other, second) in all.iter().zip(&shares) {
                    prop_assert!(one < other || first >= second);
                }
            }
        }

        /// A greeting is free, so validators that do nothing else must not shut out the one that holds the stake.
        #[test]
        fn validators_without_stake_take_one_executor_however_many_greet(count in 1_u32..1_000, sybils in 1_usize..1_000) {
            let others = vec![0; sybils];
            let share = share_of(count, &stakes(1_000_000_000_000, &others), 1);
            prop_assert_eq!(share, (count - 1).max(1));
        }

        /// A floor is a floor, and nobody gets more than there is.
        #[test]
        fn nobody_is_below_the_floor(count: u32, own: u64, others: u64, rivals in 0_u32..100, floor in 0_u32..1_000) {
            let stakes = ValidatorStakes { own, others: u128::from(others), rivals };
            let share = share_of(count, &stakes, floor);
            prop_assert!(share >= floor.min(count) && share <= count);
        }
    }
}
