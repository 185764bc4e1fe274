//! Fresh answers for appeals: the validator's own prompts to the miner that appeals, in a session of their own, and the
//! verdict about them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_gateway::fresh_session::FreshQuestion;
use muster_store::StoreError;

use crate::RunnerState;
use crate::appeals::{AppealEnd, StoredAppeal};
use crate::audit_run;
use crate::prompts::NextPrompt;
use crate::store::AuditRun;

/// Asks every miner with an open appeal for the fresh answers that are missing, each as a task of its own. Called right
/// after a bucket was closed.
pub(crate) async fn ask_fresh(state: &Arc<RunnerState>) -> Result<(), StoreError> {
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
            ask(&asking, &appeal, prompts).await;
            asking.asking.lock().remove(&appeal.bundle);
        }));
    }
    Ok(())
}

async fn ask(state: &Arc<RunnerState>, appeal: &StoredAppeal, prompts: Vec<NextPrompt>) {
    let places: Vec<_> = prompts
        .iter()
        .map(|prompt| (prompt.root, prompt.position))
        .collect();
    let questions = prompts
        .into_iter()
        .map(|prompt| FreshQuestion {
            body: prompt.body,
            client: prompt.client,
        })
        .collect();
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
    let asked = state
        .backend
        .ask_miner(appeal.miner, &appeal.model, questions, &note)
        .await;
    match asked {
        Ok(answered) => tracing::info!(miner = %appeal.miner, answered, "fresh answers of an appeal came"),
        Err(reason) => {
            tracing::info!(miner = %appeal.miner, reason, "a miner that appeals has no session for fresh answers");
        }
    }
}

/// Judges the appeals whose fresh answers are there, and ends those whose time is over. Returns the audits.
pub(crate) async fn audit_appeals(state: &Arc<RunnerState>) -> Result<Vec<AuditRun>, StoreError> {
    let mut all = Vec::new();
    let now = state.clock.now();
    for appeal in state.store.appeals(now).await? {
        if !appeal.is_open() {
            continue;
        }
        let (_, drawn) = state
            .store
            .count_fresh(&appeal.miner, &appeal.model, appeal.received_at)
            .await?;
        let is_over = appeal.open_until <= now;
        if drawn < state.settings.appeal_answers && !(is_over && drawn > 0) {
            if is_over {
                state
                    .store
                    .end_appeal(&appeal, AppealEnd::Expired, None, now)
                    .await?;
            }
            continue;
        }
        let runs = audit_run::audit_model(state, &appeal.model, vec![appeal.subject()]).await?;
        let verdict = runs
            .iter()
            .find_map(|run| Some((run.verdict.clone()?, run.bundle)));
        // A verdict that says nothing ends the appeal, too: the same answers would say nothing again.
        let end = match &verdict {
            Some((verdict, _)) => Some(AppealEnd::of_verdict(verdict).unwrap_or(AppealEnd::Expired)),
            None => is_over.then_some(AppealEnd::Expired),
        };
        if let Some(end) = end {
            let fresh = verdict.and_then(|(_, bundle)| bundle);
            state
                .store
                .end_appeal(&appeal, end, fresh, state.clock.now())
                .await?;
        }
        all.extend(runs);
    }
    Ok(all)
}
