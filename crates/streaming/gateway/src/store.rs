//! The gateway's tables: sessions, their answers, the log of the proven ones, and words that are kept for audits.
//!
//! They are a part of the validator's database, and the validator's migrations create them, since a database has one
//! history.

mod answer_log;
mod listed_sessions;
mod refunds;
mod rows;
mod unproven;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_openai::TokenUsage;
use muster_protocol::{JobId, Timestamp};
use muster_response_proof::SessionId;
use muster_store::columns::{parse_column, read_column, storable_text, to_signed, unsigned_column};
use muster_store::{During as _, StoreError, Writer};
use sqlx::AnyPool;
use sqlx::any::AnyRow;

pub(crate) use self::answer_log::SealedAnswer;
pub use self::answer_log::{LoggedAnswer, StoredBucket, StoredDraw, TextConsent};
pub use self::listed_sessions::ListedSession;
pub use self::refunds::{RefundableAnswer, mark_refund};
pub use self::rows::{AnswerText, BodyForm, MinerEarnings, ResponseRow, SealedText, SessionRow, TextChange};
use self::rows::{response_from, session_from};
pub use self::unproven::{MissingAnswer, UnprovenRow};

type Result<T> = std::result::Result<T, StoreError>;

/// The gateway's tables in the validator's database. Clones share their connections.
#[derive(Clone, Debug)]
pub struct GatewayStore {
    pool: AnyPool,
    writer: Writer,
}

impl GatewayStore {
    /// Uses the validator's database, which must be migrated: `pool` reads, and `writer` writes.
    pub const fn new(pool: AnyPool, writer: Writer) -> Self {
        Self { pool, writer }
    }

