//! The rule about a coldkey: when the validator's own deterministic jobs lower the quality of its miners. Pure.
//!
//! Users' jobs are no part of it: by a program that tells machines apart a user would accuse anybody. An own job speaks
//! against a miner only once a third coldkey contradicts it ([`crate::own_check`]). A difference is confirmed by a
//! repeat: another own job with the same program and other inputs, an hour later or more, that differs as well. The
//! same inputs again would show the miner which job is the repeat.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_audit::WHOLE_QUALITY;
use muster_protocol::{Hotkey, MinerKey, Timestamp};
use muster_scoring::QualityFactor;
use serde::Serialize;

/// Confirmed differences within the window from which on the quality falls.
pub const CONFIRMED_TO_FALL: u64 = 3;

/// The days of own jobs that a result rests on.
pub const WINDOW_DAYS: u64 = 30;

/// The least time between a difference and its repeat.
pub const ANOTHER_HOUR: Duration = Duration::from_secs(3_600);

/// An own job with a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnResult {
    /// The coldkey of the miner that ran it.
    pub coldkey: Hotkey,
    /// The name of its program.
    pub program: String,
    /// Whether its outputs differ, and a third coldkey agrees with the validator's own miner.
    pub differs: bool,
    /// When the job began.
    pub at: Timestamp,
}

/// The result of the own jobs of a coldkey's miners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ColdkeyTestResult {
    /// The coldkey whose miners ran the jobs.
    pub coldkey: Hotkey,
    /// Own jobs with a verdict.
    pub counted: u64,
    /// Those of them that differ.
    pub differing: u64,
    /// The differences whose repeat differs as well.
    pub confirmed: u64,
    /// Whether they are enough to lower the quality.
    pub alarmed: bool,
    /// The factor of the miners' quality in scores, in thousandths.
    pub quality_per_mille: u16,
}

/// The results of all coldkeys of these own jobs of the last thirty days, which are in the order of their times.
pub fn test_results(jobs: &[OwnResult]) -> Vec<ColdkeyTestResult> {
    let mut tests: BTreeMap<Hotkey, ColdkeyTest<'_>> = BTreeMap::new();
    for job in jobs {
        tests.entry(job.coldkey).or_default().observe(job);
    }
    tests
        .into_iter()
        .map(|(coldkey, test)| test.result_of(coldkey))
        .collect()
}

/// The program of the oldest difference of each coldkey that waits for its repeat.
pub fn open_differences(jobs: &[OwnResult]) -> BTreeMap<Hotkey, String> {
    let mut tests: BTreeMap<Hotkey, ColdkeyTest<'_>> = BTreeMap::new();
    for job in jobs {
        tests.entry(job.coldkey).or_default().observe(job);
    }
    let open = tests.into_iter().filter_map(|(coldkey, test)| {
        let (_, program) = test.open.iter().map(|(program, at)| (*at, *program)).min()?;
        Some((coldkey, program.to_owned()))
    });
    open.collect()
}

/// The quality factors with those of miners whose coldkey's own jobs lower them. The lower one of two counts.
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

/// The own jobs of one coldkey.
#[derive(Default)]
struct ColdkeyTest<'a> {
    counted: u64,
    differing: u64,
    confirmed: u64,
    /// The differences that wait for their repeats, by their programs.
    open: BTreeMap<&'a str, Timestamp>,
}

impl<'a> ColdkeyTest<'a> {
    fn observe(&mut self, job: &'a OwnResult) {
        self.counted = self.counted.saturating_add(1);
        if !job.differs {
            return;
        }
        self.differing = self.differing.saturating_add(1);
        match self.open.get(job.program.as_str()) {
            Some(first) if job.at.since(*first) >= ANOTHER_HOUR => {
                self.open.remove(job.program.as_str());
                self.confirmed = self.confirmed.saturating_add(1);
            }
            // The same hour: one fault of the machine may be behind both.
            Some(_) => {}
            None => {
                self.open.insert(&job.program, job.at);
            }
        }
    }

    fn result_of(self, coldkey: Hotkey) -> ColdkeyTestResult {
        let alarmed = self.confirmed >= CONFIRMED_TO_FALL;
        ColdkeyTestResult {
            coldkey,
            counted: self.counted,
            differing: self.differing,
            confirmed: self.confirmed,
            alarmed,
            quality_per_mille: if alarmed {
                without_share(self.differing, self.counted)
            } else {
                WHOLE_QUALITY
            },
        }
    }
}

