//! The sequential rule about a coldkey: when the drawn jobs of its miners show more differences than honest miners
//! have. Pure.
//!
//! Each drawn job is a step of the e-process of [`muster_audit::EProcess`] with the likelihood of a miner that always
//! differs against the highest rate of an honest one: 1/h for a difference, 0 for an agreement. For every honest rate
//! of at most h the mean of this likelihood is at most 1, so a false alarm comes after [`ALARM`] counted jobs on
//! average at the earliest.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::{ALARM, EProcess, Restart, WHOLE_QUALITY, fixed_point::ONE};
use muster_protocol::{Hotkey, MinerKey, Timestamp};
use muster_scoring::QualityFactor;
use serde::Serialize;

/// The highest rate of confirmed differences of an honest miner: one drawn job in this many. A bound, not a
/// measurement.
pub const HONEST_ONE_IN: u128 = 1_000;

/// The jobs of one account at one coldkey within a day that count.
pub const COUNTED_A_DAY: usize = 4;

/// The days of checks that a result rests on.
pub const WINDOW_DAYS: u64 = 30;

/// The quality of the miners of a coldkey after an alarm, in thousandths: that of a miner that discriminates.
pub const ALARMED_QUALITY: u16 = 500;

const DAY_MICROS: i64 = 86_400_000_000;

/// A drawn job with a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedJob {
    /// The coldkey of the miner that ran it.
    pub coldkey: Hotkey,
    /// The account that it counts towards.
    pub account: String,
    /// Whether its outputs differ, confirmed by a second run.
    pub differs: bool,
    /// When the job ended.
    pub at: Timestamp,
}

/// The test of the drawn jobs of a coldkey's miners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ColdkeyTestResult {
    /// The coldkey whose miners ran the jobs.
    pub coldkey: Hotkey,
    /// Drawn jobs with a verdict that count.
    pub counted: u64,
    /// Those of them that differ.
    pub differing: u64,
    /// The binary logarithm of the test's evidence, in thousandths; the alarm is at 27,443.
    #[serde(rename = "wealth_log2")]
    pub evidence_log2: i64,
    /// Whether the test has alarmed.
    pub alarmed: bool,
    /// The factor of the miners' quality in scores, in thousandths.
    pub quality_per_mille: u16,
}

/// The results of all coldkeys of these jobs, which are in the order of their ends.
///
/// Of one account's jobs at a coldkey within a day (UTC) the first four count, and of those that differ only the first
/// one at all: one user alone, who may have written a job that distinguishes machines, accuses nobody.
pub fn test_results(jobs: &[CheckedJob]) -> Vec<ColdkeyTestResult> {
    let mut tests: BTreeMap<Hotkey, ColdkeyTest<'_>> = BTreeMap::new();
    for job in jobs {
        tests.entry(job.coldkey).or_default().observe(job);
    }
    tests
        .into_iter()
        .map(|(coldkey, test)| test.result_of(coldkey))
        .collect()
}

/// The quality factors with those of miners whose coldkey's test has alarmed. The lower one of two counts.
pub fn add_quality(
    factors: Vec<QualityFactor>,
    test_results: &[ColdkeyTestResult],
    owners: &BTreeMap<MinerKey, Hotkey>,
) -> Vec<QualityFactor> {
    let mut all: BTreeMap<MinerKey, u16> = BTreeMap::new();
    let alarmed = owners.iter().filter_map(|(miner, owner)| {
        let result = test_results
            .iter()
            .find(|one| one.coldkey == *owner && one.alarmed)?;
        Some((*miner, result.quality_per_mille))
    });
    let known = factors.into_iter().map(|factor| (factor.miner, factor.per_mille));
    for (miner, per_mille) in known.chain(alarmed) {
        let least = all.entry(miner).or_insert(per_mille);
        *least = per_mille.min(*least);
    }
    all.into_iter()
        .map(|(miner, per_mille)| QualityFactor { miner, per_mille })
        .collect()
}

/// The test of one coldkey.
struct ColdkeyTest<'a> {
    process: EProcess,
    counted: u64,
    differing: u64,
    alarmed: bool,
    /// Counted jobs by account and day.
    daily: BTreeMap<(&'a str, i64), usize>,
    /// The accounts of which a difference was counted.
    accusers: BTreeSet<&'a str>,
}

impl Default for ColdkeyTest<'_> {
    fn default() -> Self {
        Self {
            process: EProcess::new(1, Restart::AtOne),
            counted: 0,
            differing: 0,
            alarmed: false,
            daily: BTreeMap::new(),
            accusers: BTreeSet::new(),
        }
    }
}

