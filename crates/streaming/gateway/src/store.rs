//! What a gateway must not forget: sessions, what each answered, and the pairs that are checked later. A part of the
//! validator's database, whose migrations make the tables, since a database has one history.

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

/// A session that was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionRow {
    /// Its id.
    #[serde(serialize_with = "as_text")]
    pub session: SessionId,
    /// The job that it is.
    pub job: JobId,
    /// Who runs it.
    pub miner: MinerKey,
    /// What it serves.
    pub model: String,
    /// Where.
    pub address: String,
    /// The miner's word for it: the text form of the envelope.
    pub attestation: String,
    /// When it began to serve.
    pub opened_at: Timestamp,
    /// When it ended, if it has.
    pub closed_at: Option<Timestamp>,
    /// Why.
    pub closed_because: Option<String>,
    /// The session's last word, text form.
    pub close: Option<String>,
    /// What was wrong with its last word or missing before it.
    pub fault: Option<String>,
}

/// One response, as the gateway saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResponseRow {
    /// Its id: the nonce that the gateway drew for it, 64 hex digits.
    pub id: String,
    /// The session that gave it.
    #[serde(serialize_with = "as_text")]
    pub session: SessionId,
    /// For whom, under a name that only whoever vouched can resolve.
    pub client: Digest,
    /// What was asked for.
    pub model: String,
    /// When the gateway asked, by its own clock.
    pub asked_at: Timestamp,
    /// When the first byte came.
    pub first_byte_at: Option<Timestamp>,
    /// When the end came.
    pub ended_at: Timestamp,
    /// The HTTP status.
    pub status: u16,
    /// How it ended: as the session signed it, or as it was seen.
    pub end: String,
    /// `proven`, or why it is not.
    pub verdict: String,
    /// The proof, text form, if one came.
    pub proof: Option<String>,
    /// Its number in the session, if it is proven.
    pub sequence: Option<u64>,
    /// Bytes of the body.
    pub bytes: u64,
    /// Tokens, by the gateway's own count.
    pub usage: TokenUsage,
    /// What the miner has earned with it, in rao: nothing without a proof.
    pub earned: u64,
}

/// What was asked and answered, word for word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The body that was sent.
    pub request: Vec<u8>,
    /// The body that came.
    pub response: Vec<u8>,
    /// Its type.
    pub content_type: Option<String>,
}

/// What the sessions of a miner have answered, summed up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Whose.
    pub miner: MinerKey,
    /// For which model.
    pub model: String,
    /// Responses with a proof.
    pub proven: u64,
    /// Without.
    pub unproven: u64,
    /// Tokens of the proven ones.
    pub usage: TokenUsage,
    /// Rao earned.
    pub earned: u64,
}

/// The tables. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Book {
    pool: AnyPool,
}

