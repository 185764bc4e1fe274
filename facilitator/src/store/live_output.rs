//! What running jobs say: the newest pieces of output, and how far each stage is. Bounded for each job, gone after its end.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_process::store::{During as _, StoreError};
use muster_protocol::rest::ProgressEvent;
use muster_protocol::wire::executor::{LogStream, ProgressOf};
use muster_protocol::wire::muster::{LiveLog, LiveProgress};
use muster_protocol::{JobId, Timestamp, ValidatorKey};
use sqlx::{AnyConnection, FromRow};

use super::Store;
use crate::config::LiveConfig;

/// How long after its end a job's output may still come in, and is kept for who watches: the result has all of it.
const KEPT_AFTER_END: Duration = Duration::from_secs(3600);

/// The most pieces that one look at a job's output brings.
const PIECES_A_LOOK: i64 = 64;

/// Something that a running job says.
#[derive(Clone, Debug, PartialEq)]
pub enum LiveMessage {
    /// A piece of output.
    Log(Box<LiveLog>),
    /// How far it is.
    Progress(LiveProgress),
}

/// A piece of output as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPiece {
    /// Its number; a job's pieces are numbered upwards.
    pub seq: i64,
    /// Where it was printed.
    pub stream: LogStream,
    /// Where it begins in the stream.
    pub offset: u64,
    /// When it came in.
    pub at: Timestamp,
    /// The bytes.
    pub data: Vec<u8>,
}

#[derive(FromRow)]
struct PieceRow {
    seq: i64,
    stream: String,
    start: i64,
    at: i64,
    data: String,
}

// === impl LiveMessage ===

impl LiveMessage {
    /// The job that says it.
    pub fn job(&self) -> JobId {
        match self {
            Self::Log(log) => log.uuid,
            Self::Progress(progress) => progress.uuid,
        }
    }
}

// === impl Store ===

impl Store {
    /// Keeps what jobs of `validator` say, in one transaction. What is said of another's job is passed over.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing of it is kept then.
    pub async fn store_live(
        &self,
        said: &[(ValidatorKey, LiveMessage)],
        bounds: &LiveConfig,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut jobs: BTreeMap<JobId, Vec<&(ValidatorKey, LiveMessage)>> = BTreeMap::new();
        for item in said {
            jobs.entry(item.1.job()).or_default().push(item);
        }
        let mut transaction = self.writer.begin().await?;
        // In the order of their ids, so that two writers never wait for one another.
        for (job, said) in jobs {
            let Some(holder) = holder(&mut transaction, job, now).await? else {
                continue;
            };
            let said: Vec<_> = said
                .into_iter()
                .filter(|(validator, _)| validator.to_string() == holder)
                .map(|(_, said)| said)
                .collect();
            keep(&mut transaction, job, &said, bounds, now).await?;
        }
        transaction.commit("keep live output").await
    }

    /// A job's pieces of output after number `seq`, oldest first; not more than a few at a time.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn log_pieces(&self, job: JobId, seq: i64) -> Result<Vec<LogPiece>, StoreError> {
        let statement =
            "SELECT seq, stream, start, at, data FROM logs WHERE job = $1 AND seq > $2 ORDER BY seq LIMIT $3";
        let rows: Vec<PieceRow> = sqlx::query_as(statement)
            .bind(job.to_string())
            .bind(seq)
            .bind(PIECES_A_LOOK)
            .fetch_all(&self.pool)
            .await
            .during("read live output")?;
        rows.into_iter().map(PieceRow::into_piece).collect()
    }

    /// How far each stage of a job is, as far as that was said.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn progress(&self, job: JobId) -> Result<Vec<ProgressEvent>, StoreError> {
        let rows: Vec<(String, i64, i64)> =
            sqlx::query_as("SELECT stage, done, total FROM progress WHERE job = $1 ORDER BY stage")
                .bind(job.to_string())
                .fetch_all(&self.pool)
                .await
                .during("read progress")?;
        let event = |(stage, done, total): (String, i64, i64)| ProgressEvent {
            stage: ProgressOf::from_wire(&stage),
            done: u64::try_from(done).unwrap_or_default(),
            total: u64::try_from(total).ok(),
        };
        Ok(rows.into_iter().map(event).collect())
    }

    /// Forgets what jobs that ended a while ago have said.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn forget_live(&self, now: Timestamp) -> Result<(), StoreError> {
        let before = now.micros().saturating_sub(micros(KEPT_AFTER_END));
        for statement in [
            "DELETE FROM logs WHERE EXISTS (SELECT 1 FROM jobs WHERE jobs.uuid = logs.job AND ended_at > 0 AND ended_at < $1)",
            "DELETE FROM progress WHERE EXISTS (SELECT 1 FROM jobs WHERE jobs.uuid = progress.job AND ended_at > 0 AND ended_at < $1)",
        ] {
            sqlx::query(statement)
                .bind(before)
                .execute(&self.pool)
                .await
                .during("forget live output")?;
        }
        Ok(())
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Whose a job is that still may say something.
async fn holder(
    connection: &mut AnyConnection,
    job: JobId,
    now: Timestamp,
) -> Result<Option<String>, StoreError> {
    let statement = "SELECT validator FROM jobs WHERE uuid = $1 AND (ended_at = 0 OR ended_at > $2)";
    let row: Option<(String,)> = sqlx::query_as(statement)
        .bind(job.to_string())
        .bind(now.micros().saturating_sub(micros(KEPT_AFTER_END)))
        .fetch_optional(connection)
        .await
        .during("look for a job that says something")?;
    Ok(row.map(|(validator,)| validator))
}