impl<'a> ColdkeyTest<'a> {
    fn observe(&mut self, job: &'a CheckedJob) {
        let account = job.account.as_str();
        if job.differs && self.accusers.contains(account) {
            return;
        }
        let day = job.at.micros().div_euclid(DAY_MICROS);
        let counted = self.daily.entry((account, day)).or_default();
        if *counted >= COUNTED_A_DAY {
            return;
        }
        *counted = counted.saturating_add(1);
        self.counted = self.counted.saturating_add(1);
        let likelihood = if job.differs {
            self.accusers.insert(account);
            self.differing = self.differing.saturating_add(1);
            HONEST_ONE_IN * ONE
        } else {
            0
        };
        self.process.observe(&[likelihood]);
        self.alarmed |= self.process.mean() >= ALARM;
    }

    fn result_of(self, coldkey: Hotkey) -> ColdkeyTestResult {
        ColdkeyTestResult {
            coldkey,
            counted: self.counted,
            differing: self.differing,
            evidence_log2: self.process.mean_log2(),
            alarmed: self.alarmed,
            quality_per_mille: if self.alarmed {
                ALARMED_QUALITY
            } else {
                WHOLE_QUALITY
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_audit::{CAP_LOG2, SeededNumbers, fixed_point::exp2};
    use proptest::prelude::*;

    use super::*;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    fn job(account: &str, differs: bool, day: i64) -> CheckedJob {
        CheckedJob {
            coldkey: key(1),
            account: account.to_owned(),
            differs,
            at: Timestamp::from_micros(day * DAY_MICROS),
        }
    }

    fn alarms(jobs: &[CheckedJob]) -> bool {
        test_results(jobs).iter().any(|result| result.alarmed)
    }

    #[test]
    fn differences_of_three_accounts_are_an_alarm_and_of_one_account_never() {
        let of = |accounts: &[&str]| {
            let jobs: Vec<_> = accounts.iter().map(|account| job(account, true, 1)).collect();
            alarms(&jobs)
        };
        assert!(!of(&["a", "b"]));
        assert!(of(&["a", "b", "c"]));
        let alone: Vec<_> = (0..100).map(|day| job("a", true, day)).collect();
        assert!(!alarms(&alone), "one user accuses nobody");
        assert!(
            HONEST_ONE_IN * ONE <= exp2(CAP_LOG2),
            "within the bound of the test"
        );
    }

    #[test]
    fn a_cheat_in_a_tenth_of_the_jobs_is_found_between_agreements() {
        let jobs: Vec<_> = (0_i64..60)
            .map(|number| job(&format!("user {number}"), number % 10 == 9, number))
            .collect();
        assert!(alarms(&jobs));
        let result = test_results(&jobs).remove(0);
        assert_eq!((result.counted, result.differing), (60, 6));
        assert_eq!(result.quality_per_mille, 500);
    }

    #[test]
    fn four_jobs_of_an_account_count_in_a_day() {
        let jobs: Vec<_> = (0..9).map(|_| job("a", false, 3)).collect();
        assert_eq!(test_results(&jobs)[0].counted, 4);
    }

    #[test]
    fn the_lower_one_of_two_qualities_counts_for_every_hotkey_of_the_coldkey() {
        let jobs = ["a", "b", "c"].map(|account| job(account, true, 1));
        let owners = [(11, 1), (12, 1), (13, 2)].map(|(miner, owner)| (MinerKey(key(miner)), key(owner)));
        let known = [(12, 300), (13, 700)].map(|(miner, per_mille)| QualityFactor {
            miner: MinerKey(key(miner)),
            per_mille,
        });
        let factors = add_quality(known.to_vec(), &test_results(&jobs), &owners.into());
        let shown: Vec<_> = factors.iter().map(|one| (one.miner.0, one.per_mille)).collect();
        assert_eq!(shown, [(key(11), 500), (key(12), 300), (key(13), 700)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// Honest miners at the very bound, each for 2,000 counted jobs of accounts of their own.
        #[test]
        fn an_honest_miner_at_the_bound_is_hardly_ever_accused(seed in any::<[u8; 8]>()) {
            let mut numbers = SeededNumbers::new("honest miners", &seed);
            let jobs: Vec<_> = (0_i64..2_000)
                .map(|number| job(&format!("user {number}"), numbers.below(1_000) == 0, number))
                .collect();
            prop_assert!(!alarms(&jobs));
        }

        #[test]
        fn the_order_of_coldkeys_changes_nothing(owners in prop::collection::vec((0_u8..3, any::<bool>()), 0..40)) {
            let jobs: Vec<_> = owners.iter().zip(0_i64..).map(|((owner, differs), day)| CheckedJob {
                coldkey: key(*owner), ..job(&format!("user {day}"), *differs, day)
            }).collect();
            let together = test_results(&jobs);
            for owner in 0..3 {
                let own: Vec<_> = jobs.iter().filter(|job| job.coldkey == key(owner)).cloned().collect();
                let alone = test_results(&own);
                let found = together.iter().find(|one| one.coldkey == key(owner));
                prop_assert_eq!(found, alone.first());
            }
        }
    }
}
