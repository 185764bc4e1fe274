//! Validators' verdicts about this miner with their bundles, and the miner's appeals against them.

use muster_protocol::wire::audits::{AppealAnswer, VerdictNotice};
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_store::columns::{parse_column, read_column, time_column, time_column_option, unsigned_column};
use muster_store::{During as _, begin};
use serde::Serialize;
use sqlx::any::AnyRow;

use super::{AuditCheckStore, MAX_LISTED, Result};
use crate::evidence::ReadBundle;

/// Verdicts that are kept of one validator, the newest ones.
const MAX_VERDICTS: i64 = 64;
/// Bundles that are kept of one validator, the newest ones.
const MAX_BODIES: i64 = 8;

/// A verdict as the miner keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotifiedVerdict {
    /// The validator that states it.
    pub validator: ValidatorKey,
    /// The digest of the bundle.
    pub bundle: Digest,
    /// The verdict by its name.
    pub verdict: String,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The factor of quality that the validator scores with, in thousandths.
    pub quality_per_mille: u64,
    /// Since when the verdict counts.
    pub since: Timestamp,
    /// Whether the bundle is kept here.
    pub has_bundle: bool,
    /// `agrees`, `other_verdict`, `proves_nothing`, or `not_fetched`.
    pub opinion: String,
    /// The opinion as text.
    pub words: String,
    /// The chain and the subnet of the bundle, if it could be replayed.
    #[serde(skip)]
    pub subnet: Option<(Digest, u16)>,
    /// When this miner appealed.
    pub appealed_at: Option<Timestamp>,
    /// The validator's answer to the appeal.
    pub answer: Option<String>,
}

