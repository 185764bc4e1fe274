//! The report that goes to the user with the last status of a job.

use muster_job_messages::last_status::{EndedAttempt, final_metadata};
use muster_job_messages::{IssuedReceipt, JobTimes, attempt_stages, trace_job};
use muster_protocol::JobId;
use muster_protocol::wire::facilitator::StatusMetadata;
use muster_store::StoreError;

use crate::{Store, StoredAttempt};

/// The attempts of a job that are reported to its user, at most: a job that waits may be declined as busy many times.
const MAX_ATTEMPTS_TOLD: usize = 16;

impl Store {
    /// The metadata of a job's last status, with the miner's signatures that have come since it was first sent; `None`
    /// if the job has not ended.
    ///
    /// # Errors
    /// The database fails.
    pub async fn final_metadata(&self, job: JobId) -> Result<Option<StatusMetadata>, StoreError> {
        let Some((outcome, closed, ended)) = self.end_of(job).await? else {
            return Ok(None);
        };
        let receipts = match ended.attempts.last() {
            Some(last) => self.receipts_of(last.id).await?,
            None => Vec::new(),
        };
        let receipts = receipts.iter().filter_map(IssuedReceipt::complete).collect();
        let attempts = ended_attempts(&ended.attempts);
        let times = JobTimes {
            arrived: ended.created_at,
            closed,
        };
        let context = ended.request.traceparent();
        let trace = context.map(|context| trace_job(context, times, &attempts));
        let decisions = self.told_routes(job).await?;
        let metadata = final_metadata(&outcome, &attempts, receipts, trace, decisions);
        Ok(Some(metadata))
    }
}

/// The last of the attempts that have ended, as they are reported to the user, oldest first.
pub fn ended_attempts(attempts: &[StoredAttempt]) -> Vec<EndedAttempt> {
    let ended = |attempt: &StoredAttempt| {
        Some(EndedAttempt {
            ordinal: attempt.ordinal,
            attempt: attempt.id,
            miner: attempt.miner,
            outcome: attempt.machine.outcome()?.clone(),
            stages: attempt_stages(&attempt.machine),
        })
    };
    let mut last: Vec<_> = attempts
        .iter()
        .rev()
        .filter_map(ended)
        .take(MAX_ATTEMPTS_TOLD)
        .collect();
    last.reverse();
    last
}
