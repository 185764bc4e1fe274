//! Missing answers: a client was owed an answer that can be checked, and did not get it by the miner's fault. A
//! sequential test of its own compares the share of missing answers with what honest miners may have at most.

use muster_protocol::Digest;
use muster_response_proof::StreamEnd;
use serde::Serialize;

use crate::bundle::Origin;
use crate::checked_answer::CheckedAnswer;
use crate::client_days::ClientDays;
use crate::e_process::{ALARM, EProcess, Restart};
use crate::fixed_point::ONE;
use crate::test_evidence::EvidenceCurve;
use crate::verdict::WHOLE_QUALITY;

/// The share of missing answers, in hundredths, that an honest miner has at most.
pub const HONEST_MISSING: u8 = 1;
/// The share of missing answers, in hundredths, that the test looks for.
pub const TESTED_MISSING: u8 = 5;
/// The name of the test's curve of evidence.
pub const MISSING_TEST: &str = "missing";
/// Answers below which a miner's quality does not fall.
const LEAST_ANSWERS: usize = 200;
/// The share of missing answers, in thousandths, above which the quality of an accused miner falls.
const FREE_PER_MILLE: u16 = 10;
/// The quality that is lost for each further thousandth.
const LOSS_PER_MILLE: u16 = 4;
/// The lowest quality by missing answers.
const LEAST_QUALITY: u16 = 500;

/// The way in which an answer is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingCause {
    /// The answer to an own prompt, which asks for the ids of its tokens, states none. The session's proof says so.
    NoTokenIds,
    /// The engine broke off or fell silent. The session's proof says so.
    BrokenOff,
    /// The connection ended before the answer did, and the client was still there. The validator reports it.
    Cut,
    /// No valid proof came for the answer. The validator reports it.
    Unproven,
}

/// The end of one answer, as the test of missing answers sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The client has the whole answer.
    Whole,
    /// The client lacks the answer, or what would check it.
    Missing(MissingCause),
    /// Nothing can be concluded: the client or the session's own end cut the answer. It is not tested.
    Neutral,
}

/// One answer at its place among all answers of the evidence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissingTrial {
    /// Bucket and position; those of one bucket that stand in no log come last.
    pub(crate) place: (u64, u64),
    /// The client, of which four a day are tested; `None` if the validator has counted.
    pub(crate) client: Option<Digest>,
    /// Whether the validator has found it beyond them.
    pub(crate) is_beyond: bool,
    pub(crate) delivery: Delivery,
}

/// The numbers of missing answers that were tested, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MissingTally {
    /// Own prompts whose answers state no ids of tokens.
    pub no_token_ids: usize,
    /// Answers that the engine broke off.
    pub broken_off: usize,
    /// Answers whose connection ended early.
    pub cut: usize,
    /// Answers without a valid proof.
    pub unproven: usize,
}

impl MissingTally {
    fn note(&mut self, cause: MissingCause) {
        let count = match cause {
            MissingCause::NoTokenIds => &mut self.no_token_ids,
            MissingCause::BrokenOff => &mut self.broken_off,
            MissingCause::Cut => &mut self.cut,
            MissingCause::Unproven => &mut self.unproven,
        };
        *count += 1;
    }

    /// All missing answers.
    pub const fn total(&self) -> usize {
        self.no_token_ids + self.broken_off + self.cut + self.unproven
    }
}

/// The result of the test of missing answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MissingOutcome {
    /// The answers that were tested, missing ones included.
    pub answers: usize,
    /// The missing ones of them.
    pub missing: MissingTally,
    /// The number of answers until the alarm.
    pub alarm: Option<usize>,
}

/// min(L, e⁸) of an answer in Q32: the ratio of the two shares. Its mean is one for a miner at the honest bound, and
/// below one for every miner that misses less.
const fn likelihood(is_missing: bool) -> u128 {
    let (tested, honest) = match is_missing {
        true => (TESTED_MISSING, HONEST_MISSING),
        false => (100 - TESTED_MISSING, 100 - HONEST_MISSING),
    };
    tested as u128 * ONE / honest as u128
}

impl MissingOutcome {
    /// Tests answers in their order.
    pub fn of(answers: impl IntoIterator<Item = Delivery>) -> Self {
        let mut outcome = Self::default();
        let mut test = EProcess::new(1, Restart::AtOne);
        for delivery in answers {
            let is_missing = match delivery {
                Delivery::Neutral => continue,
                Delivery::Whole => false,
                Delivery::Missing(cause) => {
                    outcome.missing.note(cause);
                    true
                }
            };
            outcome.answers += 1;
            test.observe(&[likelihood(is_missing)]);
            if outcome.alarm.is_none() && test.mean() >= ALARM {
                outcome.alarm = Some(outcome.answers);
            }
        }
        outcome
    }

