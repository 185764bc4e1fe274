//! The gateway's tables: sessions, their answers, and the samples for later checks.
//!
//! They are a part of the validator's database, and the validator's migrations create them, since a database has one
//! history.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_openai::TokenUsage;
use muster_process::store::{During as _, StoreError, begin};
use muster_protocol::{Digest, JobId, MinerKey, Timestamp};
use muster_response_proof::SessionId;
use serde::Serialize;
use sqlx::any::AnyRow;
use sqlx::{Any, AnyPool, Decode, Row as _, Type};

type Result<T> = std::result::Result<T, StoreError>;

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionRow {
    /// The id of the session.
    #[serde(serialize_with = "as_text")]
    pub session: SessionId,
    /// The streaming job that runs the session.
    pub job: JobId,
    /// The miner that runs the job.
    pub miner: MinerKey,
    /// The model that the session serves.
    pub model: String,
    /// Host and port of the session's endpoint.
    pub address: String,
    /// The miner's signed attestation of the session, in text form.
    pub attestation: String,
    /// When the session was checked and ready to serve.
    pub opened_at: Timestamp,
    /// When the session was closed, if it is.
    pub closed_at: Option<Timestamp>,
    /// Why the session was closed; one of the texts of `CloseReason`, or that the gateway was stopped.
    pub closed_because: Option<String>,
    /// The session's signed close statement, in text form.
    pub close: Option<String>,
    /// The defect of the close statement, or the gap in the proofs before it.
    pub fault: Option<String>,
}

/// One answer, as the gateway observed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResponseRow {
    /// The id: the nonce that the gateway drew for the request, 64 hex digits.
    pub id: String,
    /// The session that answered.
    #[serde(serialize_with = "as_text")]
    pub session: SessionId,
    /// The pseudonym of the client. Only the party that admitted the client can resolve it.
    pub client: Digest,
    /// The model that was asked.
    pub model: String,
    /// When the gateway sent the request, by its own clock.
    pub asked_at: Timestamp,
    /// When the first byte of the answer arrived.
    pub first_byte_at: Option<Timestamp>,
    /// When the answer ended.
    pub ended_at: Timestamp,
    /// The HTTP status of the answer.
    pub status: u16,
    /// How the answer ended: as the session signed it, or as the gateway observed it.
    pub end: String,
    /// `proven`, or why the answer is not proven.
    pub verdict: String,
    /// The proof in text form, if one arrived.
    pub proof: Option<String>,
    /// The number of the proof in its session, if the answer is proven.
    pub sequence: Option<u64>,
    /// Bytes of the answer's body.
    pub bytes: u64,
    /// Tokens, by the gateway's own count.
    pub usage: TokenUsage,
    /// The miner's earnings from the answer, in rao; 0 without a proof.
    pub earned: u64,
}

/// A request and its answer, byte for byte, kept as a sample for a later check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledPair {
    /// The body of the request.
    pub request: Vec<u8>,
    /// The body of the answer.
    pub response: Vec<u8>,
    /// The content type of the answer.
    pub content_type: Option<String>,
}

/// The answers of a miner's sessions of one model, summed up over a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MinerEarnings {
    /// The miner that ran the sessions.
    pub miner: MinerKey,
    /// The model that the sessions served.
    pub model: String,
    /// Number of proven answers.
    pub proven: u64,
    /// Number of answers that are not proven.
    pub unproven: u64,
    /// Tokens of the proven answers.
    pub usage: TokenUsage,
    /// Earnings in rao.
    pub earned: u64,
}

/// The gateway's tables in the validator's database. Clones share their connections.
#[derive(Clone, Debug)]
pub struct GatewayStore {
    pool: AnyPool,
}

