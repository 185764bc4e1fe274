//! The validator's own stages of a job, as spans.

use muster_protocol::job::Outcome;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{JobId, JobTrace, ParticipantType};
use muster_span_export::{SpanBatch, spans_of};

use crate::last_status::describe;

/// Begins a trace of a job whose facilitator knows none, if this process exports spans.
pub fn begin_trace(request: &mut UserJobRequest) {
    if muster_span_export::is_on() {
        request.begin_trace();
    }
}

/// Exports the validator's own stages of a job that has ended, if this process exports spans and the job has a trace.
pub fn export_trace(job: JobId, trace: Option<&JobTrace>, outcome: &Outcome) {
    let Some(trace) = trace else { return };
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
