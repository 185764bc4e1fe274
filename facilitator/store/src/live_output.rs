//! Live output: the newest pieces of a running job's output, and the progress of its stages. It is bounded for each
//! job and deleted an hour after the job's end, but for the output of a failed job that has left no other
//! (`retention`).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_protocol::rest::ProgressEvent;
use muster_protocol::wire::executor::{LayerCount, LogStream, ProgressOf};
use muster_protocol::wire::muster::{LiveLog, LiveMetrics, LiveProgress, LiveQueuePlace};
use muster_protocol::{JobId, Timestamp, ValidatorKey};
use muster_store::{During as _, StoreError};
use sqlx::AnyConnection;

use super::Store;
use super::program_reports::store_report;
use super::queue_places::store_place;
use super::retention::LIVE_KEPT;
use crate::settings::LiveConfig;

/// The most pieces that one query returns.
const MAX_PIECES: i64 = 64;

/// A message about a running job, from its validator.
#[derive(Clone, Debug, PartialEq)]
pub enum LiveMessage {
    /// A piece of output.
    Log(Box<LiveLog>),
    /// The progress of a stage.
    Progress(LiveProgress),
    /// The place of a job that waits, and when the message came.
    Queued(Box<LiveQueuePlace>, Timestamp),
    /// The state of the program, as it reported itself.
    Metrics(Box<LiveMetrics>),
}

/// A piece of output as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPiece {
    /// The sequence number; it grows within a job.
    pub seq: i64,
    /// The stream that the program printed it to.
    pub stream: LogStream,
    /// The position in the stream, in bytes.
    pub offset: u64,
    /// The time of its arrival.
    pub at: Timestamp,
    /// The output itself.
    pub data: Vec<u8>,
}

muster_store::row! {
    struct PieceRow {
        seq: i64,
        stream: String,
        start: i64,
        at: i64,
        data: String,
    }
}

/// A row of `progress`: the stage, the amount done and in all, the layers done and in all; -1 for an amount that is not
/// known.
type ProgressRow = (String, i64, i64, i64, i64);

// === impl LiveMessage ===

impl LiveMessage {
    /// The job that the message is about.
    pub fn job(&self) -> JobId {
        match self {
            Self::Log(log) => log.uuid,
            Self::Progress(progress) => progress.uuid,
            Self::Queued(place, _) => place.uuid,
            Self::Metrics(metrics) => metrics.uuid,
        }
    }
}

// === impl Store ===

impl Store {
    /// Stores messages in one transaction. A message about another validator's job is ignored.
    ///
    /// # Errors
    /// See [`StoreError`]; no message is stored then.
    pub async fn store_live(
        &self,
        messages: &[(ValidatorKey, LiveMessage)],
        bounds: &LiveConfig,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut jobs: BTreeMap<JobId, Vec<&(ValidatorKey, LiveMessage)>> = BTreeMap::new();
        for sent in messages {
            jobs.entry(sent.1.job()).or_default().push(sent);
        }
        let mut transaction = self.writer.begin().await?;
        // In the order of the jobs' ids, so that two writers cannot deadlock.
        for (job, sent) in jobs {
            let Some(holder) = validator_of_live_job(&mut transaction, job, now).await? else {
                continue;
            };
            let messages: Vec<_> = sent
                .into_iter()
                .filter(|(validator, _)| validator.to_string() == holder)
                .map(|(_, message)| message)
                .collect();
            store_messages(&mut transaction, job, &messages, bounds, now).await?;
        }
        transaction.commit("store live output").await
    }

    /// The next pieces of a job's output after number `seq`, oldest first, at most 64.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn log_pieces(&self, job: JobId, seq: i64) -> Result<Vec<LogPiece>, StoreError> {
        let statement =
            "SELECT seq, stream, start, at, data FROM logs WHERE job = $1 AND seq > $2 ORDER BY seq LIMIT $3";
        let rows: Vec<PieceRow> = sqlx::query_as(statement)
            .bind(job.to_string())
            .bind(seq)
            .bind(MAX_PIECES)
            .fetch_all(&self.pool)
            .await
            .during("read live output")?;
        rows.into_iter().map(PieceRow::into_piece).collect()
    }

    /// Every piece of a job's output that is stored, oldest first. The bounds of live output hold for all of them
    /// together.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn all_log_pieces(&self, job: JobId) -> Result<Vec<LogPiece>, StoreError> {
        let statement = "SELECT seq, stream, start, at, data FROM logs WHERE job = $1 ORDER BY seq";
        let rows: Vec<PieceRow> = sqlx::query_as(statement)
            .bind(job.to_string())
            .fetch_all(&self.pool)
            .await
            .during("read live output")?;
        rows.into_iter().map(PieceRow::into_piece).collect()
    }

    /// The progress of each stage of a job that has reported any.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn progress(&self, job: JobId) -> Result<Vec<ProgressEvent>, StoreError> {
        let statement =
            "SELECT stage, done, total, layers_done, layers FROM progress WHERE job = $1 ORDER BY stage";
        let rows: Vec<ProgressRow> = sqlx::query_as(statement)
            .bind(job.to_string())
            .fetch_all(&self.pool)
            .await
            .during("read progress")?;
        let event = |(stage, done, total, layers_done, layers): ProgressRow| ProgressEvent {
            stage: ProgressOf::from_wire(&stage),
            done: u64::try_from(done).unwrap_or_default(),
            total: u64::try_from(total).ok(),
            layers: u32::try_from(layers).ok().map(|total| LayerCount {
                done: u32::try_from(layers_done).unwrap_or_default(),
                total,
            }),
        };
        Ok(rows.into_iter().map(event).collect())
    }
}

