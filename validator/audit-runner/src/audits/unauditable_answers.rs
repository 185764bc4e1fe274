//! Audited answers that no bundle will ever show: those behind a gap in their session's numbers, of a session that
//! attests another image or model, or for which no bundle has room. They get the finding that they were not audited, or
//! they would gather for as long as verdicts look back.

use muster_audit::UnusableReason;

use crate::audits::stored_evidence::AuditedSubject;
use crate::evidence::outcome::ReferenceOutcome;
use crate::runner_state::RunnerState;
use crate::store::audit_store::Result;

/// Notes that the audited answers which this reading does not show, and no later one will, were not audited.
pub(crate) async fn settle_unauditable(state: &RunnerState, subject: &AuditedSubject) -> Result<()> {
    let scope = &subject.scope;
    // An appeal reads own prompts alone, and decides nothing about answers to clients.
    if scope.is_appeal {
        return Ok(());
    }
    let shown = subject.audited_ids();
    let finding = ReferenceOutcome::Unusable(UnusableReason::NotAudited);
    let mut unauditable = 0;
    // The test of missing answers counts them.
    for answer in subject.behind_gap() {
        let now = state.clock.now();
        state.store.put_outcome(answer, 0, &finding, now).await?;
        state.log.store().drop_text(answer).await?;
        unauditable += 1;
    }
    for miner in scope.miners() {
        for answer in state
            .store
            .settled_answers(miner, &scope.model, scope.since)
            .await?
        {
            if shown.contains(answer.as_str()) {
                continue;
            }
            let now = state.clock.now();
            state.store.put_outcome(&answer, 0, &finding, now).await?;
            state.log.store().drop_text(&answer).await?;
            unauditable += 1;
        }
    }
    if unauditable > 0 {
        tracing::warn!(coldkey = %scope.coldkey, model = scope.model, answers = unauditable,
            "answers cannot be audited: a proof before them is missing, their session attests another image, or no \
             bundle has room for them");
    }
    Ok(())
}
