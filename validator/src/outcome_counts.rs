//! The metrics of ends: attempts and jobs are counted when they end.

use std::time::Duration;

use muster_job_messages::last_status::fault_of;
use muster_protocol::job::Outcome;

/// Counts the end of an attempt that took `took`.
pub(crate) fn count_attempt(outcome: &Outcome, took: Duration) {
    let (ended, fault) = (outcome.status().as_str(), outcome.fault().name());
    metrics::counter!("muster_validator_attempts_ended_total", "outcome" => ended, "fault" => fault)
        .increment(1);
    metrics::histogram!("muster_validator_attempt_seconds", "outcome" => ended).record(took.as_secs_f64());
}

/// Counts the end of a job.
pub(crate) fn count_job(outcome: &Outcome) {
    let fault = fault_of(outcome).name();
    let ended = outcome.status().as_str();
    metrics::counter!("muster_validator_jobs_ended_total", "outcome" => ended, "fault" => fault).increment(1);
}
