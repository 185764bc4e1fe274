//! Headers, leaves and outcomes of validators' logs, and the proofs that executors reported of their sessions.

use muster_protocol::wire::audits::{HeaderNotice, LeafOutcome, SessionProofs};
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_response_proof::SessionId;
use muster_store::columns::{parse_column, read_column, time_column, to_signed, unsigned_column};
use muster_store::{During as _, StoreError, begin};
use serde::Serialize;
use sqlx::any::AnyRow;
use uuid::Uuid;

use super::{AuditCheckStore, Result};
use crate::finding::FindingKind;
use crate::header_check::{CheckedHeader, CheckedLeaf, KnownHeader};
use crate::omissions::UnlistedAnswer;

/// Leaves that are kept of one validator; beyond them no headers are taken.
const MAX_LEAVES: i64 = 1_000_000;

/// The numbers of one validator's log, as this miner has seen it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogCount {
    /// The validator that keeps the log.
    pub validator: ValidatorKey,
    /// Headers with answers of this miner.
    pub headers: u64,
    /// Headers whose draw was revealed.
    pub revealed: u64,
    /// The newest bucket.
    pub newest: u64,
    /// This miner's answers in them.
    pub answers: u64,
    /// Answers of them that have an outcome.
    pub audited: u64,
}

impl AuditCheckStore {
    /// Keeps the proofs that an executor reports of its session. Those that are known already stay.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_proofs(&self, told: &SessionProofs) -> Result<()> {
        const OPERATION: &str = "keep the proofs of a session";
        let mut tx = begin(&self.pool).await?;
        for (place, proof) in told.proofs.iter().enumerate() {
            let sequence = told
                .first
                .saturating_add(u64::try_from(place).unwrap_or(u64::MAX));
            sqlx::query(
                "INSERT INTO session_proofs (session, sequence, validator, digest, is_answer, ended_at) \
                 VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (session, sequence) DO NOTHING",
            )
            .bind(told.session.clone())
            .bind(to_signed(sequence))
            .bind(told.validator.to_string())
            .bind(proof.digest.to_string())
            .bind(i64::from(proof.is_answer))
            .bind(proof.at.micros())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        tx.commit().await.during(OPERATION)
    }

    /// The validator's newest header.
    ///
    /// # Errors
    /// The database fails.
    pub async fn last_header(&self, validator: ValidatorKey) -> Result<Option<KnownHeader>> {
        let row = sqlx::query(
            "SELECT bucket, digest FROM audit_headers WHERE validator = $1 ORDER BY bucket DESC LIMIT 1",
        )
        .bind(validator.to_string())
        .fetch_optional(&self.pool)
        .await
        .during("read the newest header")?;
        row.as_ref().map(known_header).transpose()
    }

    /// The validator's header of a bucket: what names it, and its text.
    ///
    /// # Errors
    /// The database fails.
    pub async fn header(
        &self,
        validator: ValidatorKey,
        bucket: u64,
    ) -> Result<Option<(KnownHeader, String)>> {
        let row = sqlx::query(
            "SELECT bucket, digest, header FROM audit_headers WHERE validator = $1 AND bucket = $2",
        )
        .bind(validator.to_string())
        .bind(to_signed(bucket))
        .fetch_optional(&self.pool)
        .await
        .during("read a header")?;
        row.as_ref()
            .map(|row| Ok((known_header(row)?, read_column(row, "header")?)))
            .transpose()
    }

    /// Whether so many leaves of a validator are kept that no more are taken.
    ///
    /// # Errors
    /// The database fails.
    pub async fn is_full(&self, validator: ValidatorKey) -> Result<bool> {
        let row = sqlx::query("SELECT COUNT(*) AS many FROM audit_leaves WHERE validator = $1")
            .bind(validator.to_string())
            .fetch_one(&self.pool)
            .await
            .during("count leaves")?;
        Ok(read_column::<i64>(&row, "many")? >= MAX_LEAVES)
    }

