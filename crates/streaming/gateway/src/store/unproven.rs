//! Answers that are not proven, and sessions whose numbers have a gap: what is missing in the log.

use muster_protocol::{Digest, MinerKey, Timestamp};
use muster_response_proof::{BucketNumber, SessionId};
use muster_store::During as _;
use muster_store::columns::{parse_column, read_column, time_column, unsigned_column};
use sqlx::any::AnyRow;

use super::rows::session_id;
use super::{GatewayStore, Result};

/// The number of the first bucket that was closed after the answer `r` had ended, in which it would stand.
macro_rules! first_bucket {
    () => {
        "(SELECT c.bucket FROM answer_buckets c WHERE c.closed_at >= r.ended_at ORDER BY c.closed_at, c.bucket LIMIT 1)"
    };
}

/// Whether the answer `r` is missing in the log: it has no valid proof although its client was there until the end, and
/// the bucket in which it would stand was drawn from. Before the draw its proof may still come.
macro_rules! is_missing {
    () => {
        concat!(
            "r.sequence IS NULL AND r.how_ended <> 'client-gone' AND EXISTS \
             (SELECT 1 FROM answer_buckets d WHERE d.draw IS NOT NULL AND d.bucket = ",
            first_bucket!(),
            ")"
        )
    };
}
pub(super) use {first_bucket, is_missing};

/// An answer that is missing in the log, of any session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingAnswer {
    /// The session's miner.
    pub miner: MinerKey,
    /// The model by its name in the whitelist.
    pub model: String,
    /// When the answer ended.
    pub ended_at: Timestamp,
    /// When the bucket in which it would stand was drawn from: a bundle shows it from then on.
    pub drawn_at: Timestamp,
}

/// An answer that has no valid proof although its client was there until the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnprovenRow {
    /// The session that was asked.
    pub session: SessionId,
    /// The session's miner.
    pub miner: MinerKey,
    /// The session's signed attestation, in text form.
    pub attestation: String,
    /// The pseudonym of the client.
    pub client: Digest,
    /// When the answer ended.
    pub ended_at: Timestamp,
    /// The first bucket that was closed afterwards, in which the answer would stand.
    pub bucket: BucketNumber,
    /// When that bucket was drawn from.
    pub drawn_at: Timestamp,
}

impl GatewayStore {
    /// The missing answers of a model, of sessions that were opened at `since` or later, in the order of their ends.
    ///
    /// # Errors
    /// The database fails.
    pub async fn unproven_of_model(&self, model: &str, since: Timestamp) -> Result<Vec<UnprovenRow>> {
        let rows = sqlx::query(concat!(
            "SELECT r.session_id, r.client, r.ended_at, s.miner, s.attestation, b.bucket, b.drawn_at FROM responses r \
             JOIN sessions s ON s.session_id = r.session_id JOIN answer_buckets b ON b.bucket = ",
            first_bucket!(),
            " WHERE r.model = $1 AND s.opened_at >= $2 AND ",
            is_missing!(),
            " ORDER BY r.ended_at, r.response_id",
        ))
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("read the unproven answers of a model")?;
        let read = |row: &AnyRow| {
            Ok(UnprovenRow {
                session: session_id(row)?,
                miner: parse_column(row, "miner")?,
                attestation: read_column(row, "attestation")?,
                client: parse_column(row, "client")?,
                ended_at: time_column(row, "ended_at")?,
                bucket: BucketNumber(unsigned_column(row, "bucket")?),
                drawn_at: time_column(row, "drawn_at")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// The newest missing answers of all models that ended at `since` or later, of sessions that were opened at
    /// `opened_since` or later, the newest first, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn missing_answers(
        &self,
        since: Timestamp,
        opened_since: Timestamp,
        limit: u32,
    ) -> Result<Vec<MissingAnswer>> {
        let rows = sqlx::query(concat!(
            "SELECT s.miner, r.model, r.ended_at, b.drawn_at FROM responses r \
             JOIN sessions s ON s.session_id = r.session_id JOIN answer_buckets b ON b.bucket = ",
            first_bucket!(),
            " WHERE r.ended_at >= $1 AND s.opened_at >= $2 AND ",
            is_missing!(),
            " ORDER BY r.ended_at DESC LIMIT $3",
        ))
        .bind(since.micros())
        .bind(opened_since.micros())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("look for missing answers")?;
        let read = |row: &AnyRow| {
            Ok(MissingAnswer {
                miner: parse_column(row, "miner")?,
                model: read_column(row, "model")?,
                ended_at: time_column(row, "ended_at")?,
                drawn_at: time_column(row, "drawn_at")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// The sessions of a model that were opened at `since` or later, are closed, and did not close correctly, each with
    /// whether it gave a closing statement.
    ///
    /// # Errors
    /// The database fails.
    pub async fn faulty_sessions(&self, model: &str, since: Timestamp) -> Result<Vec<(SessionId, bool)>> {
        let rows = sqlx::query(
            "SELECT session_id, close_proof FROM sessions WHERE model = $1 AND opened_at >= $2 AND closed_at IS NOT NULL \
             AND fault IS NOT NULL",
        )
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("look for sessions with gaps")?;
        let read = |row: &AnyRow| {
            let statement: Option<String> = read_column(row, "close_proof")?;
            Ok((session_id(row)?, statement.is_some()))
        };
        rows.iter().map(read).collect()
    }
}
