//! Verdicts about one coldkey and one model, from the likelihoods of its audited answers.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::calibration::{CalibrationLevel, Statistic};
use crate::e_process::{ALARM, CONFIRMATION, EProcess, Restart};

/// The quality of a miner without a finding, in thousandths.
pub const WHOLE_QUALITY: u16 = 1_000;
/// The quality of a miner that serves users worse than the validator's own prompts.
const HALF_QUALITY: u16 = 500;

/// The verdict about the answers of one coldkey's miners for one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing can be concluded. If the reason is the validator's, the answers are paid as if they had not
    /// been audited.
    Unproven(UnprovenReason),
    /// The answers do not speak against the miner.
    Consistent,
    /// The answers speak against the miner, by a statistic that a miner can distort and that convicts nobody.
    Weak,
    /// The answers speak against the miner, or too many of them are missing. All its further answers are audited, and
    /// it gets no new sessions for a day.
    Suspect,
    /// The answers speak against the miner, on prompts that may be published, confirmed by fresh answers and by another
    /// machine or engine build.
    Convicted,
}

/// The reason why nothing can be concluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnprovenReason {
    /// The engine has no calibration of level 1.
    NoCalibration,
    /// No drawn answer was scored.
    NoScoredAnswers,
}

impl Verdict {
    /// The name in JSON, with the reason in brackets.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unproven(UnprovenReason::NoCalibration) => "unproven(no calibration)",
            Self::Unproven(UnprovenReason::NoScoredAnswers) => "unproven(no scored answers)",
            Self::Consistent => "consistent",
            Self::Weak => "weak",
            Self::Suspect => "suspect",
            Self::Convicted => "convicted",
        }
    }

    /// Every verdict once, each reason of `unproven` by itself.
    pub const ALL: [Self; 6] = [
        Self::Unproven(UnprovenReason::NoCalibration),
        Self::Unproven(UnprovenReason::NoScoredAnswers),
        Self::Consistent,
        Self::Weak,
        Self::Suspect,
        Self::Convicted,
    ];

    /// The verdict of a name, as stores and messages have it; `None` if no verdict has this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| verdict.name() == name)
    }

    /// Whether the verdict of this name accuses the coldkey. A name of no verdict accuses nobody.
    pub fn is_accusation(name: &str) -> bool {
        Self::of_name(name).is_some_and(Self::accuses)
    }

    /// Whether the verdict accuses the coldkey: it is reported, it can be appealed against, and it takes sessions away.
    pub const fn accuses(self) -> bool {
        match self {
            Self::Suspect | Self::Convicted => true,
            Self::Unproven(_) | Self::Consistent | Self::Weak => false,
        }
    }

    /// The verdict of scored answers once the test of missing answers has alarmed: at least a suspicion, whatever the
    /// calibration says, and never a conviction, since the validator alone saw connections end.
    #[must_use]
    pub const fn with_missing_answers(self) -> Self {
        match self {
            Self::Unproven(_) | Self::Consistent | Self::Weak | Self::Suspect => Self::Suspect,
            Self::Convicted => Self::Convicted,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Whether an answer can convict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publicity {
    /// An answer to the validator's own prompt, from a list that it committed to.
    Public,
    /// An answer to a client. It raises suspicion at most, whether or not the client consents to publication.
    Private,
}

/// The likelihoods of one answer by each reference: min(L, e⁸) under every tested alternative, in Q32. An answer that a
/// reference did not score has none there, and counts for the miner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScoredAnswer {
    /// By the first reference.
    pub first: Option<Vec<u128>>,
    /// By the second reference.
    pub second: Option<Vec<u128>>,
}

/// The result of one sequential test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TestOutcome {
    /// The number of answers that were tested.
    pub answers: usize,
    /// The number of answers until the alarm, by the first reference.
    pub alarm: Option<usize>,
    /// Whether the second reference raises an alarm on these answers, too.
    pub rescored: bool,
    /// Whether the answers after both alarms confirm them, by the second reference.
    pub fresh: bool,
}

impl TestOutcome {
    /// Tests answers in the order of the log against this number of alternatives.
    pub fn of(answers: &[&ScoredAnswer], alternatives: usize) -> Self {
        let stages = TestStages::of(answers, alternatives);
        Self {
            answers: answers.len(),
            alarm: stages.alarm,
            rescored: stages.both.is_some(),
            fresh: stages.confirmed.is_some(),
        }
    }

    /// The number of answers after which the newest alarm is confirmed, if each one has to be raised and confirmed by
    /// answers behind the one before; `None` without one. A conviction is as new as this answer: answers that raise no
    /// alarm by themselves make none newer.
    pub(crate) fn newest_confirmed(answers: &[&ScoredAnswer], alternatives: usize) -> Option<usize> {
        let mut newest = None;
        let mut rest = answers;
        while let Some(confirmed) = TestStages::of(rest, alternatives).confirmed {
            newest = Some(newest.unwrap_or_default() + confirmed);
            rest = rest.get(confirmed..).unwrap_or_default();
        }
        newest
    }

    /// Whether the alarm is confirmed both ways.
    pub const fn is_confirmed(&self) -> bool {
        self.rescored && self.fresh
    }
}