/// The validator of a job that may still have output; `None` if there is no such job.
async fn validator_of_live_job(
    connection: &mut AnyConnection,
    job: JobId,
    now: Timestamp,
) -> Result<Option<String>, StoreError> {
    let statement = "SELECT validator FROM jobs WHERE uuid = $1 AND (ended_at = 0 OR ended_at > $2)";
    let row: Option<(String,)> = sqlx::query_as(statement)
        .bind(job.to_string())
        .bind(now.minus(LIVE_KEPT).micros())
        .fetch_optional(connection)
        .await
        .during("look for a live job's validator")?;
    Ok(row.map(|(validator,)| validator))
}

async fn store_messages(
    connection: &mut AnyConnection,
    job: JobId,
    messages: &[&LiveMessage],
    bounds: &LiveConfig,
    now: Timestamp,
) -> Result<(), StoreError> {
    let job = job.to_string();
    let mut stages: BTreeMap<&'static str, &LiveProgress> = BTreeMap::new();
    let (mut next, mut place, mut report) = (None, None, None);
    for message in messages {
        match message {
            LiveMessage::Progress(progress) => {
                stages.insert(progress.of.as_str(), progress);
            }
            LiveMessage::Queued(known, at) => place = Some((known, *at)),
            LiveMessage::Metrics(metrics) => report = Some(&metrics.report),
            LiveMessage::Log(log) => {
                let seq = match next {
                    Some(seq) => seq,
                    None => last_sequence_number(connection, &job).await? + 1,
                };
                next = Some(seq + 1);
                insert_piece(connection, &job, seq, log, now).await?;
            }
        }
    }
    for (stage, progress) in stages {
        let statement = "INSERT INTO progress (job, stage, done, total, layers_done, layers) \
                         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (job, stage) DO UPDATE SET \
                         done = excluded.done, total = excluded.total, \
                         layers_done = excluded.layers_done, layers = excluded.layers";
        sqlx::query(statement)
            .bind(&job)
            .bind(stage)
            .bind(i64::try_from(progress.done).unwrap_or(i64::MAX))
            .bind(
                progress
                    .total
                    .map_or(-1, |total| i64::try_from(total).unwrap_or(i64::MAX)),
            )
            .bind(progress.layers.map_or(-1, |layers| i64::from(layers.done)))
            .bind(progress.layers.map_or(-1, |layers| i64::from(layers.total)))
            .execute(&mut *connection)
            .await
            .during("store progress")?;
    }
    if let Some((place, told_at)) = place {
        store_place(connection, place, told_at).await?;
    }
    if let Some(report) = report {
        store_report(connection, &job, report, now).await?;
    }
    match next {
        Some(_) => delete_oldest(connection, &job, bounds).await,
        None => Ok(()),
    }
}

async fn last_sequence_number(connection: &mut AnyConnection, job: &str) -> Result<i64, StoreError> {
    let (last,): (i64,) =
        sqlx::query_as("SELECT CAST(COALESCE(MAX(seq), 0) AS BIGINT) FROM logs WHERE job = $1")
            .bind(job)
            .fetch_one(connection)
            .await
            .during("number live output")?;
    Ok(last)
}

/// Inserts a piece. If another facilitator has used the number at the same moment, the piece is dropped.
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
        .during("store live output")?;
    Ok(())
}

/// Deletes the oldest pieces of a job that exceeds the bounds.
async fn delete_oldest(
    connection: &mut AnyConnection,
    job: &str,
    bounds: &LiveConfig,
) -> Result<(), StoreError> {
    let statement = "SELECT seq, CAST(LENGTH(data) AS BIGINT) FROM logs WHERE job = $1 ORDER BY seq DESC";
    let sizes: Vec<(i64, i64)> = sqlx::query_as(statement)
        .bind(job)
        .fetch_all(&mut *connection)
        .await
        .during("measure live output")?;
    let most = i64::try_from(bounds.log_kib.saturating_mul(1024)).unwrap_or(i64::MAX);
    let mut kept = 0_i64;
    let cut = sizes.iter().zip(0_usize..).find_map(|((seq, size), place)| {
        // The data is base64: four characters hold three bytes.
        kept = kept.saturating_add(size / 4 * 3);
        (kept > most || place >= bounds.log_pieces).then_some(*seq)
    });
    if let Some(cut) = cut {
        sqlx::query("DELETE FROM logs WHERE job = $1 AND seq <= $2")
            .bind(job)
            .bind(cut)
            .execute(connection)
            .await
            .during("delete old live output")?;
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