fn as_text<S: serde::Serializer>(id: &SessionId, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

impl GatewayStore {
    /// Uses the validator's database, which must be migrated.
    pub const fn new(pool: AnyPool) -> Self {
        Self { pool }
    }

    /// Stores a session before it serves.
    ///
    /// # Errors
    /// The database fails.
    pub async fn insert_session(&self, session: &SessionRow) -> Result<()> {
        sqlx::query(
            "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(session.session.to_string())
        .bind(session.job.to_string())
        .bind(session.miner.to_string())
        .bind(session.model.clone())
        .bind(session.address.clone())
        .bind(session.attestation.clone())
        .bind(session.opened_at.micros())
        .execute(&self.pool)
        .await
        .during("open a session")?;
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
        sqlx::query(
            "UPDATE sessions SET closed_at = $1, closed_because = $2, close_proof = $3, fault = $4 \
             WHERE session_id = $5 AND closed_at IS NULL",
        )
        .bind(now.micros())
        .bind(reason.to_owned())
        .bind(close.map(str::to_owned))
        .bind(fault.map(str::to_owned))
        .bind(session.to_string())
        .execute(&self.pool)
        .await
        .during("close a session")?;
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
        sqlx::query(
            "UPDATE sessions SET closed_at = $1, closed_because = 'the gateway was stopped' WHERE closed_at IS NULL",
        )
        .bind(now.micros())
        .execute(&self.pool)
        .await
        .during(OPERATION)?;
        jobs
    }

    /// Stores an answer that has ended, with its sample if it was drawn for one. Both are durable once this returns.
    ///
    /// # Errors
    /// The database fails.
    pub async fn insert_response(&self, response: &ResponseRow, sample: Option<&SampledPair>) -> Result<()> {
        const OPERATION: &str = "keep a response";
        let mut tx = begin(&self.pool).await?;
        sqlx::query(
            "INSERT INTO responses (response_id, session_id, client, model, asked_at, first_byte_at, ended_at, status, \
             how_ended, verdict, proof, sequence, bytes, input_tokens, output_tokens, earned) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
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
        .bind(response.verdict.clone())
        .bind(response.proof.clone())
        .bind(response.sequence.map(to_signed))
        .bind(to_signed(response.bytes))
        .bind(to_signed(response.usage.input))
        .bind(to_signed(response.usage.output))
        .bind(to_signed(response.earned))
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        if let Some(sample) = sample {
            sqlx::query(
                "INSERT INTO pairs (response_id, request, response, content_type, gathered_at) \
                 VALUES ($1, $2, $3, $4, $5)",
            )
            .bind(response.id.clone())
            .bind(STANDARD.encode(&sample.request))
            .bind(STANDARD.encode(&sample.response))
            .bind(sample.content_type.clone())
            .bind(response.ended_at.micros())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        tx.commit().await.during(OPERATION)
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

    /// The sample of an answer; `None` if it was not drawn for one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn find_sample(&self, id: &str) -> Result<Option<SampledPair>> {
        let row = sqlx::query("SELECT request, response, content_type FROM pairs WHERE response_id = $1")
            .bind(id.to_owned())
            .fetch_optional(&self.pool)
            .await
            .during("look for a pair")?;
        let Some(row) = row else { return Ok(None) };
        let bytes = |name: &'static str| -> Result<Vec<u8>> {
            let text: String = read_column(&row, name)?;
            STANDARD
                .decode(text)
                .map_err(|error| StoreError::corrupt(name, error.to_string()))
        };
        Ok(Some(SampledPair {
            request: bytes("request")?,
            response: bytes("response")?,
            content_type: read_column(&row, "content_type")?,
        }))
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

fn session_from(row: &AnyRow) -> Result<SessionRow> {
    Ok(SessionRow {
        session: session_id(row)?,
        job: parse_column(row, "job_id")?,
        miner: parse_column(row, "miner")?,
        model: read_column(row, "model")?,
        address: read_column(row, "address")?,
        attestation: read_column(row, "attestation")?,
        opened_at: read_column(row, "opened_at").map(Timestamp::from_micros)?,
        closed_at: read_column::<Option<i64>>(row, "closed_at")?.map(Timestamp::from_micros),
        closed_because: read_column(row, "closed_because")?,
        close: read_column(row, "close_proof")?,
        fault: read_column(row, "fault")?,
    })
}

fn response_from(row: &AnyRow) -> Result<ResponseRow> {
    let status: i64 = read_column(row, "status")?;
    let sequence: Option<i64> = read_column(row, "sequence")?;
    Ok(ResponseRow {
        id: read_column(row, "response_id")?,
        session: session_id(row)?,
        client: parse_column(row, "client")?,
        model: read_column(row, "model")?,
        asked_at: read_column(row, "asked_at").map(Timestamp::from_micros)?,
        first_byte_at: read_column::<Option<i64>>(row, "first_byte_at")?.map(Timestamp::from_micros),
        ended_at: read_column(row, "ended_at").map(Timestamp::from_micros)?,
        status: u16::try_from(status).map_err(|error| StoreError::corrupt("status", error.to_string()))?,
        end: read_column(row, "how_ended")?,
        verdict: read_column(row, "verdict")?,
        proof: read_column(row, "proof")?,
        sequence: sequence.map(|number| u64::try_from(number).unwrap_or(0)),
        bytes: unsigned_column(row, "bytes")?,
        usage: TokenUsage {
            input: unsigned_column(row, "input_tokens")?,
            output: unsigned_column(row, "output_tokens")?,
        },
        earned: unsigned_column(row, "earned")?,
    })
}

fn session_id(row: &AnyRow) -> Result<SessionId> {
    let text: String = read_column(row, "session_id")?;
    let id = text
        .parse()
        .map_err(|_| StoreError::corrupt("session_id", "not an id".to_owned()))?;
    Ok(SessionId(id))
}

fn read_column<'r, T: Decode<'r, Any> + Type<Any>>(row: &'r AnyRow, name: &'static str) -> Result<T> {
    row.try_get(name)
        .map_err(|error| StoreError::corrupt(name, error.to_string()))
}

fn parse_column<T>(row: &AnyRow, name: &'static str) -> Result<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text: String = read_column(row, name)?;
    text.parse()
        .map_err(|error: T::Err| StoreError::corrupt(name, error.to_string()))
}

fn to_signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned_column(row: &AnyRow, name: &'static str) -> Result<u64> {
    let number: i64 = read_column(row, name)?;
    Ok(u64::try_from(number).unwrap_or(0))
}
