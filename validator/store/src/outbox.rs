//! The outbox: status updates for the facilitator, numbered, and kept until each is acknowledged.

use std::sync::atomic::Ordering;

use muster_protocol::wire::facilitator::StatusMetadata;
use muster_protocol::{JobId, JobStatus, Timestamp};
use muster_store::columns::{parse_column, read_column, to_unsigned};
use tokio::sync::watch;

use super::{Draft, Result, Store, parse_json_option, query_error, text_of};

/// Metadata of more characters than this is a job's result, and is read by itself.
const LONG_METADATA: i64 = 64 * 1024;

/// A status update that the facilitator has not acknowledged.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusUpdate {
    /// Its number in the order of all updates.
    pub sequence: i64,
    /// The job that the update is about.
    pub job: JobId,
    /// The job's status.
    pub status: JobStatus,
    /// Details of the status; with a terminal status, the job's result.
    pub metadata: Option<StatusMetadata>,
}

/// The facilitator's answer to a status update: the update's sequence number, and the refusal, if it was refused.
pub type Acknowledgement = (i64, Option<String>);

impl Store {
    /// Changes whenever an update is written.
    pub fn outbox_writes(&self) -> watch::Receiver<u64> {
        self.outbox.subscribe()
    }

    /// The oldest updates after the number `after` that are not acknowledged, in their order, at most `limit`. They
    /// contain the result of one job at most, so there may be fewer although more wait. Empty only if none wait.
    ///
    /// # Errors
    /// The database fails.
    pub async fn next_updates(&self, after: Option<i64>, limit: usize) -> Result<Vec<StatusUpdate>> {
        const OPERATION: &str = "read the outbox";
        let rows = sqlx::query(
            "SELECT sequence, job_id, status, CASE WHEN LENGTH(metadata) > $1 THEN NULL ELSE metadata END AS metadata, \
             CAST(CASE WHEN LENGTH(metadata) > $1 THEN 1 ELSE 0 END AS BIGINT) AS is_long \
             FROM outbox WHERE acknowledged_at IS NULL AND sequence > $2 ORDER BY sequence LIMIT $3",
        )
        .bind(LONG_METADATA)
        .bind(after.unwrap_or(i64::MIN))
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error(OPERATION))?;
        let mut updates = Vec::with_capacity(rows.len());
        for row in &rows {
            let status: String = read_column(row, "status")?;
            let mut update = StatusUpdate {
                sequence: read_column(row, "sequence")?,
                job: parse_column(row, "job_id")?,
                status: JobStatus::from_wire(&status),
                metadata: parse_json_option(row, "metadata")?,
            };
            let long: i64 = read_column(row, "is_long")?;
            if long == 0 {
                updates.push(update);
                continue;
            }
            if !updates.is_empty() {
                break;
            }
            let row = sqlx::query("SELECT metadata FROM outbox WHERE sequence = $1")
                .bind(update.sequence)
                .fetch_one(&self.pool)
                .await
                .map_err(query_error(OPERATION))?;
            update.metadata = parse_json_option(&row, "metadata")?;
            updates.push(update);
            break;
        }
        Ok(updates)
    }

    /// Stores the facilitator's answers: an update is taken, or refused with a text that is kept for the operator. The
    /// metadata of a terminal status is deleted; it can be built again from the outcome.
    ///
    /// # Errors
    /// The database fails.
    pub async fn acknowledge(&self, answers: &[Acknowledgement], now: Timestamp) -> Result<()> {
        self.write("acknowledge a status update", |draft| {
            for (first, last, answer) in group_answers(answers) {
                draft.script.add(
                    "UPDATE outbox SET acknowledged_at = $1, answer = $2, \
                     metadata = CASE WHEN status IN ($3, $4, $5, $6) THEN NULL ELSE metadata END \
                     WHERE sequence BETWEEN $7 AND $8",
                    [
                        now.micros().into(),
                        answer.clone().into(),
                        JobStatus::Completed.as_str().into(),
                        JobStatus::Rejected.as_str().into(),
                        JobStatus::Failed.as_str().into(),
                        JobStatus::HordeFailed.as_str().into(),
                        first.into(),
                        last.into(),
                    ],
                );
            }
        })
        .await
    }

    /// Sends the last status of a job again, as the newest update, unless it still waits to be acknowledged. `metadata`
    /// goes with it if the job has ended.
    ///
    /// # Errors
    /// The database fails.
    pub async fn repeat(&self, job: JobId, metadata: Option<&StatusMetadata>) -> Result<()> {
        self.write("repeat a status update", |draft| {
            let again = draft.next_sequence();
            draft.script.add(
                "UPDATE outbox SET sequence = $1, acknowledged_at = NULL, answer = NULL, \
                 metadata = COALESCE(metadata, CAST($2 AS TEXT)) \
                 WHERE sequence = (SELECT MAX(sequence) FROM outbox WHERE job_id = $3) AND acknowledged_at IS NOT NULL",
                [again.into(), metadata.map(text_of).into(), job.to_string().into()],
            );
            draft.reported = true;
        })
        .await
    }

    /// The number of updates that are not acknowledged.
    ///
    /// # Errors
    /// The database fails.
    pub async fn updates_waiting(&self) -> Result<u64> {
        let row = sqlx::query("SELECT COUNT(*) AS waiting FROM outbox WHERE acknowledged_at IS NULL")
            .fetch_one(&self.pool)
            .await
            .map_err(query_error("read the outbox"))?;
        read_column(&row, "waiting").map(to_unsigned)
    }
}