async fn keep(
    connection: &mut AnyConnection,
    job: JobId,
    said: &[&LiveMessage],
    bounds: &LiveConfig,
    now: Timestamp,
) -> Result<(), StoreError> {
    let job = job.to_string();
    let mut stages: BTreeMap<&'static str, &LiveProgress> = BTreeMap::new();
    let mut next = None;
    for said in said {
        match said {
            LiveMessage::Progress(progress) => {
                stages.insert(progress.of.as_str(), progress);
            }
            LiveMessage::Log(log) => {
                let seq = match next {
                    Some(seq) => seq,
                    None => last_piece(connection, &job).await? + 1,
                };
                next = Some(seq + 1);
                insert_piece(connection, &job, seq, log, now).await?;
            }
        }
    }
    for (stage, progress) in stages {
        let statement = "INSERT INTO progress (job, stage, done, total) VALUES ($1, $2, $3, $4) \
                         ON CONFLICT (job, stage) DO UPDATE SET done = excluded.done, total = excluded.total";
        sqlx::query(statement)
            .bind(&job)
            .bind(stage)
            .bind(i64::try_from(progress.done).unwrap_or(i64::MAX))
            .bind(
                progress
                    .total
                    .map_or(-1, |total| i64::try_from(total).unwrap_or(i64::MAX)),
            )
            .execute(&mut *connection)
            .await
            .during("keep progress")?;
    }
    match next {
        Some(_) => trim(connection, &job, bounds).await,
        None => Ok(()),
    }
}

async fn last_piece(connection: &mut AnyConnection, job: &str) -> Result<i64, StoreError> {
    let (last,): (i64,) =
        sqlx::query_as("SELECT CAST(COALESCE(MAX(seq), 0) AS BIGINT) FROM logs WHERE job = $1")
            .bind(job)
            .fetch_one(connection)
            .await
            .during("number live output")?;
    Ok(last)
}

/// A replica that numbers the same piece at the same moment was first; output may be dropped.
async fn insert_piece(
    connection: &mut AnyConnection,
    job: &str,
    seq: i64,
    log: &LiveLog,
    now: Timestamp,
) -> Result<(), StoreError> {
    let statement = "INSERT INTO logs (job, seq, stream, start, at, data) VALUES ($1, $2, $3, $4, $5, $6) \
                     ON CONFLICT (job, seq) DO NOTHING";
    sqlx::query(statement)
        .bind(job)
        .bind(seq)
        .bind(log.stream.as_str())
        .bind(i64::try_from(log.offset).unwrap_or(i64::MAX))
        .bind(now.micros())
        .bind(STANDARD.encode(log.data.as_bytes()))
        .execute(connection)
        .await
        .during("keep live output")?;
    Ok(())
}

/// Drops the oldest pieces of a job that has too many.
async fn trim(connection: &mut AnyConnection, job: &str, bounds: &LiveConfig) -> Result<(), StoreError> {
    let statement = "SELECT seq, CAST(LENGTH(data) AS BIGINT) FROM logs WHERE job = $1 ORDER BY seq DESC";
    let sizes: Vec<(i64, i64)> = sqlx::query_as(statement)
        .bind(job)
        .fetch_all(&mut *connection)
        .await
        .during("measure live output")?;
    let most = i64::try_from(bounds.log_kib.saturating_mul(1024)).unwrap_or(i64::MAX);
    let mut kept = 0_i64;
    let cut = sizes.iter().zip(0_usize..).find_map(|((seq, size), place)| {
        // Base64 holds three bytes in four.
        kept = kept.saturating_add(size / 4 * 3);
        (kept > most || place >= bounds.log_pieces).then_some(*seq)
    });
    if let Some(cut) = cut {
        sqlx::query("DELETE FROM logs WHERE job = $1 AND seq <= $2")
            .bind(job)
            .bind(cut)
            .execute(connection)
            .await
            .during("drop old live output")?;
    }
    Ok(())
}

// === impl PieceRow ===

impl PieceRow {
    fn into_piece(self) -> Result<LogPiece, StoreError> {
        let data = STANDARD
            .decode(&self.data)
            .map_err(|error| StoreError::corrupt("logs.data", error))?;
        let offset = u64::try_from(self.start).map_err(|error| StoreError::corrupt("logs.start", error))?;
        Ok(LogPiece {
            seq: self.seq,
            stream: LogStream::from_wire(&self.stream),
            offset,
            at: Timestamp::from_micros(self.at),
            data,
        })
    }
}
