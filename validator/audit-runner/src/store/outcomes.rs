//! The findings of the references about answers, and since when their miners may see them.

use std::collections::BTreeMap;

use muster_protocol::{MinerKey, Timestamp};
use muster_store::columns::{read_column, to_signed, unsigned_column};
use muster_store::{During as _, StoreError};
use sqlx::any::AnyRow;

use crate::evidence::outcome::{BothOutcomes, ReferenceOutcome};
use crate::store::audit_store::{AuditStore, Result};

impl AuditStore {
    /// Stores what a reference found about an answer. The first finding stands.
    pub(crate) async fn put_outcome(
        &self,
        answer: &str,
        reference: usize,
        outcome: &ReferenceOutcome,
        now: Timestamp,
    ) -> Result<()> {
        let text = serde_json::to_string(outcome)
            .map_err(|error| StoreError::corrupt("outcome", error.to_string()))?;
        let statement = sqlx::query(
            "INSERT INTO answer_scores (response_id, reference, outcome, scored_at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (response_id, reference) DO NOTHING",
        )
        .bind(answer.to_owned())
        .bind(i64::try_from(reference).unwrap_or(i64::MAX))
        .bind(text)
        .bind(now.micros());
        self.writer.execute("store a score", statement).await?;
        Ok(())
    }

    /// The references' findings about the answers of a model since a time, by the ids of the answers.
    pub(crate) async fn outcomes(
        &self,
        model: &str,
        since: Timestamp,
    ) -> Result<BTreeMap<String, BothOutcomes>> {
        let rows = sqlx::query(
            "SELECT a.response_id, a.reference, a.outcome FROM answer_scores a \
             JOIN responses r ON r.response_id = a.response_id WHERE r.model = $1 AND r.ended_at >= $2",
        )
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("read scores")?;
        both_outcomes(&rows)
    }

    /// Lets the miners see the scores of these answers: their verdict is stored.
    pub(crate) async fn reveal_scores<'a>(
        &self,
        answers: impl Iterator<Item = &'a String>,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "reveal scores";
        let mut tx = self.writer.begin().await?;
        for answer in answers {
            sqlx::query(
                "UPDATE answer_scores SET revealed_at = $1 WHERE response_id = $2 AND revealed_at IS NULL",
            )
            .bind(now.micros())
            .bind(answer.clone())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        tx.commit(OPERATION).await
    }

    /// Marks the scores of a miner's answers from a model as shown that were stored at this time or earlier.
    pub(crate) async fn reveal_scored(
        &self,
        miner: &MinerKey,
        model: &str,
        scored_by: Timestamp,
        now: Timestamp,
    ) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE answer_scores SET revealed_at = $1 WHERE revealed_at IS NULL AND scored_at <= $2 \
             AND response_id IN (SELECT r.response_id FROM responses r \
             JOIN sessions s ON s.session_id = r.session_id WHERE r.model = $3 AND s.miner = $4)",
        )
        .bind(now.micros())
        .bind(scored_by.micros())
        .bind(model.to_owned())
        .bind(miner.to_string());
        self.writer
            .execute("reveal the scores of a verdict", statement)
            .await?;
        Ok(())
    }

    /// The references' findings about the answers of a bucket, by the ids of the answers; `is_due` shows those too that
    /// no verdict rests on.
    pub(crate) async fn revealed_outcomes(
        &self,
        bucket: u64,
        is_due: bool,
    ) -> Result<BTreeMap<String, BothOutcomes>> {
        let rows = sqlx::query(
            "SELECT a.response_id, a.reference, a.outcome FROM answer_scores a \
             JOIN responses r ON r.response_id = a.response_id WHERE r.bucket = $1 \
             AND (a.revealed_at IS NOT NULL OR CAST($2 AS BIGINT) = 1)",
        )
        .bind(to_signed(bucket))
        .bind(i64::from(is_due))
        .fetch_all(&self.pool)
        .await
        .during("read the outcomes of a bucket")?;
        both_outcomes(&rows)
    }
}

/// The findings of both references in these rows, by the ids of the answers.
fn both_outcomes(rows: &[AnyRow]) -> Result<BTreeMap<String, BothOutcomes>> {
    let mut all: BTreeMap<String, BothOutcomes> = BTreeMap::new();
    for row in rows {
        let text: String = read_column(row, "outcome")?;
        let outcome =
            serde_json::from_str(&text).map_err(|error| StoreError::corrupt("outcome", error.to_string()))?;
        let place = usize::try_from(unsigned_column(row, "reference")?).unwrap_or(usize::MAX);
        let both = all.entry(read_column(row, "response_id")?).or_default();
        if let Some(slot) = both.get_mut(place) {
            *slot = Some(outcome);
        }
    }
    Ok(all)
}
