//! What people, the demonstration and tests read of the store: jobs with their attempts and receipts, as JSON shows them.

use muster_protocol::job::{Fault, Outcome};
use muster_protocol::{AttemptId, JobId, JobStatus, MinerKey, ReceiptPayload, Signature, Timestamp};
use serde::Serialize;

use super::attempts::StoredAttempt;
use super::receipts::read as read_receipt;
use super::{Result, Store, column, failed, json_option, parsed, time, time_option};

/// A job as its operator sees it.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// Its id.
    pub job: JobId,
    /// What its user was told last.
    pub status: JobStatus,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Whose fault that was.
    pub fault: Option<Fault>,
    /// When it was handed over.
    pub created_at: Timestamp,
    /// When it ended for its user.
    pub closed_at: Option<Timestamp>,
    /// Its attempts, oldest first.
    pub attempts: Vec<AttemptView>,
}

/// An attempt as its operator sees it.
#[derive(Clone, Debug, Serialize)]
pub struct AttemptView {
    /// Its id on the wire.
    pub attempt: AttemptId,
    /// Who runs it.
    pub miner: MinerKey,
    /// The miner's uid at the time.
    pub uid: u16,
    /// How far it is.
    pub state: &'static str,
    /// When it began.
    pub started_at: Timestamp,
}

/// A receipt with the signatures that are there.
#[derive(Clone, Debug, Serialize)]
pub struct ReceiptView {
    /// What it says.
    pub payload: ReceiptPayload,
    /// Ours.
    pub validator_signature: Signature,
    /// The miner's, once it has come.
    pub miner_signature: Option<Signature>,
}

impl Store {
    /// The newest jobs, newest first.
    ///
    /// # Errors
    /// The database's.
    pub async fn jobs(&self, limit: u32) -> Result<Vec<JobView>> {
        let rows = sqlx::query(
            "SELECT job_id, status, outcome, created_at, closed_at FROM jobs ORDER BY created_at DESC, job_id LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(failed("list jobs"))?;
        let mut jobs = Vec::with_capacity(rows.len());
        for row in &rows {
            let job = parsed(row, "job_id")?;
            let status: String = column(row, "status")?;
            let outcome: Option<Outcome> = json_option(row, "outcome")?;
            jobs.push(JobView {
                job,
                status: JobStatus::from_wire(&status),
                fault: outcome.as_ref().map(Outcome::fault),
                outcome,
                created_at: time(row, "created_at")?,
                closed_at: time_option(row, "closed_at")?,
                attempts: self.attempt_views(job).await?,
            });
        }
        Ok(jobs)
    }

    async fn attempt_views(&self, job: JobId) -> Result<Vec<AttemptView>> {
        let attempts = self.attempts_of(job).await?;
        let view = |attempt: StoredAttempt| AttemptView {
            attempt: attempt.id,
            miner: attempt.miner,
            uid: attempt.uid.0,
            state: attempt.machine.state().name(),
            started_at: attempt.started_at,
        };
        Ok(attempts.into_iter().map(view).collect())
    }

    /// The newest receipts, newest first.
    ///
    /// # Errors
    /// The database's.
    pub async fn receipts(&self, limit: u32) -> Result<Vec<ReceiptView>> {
        let rows = sqlx::query(
            "SELECT payload, validator_signature, miner_signature FROM receipts \
             ORDER BY written_at DESC, attempt_id, kind LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(failed("read receipts"))?;
        let view = |row| {
            let receipt = read_receipt(row)?;
            Ok(ReceiptView {
                payload: receipt.offered.payload,
                validator_signature: receipt.offered.validator_signature,
                miner_signature: receipt.miner_signature,
            })
        };
        rows.iter().map(view).collect()
    }
}
