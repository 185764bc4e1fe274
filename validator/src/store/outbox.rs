//! Status updates on their way to the facilitator: durable, numbered, each until it is acknowledged.

use std::sync::atomic::Ordering;

use muster_protocol::wire::facilitator::StatusMetadata;
use muster_protocol::{JobId, JobStatus, Timestamp};
use tokio::sync::watch;

use super::{Draft, Result, Store, column, failed, json_option, parsed, text_of, unsigned};

/// What goes with an update is read by itself if it is longer than this, in characters: it is a job's result.
const LONG: i64 = 64 * 1024;

/// One status update that the facilitator has not acknowledged.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// Its place in the order.
    pub sequence: i64,
    /// The job.
    pub job: JobId,
    /// How far it is.
    pub status: JobStatus,
    /// What goes with it.
    pub metadata: Option<StatusMetadata>,
}

impl Store {
    /// Changes whenever an update was written.
    pub fn outbox_writes(&self) -> watch::Receiver<u64> {
        self.outbox.subscribe()
    }

    /// The oldest updates behind `after` that are not acknowledged, at most so many, in their order. They hold no more than the
    /// results of one job, so there may be fewer even if more wait; none if none wait.
    ///
    /// # Errors
    /// The database's.
    pub async fn next_updates(&self, after: Option<i64>, limit: usize) -> Result<Vec<Update>> {
        const OPERATION: &str = "read the outbox";
        let rows = sqlx::query(
            "SELECT sequence, job_id, status, CASE WHEN LENGTH(metadata) > $1 THEN NULL ELSE metadata END AS metadata, \
             CAST(CASE WHEN LENGTH(metadata) > $1 THEN 1 ELSE 0 END AS BIGINT) AS is_long \
             FROM outbox WHERE acknowledged_at IS NULL AND sequence > $2 ORDER BY sequence LIMIT $3",
        )
        .bind(LONG)
        .bind(after.unwrap_or(i64::MIN))
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&self.pool)
        .await
        .map_err(failed(OPERATION))?;
        let mut updates = Vec::with_capacity(rows.len());
        for row in &rows {
            let status: String = column(row, "status")?;
            let mut update = Update {
                sequence: column(row, "sequence")?,
                job: parsed(row, "job_id")?,
                status: JobStatus::from_wire(&status),
                metadata: json_option(row, "metadata")?,
            };
            let long: i64 = column(row, "is_long")?;
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
                .map_err(failed(OPERATION))?;
            update.metadata = json_option(&row, "metadata")?;
            updates.push(update);
            break;
        }
        Ok(updates)
    }

    /// The facilitator has answered each of these: with nothing but success, or with a refusal that is kept for people to
    /// read. What went with a job's end is not kept: it is made again from the outcome if it is asked for.
    ///
    /// # Errors
    /// The database's.
    pub async fn acknowledge(&self, answers: &[(i64, Option<String>)], now: Timestamp) -> Result<()> {
        self.carry("acknowledge a status update", |draft| {
            for (first, last, answer) in runs(answers) {
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

    /// The facilitator hands over a job that is known: its last status is said again, as the newest of all updates, unless it
    /// is on its way anyhow. `end` goes with it if the job has ended.
    ///
    /// # Errors
    /// The database's.
    pub async fn repeat(&self, job: JobId, end: Option<&StatusMetadata>) -> Result<()> {
        self.carry("repeat a status update", |draft| {
            let again = draft.next_sequence();
            draft.script.add(
                "UPDATE outbox SET sequence = $1, acknowledged_at = NULL, answer = NULL, \
                 metadata = COALESCE(metadata, CAST($2 AS TEXT)) \
                 WHERE sequence = (SELECT MAX(sequence) FROM outbox WHERE job_id = $3) AND acknowledged_at IS NOT NULL",
                [again.into(), end.map(text_of).into(), job.to_string().into()],
            );
            draft.reported = true;
        })
        .await
    }

    /// How many updates wait for their acknowledgement.
    ///
    /// # Errors
    /// The database's.
    pub async fn updates_waiting(&self) -> Result<u64> {
        let row = sqlx::query("SELECT COUNT(*) AS waiting FROM outbox WHERE acknowledged_at IS NULL")
            .fetch_one(&self.pool)
            .await
            .map_err(failed("read the outbox"))?;
        column(&row, "waiting").map(unsigned)
    }
}

/// The statuses that `status` may not follow, each between two bars. A word that only a later version knows is none of them.
fn hinders(status: JobStatus) -> String {
    let known = JobStatus::ALL
        .iter()
        .filter(|previous| **previous != JobStatus::Unknown && !status.may_follow(**previous));
    known.fold("|".to_owned(), |mut all, previous| {
        all.push_str(previous.as_str());
        all.push('|');
        all
    })
}

/// Answers that are alike to updates that follow one another: the first of these, and the last.
fn runs(answers: &[(i64, Option<String>)]) -> Vec<(i64, i64, &Option<String>)> {
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
    /// Puts a status into the outbox, unless it would take the job backwards in its user's eyes. No facilitator knows a job of
    /// the validator's own, so of these only the status is kept.
    pub(super) fn report(
        &mut self,
        job: JobId,
        status: JobStatus,
        metadata: Option<&StatusMetadata>,
        now: Timestamp,
    ) {
        let (hindered, sequence) = (hinders(status), self.next_sequence());
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
                hindered.clone().into(),
            ],
        );
        self.script.add(
            "UPDATE jobs SET status = $1 WHERE job_id = $2 AND $3 NOT LIKE '%|' || status || '|%'",
            [status.as_str().into(), job.to_string().into(), hindered.into()],
        );
        self.reported = true;
    }

    /// Puts a status into the outbox that the job's own row has already.
    pub(super) fn tell(
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