/// The numbers of answers after which a test gets to each stage of a conviction.
struct TestStages {
    /// The alarm by the first reference.
    alarm: Option<usize>,
    /// The alarms by both references.
    both: Option<usize>,
    /// The confirmation of the alarms by the answers after both.
    confirmed: Option<usize>,
}

impl TestStages {
    fn of(answers: &[&ScoredAnswer], alternatives: usize) -> Self {
        let first = |answer: &ScoredAnswer| answer.first.clone();
        let second = |answer: &ScoredAnswer| answer.second.clone();
        let alarm = first_reached(answers, alternatives, Restart::AtOne, ALARM, first);
        // The arithmetic of the two differs, so one of them may need some answers more.
        let rescored = alarm.and(first_reached(
            answers,
            alternatives,
            Restart::AtOne,
            ALARM,
            second,
        ));
        let both = alarm.zip(rescored).map(|(first, second)| first.max(second));
        let after = both.and_then(|both| answers.get(both..)).unwrap_or_default();
        let fresh = first_reached(after, alternatives, Restart::Never, CONFIRMATION, second);
        Self {
            alarm,
            both,
            confirmed: both.zip(fresh).map(|(both, fresh)| both + fresh),
        }
    }
}

/// The number of answers after which the mean evidence reaches `threshold`.
fn first_reached(
    answers: &[&ScoredAnswer],
    alternatives: usize,
    restart: Restart,
    threshold: u128,
    likelihoods: impl Fn(&ScoredAnswer) -> Option<Vec<u128>>,
) -> Option<usize> {
    let mut test = EProcess::new(alternatives, restart);
    let unscored = vec![0; alternatives];
    let passes = |answer: &&ScoredAnswer| {
        test.observe(&likelihoods(answer).unwrap_or_else(|| unscored.clone()));
        test.mean() >= threshold
    };
    answers.iter().position(passes).map(|place| place + 1)
}

/// The tests of one coldkey and model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TestOutcomes {
    /// All answers, against the bound of honest machines.
    pub all: TestOutcome,
    /// The answers to own prompts, against the bound that convicts.
    pub public: TestOutcome,
    /// The clients' answers, against the bound that convicts.
    pub private: TestOutcome,
    /// The answers whose seeds nobody knows, by their own statistic and calibration; `None` if there is no such
    /// calibration. The other tests leave these answers out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unseeded: Option<TestOutcome>,
}

impl TestOutcomes {
    /// The verdict, if answers were scored at all.
    pub fn verdict(&self, level: CalibrationLevel, statistic: Statistic, scored: usize) -> Verdict {
        if level == CalibrationLevel::Zero {
            return Verdict::Unproven(UnprovenReason::NoCalibration);
        }
        if scored == 0 {
            return Verdict::Unproven(UnprovenReason::NoScoredAnswers);
        }
        let alarmed = [self.all, self.public, self.private]
            .iter()
            .any(|test| test.alarm.is_some());
        let unseeded = self.unseeded.is_some_and(|test| test.alarm.is_some());
        match (statistic, alarmed) {
            (_, false) if unseeded => Verdict::Weak,
            (_, false) => Verdict::Consistent,
            (Statistic::Surprise, true) => Verdict::Weak,
            (Statistic::Margin, true) if self.public.is_confirmed() => Verdict::Convicted,
            (Statistic::Margin, true) => Verdict::Suspect,
        }
    }

    /// Whether the miner serves users worse than the validator's own prompts: a confirmed alarm on users' answers, and
    /// none on at least as many public ones.
    pub fn discriminates(&self) -> bool {
        let enough = self
            .private
            .alarm
            .is_some_and(|alarm| self.public.answers >= alarm);
        self.private.is_confirmed() && self.public.alarm.is_none() && enough
    }