    /// The factor of quality in thousandths: whole without an alarm and below 200 answers; else four thousandths less
    /// for each thousandth of missing answers above ten, and at least a half.
    pub fn quality_per_mille(&self) -> u16 {
        if self.alarm.is_none() || self.answers < LEAST_ANSWERS {
            return WHOLE_QUALITY;
        }
        let share = self.missing.total().saturating_mul(1_000) / self.answers;
        let above = u16::try_from(share)
            .unwrap_or(u16::MAX)
            .saturating_sub(FREE_PER_MILLE);
        WHOLE_QUALITY
            .saturating_sub(above.saturating_mul(LOSS_PER_MILLE))
            .max(LEAST_QUALITY)
    }
}

/// The curve of the test's evidence.
pub(crate) fn missing_evidence(answers: &[Delivery]) -> EvidenceCurve {
    let tested = answers.iter().filter_map(|delivery| match delivery {
        Delivery::Whole => Some(vec![likelihood(false)]),
        Delivery::Missing(_) => Some(vec![likelihood(true)]),
        Delivery::Neutral => None,
    });
    EvidenceCurve::of_likelihoods(MISSING_TEST, tested, 1)
}

/// The delivery of an answer that stands in the log. `is_cut` is the validator's word.
pub(crate) fn delivery_of(answer: &CheckedAnswer<'_>) -> Delivery {
    let cause = match answer.proof.end {
        StreamEnd::EngineFailed | StreamEnd::EngineSilent => Some(MissingCause::BrokenOff),
        StreamEnd::Completed | StreamEnd::ClientGone | StreamEnd::Oversize | StreamEnd::SessionClosed => {
            // The session may state that its client went away although it was there: only the validator knows.
            answer.evidence.cut.then_some(MissingCause::Cut)
        }
    };
    match (cause, answer.proof.end) {
        (Some(cause), _) => Delivery::Missing(cause),
        (None, StreamEnd::Completed) if lacks_ids(answer) => Delivery::Missing(MissingCause::NoTokenIds),
        (None, StreamEnd::Completed) => Delivery::Whole,
        (
            None,
            StreamEnd::ClientGone
            | StreamEnd::Oversize
            | StreamEnd::SessionClosed
            | StreamEnd::EngineFailed
            | StreamEnd::EngineSilent,
        ) => Delivery::Neutral,
    }
}

/// Whether an answer to an own prompt, which asks for the ids of its tokens, has none.
fn lacks_ids(answer: &CheckedAnswer<'_>) -> bool {
    let asks_for_ids = match &answer.evidence.origin {
        Origin::Canary(opened) => opened.asks_for_token_ids(),
        Origin::User | Origin::Consenting => false,
    };
    asks_for_ids && (200..300).contains(&answer.proof.status) && answer.proof.tokens.is_none()
}

/// The answers of one session that are tested. Missing answers that follow one another in a bucket, without a whole one
/// between them, are one event, such as the end of a machine: only the first is tested.
pub(crate) fn separate_events(trials: Vec<MissingTrial>) -> Vec<MissingTrial> {
    let mut event = None;
    let is_tested = |trial: &MissingTrial| match trial.delivery {
        Delivery::Neutral => false,
        Delivery::Whole => {
            event = None;
            true
        }
        Delivery::Missing(_) => event.replace(trial.place.0) != Some(trial.place.0),
    };
    trials.into_iter().filter(is_tested).collect()
}

