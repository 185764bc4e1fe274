//! The report that goes to the user with the last status of a job.

use muster_job_messages::report::{EndedAttempt, describe, final_metadata};
use muster_job_messages::{IssuedReceipt, JobTimes, attempt_stages, trace_job};
use muster_protocol::job::Outcome;
use muster_protocol::wire::facilitator::StatusMetadata;
use muster_protocol::{JobId, JobTrace, ParticipantType};
use muster_span_export::{SpanBatch, spans_of};
use muster_store::StoreError;

use crate::store::{Store, StoredAttempt};

/// The metadata of a job's last status, with the miner's signatures that have come since it was first sent; `None` if
/// the job has not ended.
pub(crate) async fn read_final_metadata(
    store: &Store,
    job: JobId,
) -> Result<Option<StatusMetadata>, StoreError> {
    let Some((outcome, closed, ended)) = store.end_of(job).await? else {
        return Ok(None);
    };
    let receipts = match ended.attempts.last() {
        Some(last) => store.receipts_of(last.id).await?,
        None => Vec::new(),
    };
    let receipts = receipts.iter().filter_map(IssuedReceipt::complete).collect();
    let attempts = ended_attempts(&ended.attempts);
    let times = JobTimes {
        arrived: ended.created_at,
        closed,
    };
    let trace = trace_job(ended.request.traceparent(), times, &attempts);
    Ok(Some(final_metadata(&outcome, &attempts, receipts, Some(trace))))
}

/// Exports the validator's own stages of a job that has ended, if this process exports spans.
pub(super) fn export_trace(job: JobId, trace: &JobTrace, outcome: &Outcome) {
    muster_span_export::export(|| {
        let (role, above) = (ParticipantType::Validator, trace.traceparent.span);
        let job_name = job.to_string();
        let failed = !matches!(outcome, Outcome::Completed(_));
        SpanBatch {
            spans: spans_of(trace, role, job.as_uuid(), Some(above)),
            sampled: trace.traceparent.sampled,
            failed: failed.then(|| describe(outcome)),
            labels: vec![("muster.job", job_name)],
        }
    });
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
