//! The kind of executor that a job waits for.

use muster_job_queue::ExecutorLine;
use muster_protocol::wire::facilitator::UserJobRequest;

use super::miner_pool::line_of;

/// The kind of executor that a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExecutorNeed {
    pub(super) line: ExecutorLine,
    /// Whether the executor must take an image from an archive or with a login.
    pub(super) private_image: bool,
}

impl ExecutorNeed {
    /// The kind of executor for a job that everybody may read the image of.
    pub(super) fn of_line(line: ExecutorLine) -> Self {
        Self {
            line,
            private_image: false,
        }
    }

    /// The kind of executor that this job needs.
    pub(super) fn of_job(request: &UserJobRequest) -> Self {
        Self {
            line: line_of(request),
            private_image: request.has_private_image(),
        }
    }
}