impl AuditCheckStore {
    /// Stores a verdict with the miner's own opinion. The oldest verdicts and bundles go beyond a bound.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_verdict(
        &self,
        validator: ValidatorKey,
        notice: &VerdictNotice,
        read: &ReadBundle,
        body: Option<String>,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "store a verdict about this miner";
        let mut tx = begin(&self.pool).await?;
        sqlx::query(
            "INSERT INTO audit_verdicts (validator, bundle, verdict, model, quality, since, told_at, body, opinion, \
             words, genesis, netuid) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
             ON CONFLICT (validator, bundle) DO UPDATE SET since = excluded.since, told_at = excluded.told_at",
        )
        .bind(validator.to_string())
        .bind(notice.bundle.to_string())
        .bind(notice.verdict.clone())
        .bind(notice.model.clone())
        .bind(i64::from(notice.quality_per_mille))
        .bind(notice.since.micros())
        .bind(now.micros())
        .bind(body)
        .bind(read.opinion.name())
        .bind(read.opinion.words())
        .bind(read.subnet.map(|(genesis, _)| genesis.to_string()))
        .bind(read.subnet.map(|(_, netuid)| i64::from(netuid)))
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        sqlx::query(
            "UPDATE audit_verdicts SET body = NULL WHERE validator = $1 AND body IS NOT NULL AND bundle NOT IN \
             (SELECT n.bundle FROM (SELECT bundle FROM audit_verdicts WHERE validator = $1 AND body IS NOT NULL \
             ORDER BY told_at DESC, bundle LIMIT $2) AS n)",
        )
        .bind(validator.to_string())
        .bind(MAX_BODIES)
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        sqlx::query(
            "DELETE FROM audit_verdicts WHERE validator = $1 AND bundle NOT IN (SELECT n.bundle FROM \
             (SELECT bundle FROM audit_verdicts WHERE validator = $1 ORDER BY told_at DESC, bundle LIMIT $2) AS n)",
        )
        .bind(validator.to_string())
        .bind(MAX_VERDICTS)
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        tx.commit().await.during(OPERATION)
    }

    /// The verdicts about this miner, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn verdicts(&self) -> Result<Vec<NotifiedVerdict>> {
        let rows = sqlx::query(
            "SELECT validator, bundle, verdict, model, quality, since, opinion, words, genesis, netuid, appealed_at, \
             answer, CAST(CASE WHEN body IS NULL THEN 0 ELSE 1 END AS BIGINT) AS has_bundle \
             FROM audit_verdicts ORDER BY since DESC, bundle LIMIT $1",
        )
        .bind(MAX_LISTED)
        .fetch_all(&self.pool)
        .await
        .during("list the verdicts about this miner")?;
        rows.iter().map(verdict_from).collect()
    }

    /// The text of a bundle; `None` if it is not kept.
    ///
    /// # Errors
    /// The database fails.
    pub async fn bundle(&self, bundle: Digest) -> Result<Option<String>> {
        let row =
            sqlx::query("SELECT body FROM audit_verdicts WHERE bundle = $1 AND body IS NOT NULL LIMIT 1")
                .bind(bundle.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("read a bundle")?;
        row.as_ref().map(|row| read_column(row, "body")).transpose()
    }

    /// Stores an appeal. It is sent once its validator connects, and again until the validator has answered. Returns
    /// whether there is such a verdict.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_appeal(
        &self,
        validator: ValidatorKey,
        bundle: Digest,
        appeal: &str,
        now: Timestamp,
    ) -> Result<bool> {
        let done = sqlx::query(
            "UPDATE audit_verdicts SET appeal = $1, appealed_at = $2, answer = NULL, answer_open = NULL \
             WHERE validator = $3 AND bundle = $4",
        )
        .bind(appeal.to_owned())
        .bind(now.micros())
        .bind(validator.to_string())
        .bind(bundle.to_string())
        .execute(&self.pool)
        .await
        .during("store an appeal")?;
        Ok(done.rows_affected() > 0)
    }

    /// The appeals that a validator has not answered.
    ///
    /// # Errors
    /// The database fails.
    pub async fn unanswered_appeals(&self, validator: ValidatorKey) -> Result<Vec<String>> {
        let rows = sqlx::query(
            "SELECT appeal FROM audit_verdicts WHERE validator = $1 AND appeal IS NOT NULL AND answer IS NULL \
             ORDER BY appealed_at LIMIT 16",
        )
        .bind(validator.to_string())
        .fetch_all(&self.pool)
        .await
        .during("list appeals")?;
        rows.iter().map(|row| read_column(row, "appeal")).collect()
    }

    /// Stores the answer to an appeal.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_appeal_answer(&self, validator: ValidatorKey, answer: &AppealAnswer) -> Result<()> {
        let words: String = answer.words.chars().take(500).collect();
        sqlx::query(
            "UPDATE audit_verdicts SET answer = $1, answer_open = $2 \
             WHERE validator = $3 AND bundle = $4 AND appeal IS NOT NULL",
        )
        .bind(words)
        .bind(i64::from(answer.is_open))
        .bind(validator.to_string())
        .bind(answer.bundle.to_string())
        .execute(&self.pool)
        .await
        .during("store the answer to an appeal")?;
        Ok(())
    }
}

fn verdict_from(row: &AnyRow) -> Result<NotifiedVerdict> {
    let genesis: Option<String> = read_column(row, "genesis")?;
    let netuid: Option<i64> = read_column(row, "netuid")?;
    let genesis = genesis.and_then(|genesis| genesis.parse().ok());
    let netuid = netuid.and_then(|netuid| u16::try_from(netuid).ok());
    Ok(NotifiedVerdict {
        validator: parse_column(row, "validator")?,
        bundle: parse_column(row, "bundle")?,
        verdict: read_column(row, "verdict")?,
        model: read_column(row, "model")?,
        quality_per_mille: unsigned_column(row, "quality")?,
        since: time_column(row, "since")?,
        has_bundle: unsigned_column(row, "has_bundle")? == 1,
        opinion: read_column(row, "opinion")?,
        words: read_column(row, "words")?,
        subnet: genesis.zip(netuid),
        appealed_at: time_column_option(row, "appealed_at")?,
        answer: read_column(row, "answer")?,
    })
}
