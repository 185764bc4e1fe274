//! The appeals of miners, and the fresh answers that are counted for them.

use muster_protocol::{Digest, MinerKey, Timestamp};
use muster_store::During as _;
use muster_store::columns::{
    parse_column, parse_column_option, read_column, storable_text, time_column, time_column_option,
    unsigned_column,
};
use sqlx::any::AnyRow;

use crate::appeals::appeal_end::AppealEnd;
use crate::appeals::stored_appeal::StoredAppeal;
use crate::store::audit_store::{AuditStore, Result};

impl AuditStore {
    /// Stores an appeal that is accepted.
    pub(crate) async fn insert_appeal(&self, appeal: &StoredAppeal, text: &str) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO audit_appeals (bundle, received_at, miner, coldkey, model, appeal, reason, open_until) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(appeal.bundle.to_string())
        .bind(appeal.received_at.micros())
        .bind(appeal.miner.to_string())
        .bind(appeal.coldkey.to_string())
        .bind(appeal.model.clone())
        .bind(text.to_owned())
        .bind(storable_text(&*appeal.reason))
        .bind(appeal.open_until.micros());
        self.writer.execute("store an appeal", statement).await?;
        Ok(())
    }

    /// The appeals that were received since a time or are open, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn appeals(&self, since: Timestamp) -> Result<Vec<StoredAppeal>> {
        let rows = sqlx::query(
            "SELECT * FROM audit_appeals WHERE received_at >= $1 OR ended_at IS NULL ORDER BY received_at DESC, bundle",
        )
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("list appeals")?;
        rows.iter().map(appeal_from).collect()
    }

    /// Ends an appeal.
    pub(crate) async fn end_appeal(
        &self,
        appeal: &StoredAppeal,
        end: AppealEnd,
        fresh: Option<Digest>,
        now: Timestamp,
    ) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE audit_appeals SET ended_at = $1, ended = $2, fresh_bundle = $3 \
             WHERE bundle = $4 AND received_at = $5 AND ended_at IS NULL",
        )
        .bind(now.micros())
        .bind(end.name())
        .bind(fresh.map(|bundle| bundle.to_string()))
        .bind(appeal.bundle.to_string())
        .bind(appeal.received_at.micros());
        self.writer.execute("end an appeal", statement).await?;
        tracing::warn!(bundle = %appeal.bundle, miner = %appeal.miner, end = end.name(), "an appeal has ended");
        Ok(())
    }

    /// The answers of a miner to own prompts of a model in sessions that were opened since: all of them, and those that
    /// a draw has passed.
    pub(crate) async fn count_fresh(
        &self,
        miner: &MinerKey,
        model: &str,
        since: Timestamp,
    ) -> Result<(u64, u64)> {
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

fn appeal_from(row: &AnyRow) -> Result<StoredAppeal> {
    Ok(StoredAppeal {
        bundle: parse_column(row, "bundle")?,
        received_at: time_column(row, "received_at")?,
        miner: parse_column(row, "miner")?,
        coldkey: parse_column(row, "coldkey")?,
        model: read_column(row, "model")?,
        reason: read_column(row, "reason")?,
        open_until: time_column(row, "open_until")?,
        ended_at: time_column_option(row, "ended_at")?,
        ended: read_column(row, "ended")?,
        fresh_bundle: parse_column_option(row, "fresh_bundle")?,
    })
}

#[cfg(test)]
mod tests {
    use muster_audit::{Canary, CanaryList};
    use muster_response_proof::BucketNumber;
    use muster_store::testing::stores;
    use muster_validator_store::{MIGRATIONS, Store};
    use sqlx::AnyPool;

    use super::*;
    use crate::testing::{key, list_head, stored_appeal};

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
    async fn a_miners_reason_with_u0000_is_stored() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            let store = AuditStore::new(test.pool.clone(), test.writer());
            let now = Timestamp::from_secs(9);
            let appeal = StoredAppeal {
                reason: "my engine is\0right".to_owned(),
                ..stored_appeal(now, None)
            };
            store.insert_appeal(&appeal, "signed").await.unwrap();
            let stored = store.appeals(now).await.unwrap();
            assert_eq!(stored[0].reason, "my engine is\u{fffd}right", "{}", test.engine);
        }
    }

    #[tokio::test]
    async fn only_answers_to_own_prompts_in_sessions_since_the_appeal_are_fresh() {
        for test in stores(&MIGRATIONS).await.unwrap() {
            drop(Store::with_pool(test.pool.clone()).await.unwrap());
            let (pool, store) = (&test.pool, AuditStore::new(test.pool.clone(), test.writer()));
            let prompt = |number: u8| Canary {
                salt: [number; 32],
                request: vec![number],
            };
            let list = CanaryList::new((0..4).map(prompt).collect());
            let head = list_head(&list);
            let lists = [(&head, &list)];
            store
                .insert_lists(BucketNumber(6), &lists, Timestamp::from_secs(1))
                .await
                .unwrap();
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
                store.note_answer(&head.digest(), place, id).await.unwrap();
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