/// The answers of all sessions in their order, at most four of a client and day.
pub(crate) fn order_trials(mut trials: Vec<MissingTrial>) -> Vec<Delivery> {
    // Equal places are answers without one; they stay in the order of sessions.
    trials.sort_by_key(|trial| trial.place);
    let mut days = ClientDays::default();
    trials
        .into_iter()
        .filter(|trial| {
            !trial.is_beyond
                && trial
                    .client
                    .is_none_or(|client| days.admit(client, trial.place.0))
        })
        .map(|trial| trial.delivery)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::seeded_numbers::SeededNumbers;

    const CUT: Delivery = Delivery::Missing(MissingCause::Cut);

    /// Answers of which each is missing with a probability of `ppm` millionths.
    fn random(seed: u64, ppm: usize, answers: usize) -> Vec<Delivery> {
        let mut numbers = SeededNumbers::new("muster/test-missing/1", &seed.to_be_bytes());
        (0..answers)
            .map(|_| match numbers.below(1_000_000) < ppm {
                true => CUT,
                false => Delivery::Whole,
            })
            .collect()
    }

    /// The 50th and the 95th of 100 miners' answers until the alarm.
    fn answers_to_alarm(ppm: usize) -> (usize, usize) {
        let mut alarms: Vec<usize> = (0..100)
            .map(|seed| {
                MissingOutcome::of(random(seed, ppm, 5_000))
                    .alarm
                    .unwrap_or(usize::MAX)
            })
            .collect();
        alarms.sort_unstable();
        (alarms[49], alarms[94])
    }

    #[test]
    fn answers_to_the_alarm_by_the_share_of_missing_ones() {
        assert_eq!(answers_to_alarm(1_000_000), (13, 13));
        let (median, most) = answers_to_alarm(500_000);
        assert!((20..32).contains(&median) && most <= 50, "{median} {most}");
        let (median, most) = answers_to_alarm(100_000);
        assert!((120..200).contains(&median) && most <= 320, "{median} {most}");
        let (median, most) = answers_to_alarm(50_000);
        assert!((380..560).contains(&median) && most <= 1_100, "{median} {most}");
    }

    #[test]
    fn honest_miners_are_not_accused_in_a_million_answers() {
        for seed in 0..100 {
            let outcome = MissingOutcome::of(random(seed, 10_000, 10_000));
            assert_eq!(outcome.alarm, None, "seed {seed}");
            assert_eq!(outcome.quality_per_mille(), WHOLE_QUALITY);
        }
    }

    #[test]
    fn the_quality_falls_with_the_share_only_after_an_alarm() {
        let outcome = |answers, missing, alarm| MissingOutcome {
            answers,
            missing: MissingTally {
                cut: missing,
                ..MissingTally::default()
            },
            alarm,
        };
        assert_eq!(outcome(1_000, 50, Some(700)).quality_per_mille(), 840);
        assert_eq!(outcome(1_000, 50, None).quality_per_mille(), 1_000, "no alarm");
        assert_eq!(
            outcome(199, 100, Some(40)).quality_per_mille(),
            1_000,
            "few answers"
        );
        assert_eq!(outcome(200, 200, Some(13)).quality_per_mille(), 500);
        assert_eq!(outcome(10_000, 100, Some(9_000)).quality_per_mille(), 1_000);
    }

    fn trial(bucket: u64, position: u64, client: u8, delivery: Delivery) -> MissingTrial {
        MissingTrial {
            place: (bucket, position),
            client: Some(Digest::of(&[client])),
            is_beyond: false,
            delivery,
        }
    }

    #[test]
    fn the_end_of_a_machine_is_one_event_and_a_new_bucket_another() {
        let tested = |trials: &[MissingTrial]| separate_events(trials.to_vec()).len();
        let burst: Vec<MissingTrial> = (0..30).map(|at| trial(7, at, 1, CUT)).collect();
        assert_eq!(tested(&burst), 1);
        let two_buckets = [burst.clone(), vec![trial(8, 0, 1, CUT), trial(8, 1, 1, CUT)]].concat();
        assert_eq!(tested(&two_buckets), 2, "one for each bucket");
        let whole = trial(7, 31, 1, Delivery::Whole);
        let gone = trial(7, 31, 1, Delivery::Neutral);
        assert_eq!(tested(&[burst[0], whole, burst[1]]), 3);
        assert_eq!(
            tested(&[burst[0], gone, burst[1]]),
            1,
            "nothing was answered between"
        );
    }

    #[test]
    fn one_client_fills_no_test() {
        let of_one: Vec<MissingTrial> = (0..20).map(|at| trial(at, 0, 1, CUT)).collect();
        assert_eq!(order_trials(of_one).len(), 4);
        let next_day = [trial(0, 0, 1, CUT), trial(288, 0, 1, CUT)];
        assert_eq!(order_trials(next_day.to_vec()).len(), 2);
        let counted = |at, is_beyond| MissingTrial {
            client: None,
            is_beyond,
            ..trial(at, 0, 1, CUT)
        };
        let by_word: Vec<MissingTrial> = (0..20).map(|at| counted(at, at >= 7)).collect();
        assert_eq!(order_trials(by_word).len(), 7, "the validator has counted");
        let unordered = [trial(9, 0, 1, CUT), trial(3, 1, 2, Delivery::Whole)];
        assert_eq!(order_trials(unordered.to_vec()), [Delivery::Whole, CUT]);
    }

    proptest! {
        /// The premise of the theorem, exactly: the mean likelihood of a miner that misses `ppm` millionths.
        #[test]
        fn the_mean_likelihood_is_at_most_one_up_to_the_honest_share(ppm in 0_u128..=10_000) {
            let mean = ppm * likelihood(true) + (1_000_000 - ppm) * likelihood(false);
            prop_assert!(mean <= 1_000_000 * ONE);
            prop_assert!(60_000 * likelihood(true) + 940_000 * likelihood(false) > 1_000_000 * ONE);
        }

        /// Whole answers never speak against a miner, and neutral ones count for neither side.
        #[test]
        fn more_whole_answers_never_bring_an_alarm(missing in 0_usize..12, whole in 0_usize..200, at in 0_usize..200) {
            let mut answers = vec![Delivery::Whole; whole];
            for _ in 0..missing {
                answers.insert(at.min(answers.len()), CUT);
            }
            let with_neutral: Vec<Delivery> = answers.iter().flat_map(|one| [Delivery::Neutral, *one]).collect();
            let outcome = MissingOutcome::of(answers);
            prop_assert_eq!(outcome, MissingOutcome::of(with_neutral));
            prop_assert_eq!(outcome.alarm, None);
            prop_assert_eq!((outcome.answers, outcome.missing.total()), (missing + whole, missing));
        }
    }
}