/// The whole quality less the share of jobs that differ, rounded down.
fn without_share(differing: u64, counted: u64) -> u16 {
    let honest = counted.saturating_sub(differing);
    let per_mille = honest.saturating_mul(u64::from(WHOLE_QUALITY)) / counted.max(1);
    u16::try_from(per_mille).unwrap_or(WHOLE_QUALITY)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    fn job(program: &str, differs: bool, minutes: i64) -> OwnResult {
        OwnResult {
            coldkey: key(1),
            program: program.to_owned(),
            differs,
            at: Timestamp::from_secs(minutes * 60),
        }
    }

    fn result(jobs: &[OwnResult]) -> ColdkeyTestResult {
        test_results(jobs).remove(0)
    }

    #[test]
    fn three_differences_whose_repeats_differ_lower_the_quality_by_their_share() {
        let mut jobs: Vec<_> = (0..6).map(|number| job("sum", true, number * 60)).collect();
        jobs.extend((6..24).map(|number| job("sum", false, number * 60)));
        let found = result(&jobs);
        assert_eq!((found.counted, found.differing, found.confirmed), (24, 6, 3));
        assert_eq!((found.alarmed, found.quality_per_mille), (true, 750));
        let fewer = result(&jobs[1..]);
        assert_eq!((fewer.confirmed, fewer.quality_per_mille), (2, WHOLE_QUALITY));
    }

    #[test]
    fn a_repeat_has_the_same_program_and_comes_in_another_hour() {
        let confirmed = |jobs: &[OwnResult]| result(jobs).confirmed;
        assert_eq!(confirmed(&[job("sum", true, 0), job("sum", true, 59)]), 0);
        assert_eq!(confirmed(&[job("sum", true, 0), job("sum", true, 60)]), 1);
        assert_eq!(confirmed(&[job("sum", true, 0), job("sort", true, 90)]), 0);
        let between = [job("sum", true, 0), job("sum", false, 60), job("sum", true, 120)];
        assert_eq!(
            confirmed(&between),
            1,
            "an honest job between them takes nothing back"
        );
        let jobs = [job("sum", true, 0), job("sort", true, 10), job("sum", true, 60)];
        assert_eq!(
            open_differences(&jobs),
            BTreeMap::from([(key(1), "sort".to_owned())])
        );
    }

    #[test]
    fn the_lower_one_of_two_qualities_counts_for_every_hotkey_of_the_coldkey() {
        let jobs: Vec<_> = (0..6).map(|number| job("sum", true, number * 60)).collect();
        let owners = [(11, 1), (12, 1), (13, 2)].map(|(miner, owner)| (MinerKey(key(miner)), key(owner)));
        let known = [(12, 300), (13, 700)].map(|(miner, per_mille)| QualityFactor {
            miner: MinerKey(key(miner)),
            per_mille,
        });
        let factors = add_quality(known.to_vec(), &test_results(&jobs), &owners.into());
        let shown: Vec<_> = factors.iter().map(|one| (one.miner.0, one.per_mille)).collect();
        assert_eq!(shown, [(key(11), 0), (key(12), 0), (key(13), 700)]);
    }

    proptest! {
        #[test]
        fn quality_falls_by_three_confirmed_differences_only_and_by_their_share(
            jobs in prop::collection::vec((0_u8..3, 0_u8..2, any::<bool>(), 1_i64..90), 0..60),
        ) {
            let mut minutes = 0;
            let jobs: Vec<_> = jobs
                .into_iter()
                .map(|(owner, program, differs, pause)| {
                    minutes += pause;
                    OwnResult { coldkey: key(owner), ..job(&program.to_string(), differs, minutes) }
                })
                .collect();
            for found in test_results(&jobs) {
                prop_assert!(2 * found.confirmed <= found.differing && found.differing <= found.counted);
                prop_assert_eq!(found.alarmed, found.confirmed >= CONFIRMED_TO_FALL);
                prop_assert_eq!(found.quality_per_mille < WHOLE_QUALITY, found.alarmed);
                let own: Vec<_> = jobs.iter().filter(|job| job.coldkey == found.coldkey).cloned().collect();
                prop_assert_eq!(test_results(&own), vec![found]);
            }
        }
    }
}
