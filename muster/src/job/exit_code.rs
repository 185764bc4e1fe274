//! The exit code of a command that waited for a job.

use std::process::ExitCode;

use muster_protocol::JobStatus;
use muster_protocol::rest::JobView;

/// The exit code of a command that Ctrl-C ended, as shells use it.
pub(super) const EXIT_INTERRUPTED: u8 = 130;

/// The exit code of the job's program where there is one; else 0 for success and 1 for anything else.
pub(super) fn exit_code(view: &JobView) -> ExitCode {
    if view.last_status() == JobStatus::Completed {
        return ExitCode::SUCCESS;
    }
    let failure = view
        .status_history
        .last()
        .and_then(|entry| entry.metadata.as_ref()?.job_failure_details.as_ref());
    let code = failure.and_then(|details| details.docker_process_exit_status);
    code.and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code != 0)
        .map_or(ExitCode::FAILURE, ExitCode::from)
}
