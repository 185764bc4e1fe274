//! The exit code of a command that waited for a job: docker's, and 124 for a time limit as `timeout` has it.

use muster_protocol::job::Outcome;
use muster_protocol::rest::JobView;
use muster_protocol::{JobFailureReason, JobStatus};
use muster_terminal::failure::EXIT_NOT_THE_PROGRAMS;

/// The exit code of a command that Ctrl-C ended, as shells use it.
pub(super) const EXIT_INTERRUPTED: u8 = 130;
/// The exit code where the job's time limit ended its program.
const EXIT_TIME_LIMIT: u8 = 124;

/// The exit code of the job's program; 124 if its time limit ended it, and 125 if the job ended by anything else.
pub(super) fn exit_code(view: &JobView) -> u8 {
    if let Some(code) = program_exit_code(view) {
        return code;
    }
    match view.failure() {
        Some(Outcome::Failed(details)) if details.reason == JobFailureReason::Timeout => EXIT_TIME_LIMIT,
        Some(Outcome::Failed(_) | Outcome::Rejected(_) | Outcome::HordeFailed(_) | Outcome::Completed(_))
        | None => EXIT_NOT_THE_PROGRAMS,
    }
}

/// The exit code with which the job's program ended by itself; `None` where it did not.
pub(super) fn program_exit_code(view: &JobView) -> Option<u8> {
    if view.last_status() == JobStatus::Completed {
        return Some(0);
    }
    let Some(Outcome::Failed(details)) = view.failure() else {
        return None;
    };
    match details.reason {
        JobFailureReason::NonzeroReturnCode | JobFailureReason::Unknown => {
            let code = details.docker_process_exit_status?;
            u8::try_from(code).ok().filter(|code| *code != 0)
        }
        JobFailureReason::Timeout | JobFailureReason::DownloadFailed | JobFailureReason::UploadFailed => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::fixtures::ended;
    use super::*;

    #[test]
    fn programs_own_code_is_kept_and_every_other_end_has_a_code_of_its_own() {
        let failed = |reason: &str, code: Value| {
            json!({"job_failure_details": {"reason": reason, "stage": "execution", "message": "",
                "docker_process_exit_status": code}})
        };
        let subnet = json!({"horde_failure_details": {"reported_by": "executor", "reason": "generic_error", "message": ""}});
        let rejected =
            json!({"job_rejection_details": {"rejected_by": "validator", "reason": "busy", "message": ""}});
        for (status, metadata, code, own) in [
            ("completed", json!({}), 0, Some(0)),
            ("failed", failed("nonzero_return_code", json!(3)), 3, Some(3)),
            (
                "failed",
                failed("nonzero_return_code", json!(125)),
                125,
                Some(125),
            ),
            ("failed", failed("timeout", json!(137)), 124, None),
            ("failed", failed("timeout", Value::Null), 124, None),
            ("failed", failed("upload_failed", json!(0)), 125, None),
            ("failed", failed("download_failed", Value::Null), 125, None),
            ("failed", failed("unknown", Value::Null), 125, None),
            ("failed", failed("nonzero_return_code", json!(4_000)), 125, None),
            ("horde_failed", subnet, 125, None),
            ("rejected", rejected, 125, None),
            ("received", json!({}), 125, None),
        ] {
            let view = ended(status, &metadata);
            assert_eq!(
                (exit_code(&view), program_exit_code(&view)),
                (code, own),
                "{metadata}"
            );
        }
    }
}
