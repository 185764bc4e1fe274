//! The report that goes to the user with the last status of a job.

use muster_job_messages::IssuedReceipt;
use muster_job_messages::report::{EndedAttempt, final_metadata};
use muster_protocol::JobId;
use muster_protocol::wire::facilitator::StatusMetadata;
use muster_store::StoreError;

use crate::store::{Store, StoredAttempt};

/// The metadata of a job's last status, with the miner's signatures that have come since it was first sent; `None` if
/// the job has not ended.
pub(crate) async fn read_final_metadata(
    store: &Store,
    job: JobId,
) -> Result<Option<StatusMetadata>, StoreError> {
    let Some((outcome, attempts)) = store.end_of(job).await? else {
        return Ok(None);
    };
    let receipts = match attempts.last() {
        Some(last) => store.receipts_of(last.id).await?,
        None => Vec::new(),
    };
    let receipts = receipts.iter().filter_map(IssuedReceipt::complete).collect();
    Ok(Some(final_metadata(
        &outcome,
        &ended_attempts(&attempts),
        receipts,
    )))
}

/// The attempts of a job that its user is told of, at most: a job that waits may be declined as busy many times.
const MAX_ATTEMPTS_TOLD: usize = 16;

/// The last of the attempts that have ended, as the user is told of them, oldest first.
pub(super) fn ended_attempts(attempts: &[StoredAttempt]) -> Vec<EndedAttempt> {
    let ended = |attempt: &StoredAttempt| {
        Some(EndedAttempt {
            attempt: attempt.id,
            miner: attempt.miner,
            outcome: attempt.machine.outcome()?.clone(),
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