    /// Stores a session before it serves.
    ///
    /// # Errors
    /// The database fails.
    pub async fn insert_session(&self, session: &SessionRow) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(session.session.to_string())
        .bind(session.job.to_string())
        .bind(session.miner.to_string())
        .bind(session.model.clone())
        .bind(session.address.clone())
        .bind(session.attestation.clone())
        .bind(session.opened_at.micros());
        self.writer.execute("open a session", statement).await?;
        Ok(())
    }

    /// Stores the end of a session, with its close statement if it gave one. A session that is closed already is not
    /// changed.
    ///
    /// # Errors
    /// The database fails.
    pub async fn close_session(
        &self,
        session: SessionId,
        reason: &str,
        close: Option<&str>,
        fault: Option<&str>,
        now: Timestamp,
    ) -> Result<()> {
        let statement = sqlx::query(
            "UPDATE sessions SET closed_at = $1, closed_because = $2, close_proof = $3, fault = $4 \
             WHERE session_id = $5 AND closed_at IS NULL",
        )
        .bind(now.micros())
        .bind(storable_text(reason))
        .bind(close.map(str::to_owned))
        .bind(fault.map(storable_text))
        .bind(session.to_string());
        self.writer.execute("close a session", statement).await?;
        Ok(())
    }

    /// Closes the sessions that an earlier process left open, and returns their jobs. These sessions cannot be used any
    /// more, since the client keys that they accept were in that process's memory only.
    ///
    /// # Errors
    /// The database fails.
    pub async fn close_orphans(&self, now: Timestamp) -> Result<Vec<JobId>> {
        const OPERATION: &str = "close the sessions of an earlier process";
        let rows = sqlx::query("SELECT job_id FROM sessions WHERE closed_at IS NULL")
            .fetch_all(&self.pool)
            .await
            .during(OPERATION)?;
        let jobs: Result<Vec<JobId>> = rows.iter().map(|row| parse_column(row, "job_id")).collect();
        let statement = sqlx::query(
            "UPDATE sessions SET closed_at = $1, closed_because = 'the gateway was stopped' WHERE closed_at IS NULL",
        )
        .bind(now.micros());
        self.writer.execute(OPERATION, statement).await?;
        jobs
    }

    /// Stores an answer that has ended, with its sealed text if that is kept, and deletes the sealed texts that are let
    /// go for it. All of it is durable once this returns.
    ///
    /// # Errors
    /// The database fails.
    pub async fn insert_response(
        &self,
        response: &ResponseRow,
        consent: TextConsent,
        texts: &TextChange,
    ) -> Result<()> {
        const OPERATION: &str = "keep a response";
        let mut tx = self.writer.begin().await?;
        sqlx::query(
            "INSERT INTO responses (response_id, session_id, client, model, asked_at, first_byte_at, ended_at, status, \
             how_ended, verdict, proof, sequence, bytes, input_tokens, output_tokens, earned, consent, cut, client_key, \
             pseudonym_nonce) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)",
        )
        .bind(response.id.clone())
        .bind(response.session.to_string())
        .bind(response.client.to_string())
        .bind(response.model.clone())
        .bind(response.asked_at.micros())
        .bind(response.first_byte_at.map(Timestamp::micros))
        .bind(response.ended_at.micros())
        .bind(i64::from(response.status))
        .bind(response.end.clone())
        .bind(storable_text(&*response.verdict))
        .bind(response.proof.clone())
        .bind(response.sequence.map(to_signed))
        .bind(to_signed(response.bytes))
        .bind(to_signed(response.usage.input))
        .bind(to_signed(response.usage.output))
        .bind(to_signed(response.earned))
        .bind(consent.name())
        .bind(i64::from(response.cut))
        .bind(response.client_key.map(|key| key.hex()))
        .bind(response.pseudonym_nonce.clone())
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        if let Some(words) = &texts.kept {
            sqlx::query(
                "INSERT INTO pairs (response_id, sealed_by, request, response, content_type, gathered_at, body_form) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7)",
            )
            .bind(response.id.clone())
            .bind(to_signed(words.key))
            .bind(STANDARD.encode(&words.request))
            .bind(STANDARD.encode(&words.response))
            .bind(words.content_type.clone())
            .bind(response.ended_at.micros())
            .bind(words.form.name())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        for id in &texts.let_go {
            sqlx::query("DELETE FROM pairs WHERE response_id = $1 AND sealed_by IS NOT NULL")
                .bind(id.clone())
                .execute(&mut *tx)
                .await
                .during(OPERATION)?;
        }
        tx.commit(OPERATION).await
    }

    /// An answer and its session; `None` if no answer has this id.
    ///
    /// # Errors
    /// The database fails.
    pub async fn find_response(&self, id: &str) -> Result<Option<(ResponseRow, SessionRow)>> {
        const OPERATION: &str = "look for a response";
        let row = sqlx::query("SELECT * FROM responses WHERE response_id = $1")
            .bind(id.to_owned())
            .fetch_optional(&self.pool)
            .await
            .during(OPERATION)?;
        let Some(row) = row else { return Ok(None) };
        let response = response_from(&row)?;
        let row = sqlx::query("SELECT * FROM sessions WHERE session_id = $1")
            .bind(response.session.to_string())
            .fetch_one(&self.pool)
            .await
            .during(OPERATION)?;
        Ok(Some((response, session_from(&row)?)))
    }

    /// The newest sessions, at most `limit`, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list_sessions(&self, limit: u32) -> Result<Vec<SessionRow>> {
        let rows = sqlx::query("SELECT * FROM sessions ORDER BY opened_at DESC, session_id LIMIT $1")
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .during("list sessions")?;
        rows.iter().map(session_from).collect()
    }

    /// The earnings of each miner from answers that ended at `since` or later, by model.
    ///
    /// # Errors
    /// The database fails.
    pub async fn sum_earnings(&self, since: Timestamp) -> Result<Vec<MinerEarnings>> {
        let rows = sqlx::query(
            "SELECT s.miner AS miner, s.model AS model, \
             CAST(SUM(CASE WHEN r.verdict = 'proven' THEN 1 ELSE 0 END) AS BIGINT) AS proven, \
             CAST(SUM(CASE WHEN r.verdict = 'proven' THEN 0 ELSE 1 END) AS BIGINT) AS unproven, \
             CAST(SUM(CASE WHEN r.verdict = 'proven' THEN r.input_tokens ELSE 0 END) AS BIGINT) AS input, \
             CAST(SUM(CASE WHEN r.verdict = 'proven' THEN r.output_tokens ELSE 0 END) AS BIGINT) AS output, \
             CAST(SUM(r.earned) AS BIGINT) AS earned \
             FROM responses r JOIN sessions s ON s.session_id = r.session_id \
             WHERE r.ended_at >= $1 GROUP BY s.miner, s.model ORDER BY s.miner, s.model",
        )
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("add up what sessions have earned")?;
        let earnings = |row: &AnyRow| {
            Ok(MinerEarnings {
                miner: parse_column(row, "miner")?,
                model: read_column(row, "model")?,
                proven: unsigned_column(row, "proven")?,
                unproven: unsigned_column(row, "unproven")?,
                usage: TokenUsage {
                    input: unsigned_column(row, "input")?,
                    output: unsigned_column(row, "output")?,
                },
                earned: unsigned_column(row, "earned")?,
            })
        };
        rows.iter().map(earnings).collect()
    }
}
