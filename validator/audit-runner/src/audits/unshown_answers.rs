//! Audited answers that no bundle will ever show: those behind a gap in their session's numbers, of a session that
//! attests another image or model, or for which no bundle has room. They get the finding that they were not audited, or
//! they would gather for as long as verdicts look back.

use std::collections::BTreeSet;

use muster_audit::UnusableReason;
use muster_protocol::{MinerKey, Timestamp};
use muster_store::During as _;
use muster_store::columns::read_column;
use sqlx::any::AnyRow;

use crate::RunnerState;
use crate::audits::audited_subject::AuditedSubject;
use crate::evidence::assemble::ReferenceOutcome;
use crate::store::audit_store::{AuditStore, Result};

impl AuditStore {
    /// The audited answers of a miner and a model that have no finding and whose session has ended: it is closed, and
    /// all of its answers stand in buckets that were drawn from, so that nothing is added to what can be shown of it.
    async fn settled_answers(
        &self,
        miner: &MinerKey,
        model: &str,
        since: Timestamp,
    ) -> Result<BTreeSet<String>> {
        let rows = sqlx::query(
            "SELECT r.response_id FROM responses r JOIN sessions s ON s.session_id = r.session_id \
             WHERE s.miner = $1 AND r.model = $2 AND r.ended_at >= $3 AND s.closed_at IS NOT NULL \
             AND (r.drawn = 1 OR EXISTS (SELECT 1 FROM canaries c WHERE c.response_id = r.response_id)) \
             AND NOT EXISTS (SELECT 1 FROM answer_scores a WHERE a.response_id = r.response_id AND a.reference = 0) \
             AND NOT EXISTS (SELECT 1 FROM responses w LEFT JOIN answer_buckets b ON b.bucket = w.bucket \
             WHERE w.session_id = r.session_id AND w.sequence IS NOT NULL AND b.draw IS NULL)",
        )
        .bind(miner.to_string())
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("look for answers that nobody can audit")?;
        rows.iter()
            .map(|row: &AnyRow| read_column(row, "response_id"))
            .collect()
    }
}

/// Notes that the audited answers which this reading does not show, and no later one will, were not audited.
pub(crate) async fn settle_unshown(state: &RunnerState, subject: &AuditedSubject) -> Result<()> {
    let scope = &subject.scope;
    // An appeal reads own prompts alone, and says nothing about answers to clients.
    if scope.is_appeal {
        return Ok(());
    }
    let shown = subject.audited_ids();
    let finding = ReferenceOutcome::Unusable(UnusableReason::NotAudited);
    let mut unshown = 0;
    // The test of missing answers counts them.
    for answer in subject.behind_gap() {
        let now = state.clock.now();
        state.store.put_outcome(answer, 0, &finding, now).await?;
        state.log.store().drop_words(answer).await?;
        unshown += 1;
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
            state.log.store().drop_words(&answer).await?;
            unshown += 1;
        }
    }
    if unshown > 0 {
        tracing::warn!(coldkey = %scope.coldkey, model = scope.model, answers = unshown,
            "answers cannot be audited: a proof before them is missing, their session attests another image, or no \
             bundle has room for them");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_store::testing::stores;
    use muster_validator_store::MIGRATIONS;
    use sqlx::AnyPool;

    use super::*;
    use crate::testing::key;

    async fn run(pool: &AnyPool, statement: String) {
        // The statement has no text from outside this file.
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .execute(pool)
            .await
            .unwrap();
    }

    async fn session(pool: &AnyPool, id: &str, miner: MinerKey, closed_at: &str) {
        let statement = format!(
            "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at, closed_at) \
             VALUES ('{id}', '{id}', '{miner}', 'tiny', '', '', 1, {closed_at})"
        );
        run(pool, statement).await;
    }

    async fn answer(pool: &AnyPool, session: &str, sequence: u64, bucket: &str, drawn: bool) {
        let statement = format!(
            "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, how_ended, \
             verdict, bytes, input_tokens, output_tokens, earned, sequence, bucket, position, drawn) \
             VALUES ('{session}-{sequence}', '{session}', 'c', 'tiny', 1, 9, 200, 'completed', 'proven', 1, 3, 4, 5, \
             {sequence}, {bucket}, NULL, {})",
            u8::from(drawn)
        );
        run(pool, statement).await;
    }

    #[tokio::test]
    async fn audited_answers_of_sessions_that_have_ended_are_settled_once() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let (pool, store) = (&test.pool, AuditStore::new(test.pool.clone()));
            let miner = MinerKey(key(1));
            for (bucket, draw) in [(7, "'drawn'"), (8, "NULL")] {
                let statement = format!(
                    "INSERT INTO answer_buckets (bucket, answers, header, shares, canary_list, closed_at, draw) \
                     VALUES ({bucket}, 1, '', '', '', 1, {draw})"
                );
                run(pool, statement).await;
            }
            session(pool, "closed", miner, "20").await;
            answer(pool, "closed", 1, "7", true).await;
            answer(pool, "closed", 2, "7", false).await;
            answer(pool, "closed", 3, "7", false).await;
            // The second one is an answer to an own prompt.
            run(
                pool,
                "INSERT INTO canaries (list, position, salt, request, response_id) VALUES ('l', 0, '', '', 'closed-2')"
                    .to_owned(),
            )
            .await;
            // More may come of an open session, and of one with an answer in a bucket that was not drawn from.
            session(pool, "open", miner, "NULL").await;
            answer(pool, "open", 1, "7", true).await;
            session(pool, "not drawn", miner, "20").await;
            answer(pool, "not drawn", 1, "7", true).await;
            answer(pool, "not drawn", 2, "8", false).await;
            session(pool, "not logged", miner, "20").await;
            answer(pool, "not logged", 1, "7", true).await;
            answer(pool, "not logged", 2, "NULL", false).await;
            session(pool, "another", MinerKey(key(2)), "20").await;
            answer(pool, "another", 1, "7", true).await;
            let settled = async |since| {
                let since = Timestamp::from_micros(since);
                store.settled_answers(&miner, "tiny", since).await.unwrap()
            };
            let both = BTreeSet::from(["closed-1".to_owned(), "closed-2".to_owned()]);
            assert_eq!(settled(0).await, both, "{}", test.engine);
            assert_eq!(settled(10).await, BTreeSet::new(), "too old");
            let finding = ReferenceOutcome::Unusable(UnusableReason::NotAudited);
            let now = Timestamp::from_secs(1);
            store.put_outcome("closed-1", 0, &finding, now).await.unwrap();
            assert_eq!(settled(0).await, BTreeSet::from(["closed-2".to_owned()]));
        }
    }
}
