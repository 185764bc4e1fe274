//! When an appeal is judged, and how it ends. Pure.

use muster_audit::Verdict;

/// How an appeal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppealEnd {
    /// The fresh answers are consistent with the model: this verdict takes the place of the accusation.
    Lifted,
    /// The fresh answers speak against the miner, too.
    Upheld,
    /// Too few fresh answers came or were scored, or they prove nothing: the accusation stands.
    Expired,
}

impl AppealEnd {
    /// The end that a verdict about enough fresh answers makes. A verdict that proves nothing lets the appeal expire.
    pub(crate) const fn of_verdict(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Consistent => Self::Lifted,
            Verdict::Suspect | Verdict::Convicted => Self::Upheld,
            Verdict::Weak | Verdict::Unproven(_) => Self::Expired,
        }
    }

    /// The name in the store and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lifted => "lifted",
            Self::Upheld => "upheld",
            Self::Expired => "expired",
        }
    }
}

/// The result of an audit of an appeal's fresh answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreshAudit {
    /// The verdict about the fresh answers.
    pub(crate) verdict: Verdict,
    /// The fresh answers that a reference scored.
    pub(crate) scored: u64,
}

/// Everything that the next step of an open appeal depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppealFacts {
    /// The fresh answers that have to be scored.
    pub(crate) needed: u64,
    /// The fresh answers that a draw has passed.
    pub(crate) drawn: u64,
    /// Whether the time for fresh answers is over.
    pub(crate) is_over: bool,
}

/// The next step of an open appeal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppealStep {
    /// More fresh answers may come, or references may be free later.
    Wait,
    /// The fresh answers are audited now.
    Audit,
    /// The appeal is decided or its time is over.
    End(AppealEnd),
}

impl AppealFacts {
    /// The next step before an audit: fresh answers are audited once they are enough.
    pub(crate) const fn before_audit(self) -> AppealStep {
        if self.needed > 0 && self.drawn >= self.needed {
            AppealStep::Audit
        } else {
            self.without_audit()
        }
    }

    /// The next step after an audit; `None` if it has no bundle, such as for want of a reference. The same answers
    /// would be scored the same way, so an audit with a bundle ends the appeal.
    pub(crate) const fn after_audit(self, audit: Option<FreshAudit>) -> AppealStep {
        let Some(audit) = audit else {
            return self.without_audit();
        };
        if !self.decides(audit.scored) {
            return AppealStep::End(AppealEnd::Expired);
        }
        AppealStep::End(AppealEnd::of_verdict(audit.verdict))
    }

    /// Whether `scored` scored answers are enough for a verdict that counts.
    const fn decides(self, scored: u64) -> bool {
        scored >= self.needed && scored > 0
    }

    const fn without_audit(self) -> AppealStep {
        if self.is_over {
            AppealStep::End(AppealEnd::Expired)
        } else {
            AppealStep::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_audit::UnprovenReason;

    use super::*;

    const NEEDED: u64 = 100;

    fn facts(drawn: u64, is_over: bool) -> AppealFacts {
        AppealFacts {
            needed: NEEDED,
            drawn,
            is_over,
        }
    }

    #[test]
    fn fresh_answers_are_audited_once_they_are_enough_and_never_fewer() {
        let expired = AppealStep::End(AppealEnd::Expired);
        let cases = [
            (0, false, AppealStep::Wait),
            (0, true, expired),
            (1, false, AppealStep::Wait),
            (1, true, expired),
            (99, false, AppealStep::Wait),
            (99, true, expired),
            (100, false, AppealStep::Audit),
            (100, true, AppealStep::Audit),
            (101, false, AppealStep::Audit),
        ];
        for (drawn, is_over, step) in cases {
            assert_eq!(facts(drawn, is_over).before_audit(), step, "{drawn} {is_over}");
        }
        let none_needed = AppealFacts {
            needed: 0,
            drawn: 0,
            is_over: true,
        };
        assert_eq!(none_needed.before_audit(), expired);
    }

    #[test]
    fn only_enough_scored_answers_that_are_consistent_lift_an_accusation() {
        use AppealEnd::{Expired, Lifted, Upheld};
        let unproven = Verdict::Unproven(UnprovenReason::NoScoredAnswers);
        let cases = [
            (Verdict::Consistent, 100, Lifted),
            (Verdict::Consistent, 250, Lifted),
            (Verdict::Consistent, 99, Expired),
            (Verdict::Consistent, 1, Expired),
            (Verdict::Consistent, 0, Expired),
            (Verdict::Suspect, 100, Upheld),
            (Verdict::Suspect, 99, Expired),
            (Verdict::Convicted, 100, Upheld),
            (Verdict::Convicted, 6, Expired),
            (Verdict::Weak, 100, Expired),
            (unproven, 0, Expired),
            (Verdict::Unproven(UnprovenReason::NoCalibration), 100, Expired),
        ];
        for (verdict, scored, end) in cases {
            for is_over in [false, true] {
                let step = facts(100, is_over).after_audit(Some(FreshAudit { verdict, scored }));
                assert_eq!(step, AppealStep::End(end), "{verdict} by {scored}");
            }
        }
        assert_eq!(facts(100, false).after_audit(None), AppealStep::Wait);
        assert_eq!(facts(100, true).after_audit(None), AppealStep::End(Expired));
    }
}
