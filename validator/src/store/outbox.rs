//! Status updates on their way to the facilitator: durable, numbered, each until it is acknowledged.

use muster_protocol::wire::facilitator::StatusMetadata;
use muster_protocol::{JobId, JobStatus, Timestamp};
use tokio::sync::watch;

use super::{Result, Store, Write, column, failed, json_option, parsed, text_of, unsigned};

/// The statuses that carry a result.
const ENDED: [JobStatus; 4] = [
    JobStatus::Completed,
    JobStatus::Rejected,
    JobStatus::Failed,
    JobStatus::HordeFailed,
];

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

    /// The oldest update that is not acknowledged.
    ///
    /// # Errors
    /// The database's.
    pub async fn next_update(&self) -> Result<Option<Update>> {
        let row = sqlx::query(
            "SELECT sequence, job_id, status, metadata FROM outbox WHERE acknowledged_at IS NULL ORDER BY sequence LIMIT 1",
        )
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("read the outbox"))?;
        let Some(row) = row else { return Ok(None) };
        let status: String = column(&row, "status")?;
        Ok(Some(Update {
            sequence: column(&row, "sequence")?,
            job: parsed(&row, "job_id")?,
            status: JobStatus::from_wire(&status),
            metadata: json_option(&row, "metadata")?,
        }))
    }

    /// The facilitator has answered: with nothing but success, or with a refusal that is kept for people to read. What
    /// went with a job's end is not kept: it is made again from the outcome if it is asked for.
    ///
    /// # Errors
    /// The database's.
    pub async fn acknowledge(&self, sequence: i64, answer: Option<&str>, now: Timestamp) -> Result<()> {
        const OPERATION: &str = "acknowledge a status update";
        let mut write = self.write().await?;
        sqlx::query("UPDATE outbox SET acknowledged_at = $1, answer = $2 WHERE sequence = $3")
            .bind(now.micros())
            .bind(answer.map(str::to_owned))
            .bind(sequence)
            .execute(&mut *write.tx)
            .await
            .map_err(failed(OPERATION))?;
        for ended in ENDED {
            sqlx::query("UPDATE outbox SET metadata = NULL WHERE sequence = $1 AND status = $2")
                .bind(sequence)
                .bind(ended.as_str())
                .execute(&mut *write.tx)
                .await
                .map_err(failed(OPERATION))?;
        }
        write.commit(OPERATION).await
    }

    /// The facilitator hands over a job that is known: its last status is said again, unless it is on its way anyhow.
    /// `end` goes with it if the job has ended.
    ///
    /// # Errors
    /// The database's.
    pub async fn repeat(&self, job: JobId, end: Option<&StatusMetadata>) -> Result<()> {
        const OPERATION: &str = "repeat a status update";
        let mut write = self.write().await?;
        let row = sqlx::query("SELECT MAX(sequence) AS last FROM outbox WHERE job_id = $1")
            .bind(job.to_string())
            .fetch_one(&mut *write.tx)
            .await
            .map_err(failed(OPERATION))?;
        let last: Option<i64> = column(&row, "last")?;
        if let Some(last) = last {
            sqlx::query(
                "UPDATE outbox SET acknowledged_at = NULL, answer = NULL, metadata = COALESCE(metadata, CAST($1 AS TEXT)) \
                 WHERE sequence = $2",
            )
            .bind(end.map(text_of))
            .bind(last)
            .execute(&mut *write.tx)
            .await
            .map_err(failed(OPERATION))?;
            write.reported = true;
        }
        write.commit(OPERATION).await
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

impl Write<'_> {
    /// Puts a status into the outbox, unless it would take the job backwards in its user's eyes.
    pub(super) async fn report(
        &mut self,
        job: JobId,
        status: JobStatus,
        metadata: Option<&StatusMetadata>,
        now: Timestamp,
    ) -> Result<()> {
        const OPERATION: &str = "write a status update";
        let row = sqlx::query("SELECT status FROM jobs WHERE job_id = $1")
            .bind(job.to_string())
            .fetch_one(&mut *self.tx)
            .await
            .map_err(failed(OPERATION))?;
        let told: String = column(&row, "status")?;
        if !status.may_follow(JobStatus::from_wire(&told)) {
            return Ok(());
        }
        *self.sequence += 1;
        sqlx::query(
            "INSERT INTO outbox (sequence, job_id, status, metadata, created_at) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(*self.sequence)
        .bind(job.to_string())
        .bind(status.as_str())
        .bind(metadata.map(text_of))
        .bind(now.micros())
        .execute(&mut *self.tx)
        .await
        .map_err(failed(OPERATION))?;
        sqlx::query("UPDATE jobs SET status = $1 WHERE job_id = $2")
            .bind(status.as_str())
            .bind(job.to_string())
            .execute(&mut *self.tx)
            .await
            .map_err(failed(OPERATION))?;
        self.reported = true;
        Ok(())
    }
}