    /// The digest of the proof that an executor reported for this number, and another place of the log that has the
    /// number already.
    ///
    /// # Errors
    /// The database fails.
    pub async fn known_of(
        &self,
        validator: ValidatorKey,
        leaf: &CheckedLeaf,
    ) -> Result<(Option<Digest>, Option<(u64, u64)>)> {
        let own = sqlx::query("SELECT digest FROM session_proofs WHERE session = $1 AND sequence = $2")
            .bind(leaf.session.to_string())
            .bind(to_signed(leaf.sequence))
            .fetch_optional(&self.pool)
            .await
            .during("look for a proof")?;
        let at = sqlx::query(
            "SELECT bucket, position FROM audit_leaves WHERE session = $1 AND sequence = $2 AND validator = $3 \
             ORDER BY bucket, position LIMIT 1",
        )
        .bind(leaf.session.to_string())
        .bind(to_signed(leaf.sequence))
        .bind(validator.to_string())
        .fetch_optional(&self.pool)
        .await
        .during("look for a leaf")?;
        let own = own.as_ref().map(|row| parse_column(row, "digest")).transpose()?;
        let at = at
            .as_ref()
            .map(|row| {
                Ok::<_, StoreError>((unsigned_column(row, "bucket")?, unsigned_column(row, "position")?))
            })
            .transpose()?;
        Ok((own, at))
    }

