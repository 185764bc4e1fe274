//! The answers of the log that audits wait for: how many have gathered, and which ones nobody can audit.

use std::collections::{BTreeMap, BTreeSet};

use muster_gateway::store::GatewayStore;
use muster_protocol::{Hotkey, MinerKey, Timestamp};
use muster_store::During as _;
use muster_store::columns::{parse_column, read_column, time_column, unsigned_column};
use sqlx::any::AnyRow;

use crate::audits::subject::{Gathered, Subject};
use crate::store::audit_store::{AuditStore, Result};

/// Missing answers that are looked at to see what has gathered, the newest ones.
const MAX_MISSING: u32 = 10_000;

impl AuditStore {
    /// The proven answers of each miner and model since a time.
    pub(crate) async fn count_answers(&self, since: Timestamp) -> Result<Vec<(MinerKey, String, u64)>> {
        let rows = sqlx::query(
            "SELECT s.miner, r.model, COUNT(*) AS many FROM responses r JOIN sessions s ON s.session_id = r.session_id \
             WHERE r.ended_at >= $1 AND r.sequence IS NOT NULL GROUP BY s.miner, r.model",
        )
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("count the answers of a day")?;
        rows.iter()
            .map(|row| {
                let miner = parse_column(row, "miner")?;
                Ok((miner, read_column(row, "model")?, unsigned_column(row, "many")?))
            })
            .collect()
    }

    /// The answers that wait for a reference, by coldkey and model, of sessions that were opened at `opened_since` or
    /// later. Miners without a known owner wait until they have
    /// one.
    pub(crate) async fn gathered(
        &self,
        since: Timestamp,
        opened_since: Timestamp,
        owners: &BTreeMap<MinerKey, Hotkey>,
    ) -> Result<BTreeMap<Subject, Gathered>> {
        // From drawn buckets, drawn or own, and without a finding of the first reference.
        let rows = sqlx::query(
            "SELECT s.miner, r.model, COUNT(*) AS many, MIN(r.ended_at) AS oldest \
             FROM responses r JOIN sessions s ON s.session_id = r.session_id \
             JOIN answer_buckets b ON b.bucket = r.bucket WHERE b.draw IS NOT NULL AND r.ended_at >= $1 \
             AND s.opened_at >= $2 \
             AND (r.drawn = 1 OR EXISTS (SELECT 1 FROM canaries c WHERE c.response_id = r.response_id)) \
             AND NOT EXISTS (SELECT 1 FROM answer_scores a WHERE a.response_id = r.response_id AND a.reference = 0) \
             GROUP BY s.miner, r.model",
        )
        .bind(since.micros())
        .bind(opened_since.micros())
        .fetch_all(&self.pool)
        .await
        .during("count the answers that wait for a reference")?;
        let mut all = BTreeMap::new();
        for row in &rows {
            let miner: MinerKey = parse_column(row, "miner")?;
            let Some(coldkey) = owners.get(&miner).copied() else {
                continue;
            };
            let model = read_column(row, "model")?;
            let oldest = time_column(row, "oldest")?;
            let many = usize::try_from(unsigned_column(row, "many")?).unwrap_or(usize::MAX);
            let one = all
                .entry(Subject { coldkey, model })
                .or_insert(Gathered { answers: 0, oldest });
            one.answers = one.answers.saturating_add(many);
            one.oldest = one.oldest.min(oldest);
        }
        // Scores for an audit that a process did not end have no verdict yet.
        for subject in self.interrupted(since.max(opened_since)).await? {
            let oldest = Timestamp::from_micros(0);
            let one = all.entry(subject).or_insert(Gathered { answers: 0, oldest });
            one.answers = one.answers.max(1);
            one.oldest = oldest;
        }
        for (subject, ended_at) in self.unjudged_missing(since, opened_since, owners).await? {
            let one = all.entry(subject).or_insert(Gathered {
                answers: 0,
                oldest: ended_at,
            });
            one.answers = one.answers.saturating_add(1);
            one.oldest = one.oldest.min(ended_at);
        }
        Ok(all)
    }

    /// When each missing answer ended that no verdict has judged yet, up to a bound. An audit that began before the
    /// draw from its bucket did not see the answer.
    async fn unjudged_missing(
        &self,
        since: Timestamp,
        opened_since: Timestamp,
        owners: &BTreeMap<MinerKey, Hotkey>,
    ) -> Result<Vec<(Subject, Timestamp)>> {
        let judged = self.newest_judged().await?;
        let log = GatewayStore::new(self.pool.clone(), self.writer.clone());
        let mut unjudged = Vec::new();
        for missing in log.missing_answers(since, opened_since, MAX_MISSING).await? {
            let Some(coldkey) = owners.get(&missing.miner).copied() else {
                continue;
            };
            let subject = Subject {
                coldkey,
                model: missing.model,
            };
            if judged
                .get(&subject)
                .is_none_or(|judged| *judged < missing.drawn_at)
            {
                unjudged.push((subject, missing.ended_at));
            }
        }
        Ok(unjudged)
    }

