//! The metrics of jobs, and the labels under which requests and ends of jobs are counted.

use muster_protocol::JobStatus;
use muster_protocol::job::{Fault, Outcome};
use muster_protocol::wire::facilitator::JobStatusUpdate;

/// Counts a job that was stored for the first time.
pub fn count_submitted() {
    metrics::counter!("muster_facilitator_jobs_submitted_total").increment(1);
}

/// Counts the end of a job that a validator has reported; other statuses count for nothing.
pub fn count_update(update: &JobStatusUpdate) {
    if update.status.is_terminal() {
        count_end(update.status, fault_of(update));
    }
}

/// Counts the end of a job.
pub fn count_end(status: JobStatus, fault: Fault) {
    let (outcome, fault) = (status.as_str(), fault.name());
    metrics::counter!("muster_facilitator_jobs_ended_total", "outcome" => outcome, "fault" => fault)
        .increment(1);
}

/// The part of the facilitator that answers a path.
pub fn surface_of(path: &str) -> &'static str {
    let is_below = |folder: &str| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    if is_below("/v1") {
        "models"
    } else if is_below("/ws") {
        "socket"
    } else if is_below("/files") && (path.ends_with("/upload") || path.ends_with("/content")) {
        "files"
    } else if is_below("/api") || is_below("/auth") || path == "/health" {
        "api"
    } else {
        "pages"
    }
}

/// `2xx` for 200, and so on.
pub const fn class_of(status: u16) -> &'static str {
    match status / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

/// The party at fault, from the details of a job's last status. An end without details is its validator's fault.
fn fault_of(update: &JobStatusUpdate) -> Fault {
    if update.status == JobStatus::Completed {
        return Fault::Nobody;
    }
    let outcome = update.metadata.as_ref().and_then(Outcome::failure_in);
    outcome.map_or(Fault::Validator, |outcome| outcome.fault())
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::facilitator::{HordeFailureDetails, StatusMetadata};
    use muster_protocol::{HordeFailureReason, ParticipantType};

    use super::*;

    #[test]
    fn a_path_belongs_to_the_part_that_answers_it() {
        for (path, surface) in [
            ("/v1/chat/completions", "models"),
            ("/v1", "pages"),
            ("/ws/v0/", "socket"),
            ("/files/abc/content", "files"),
            ("/files/abc/download", "pages"),
            ("/api/v1/jobs/", "api"),
            ("/auth/login", "api"),
            ("/health", "api"),
            ("/jobs", "pages"),
            ("/apiary", "pages"),
        ] {
            assert_eq!(surface_of(path), surface, "{path}");
        }
        assert_eq!(
            [101, 204, 304, 404, 503, 999].map(class_of),
            ["1xx", "2xx", "3xx", "4xx", "5xx", "5xx"]
        );
    }

    #[test]
    fn the_fault_of_an_end_is_in_its_details() {
        let end = |status, metadata| JobStatusUpdate {
            uuid: "11111111-2222-4333-8444-555555555555".parse().unwrap(),
            status,
            metadata,
        };
        assert_eq!(fault_of(&end(JobStatus::Completed, None)), Fault::Nobody);
        assert_eq!(fault_of(&end(JobStatus::Failed, None)), Fault::Validator);
        let details = HordeFailureDetails {
            reported_by: ParticipantType::Miner,
            reason: HordeFailureReason::ExecutorDisconnected,
            message: "gone".to_owned(),
            context: None,
        };
        let expected = Outcome::HordeFailed(details.clone()).fault();
        let metadata = StatusMetadata {
            horde_failure_details: Some(details),
            ..StatusMetadata::default()
        };
        assert_eq!(fault_of(&end(JobStatus::HordeFailed, Some(metadata))), expected);
        assert_ne!(expected, Fault::Validator);
    }
}
