//! The sessions of a miner with and without audited answers, from which those of a bundle of evidence are chosen.

use muster_protocol::{MinerKey, Timestamp};
use muster_response_proof::SessionId;
use muster_store::During as _;
use muster_store::columns::{read_column, unsigned_column};
use sqlx::any::AnyRow;

use super::answer_log::{LoggedAnswer, answer_from, answers};
use super::rows::session_id;
use super::unproven::{first_bucket, is_missing};
use super::{GatewayStore, Result};

/// A session that a bundle may show. Its audited answers are the drawn ones, and those to the validator's own prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSession {
    /// The id of the session.
    pub session: SessionId,
    /// Its signed attestation, in text form.
    pub attestation: String,
    /// Its answers in the log, the audited ones and all others.
    pub answers: u64,
    /// Bytes of the proofs of these answers, in text form.
    pub proof_bytes: u64,
    /// When the last audited answer ended; of a session without one, when the last of its answers did that stand in the
    /// log or are missing in it.
    pub newest: Timestamp,
}

impl GatewayStore {
    /// The sessions of a miner and a model that were opened at `since` or later and have audited answers. The one whose
    /// last audited answer is the newest comes first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn audited_sessions(
        &self,
        miner: &MinerKey,
        model: &str,
        since: Timestamp,
    ) -> Result<Vec<ListedSession>> {
        let rows = sqlx::query(
            "SELECT s.session_id, s.attestation, COUNT(*) AS answers, \
             CAST(SUM(LENGTH(r.proof)) AS BIGINT) AS proof_bytes, \
             MAX(CASE WHEN r.drawn = 1 OR EXISTS (SELECT 1 FROM canaries c WHERE c.response_id = r.response_id) \
             THEN r.ended_at END) AS newest \
             FROM sessions s JOIN responses r ON r.session_id = s.session_id \
             WHERE s.miner = $1 AND r.model = $2 AND s.opened_at >= $3 AND r.bucket IS NOT NULL \
             GROUP BY s.session_id, s.attestation \
             HAVING MAX(CASE WHEN r.drawn = 1 OR EXISTS (SELECT 1 FROM canaries c WHERE c.response_id = r.response_id) \
             THEN 1 ELSE 0 END) = 1 ORDER BY newest DESC, s.session_id",
        )
        .bind(miner.to_string())
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("list the sessions with audited answers")?;
        rows.iter().map(listed_from).collect()
    }

    /// The sessions of a miner and a model that were opened at `since` or later and have no audited answers, but others
    /// that stand in the log or are missing in it. The one with the newest of them comes first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn unaudited_sessions(
        &self,
        miner: &MinerKey,
        model: &str,
        since: Timestamp,
    ) -> Result<Vec<ListedSession>> {
        let rows = sqlx::query(concat!(
            "SELECT s.session_id, s.attestation, COUNT(r.bucket) AS answers, \
             CAST(COALESCE(SUM(CASE WHEN r.bucket IS NULL THEN 0 ELSE LENGTH(r.proof) END), 0) AS BIGINT) AS proof_bytes, \
             MAX(r.ended_at) AS newest \
             FROM sessions s JOIN responses r ON r.session_id = s.session_id \
             WHERE s.miner = $1 AND r.model = $2 AND s.opened_at >= $3 \
             AND (r.bucket IS NOT NULL OR (",
            is_missing!(),
            ")) \
             GROUP BY s.session_id, s.attestation \
             HAVING MAX(CASE WHEN r.bucket IS NOT NULL AND (r.drawn = 1 OR EXISTS \
             (SELECT 1 FROM canaries c WHERE c.response_id = r.response_id)) THEN 1 ELSE 0 END) = 0 \
             ORDER BY newest DESC, s.session_id",
        ))
        .bind(miner.to_string())
        .bind(model.to_owned())
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("list the sessions without audited answers")?;
        rows.iter().map(listed_from).collect()
    }

    /// The logged answers of a session with the lowest numbers, at most `limit`, in their order.
    ///
    /// # Errors
    /// The database fails.
    pub async fn answers_of_session(&self, session: SessionId, limit: u32) -> Result<Vec<LoggedAnswer>> {
        let rows = sqlx::query(answers!(
            "WHERE r.session_id = $1 AND r.bucket IS NOT NULL ORDER BY r.sequence LIMIT $2"
        ))
        .bind(session.to_string())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .during("read the logged answers of a session")?;
        rows.iter().map(answer_from).collect()
    }
}

fn listed_from(row: &AnyRow) -> Result<ListedSession> {
    Ok(ListedSession {
        session: session_id(row)?,
        attestation: read_column(row, "attestation")?,
        answers: unsigned_column(row, "answers")?,
        proof_bytes: unsigned_column(row, "proof_bytes")?,
        newest: read_column(row, "newest").map(Timestamp::from_micros)?,
    })
}
