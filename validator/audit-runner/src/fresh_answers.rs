//! Fresh answers for appeals: the validator's own prompts to the miner that appeals, in a session of their own, and the
//! verdict about them. Answers to clients count neither for an appeal nor against it: the miner, or a friend of its,
//! may be the client.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_audit::Verdict;
use muster_protocol::{Digest, MinerKey, Timestamp};
use muster_response_proof::BucketNumber;
use muster_store::columns::unsigned_column;
use muster_store::{During as _, StoreError};

use crate::RunnerState;
use crate::appeal_rule::{AppealEnd, AppealFacts, AppealStep};
use crate::appeals::StoredAppeal;
use crate::audit_run;
use crate::gathering::AuditPauses;
use crate::phases::AuditPhase;
use crate::prompts::NextPrompt;
use crate::store::AuditStore;

impl AuditStore {
    /// The answers of a miner to own prompts of a model in sessions that were opened since: all of them, and those that
    /// a draw has passed.
    async fn count_fresh(
        &self,
        miner: &MinerKey,
        model: &str,
        since: Timestamp,
    ) -> Result<(u64, u64), StoreError> {
        let row = sqlx::query(
            "SELECT COUNT(*) AS many, COUNT(b.draw) AS drawn FROM responses r \
             JOIN sessions s ON s.session_id = r.session_id LEFT JOIN answer_buckets b ON b.bucket = r.bucket \
             WHERE s.miner = $1 AND r.model = $2 AND s.opened_at >= $3 AND r.sequence IS NOT NULL \
             AND EXISTS (SELECT 1 FROM canaries c WHERE c.response_id = r.response_id)",
        )
        .bind(miner.to_string())
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_one(&self.pool)
        .await
        .during("count fresh answers")?;
        Ok((unsigned_column(&row, "many")?, unsigned_column(&row, "drawn")?))
    }
}

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
    let asked = state
        .gateway
        .ask_miner(appeal.miner, &appeal.model, questions, &note)
        .await;
    match asked {
        Ok(answered) => tracing::info!(miner = %appeal.miner, answered, "fresh answers of an appeal came"),
        Err(reason) => {
            tracing::info!(miner = %appeal.miner, reason, "a miner that appeals has no session for fresh answers");
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

#[cfg(test)]
mod tests {
    use muster_audit::{Canary, CanaryList};
    use muster_store::testing::stores;
    use muster_validator_store::{MIGRATIONS, Store};
    use sqlx::AnyPool;

    use super::*;
    use crate::testing::key;

    async fn put_answer(pool: &AnyPool, id: &str, session: &str, opened: i64, bucket: Option<i64>) {
        sqlx::query(
            "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at) \
             VALUES ($1, $1, $2, 'tiny', '', '', $3) ON CONFLICT DO NOTHING",
        )
        .bind(session.to_owned())
        .bind(key(2).to_string())
        .bind(Timestamp::from_secs(opened).micros())
        .execute(pool)
        .await
        .unwrap();
        sqlx::query(
            "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, how_ended, \
             verdict, bytes, input_tokens, output_tokens, earned, sequence, bucket) \
             VALUES ($1, $2, $3, 'tiny', 1, 9, 200, 'completed', 'proven', 1, 3, 4, 5, 0, $4)",
        )
        .bind(id.to_owned())
        .bind(session.to_owned())
        .bind(Digest::of(id.as_bytes()).to_string())
        .bind(bucket)
        .execute(pool)
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn only_answers_to_own_prompts_in_sessions_since_the_appeal_are_fresh() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            drop(Store::with_pool(test.pool.clone()).await.unwrap());
            let (pool, store) = (&test.pool, AuditStore::new(test.pool.clone()));
            let prompt = |number: u8| Canary {
                salt: [number; 32],
                request: vec![number],
            };
            let list = CanaryList::new((0..4).map(prompt).collect());
            store.insert_list(&list, Timestamp::from_secs(1)).await.unwrap();
            sqlx::query(
                "INSERT INTO answer_buckets (bucket, answers, header, shares, canary_list, closed_at, draw) \
                 VALUES (7, 1, '', '', '', 1, 'drawn')",
            )
            .execute(pool)
            .await
            .unwrap();
            for (place, (id, session, opened, bucket)) in [
                ("drawn", "fresh", 20, Some(7)),
                ("not drawn", "fresh", 20, None),
                ("before the appeal", "old", 5, Some(7)),
            ]
            .into_iter()
            .enumerate()
            {
                put_answer(pool, id, session, opened, bucket).await;
                let place = u64::try_from(place).unwrap();
                store.note_answer(&list.root(), place, id).await.unwrap();
            }
            // A client's answers are not fresh, whichever session gave them.
            put_answer(pool, "a client's", "fresh", 20, Some(7)).await;
            put_answer(pool, "another client's", "of clients", 20, Some(7)).await;
            let miner = MinerKey(key(2));
            let count = |since| store.count_fresh(&miner, "tiny", Timestamp::from_secs(since));
            assert_eq!(count(10).await.unwrap(), (2, 1), "{}", test.engine);
            assert_eq!(count(1).await.unwrap(), (3, 2));
            let other = MinerKey(key(3));
            let of_other = store.count_fresh(&other, "tiny", Timestamp::from_secs(1));
            assert_eq!(of_other.await.unwrap(), (0, 0));
        }
    }
}