    /// Stores a checked header with its leaves. An answer that was missing before is missing no more.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_header(
        &self,
        validator: ValidatorKey,
        notice: &HeaderNotice,
        checked: &CheckedHeader,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "store a header";
        let bucket = to_signed(checked.header.bucket.0);
        let mut tx = begin(&self.pool).await?;
        sqlx::query(
            "INSERT INTO audit_headers (validator, bucket, header, digest, own, received_at) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (validator, bucket) DO NOTHING",
        )
        .bind(validator.to_string())
        .bind(bucket)
        .bind(notice.header.clone())
        .bind(checked.digest.to_string())
        .bind(to_signed(notice.own))
        .bind(now.micros())
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        for leaf in &checked.leaves {
            sqlx::query(
                "INSERT INTO audit_leaves (validator, bucket, position, session, sequence, proof, model) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (validator, bucket, position) DO NOTHING",
            )
            .bind(validator.to_string())
            .bind(bucket)
            .bind(to_signed(leaf.position))
            .bind(leaf.session.to_string())
            .bind(to_signed(leaf.sequence))
            .bind(leaf.proof.to_string())
            .bind(leaf.model.clone())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
            sqlx::query("DELETE FROM audit_findings WHERE validator = $1 AND kind = $2 AND about = $3")
                .bind(validator.to_string())
                .bind(FindingKind::Withheld.name())
                .bind(crate::finding::about_answer(leaf.session, leaf.sequence))
                .execute(&mut *tx)
                .await
                .during(OPERATION)?;
        }
        tx.commit().await.during(OPERATION)
    }

    /// The answers for a validator that stand in no header of it, the oldest first, at most 1,000.
    ///
    /// # Errors
    /// The database fails.
    pub async fn unlisted(&self, validator: ValidatorKey, since: Timestamp) -> Result<Vec<UnlistedAnswer>> {
        let rows = sqlx::query(
            "SELECT p.session, p.sequence, p.ended_at, (SELECT MIN(l.bucket) FROM audit_leaves l \
             WHERE l.session = p.session AND l.sequence > p.sequence AND l.validator = p.validator) AS later \
             FROM session_proofs p WHERE p.validator = $1 AND p.is_answer = 1 AND p.ended_at >= $2 \
             AND NOT EXISTS (SELECT 1 FROM audit_leaves o WHERE o.session = p.session AND o.sequence = p.sequence \
             AND o.validator = p.validator) ORDER BY p.ended_at, p.session, p.sequence LIMIT 1000",
        )
        .bind(validator.to_string())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("look for answers without a place")?;
        rows.iter()
            .map(|row| {
                let later: Option<i64> = read_column(row, "later")?;
                Ok(UnlistedAnswer {
                    session: session(row)?,
                    sequence: unsigned_column(row, "sequence")?,
                    ended_at: time_column(row, "ended_at")?,
                    later_in: later.and_then(|bucket| u64::try_from(bucket).ok()),
                })
            })
            .collect()
    }

    /// The miner's answers in a bucket.
    ///
    /// # Errors
    /// The database fails.
    pub async fn leaves(&self, validator: ValidatorKey, bucket: u64) -> Result<Vec<CheckedLeaf>> {
        let rows = sqlx::query(
            "SELECT session, sequence, proof, model, position FROM audit_leaves \
             WHERE validator = $1 AND bucket = $2 ORDER BY position",
        )
        .bind(validator.to_string())
        .bind(to_signed(bucket))
        .fetch_all(&self.pool)
        .await
        .during("read the leaves of a bucket")?;
        rows.iter()
            .map(|row| {
                Ok(CheckedLeaf {
                    session: session(row)?,
                    sequence: unsigned_column(row, "sequence")?,
                    proof: parse_column(row, "proof")?,
                    model: read_column(row, "model")?,
                    position: unsigned_column(row, "position")?,
                })
            })
            .collect()
    }

    /// Stores the outcomes of a bucket's drawn answers.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_outcomes(
        &self,
        validator: ValidatorKey,
        bucket: u64,
        outcomes: impl IntoIterator<Item = (u64, LeafOutcome)>,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "store outcomes";
        let mut tx = begin(&self.pool).await?;
        sqlx::query("UPDATE audit_headers SET revealed_at = $1 WHERE validator = $2 AND bucket = $3")
            .bind(now.micros())
            .bind(validator.to_string())
            .bind(to_signed(bucket))
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        sqlx::query("DELETE FROM audit_findings WHERE validator = $1 AND kind = $2 AND about = $3")
            .bind(validator.to_string())
            .bind(FindingKind::NoReveal.name())
            .bind(crate::finding::about_bucket(bucket))
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        for (position, outcome) in outcomes {
            let text = serde_json::to_string(&outcome)
                .map_err(|error| StoreError::corrupt("outcome", error.to_string()))?;
            sqlx::query(
                "UPDATE audit_leaves SET outcome = $1 WHERE validator = $2 AND bucket = $3 AND position = $4",
            )
            .bind(text)
            .bind(validator.to_string())
            .bind(to_signed(bucket))
            .bind(to_signed(position))
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        tx.commit().await.during(OPERATION)
    }

    /// The validator's buckets that came before a time and whose draw was not revealed.
    ///
    /// # Errors
    /// The database fails.
    pub async fn unrevealed(&self, validator: ValidatorKey, before: Timestamp) -> Result<Vec<u64>> {
        let rows = sqlx::query(
            "SELECT bucket FROM audit_headers WHERE validator = $1 AND revealed_at IS NULL AND received_at < $2 \
             ORDER BY bucket LIMIT 1000",
        )
        .bind(validator.to_string())
        .bind(before.micros())
        .fetch_all(&self.pool)
        .await
        .during("look for draws that were not revealed")?;
        rows.iter().map(|row| unsigned_column(row, "bucket")).collect()
    }

    /// The numbers of each validator's log.
    ///
    /// # Errors
    /// The database fails.
    pub async fn log_counts(&self) -> Result<Vec<LogCount>> {
        let rows = sqlx::query(
            "SELECT h.validator, COUNT(*) AS headers, COUNT(h.revealed_at) AS revealed, MAX(h.bucket) AS newest, \
             (SELECT COUNT(*) FROM audit_leaves l WHERE l.validator = h.validator) AS answers, \
             (SELECT COUNT(l.outcome) FROM audit_leaves l WHERE l.validator = h.validator) AS audited \
             FROM audit_headers h GROUP BY h.validator ORDER BY h.validator",
        )
        .fetch_all(&self.pool)
        .await
        .during("count headers")?;
        rows.iter()
            .map(|row| {
                Ok(LogCount {
                    validator: parse_column(row, "validator")?,
                    headers: unsigned_column(row, "headers")?,
                    revealed: unsigned_column(row, "revealed")?,
                    newest: unsigned_column(row, "newest")?,
                    answers: unsigned_column(row, "answers")?,
                    audited: unsigned_column(row, "audited")?,
                })
            })
            .collect()
    }
}

fn known_header(row: &AnyRow) -> Result<KnownHeader> {
    Ok(KnownHeader {
        bucket: unsigned_column(row, "bucket")?,
        digest: parse_column(row, "digest")?,
    })
}

fn session(row: &AnyRow) -> Result<SessionId> {
    parse_column::<Uuid>(row, "session").map(SessionId)
}