fn as_text<S: serde::Serializer>(id: &SessionId, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

impl Book {
    /// Over the validator's database, which is migrated.
    pub const fn new(pool: AnyPool) -> Self {
        Self { pool }
    }

    /// A session is about to serve.
    ///
    /// # Errors
    /// The database's.
    pub async fn open(&self, session: &SessionRow) -> Result<()> {
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

    /// A session has ended, with its last word if it had one.
    ///
    /// # Errors
    /// The database's.
    pub async fn close(
        &self,
        session: SessionId,
        because: &str,
        close: Option<&str>,
        fault: Option<&str>,
        now: Timestamp,
    ) -> Result<()> {
        sqlx::query(
            "UPDATE sessions SET closed_at = $1, closed_because = $2, close_proof = $3, fault = $4 \
             WHERE session_id = $5 AND closed_at IS NULL",
        )
        .bind(now.micros())
        .bind(because.to_owned())
        .bind(close.map(str::to_owned))
        .bind(fault.map(str::to_owned))
        .bind(session.to_string())
        .execute(&self.pool)
        .await
        .during("close a session")?;
        Ok(())
    }

    /// The process before this one was killed, or stopped without having closed everything: its sessions are over, since
    /// nobody else has the key that they let in. Their jobs.
    ///
    /// # Errors
    /// The database's.
    pub async fn orphans(&self, now: Timestamp) -> Result<Vec<JobId>> {
        const OPERATION: &str = "close the sessions of an earlier process";
        let rows = sqlx::query("SELECT job_id FROM sessions WHERE closed_at IS NULL")
            .fetch_all(&self.pool)
            .await
            .during(OPERATION)?;
        let jobs: Result<Vec<JobId>> = rows.iter().map(|row| parsed(row, "job_id")).collect();
        sqlx::query(
            "UPDATE sessions SET closed_at = $1, closed_because = 'the gateway was stopped' WHERE closed_at IS NULL",
        )
        .bind(now.micros())
        .execute(&self.pool)
        .await
        .during(OPERATION)?;
        jobs
    }

    /// A response has ended. It, and the pair if it was drawn for a check, are durable from here on.
    ///
    /// # Errors
    /// The database's.
    pub async fn keep(&self, response: &ResponseRow, pair: Option<&Pair>) -> Result<()> {
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
        .bind(response.sequence.map(signed))
        .bind(signed(response.bytes))
        .bind(signed(response.usage.input))
        .bind(signed(response.usage.output))
        .bind(signed(response.earned))
        .execute(&mut *tx)
        .await
        .during(OPERATION)?;
        if let Some(pair) = pair {
            sqlx::query(
                "INSERT INTO pairs (response_id, request, response, content_type, gathered_at) \
                 VALUES ($1, $2, $3, $4, $5)",
            )
            .bind(response.id.clone())
            .bind(STANDARD.encode(&pair.request))
            .bind(STANDARD.encode(&pair.response))
            .bind(pair.content_type.clone())
            .bind(response.ended_at.micros())
            .execute(&mut *tx)
            .await
            .during(OPERATION)?;
        }
        tx.commit().await.during(OPERATION)
    }

    /// A response, and the attestation of its session; `None` if there is none of this id.
    ///
    /// # Errors
    /// The database's.
    pub async fn response(&self, id: &str) -> Result<Option<(ResponseRow, SessionRow)>> {
        const OPERATION: &str = "look for a response";
        let row = sqlx::query("SELECT * FROM responses WHERE response_id = $1")
            .bind(id.to_owned())
            .fetch_optional(&self.pool)
            .await
            .during(OPERATION)?;
        let Some(row) = row else { return Ok(None) };
        let response = response(&row)?;
        let row = sqlx::query("SELECT * FROM sessions WHERE session_id = $1")
            .bind(response.session.to_string())
            .fetch_one(&self.pool)
            .await
            .during(OPERATION)?;
        Ok(Some((response, session(&row)?)))
    }

    /// The pair that was kept of a response, if it was drawn.
    ///
    /// # Errors
    /// The database's.
    pub async fn pair(&self, id: &str) -> Result<Option<Pair>> {
        let row = sqlx::query("SELECT request, response, content_type FROM pairs WHERE response_id = $1")
            .bind(id.to_owned())
            .fetch_optional(&self.pool)
            .await
            .during("look for a pair")?;
        let Some(row) = row else { return Ok(None) };
        let bytes = |name: &'static str| -> Result<Vec<u8>> {
            let text: String = column(&row, name)?;
            STANDARD
                .decode(text)
                .map_err(|error| StoreError::corrupt(name, error.to_string()))
        };
        Ok(Some(Pair {
            request: bytes("request")?,
            response: bytes("response")?,
            content_type: column(&row, "content_type")?,
        }))
    }

    /// The newest sessions, newest first.
    ///
    /// # Errors
    /// The database's.
    pub async fn sessions(&self, limit: u32) -> Result<Vec<SessionRow>> {
        let rows = sqlx::query("SELECT * FROM sessions ORDER BY opened_at DESC, session_id LIMIT $1")
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .during("list sessions")?;
        rows.iter().map(session).collect()
    }

    /// What each miner has earned with sessions since `since`.
    ///
    /// # Errors
    /// The database's.
    pub async fn accounts(&self, since: Timestamp) -> Result<Vec<Account>> {
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
        let account = |row: &AnyRow| {
            Ok(Account {
                miner: parsed(row, "miner")?,
                model: column(row, "model")?,
                proven: unsigned(row, "proven")?,
                unproven: unsigned(row, "unproven")?,
                usage: TokenUsage {
                    input: unsigned(row, "input")?,
                    output: unsigned(row, "output")?,
                },
                earned: unsigned(row, "earned")?,
            })
        };
        rows.iter().map(account).collect()
    }
}

fn session(row: &AnyRow) -> Result<SessionRow> {
    Ok(SessionRow {
        session: session_id(row)?,
        job: parsed(row, "job_id")?,
        miner: parsed(row, "miner")?,
        model: column(row, "model")?,
        address: column(row, "address")?,
        attestation: column(row, "attestation")?,
        opened_at: column(row, "opened_at").map(Timestamp::from_micros)?,
        closed_at: column::<Option<i64>>(row, "closed_at")?.map(Timestamp::from_micros),
        closed_because: column(row, "closed_because")?,
        close: column(row, "close_proof")?,
        fault: column(row, "fault")?,
    })
}

fn response(row: &AnyRow) -> Result<ResponseRow> {
    let status: i64 = column(row, "status")?;
    let sequence: Option<i64> = column(row, "sequence")?;
    Ok(ResponseRow {
        id: column(row, "response_id")?,
        session: session_id(row)?,
        client: parsed(row, "client")?,
        model: column(row, "model")?,
        asked_at: column(row, "asked_at").map(Timestamp::from_micros)?,
        first_byte_at: column::<Option<i64>>(row, "first_byte_at")?.map(Timestamp::from_micros),
        ended_at: column(row, "ended_at").map(Timestamp::from_micros)?,
        status: u16::try_from(status).map_err(|error| StoreError::corrupt("status", error.to_string()))?,
        end: column(row, "how_ended")?,
        verdict: column(row, "verdict")?,
        proof: column(row, "proof")?,
        sequence: sequence.map(|number| u64::try_from(number).unwrap_or(0)),
        bytes: unsigned(row, "bytes")?,
        usage: TokenUsage {
            input: unsigned(row, "input_tokens")?,
            output: unsigned(row, "output_tokens")?,
        },
        earned: unsigned(row, "earned")?,
    })
}

fn session_id(row: &AnyRow) -> Result<SessionId> {
    let text: String = column(row, "session_id")?;
    let id = text
        .parse()
        .map_err(|_| StoreError::corrupt("session_id", "not an id".to_owned()))?;
    Ok(SessionId(id))
}

fn column<'r, T: Decode<'r, Any> + Type<Any>>(row: &'r AnyRow, name: &'static str) -> Result<T> {
    row.try_get(name)
        .map_err(|error| StoreError::corrupt(name, error.to_string()))
}

fn parsed<T>(row: &AnyRow, name: &'static str) -> Result<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text: String = column(row, name)?;
    text.parse()
        .map_err(|error: T::Err| StoreError::corrupt(name, error.to_string()))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(row: &AnyRow, name: &'static str) -> Result<u64> {
    let number: i64 = column(row, name)?;
    Ok(u64::try_from(number).unwrap_or(0))
}