/// The statuses that `status` may not follow, each between two bars. A status that only a later version knows is not
/// among them.
fn barred_predecessors(status: JobStatus) -> String {
    let known = JobStatus::ALL
        .iter()
        .filter(|previous| **previous != JobStatus::Unknown && !status.may_follow(**previous));
    known.fold("|".to_owned(), |mut all, previous| {
        all.push_str(previous.as_str());
        all.push('|');
        all
    })
}

/// Groups equal answers to consecutive updates: the first and the last number, and the answer.
fn group_answers(answers: &[Acknowledgement]) -> Vec<(i64, i64, &Option<String>)> {
    let mut runs: Vec<(i64, i64, &Option<String>)> = Vec::new();
    for (sequence, answer) in answers {
        match runs.last_mut() {
            Some((_, last, same)) if last.checked_add(1) == Some(*sequence) && *same == answer => {
                *last = *sequence;
            }
            Some(_) | None => runs.push((*sequence, *sequence, answer)),
        }
    }
    runs
}

impl Draft<'_> {
    /// Sets a job's status and adds it to the outbox, unless it may not follow the present status. A job of the
    /// validator's own gets no update, since no facilitator knows it.
    pub(super) fn report(
        &mut self,
        job: JobId,
        status: JobStatus,
        metadata: Option<&StatusMetadata>,
        now: Timestamp,
    ) {
        let (barred, sequence) = (barred_predecessors(status), self.next_sequence());
        self.script.add(
            "INSERT INTO outbox (sequence, job_id, status, metadata, created_at) \
             SELECT CAST($1 AS BIGINT), job_id, CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS BIGINT) FROM jobs \
             WHERE job_id = $5 AND own = 0 AND $6 NOT LIKE '%|' || status || '|%'",
            [
                sequence.into(),
                status.as_str().into(),
                metadata.map(text_of).into(),
                now.micros().into(),
                job.to_string().into(),
                barred.clone().into(),
            ],
        );
        self.script.add(
            "UPDATE jobs SET status = $1 WHERE job_id = $2 AND $3 NOT LIKE '%|' || status || '|%'",
            [status.as_str().into(), job.to_string().into(), barred.into()],
        );
        self.reported = true;
    }

    /// Adds a status to the outbox that the job's row has already.
    pub(super) fn put_status(
        &mut self,
        job: JobId,
        status: JobStatus,
        metadata: Option<&StatusMetadata>,
        now: Timestamp,
    ) {
        let sequence = self.next_sequence();
        self.script.add(
            "INSERT INTO outbox (sequence, job_id, status, metadata, created_at) VALUES ($1, $2, $3, $4, $5)",
            [
                sequence.into(),
                job.to_string().into(),
                status.as_str().into(),
                metadata.map(text_of).into(),
                now.micros().into(),
            ],
        );
        self.reported = true;
    }

    fn next_sequence(&self) -> i64 {
        self.sequence.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }
}
