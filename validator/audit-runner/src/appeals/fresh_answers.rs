//! Fresh answers of accused miners: the validator's own prompts to a miner that appeals, or to a convict once a day, in
//! a session of their own; and the verdict about those of an appeal. Answers to clients count neither for an appeal nor
//! against it: the miner, or a friend of its, may be the client.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_audit::Verdict;
use muster_protocol::{Digest, MinerKey};
use muster_response_proof::BucketNumber;
use muster_store::StoreError;

use crate::appeals::appeal_end::{AppealEnd, AppealFacts, AppealStep};
use crate::appeals::stored_appeal::StoredAppeal;
use crate::audits::audit_run;
use crate::audits::reference_start::AuditPauses;
use crate::own_prompts::current_list::NextPrompt;
use crate::phases::AuditPhase;
use crate::runner_state::RunnerState;

/// The own prompts that a convict is asked in a day.
const CONVICT_PROMPTS: usize = 4;

/// Asks every miner with an open appeal for the fresh answers that are missing, each as a task of its own. Called right
/// after the draw block of the bucket that has `ended`. While a self-test needs the headers for its list, they wait.
pub(crate) async fn ask_fresh(state: &Arc<RunnerState>, ended: BucketNumber) -> Result<(), StoreError> {
    if state.self_tests.needs_list(ended) {
        return Ok(());
    }
    let now = state.clock.now();
    for appeal in state.store.appeals(now).await? {
        if !appeal.is_open() || appeal.open_until <= now || !state.asking.lock().insert(appeal.bundle) {
            continue;
        }
        let (asked, _) = state
            .store
            .count_fresh(&appeal.miner, &appeal.model, appeal.received_at)
            .await?;
        let missing = state.settings.appeal_answers.saturating_sub(asked);
        let prompts = state
            .prompts
            .take_of(&appeal.model, usize::try_from(missing).unwrap_or(usize::MAX));
        for prompt in &prompts {
            state.store.note_sent(&prompt.root, prompt.position, now).await?;
        }
        if prompts.is_empty() {
            state.asking.lock().remove(&appeal.bundle);
            continue;
        }
        let asking = Arc::clone(state);
        drop(state.tasks.spawn("fresh answers", async move {
            ask(&asking, (appeal.miner, &appeal.model), prompts).await;
            asking.asking.lock().remove(&appeal.bundle);
        }));
    }
    Ok(())
}

/// Asks the convicts that are due some own prompts, each in a session of its own, without pay. Called right after the
/// draw block of the bucket that has `ended`.
pub(crate) async fn ask_convicts(state: &Arc<RunnerState>, ended: BucketNumber) -> Result<(), StoreError> {
    if state.self_tests.needs_list(ended) {
        return Ok(());
    }
    let now = state.clock.now();
    for (subject, miner) in state.convicts_to_ask().await? {
        // The fresh answers of an appeal are judged by themselves.
        if state.is_appealed(&subject).await? {
            continue;
        }
        let prompts = state.prompts.take_of(&subject.model, CONVICT_PROMPTS);
        if prompts.is_empty() {
            continue;
        }
        for prompt in &prompts {
            state.store.note_sent(&prompt.root, prompt.position, now).await?;
        }
        let verdicts = &state.adopter.store;
        verdicts.note_asked(&subject.coldkey, &subject.model, now).await?;
        let asking = Arc::clone(state);
        drop(state.tasks.spawn("answers of a convict", async move {
            ask(&asking, (miner, &subject.model), prompts).await;
        }));
    }
    Ok(())
}

async fn ask(state: &Arc<RunnerState>, (miner, model): (MinerKey, &str), prompts: Vec<NextPrompt>) {
    let places: Vec<_> = prompts
        .iter()
        .map(|prompt| (prompt.root, prompt.position))
        .collect();
    let questions = prompts.into_iter().map(NextPrompt::into_question).collect();
    let noting = Arc::clone(state);
    let note = move |place: usize, answer: String| -> BoxFuture<'static, ()> {
        let (state, at) = (Arc::clone(&noting), places.get(place).copied());
        Box::pin(async move {
            let Some((root, position)) = at else { return };
            if let Err(error) = state.store.note_answer(&root, position, &answer).await {
                state.fail(error);
            }
        })
    };
    state.enter(AuditPhase::AskingFreshAnswers).await;
    let asked = state.gateway.ask_miner(miner, model, questions, &note).await;
    match asked {
        Ok(answered) => tracing::info!(%miner, model, answered, "fresh answers of an accused miner came"),
        Err(reason) => {
            tracing::info!(%miner, model, reason, "an accused miner has no session for fresh answers");
        }
    }
}

/// Judges the appeals whose fresh answers are there, and ends those whose time is over. One that cannot be judged now
/// is tried again after a pause.
pub(crate) async fn audit_appeals(
    state: &Arc<RunnerState>,
    pauses: &mut AuditPauses,
) -> Result<(), StoreError> {
    let now = state.clock.now();
    for appeal in state.store.appeals(now).await? {
        if !appeal.is_open() {
            continue;
        }
        // A process that was killed may have judged the fresh answers already.
        if let Some(judged) = state
            .store
            .judged_run(&appeal.subject(), appeal.received_at)
            .await?
        {
            let verdict = judged.verdict.as_deref().and_then(Verdict::of_name);
            let end = verdict.map_or(AppealEnd::Expired, AppealEnd::of_verdict);
            end_appeal(state, &appeal, end, judged.bundle).await?;
            continue;
        }
        let (_, drawn) = state
            .store
            .count_fresh(&appeal.miner, &appeal.model, appeal.received_at)
            .await?;
        let facts = AppealFacts {
            needed: state.settings.appeal_answers,
            drawn,
            is_over: appeal.open_until <= now,
        };
        let mut step = facts.before_audit();
        let mut fresh = None;
        if step == AppealStep::Audit {
            let subject = appeal.subject();
            if pauses.is_paused(&subject, now) && !facts.is_over {
                continue;
            }
            let (runs, audit) = audit_run::audit_fresh(state, subject.clone()).await?;
            pauses.note(&[subject], &runs, state.clock.now());
            fresh = runs.iter().find_map(|run| run.bundle);
            step = facts.after_audit(audit);
        }
        if let AppealStep::End(end) = step {
            end_appeal(state, &appeal, end, fresh).await?;
        }
    }
    Ok(())
}

async fn end_appeal(
    state: &RunnerState,
    appeal: &StoredAppeal,
    end: AppealEnd,
    fresh: Option<Digest>,
) -> Result<(), StoreError> {
    state.enter(AuditPhase::EndingAppeal).await;
    state
        .store
        .end_appeal(appeal, end, fresh, state.clock.now())
        .await
}
