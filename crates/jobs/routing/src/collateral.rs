//! Whether a miner has deposited enough collateral, by the last reading of the source.
//!
//! A source that does not answer is never "none needed" and never "enough": its last good reading counts up to the
//! operator's bound, and after that the verdict is [`CollateralVerdict::Unknown`].

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::{MinerKey, Rao, Timestamp};
use serde::{Deserialize, Serialize};

/// One miner's deposit, as the source shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Deposit {
    /// The miner has deposited this much and can be slashed of it.
    Held {
        /// The amount in rao; a source with smaller units is rounded down.
        amount: Rao,
    },
    /// The miner has not associated its hotkey with an address that could hold a deposit.
    NoAccount,
}

/// One complete reading of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollateralReading {
    /// When the source answered, by this validator's clock.
    pub at: Timestamp,
    /// The deposit of each miner that the subnet had then.
    pub deposits: BTreeMap<MinerKey, Deposit>,
}

/// The operator's rule about collateral.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollateralRule {
    /// The least deposit of a miner that gets jobs.
    pub required: Rao,
    /// The age from which a reading no longer counts.
    pub max_age: Duration,
}

/// The verdict about one miner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum CollateralVerdict {
    /// This validator asks for no collateral, by its configuration.
    NotRequired,
    /// The miner has deposited enough.
    Enough,
    /// The miner has deposited less than is required.
    TooLittle {
        /// The miner's deposit.
        held: Rao,
        /// The least deposit of a miner that gets jobs.
        required: Rao,
    },
    /// The miner's hotkey is not associated with an address that could hold a deposit.
    NoAccount {
        /// The least deposit of a miner that gets jobs.
        required: Rao,
    },
    /// No reading that counts shows the miner.
    Unknown {
        /// Age of the last reading in seconds; `None` if no reading shows the miner.
        age_s: Option<u64>,
    },
}

/// Judges a miner by the last reading; `None` if the source has not answered since the start.
pub fn judge_collateral(
    rule: CollateralRule,
    reading: Option<&CollateralReading>,
    miner: MinerKey,
    now: Timestamp,
) -> CollateralVerdict {
    let unread = CollateralVerdict::Unknown { age_s: None };
    let Some(reading) = reading else { return unread };
    let age = now.since(reading.at);
    if age >= rule.max_age {
        return CollateralVerdict::Unknown {
            age_s: Some(age.as_secs()),
        };
    }
    let required = rule.required;
    match reading.deposits.get(&miner) {
        None => unread,
        Some(Deposit::NoAccount) => CollateralVerdict::NoAccount { required },
        Some(Deposit::Held { amount }) if *amount < required => CollateralVerdict::TooLittle {
            held: *amount,
            required,
        },
        Some(Deposit::Held { .. }) => CollateralVerdict::Enough,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hotkey;

    const RULE: CollateralRule = CollateralRule {
        required: Rao(10),
        max_age: Duration::from_secs(60),
    };

    fn miner(seed: u8) -> MinerKey {
        MinerKey(hotkey(seed))
    }

    fn held(amount: u64) -> Deposit {
        Deposit::Held { amount: Rao(amount) }
    }

    fn reading() -> CollateralReading {
        CollateralReading {
            at: Timestamp::from_secs(1_000),
            deposits: [
                (miner(1), held(10)),
                (miner(2), held(9)),
                (miner(3), Deposit::NoAccount),
            ]
            .into(),
        }
    }

    #[test]
    fn each_state_of_a_miner_has_its_verdict() {
        let reading = reading();
        let verdict =
            |seed, secs| judge_collateral(RULE, Some(&reading), miner(seed), Timestamp::from_secs(secs));
        let too_little = CollateralVerdict::TooLittle {
            held: Rao(9),
            required: Rao(10),
        };
        assert_eq!(verdict(1, 1_059), CollateralVerdict::Enough);
        assert_eq!(verdict(2, 1_000), too_little);
        assert_eq!(
            verdict(3, 1_000),
            CollateralVerdict::NoAccount { required: Rao(10) }
        );
        // It came after the reading.
        assert_eq!(verdict(4, 1_000), CollateralVerdict::Unknown { age_s: None });
    }

    #[test]
    fn an_outage_ends_in_unknown_and_never_in_enough() {
        let reading = reading();
        for seed in 1..=4 {
            let late = judge_collateral(RULE, Some(&reading), miner(seed), Timestamp::from_secs(1_060));
            assert_eq!(late, CollateralVerdict::Unknown { age_s: Some(60) });
            let never = judge_collateral(RULE, None, miner(seed), Timestamp::from_secs(1_000));
            assert_eq!(never, CollateralVerdict::Unknown { age_s: None });
        }
    }

    proptest! {
        #[test]
        fn enough_needs_a_young_reading_that_shows_enough(
            required in 0u64..20, amount in proptest::option::of(0u64..20), age in 0i64..120, max_age in 0u64..120,
            answered: bool,
        ) {
            let rule = CollateralRule { required: Rao(required), max_age: Duration::from_secs(max_age) };
            let reading = CollateralReading {
                at: Timestamp::from_secs(1_000),
                deposits: amount.map(|amount| (miner(1), held(amount))).into_iter().collect(),
            };
            let now = Timestamp::from_secs(1_000 + age);
            let verdict = judge_collateral(rule, answered.then_some(&reading), miner(1), now);
            let young = answered && age.unsigned_abs() < max_age;
            prop_assert_eq!(
                verdict == CollateralVerdict::Enough,
                young && amount.is_some_and(|amount| amount >= required)
            );
            let is_unknown = matches!(verdict, CollateralVerdict::Unknown { .. });
            prop_assert_eq!(is_unknown, !young || amount.is_none());
            prop_assert!(verdict != CollateralVerdict::NotRequired);
        }
    }
}
