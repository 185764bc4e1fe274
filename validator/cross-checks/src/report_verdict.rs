//! The verdict for the user who reported an answer or a session. Pure.

use muster_audit::{ANSWER_EVIDENCE, AnswerJudgement, Verdict};
use muster_audit_runner::AuditRun;
use muster_protocol::wire::checks::CheckState;

use crate::verdict::CheckVerdict;

/// The verdict for the user who reported an answer, from its own scores and the audit of its miner's coldkey. The
/// scores of one answer count before an audit that found nothing, and an audit before scores that prove nothing.
pub(crate) fn verdict_of_answer(
    scored: Result<AnswerJudgement, String>,
    by_audit: CheckVerdict,
) -> CheckVerdict {
    let judged = match scored {
        Ok(judged) => judged,
        Err(why) => {
            return CheckVerdict {
                reason: format!("{}; the reported answer was not judged: {why}", by_audit.reason),
                ..by_audit
            };
        }
    };
    let found = format!(
        "{} of the {} tokens of the reported answer are not the model's choice by this validator's reference: evidence \
         of {}, and an honest answer in a hundred reaches {ANSWER_EVIDENCE} at most",
        judged.off, judged.tokens, judged.evidence
    );
    let state = match (judged.speaks_against(), by_audit.state) {
        (true, _) | (false, CheckState::Differs) => CheckState::Differs,
        (false, _) => CheckState::Agrees,
    };
    CheckVerdict {
        state,
        reason: format!("{found}; {}", by_audit.reason),
        outputs: Vec::new(),
    }
}

/// The verdict for the user who reported a session, from the audit of its miner's coldkey.
pub(crate) fn verdict_of_audit(run: Option<&AuditRun>) -> CheckVerdict {
    let Some(run) = run else {
        return CheckVerdict::unproven(
            "no answer of this miner waits for its audit: those of the last minutes are drawn later, and most are not \
             drawn at all",
        );
    };
    let scored = run.scored;
    let verdict = |state, words: String| CheckVerdict {
        state,
        reason: words,
        outputs: Vec::new(),
    };
    let named = run.verdict.as_deref();
    match named.map(|name| (Verdict::of_name(name), name)) {
        Some((Some(Verdict::Consistent), _)) => verdict(
            CheckState::Agrees,
            format!("an audit of the miner's answers found nothing ({scored} scored)"),
        ),
        Some((Some(Verdict::Convicted | Verdict::Suspect), name)) => verdict(
            CheckState::Differs,
            format!("an audit of the miner's answers ends with the verdict {name} ({scored} scored)"),
        ),
        Some((Some(Verdict::Weak | Verdict::Unproven(_)) | None, name)) => CheckVerdict::unproven(format!(
            "an audit of the miner's answers ends with the verdict {name}"
        )),
        None => {
            let why = run.reason.as_deref().unwrap_or("it ended without a verdict");
            CheckVerdict::unproven(format!("an audit of the miner's answers has no verdict: {why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_audit_runner::RunState;
    use muster_protocol::{Hotkey, Timestamp};

    use super::*;

    #[test]
    fn the_scores_of_a_reported_answer_are_told_beside_the_audit() {
        let judged = |evidence| {
            Ok(AnswerJudgement {
                tokens: 128,
                off: 20,
                evidence,
            })
        };
        let audit = |state| CheckVerdict {
            state,
            reason: "the audit".to_owned(),
            outputs: Vec::new(),
        };
        let state = |scored, of_audit| verdict_of_answer(scored, audit(of_audit)).state;
        assert_eq!(state(judged(2_000), CheckState::Unproven), CheckState::Differs);
        assert_eq!(state(judged(0), CheckState::Unproven), CheckState::Agrees);
        assert_eq!(state(judged(0), CheckState::Differs), CheckState::Differs);
        let none = || Err("no reference".to_owned());
        assert_eq!(state(none(), CheckState::Unproven), CheckState::Unproven);
        let words = verdict_of_answer(judged(2_000), audit(CheckState::Agrees)).reason;
        assert!(
            words.starts_with("20 of the 128 tokens") && words.ends_with("the audit"),
            "{words}"
        );
        assert!(
            verdict_of_answer(none(), audit(CheckState::Agrees))
                .reason
                .contains("no reference")
        );
    }

    #[test]
    fn an_audit_is_told_as_the_result_of_a_report() {
        let run = |verdict: Option<&str>, reason: Option<&str>| AuditRun {
            run: "1".to_owned(),
            coldkey: Hotkey::from_bytes([1; 32]),
            model: "tiny".to_owned(),
            state: RunState::Judged,
            answers: 3,
            scored: 3,
            began_at: Timestamp::from_secs(1),
            ended_at: None,
            bundle: None,
            verdict: verdict.map(str::to_owned),
            reason: reason.map(str::to_owned),
        };
        let state = |verdict| verdict_of_audit(Some(&run(verdict, None))).state;
        assert_eq!(state(Some("consistent")), CheckState::Agrees);
        assert_eq!(state(Some("convicted")), CheckState::Differs);
        assert_eq!(state(Some("suspect")), CheckState::Differs);
        assert_eq!(state(Some("weak")), CheckState::Unproven);
        assert_eq!(verdict_of_audit(None).state, CheckState::Unproven);
        let ended = verdict_of_audit(Some(&run(None, Some("no reference"))));
        assert!(ended.reason.contains("no reference"), "{ended:?}");
    }
}