    /// The audited answers of a miner and a model that have no finding and whose session has ended: it is closed, and
    /// all of its answers stand in buckets that were drawn from, so that nothing is added to what can be shown of it.
    pub(crate) async fn settled_answers(
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

#[cfg(test)]
mod tests {
    use muster_store::testing::stores;
    use muster_validator_store::{MIGRATIONS, Store};
    use sqlx::AnyPool;

    use muster_audit::UnusableReason;

    use super::*;
    use crate::audits::run_record::RunState;
    use crate::evidence::outcome::ReferenceOutcome;
    use crate::testing::{key, put_run as put, run};

    async fn insert(pool: &AnyPool, statements: &[String]) {
        for statement in statements {
            // The statements have no text from outside this file.
            let inserted = sqlx::query(sqlx::AssertSqlSafe(statement.clone()));
            inserted.execute(pool).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_missing_answer_waits_from_the_draw_of_its_bucket_until_a_later_audit_has_judged_it() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            drop(Store::with_pool(test.pool.clone()).await.unwrap());
            let (pool, store) = (&test.pool, AuditStore::new(test.pool.clone(), test.writer()));
            let miner = MinerKey(key(1));
            let answer = |id: &str, ended_at: i64, how: &str| {
                format!(
                    "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, \
                     how_ended, verdict, bytes, input_tokens, output_tokens, earned) \
                     VALUES ('{id}', 's', 'c', 'tiny', 1, {ended_at}, 200, '{how}', 'unproven', 1, 0, 0, 0)"
                )
            };
            let bucket = |number: u64, closed_at: i64, draw: &str| {
                format!(
                    "INSERT INTO answer_buckets (bucket, answers, header, shares, canary_list, closed_at, draw, \
                     drawn_at) VALUES ({number}, 0, '', '', '', {closed_at}, {draw})"
                )
            };
            insert(
                pool,
                &[
                    format!(
                        "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at) \
                         VALUES ('s', 's', '{miner}', 'tiny', '', '', 1)"
                    ),
                    bucket(7, 10, "NULL, NULL"),
                    bucket(8, 20, "'drawn', 40"),
                    // Its bucket has no draw, whatever became of the next one.
                    answer("not drawn", 5, "completed"),
                    answer("missing", 15, "completed"),
                    answer("client gone", 16, "client-gone"),
                    answer("not closed", 25, "completed"),
                ],
            )
            .await;
            let gathered = async || {
                let (zero, owners) = (Timestamp::from_micros(0), BTreeMap::from([(miner, key(9))]));
                let all = store.gathered(zero, zero, &owners).await.unwrap();
                all.into_values()
                    .map(|one| (one.answers, one.oldest.micros()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(gathered().await, [(1, 15)], "{}", test.engine);
            put(&store, &run("before the draw", 30, RunState::Judged, None)).await;
            assert_eq!(gathered().await, [(1, 15)], "it did not see the answer");
            put(&store, &run("without a verdict", 50, RunState::Ended, None)).await;
            assert_eq!(gathered().await, [(1, 15)]);
            put(&store, &run("after the draw", 60, RunState::Judged, None)).await;
            assert_eq!(gathered().await, []);
        }
    }

    async fn execute(pool: &AnyPool, statement: String) {
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
        execute(pool, statement).await;
    }

    async fn answer(pool: &AnyPool, session: &str, sequence: u64, bucket: &str, drawn: bool) {
        let statement = format!(
            "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, how_ended, \
             verdict, bytes, input_tokens, output_tokens, earned, sequence, bucket, position, drawn) \
             VALUES ('{session}-{sequence}', '{session}', 'c', 'tiny', 1, 9, 200, 'completed', 'proven', 1, 3, 4, 5, \
             {sequence}, {bucket}, NULL, {})",
            u8::from(drawn)
        );
        execute(pool, statement).await;
    }

    #[tokio::test]
    async fn audited_answers_of_sessions_that_have_ended_are_settled_once() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let (pool, store) = (&test.pool, AuditStore::new(test.pool.clone(), test.writer()));
            let miner = MinerKey(key(1));
            for (bucket, draw) in [(7, "'drawn'"), (8, "NULL")] {
                let statement = format!(
                    "INSERT INTO answer_buckets (bucket, answers, header, shares, canary_list, closed_at, draw) \
                     VALUES ({bucket}, 1, '', '', '', 1, {draw})"
                );
                execute(pool, statement).await;
            }
            session(pool, "closed", miner, "20").await;
            answer(pool, "closed", 1, "7", true).await;
            answer(pool, "closed", 2, "7", false).await;
            answer(pool, "closed", 3, "7", false).await;
            // The second one is an answer to an own prompt.
            execute(
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
