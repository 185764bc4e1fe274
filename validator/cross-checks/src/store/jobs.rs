//! Users' jobs that have ended, and the sessions that jobs ran as.

use std::time::Duration;

use muster_protocol::job::Outcome;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{AttemptId, JobId, MinerKey, ReceiptKind, ReceiptPayload, Timestamp};
use muster_store::columns::{json_column, parse_column, read_column, time_column};
use muster_store::{During as _, json};
use sqlx::any::AnyRow;

use super::{CheckStore, PAGE, StoreResult};
use crate::outputs::JobOutputs;

/// How far back jobs are read again: longer than two commits are apart that take their times in another order.
const OVERLAP: Duration = Duration::from_secs(10);

/// A deterministic job that has ended.
#[derive(Clone, Debug)]
pub(crate) struct EndedJob {
    pub(crate) request: UserJobRequest,
    pub(crate) outputs: JobOutputs,
    pub(crate) miner: MinerKey,
    pub(crate) attempt: AttemptId,
    pub(crate) receipt: ReceiptPayload,
    /// The block in which the receipt was written; `None` before the chain had answered.
    pub(crate) block: Option<u64>,
    pub(crate) ended_at: Timestamp,
}

impl CheckStore {
    /// The deterministic jobs of users that have completed since, oldest first, and the time from which to read on.
    pub(crate) async fn ended_since(&self, since: Timestamp) -> StoreResult<(Vec<EndedJob>, Timestamp)> {
        let rows = sqlx::query(
            "SELECT j.request, j.outcome, j.closed_at, a.attempt_id, a.miner, r.payload, r.block FROM jobs j \
             JOIN attempts a ON a.job_id = j.job_id \
             JOIN receipts r ON r.attempt_id = a.attempt_id AND r.kind = $1 \
             WHERE j.own = 0 AND j.closed_at >= $2 AND j.request LIKE '%\"deterministic\"%' \
             AND NOT EXISTS (SELECT 1 FROM cross_checks c WHERE c.job_id = j.job_id) \
             AND a.ordinal = (SELECT MAX(b.ordinal) FROM attempts b WHERE b.job_id = j.job_id) \
             ORDER BY j.closed_at, j.job_id LIMIT $3",
        )
        .bind(ReceiptKind::Finished.as_str())
        .bind(since.micros())
        .bind(PAGE)
        .fetch_all(&self.pool)
        .await
        .during("list deterministic jobs that have ended")?;
        let next = match rows.last() {
            None => since,
            Some(row) => {
                let last = time_column(row, "closed_at")?;
                // Commits that share a moment may come out of their order; a full page must not be read for ever.
                let is_full = i64::try_from(rows.len()).unwrap_or(PAGE) >= PAGE;
                if is_full {
                    last
                } else {
                    last.minus(OVERLAP).max(since)
                }
            }
        };
        let mut ended = Vec::new();
        for row in &rows {
            ended.extend(read_ended(row)?);
        }
        Ok((ended, next))
    }

    /// A job of a user's that has completed; `None` if there is none with this id, or it has not completed.
    pub(crate) async fn ended_job(&self, job: JobId) -> StoreResult<Option<EndedJob>> {
        let row = sqlx::query(
            "SELECT j.request, j.outcome, j.closed_at, a.attempt_id, a.miner, r.payload, r.block FROM jobs j \
             JOIN attempts a ON a.job_id = j.job_id \
             JOIN receipts r ON r.attempt_id = a.attempt_id AND r.kind = $1 \
             WHERE j.own = 0 AND j.closed_at IS NOT NULL AND j.job_id = $2 \
             AND a.ordinal = (SELECT MAX(b.ordinal) FROM attempts b WHERE b.job_id = j.job_id)",
        )
        .bind(ReceiptKind::Finished.as_str())
        .bind(job.to_string())
        .fetch_optional(&self.pool)
        .await
        .during("read a job that has ended")?;
        row.map_or(Ok(None), |row| read_ended(&row))
    }

    /// Whether a session that ran as this job gave the answer with this proof, in text form, and the proof is valid.
    pub(crate) async fn has_answer(&self, job: JobId, proof: &str) -> StoreResult<bool> {
        let row = sqlx::query(
            "SELECT 1 AS one FROM responses r JOIN sessions s ON s.session_id = r.session_id \
             WHERE s.job_id = $1 AND r.proof = $2 AND r.sequence IS NOT NULL LIMIT 1",
        )
        .bind(job.to_string())
        .bind(proof.to_owned())
        .fetch_optional(&self.pool)
        .await
        .during("look for a reported answer")?;
        Ok(row.is_some())
    }

    /// The miner and the model of a session that ran as this job; `None` if none did.
    pub(crate) async fn session_of(&self, job: JobId) -> StoreResult<Option<(MinerKey, String)>> {
        let row =
            sqlx::query("SELECT miner, model FROM sessions WHERE job_id = $1 ORDER BY opened_at LIMIT 1")
                .bind(job.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("look for the session of a job")?;
        row.map(|row| Ok((parse_column(&row, "miner")?, read_column(&row, "model")?)))
            .transpose()
    }
}

/// A completed job in a row of jobs, attempts and receipts; `None` if the job has not completed, or is not one that can
/// be run again.
fn read_ended(row: &AnyRow) -> StoreResult<Option<EndedJob>> {
    let outcome: Option<String> = read_column(row, "outcome")?;
    let Some(outcome) = outcome else { return Ok(None) };
    let outcome: Outcome = json::decode("outcome", &outcome)?;
    let Outcome::Completed(response) = &outcome else {
        return Ok(None);
    };
    let request: UserJobRequest = json_column(row, "request")?;
    let block: i64 = read_column(row, "block")?;
    Ok(Some(EndedJob {
        outputs: JobOutputs::of(response),
        request,
        miner: parse_column(row, "miner")?,
        attempt: parse_column(row, "attempt_id")?,
        receipt: json_column(row, "payload")?,
        block: u64::try_from(block).ok(),
        ended_at: time_column(row, "closed_at")?,
    }))
}