    /// The factor of the miner's quality in scores by the scored answers, in thousandths: none for a convicted miner,
    /// half for one that discriminates.
    pub fn quality_per_mille(&self, verdict: Verdict) -> u16 {
        match verdict {
            Verdict::Convicted => 0,
            Verdict::Suspect if self.discriminates() => HALF_QUALITY,
            Verdict::Unproven(_) | Verdict::Consistent | Verdict::Weak | Verdict::Suspect => WHOLE_QUALITY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixed_point::{ONE, exp2};
    use crate::likelihood::CAP_LOG2;

    fn answer(first: u128, second: u128) -> ScoredAnswer {
        ScoredAnswer {
            first: Some(vec![first]),
            second: Some(vec![second]),
        }
    }

    fn cheated() -> ScoredAnswer {
        answer(exp2(CAP_LOG2), exp2(CAP_LOG2))
    }

    fn honest() -> ScoredAnswer {
        answer(ONE / 3, ONE / 3)
    }

    fn outcome(answers: &[ScoredAnswer]) -> TestOutcome {
        TestOutcome::of(&answers.iter().collect::<Vec<_>>(), 1)
    }

    fn verdict(all: &[ScoredAnswer], public: &[ScoredAnswer], private: &[ScoredAnswer]) -> (Verdict, u16) {
        let outcomes = TestOutcomes {
            all: outcome(all),
            public: outcome(public),
            private: outcome(private),
            unseeded: None,
        };
        let verdict = outcomes.verdict(CalibrationLevel::Two, Statistic::Margin, all.len());
        (verdict, outcomes.quality_per_mille(verdict))
    }

    #[test]
    fn a_verdict_is_read_by_its_name_and_other_names_are_none() {
        for verdict in Verdict::ALL {
            assert_eq!(Verdict::of_name(verdict.name()), Some(verdict));
        }
        assert_eq!(Verdict::of_name("unproven"), None);
        let accusing: Vec<_> = Verdict::ALL
            .into_iter()
            .filter(|verdict| verdict.accuses())
            .collect();
        assert_eq!(accusing, [Verdict::Suspect, Verdict::Convicted]);
        assert!(Verdict::is_accusation("suspect") && !Verdict::is_accusation("weak"));
        assert!(!Verdict::is_accusation("guilty"));
    }

    #[test]
    fn an_alarm_needs_the_second_machine_and_fresh_answers() {
        let six = vec![cheated(); 6];
        let found = outcome(&six);
        assert_eq!((found.alarm, found.rescored, found.fresh), (Some(3), true, true));
        assert!(!outcome(&six[..3]).is_confirmed(), "nothing fresh");
        let one_machine = vec![answer(exp2(CAP_LOG2), ONE / 3); 9];
        assert!(!outcome(&one_machine).rescored && !outcome(&one_machine).fresh);
        let unscored = ScoredAnswer {
            first: Some(vec![exp2(CAP_LOG2)]),
            second: None,
        };
        assert!(!outcome(&vec![unscored; 9]).is_confirmed());
        let slower = [vec![answer(exp2(CAP_LOG2), ONE)], vec![cheated(); 4]].concat();
        let early = outcome(&slower[..3]);
        assert_eq!((early.alarm, early.rescored), (Some(3), false));
        assert!(
            outcome(&slower).is_confirmed(),
            "one answer more, and one fresh one"
        );
        assert!(
            !outcome(&slower[..4]).fresh,
            "answers that made the second alarm are not fresh"
        );
        let then_honest = [vec![cheated(); 3], vec![honest(); 50]].concat();
        assert!(!outcome(&then_honest).fresh, "an appeal by fresh answers");
    }

    #[test]
    fn a_conviction_is_as_new_as_the_answer_that_confirms_it_and_no_later_answer_alone_makes_it_newer() {
        let newest =
            |answers: &[ScoredAnswer]| TestOutcome::newest_confirmed(&answers.iter().collect::<Vec<_>>(), 1);
        // Three cheated answers alarm and one more confirms.
        assert_eq!(newest(&vec![cheated(); 3]), None);
        assert_eq!(newest(&vec![cheated(); 4]), Some(4));
        assert_eq!(newest(&[vec![honest(); 5], vec![cheated(); 4]].concat()), Some(9));
        // Honest answers speak against a machine now and again.
        let by_chance = [vec![answer(2 * ONE, 2 * ONE)], vec![honest(); 4]].concat();
        let lately = [vec![cheated(); 4], vec![by_chance; 9].concat()].concat();
        assert_eq!(newest(&lately), Some(4));
        assert_eq!(
            newest(&[lately.clone(), vec![cheated(); 3]].concat()),
            Some(4),
            "an alarm alone"
        );
        let again = [lately, vec![cheated(); 4]].concat();
        assert_eq!(newest(&again), Some(again.len()), "the miner goes on");
    }

    #[test]
    fn users_answers_raise_suspicion_and_published_ones_convict() {
        let (bad, good) = (vec![cheated(); 6], vec![honest(); 6]);
        assert_eq!(verdict(&bad, &bad, &[]), (Verdict::Convicted, 0));
        assert_eq!(verdict(&good, &good, &[]), (Verdict::Consistent, 1_000));
        assert_eq!(
            verdict(&bad, &[], &bad),
            (Verdict::Suspect, 1_000),
            "no canaries to compare with"
        );
        assert_eq!(
            verdict(&bad, &good, &bad),
            (Verdict::Suspect, 500),
            "it discriminates"
        );
    }

    #[test]
    fn the_calibration_and_the_statistic_bound_the_verdict() {
        let outcomes = TestOutcomes {
            all: outcome(&vec![cheated(); 6]),
            public: outcome(&vec![cheated(); 6]),
            private: outcome(&[]),
            unseeded: None,
        };
        let verdict = |level, statistic, scored| outcomes.verdict(level, statistic, scored);
        let (zero, one) = (CalibrationLevel::Zero, CalibrationLevel::One);
        let none = Verdict::Unproven(UnprovenReason::NoCalibration);
        assert_eq!(verdict(zero, Statistic::Margin, 6), none);
        let unscored = Verdict::Unproven(UnprovenReason::NoScoredAnswers);
        assert_eq!(verdict(one, Statistic::Margin, 0), unscored);
        assert_eq!(verdict(one, Statistic::Surprise, 6), Verdict::Weak);
        assert_eq!(verdict(one, Statistic::Margin, 6), Verdict::Convicted);
    }
}
