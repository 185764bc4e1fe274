//! Jobs as the operator sees them on the status page.

use muster_job_messages::last_status::{describe, fault_of};
use muster_protocol::job::{Fault, Outcome};
use muster_protocol::{AttemptId, JobId, JobStatus, MinerKey, Timestamp};
use muster_store::columns::{parse_column, read_column, time_column, time_column_option};
use serde::Serialize;
use serde_json::Value;

use super::attempts::StoredAttempt;
use super::{Result, Store, query_error};

/// A job as the operator sees it.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// The job's id.
    pub job: JobId,
    /// The status that was last sent to the user.
    pub status: JobStatus,
    /// How the job ended; `None` while it is open.
    pub outcome: Option<OutcomeView>,
    /// The party at fault for the outcome.
    pub fault: Option<Fault>,
    /// When the job was admitted.
    pub created_at: Timestamp,
    /// When the job ended for its user.
    pub closed_at: Option<Timestamp>,
    /// The job's attempts, oldest first.
    pub attempts: Vec<AttemptView>,
}

/// An outcome as the operator sees it, without the output of the user's program, which is private and large.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutcomeView {
    /// The status, the reason and the message in one line.
    pub summary: String,
    /// The context that the reporting party added, unless it is long.
    pub context: Option<Value>,
    /// Bytes of the program's standard output.
    pub stdout_bytes: usize,
    /// Bytes of the program's standard error.
    pub stderr_bytes: usize,
    /// Files returned with the result.
    pub artifacts: usize,
    /// Bytes of those files, in base64.
    pub artifacts_bytes: usize,
}

/// Characters of the summary and bytes of the context that are shown, at most.
const MAX_SHOWN: usize = 4_096;

impl From<&Outcome> for OutcomeView {
    fn from(outcome: &Outcome) -> Self {
        let mut view = Self {
            summary: describe(outcome).chars().take(MAX_SHOWN).collect(),
            context: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            artifacts: 0,
            artifacts_bytes: 0,
        };
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let context = match outcome {
            Outcome::Completed(response) => {
                view.stdout_bytes = response.docker_process_stdout.len();
                view.stderr_bytes = response.docker_process_stderr.len();
                let artifacts = response.artifacts.iter().flat_map(|artifacts| artifacts.values());
                for artifact in artifacts {
                    view.artifacts += 1;
                    view.artifacts_bytes += artifact.len();
                }
                &None
            }
            Outcome::Rejected(details) => &details.context,
            Outcome::Failed(details) => {
                view.stdout_bytes = length(&details.docker_process_stdout);
                view.stderr_bytes = length(&details.docker_process_stderr);
                &details.context
            }
            Outcome::HordeFailed(details) => &details.context,
        };
        view.context = context
            .clone()
            .filter(|context| context.to_string().len() <= MAX_SHOWN);
        view
    }
}

/// An attempt as the operator sees it.
#[derive(Clone, Debug, Serialize)]
pub struct AttemptView {
    /// The attempt's id on the wire.
    pub attempt: AttemptId,
    /// The miner that runs it.
    pub miner: MinerKey,
    /// The miner's uid when the attempt began.
    pub uid: u16,
    /// The name of the attempt's state.
    pub state: &'static str,
    /// When the attempt began.
    pub started_at: Timestamp,
}

impl Store {
    /// The newest jobs, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn jobs(&self, limit: u32) -> Result<Vec<JobView>> {
        let rows = sqlx::query(
            "SELECT job_id, status, created_at, closed_at FROM jobs ORDER BY created_at DESC, job_id LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list jobs"))?;
        let mut jobs = Vec::with_capacity(rows.len());
        for row in &rows {
            let job = parse_column(row, "job_id")?;
            let status: String = read_column(row, "status")?;
            // One at a time, since results are large.
            let outcome = self.outcome(job).await?;
            jobs.push(JobView {
                job,
                status: JobStatus::from_wire(&status),
                fault: outcome.as_ref().map(fault_of),
                outcome: outcome.as_ref().map(OutcomeView::from),
                created_at: time_column(row, "created_at")?,
                closed_at: time_column_option(row, "closed_at")?,
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
}
