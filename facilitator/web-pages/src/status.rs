//! A job's status as a word and a shape. Colour only repeats what both show.

use maud::{Markup, html};
use muster_protocol::JobStatus;
use muster_protocol::job::Outcome;
use muster_protocol::rest::JobView;

/// The kind of a status, which has a shape and a colour of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusKind {
    /// The job waits: an empty circle.
    Waiting,
    /// The job is under way: a half circle.
    Running,
    /// The job succeeded: a tick.
    Succeeded,
    /// The job failed by its own fault: a cross.
    Failed,
    /// The subnet failed the job: a triangle.
    SubnetFailed,
    /// The user stopped the job: a square.
    Cancelled,
}

/// A status as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownStatus {
    /// The shape and the colour.
    pub kind: StatusKind,
    /// The word, with the place of a job that waits: `waiting, 3 of 12`.
    pub word: String,
}

// === impl StatusKind ===

impl StatusKind {
    /// The name of the kind in styles and in live updates.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::SubnetFailed => "subnet-failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The outline of the shape in a square of 12 units, as the path of an SVG.
    pub const fn outline(self) -> &'static str {
        match self {
            Self::Waiting => "M6 1a5 5 0 1 0 .01 0zM6 2.6a3.4 3.4 0 1 1-.01 0z",
            Self::Running => "M6 1a5 5 0 1 0 .01 0zM6 2.6v6.8a3.4 3.4 0 1 1 0-6.8z",
            Self::Succeeded => "M1.2 6.6 2.6 5.2 4.7 7.3 9.4 2.4 10.8 3.8 4.7 10.1z",
            Self::Failed => "M2.4 1 6 4.6 9.6 1 11 2.4 7.4 6 11 9.6 9.6 11 6 7.4 2.4 11 1 9.6 4.6 6 1 2.4z",
            Self::SubnetFailed => "M6 .8 11.6 11H.4zM5.2 4.6v3h1.6v-3zM5.2 8.3v1.5h1.6V8.3z",
            Self::Cancelled => "M2 2h8v8H2z",
        }
    }
}

/// The status of a job as its last entry states it.
pub fn of_job(view: &JobView) -> ShownStatus {
    let shown = |kind, word: &str| ShownStatus {
        kind,
        word: word.to_owned(),
    };
    let status = view.last_status();
    match status {
        JobStatus::Unknown | JobStatus::Sent | JobStatus::Received => match &view.queue {
            Some(place) => ShownStatus {
                kind: StatusKind::Waiting,
                word: format!("waiting, {} of {}", place.position, place.waiting),
            },
            None => shown(StatusKind::Waiting, word_of(status)),
        },
        // The program starts as soon as its inputs are there.
        JobStatus::VolumesReady => shown(StatusKind::Running, "running"),
        JobStatus::Accepted
        | JobStatus::ExecutorReady
        | JobStatus::StreamingReady
        | JobStatus::ExecutionDone => shown(StatusKind::Running, word_of(status)),
        JobStatus::Completed => shown(StatusKind::Succeeded, word_of(status)),
        JobStatus::Failed if is_cancelled(view) => shown(StatusKind::Cancelled, "cancelled"),
        JobStatus::Failed | JobStatus::Rejected => shown(StatusKind::Failed, word_of(status)),
        JobStatus::HordeFailed => shown(StatusKind::SubnetFailed, word_of(status)),
    }
}

/// The word of a status: the API's own, with spaces.
pub const fn word_of(status: JobStatus) -> &'static str {
    match status {
        JobStatus::Unknown => "unknown",
        JobStatus::Sent => "sent",
        JobStatus::Received => "received",
        JobStatus::Accepted => "accepted",
        JobStatus::ExecutorReady => "executor ready",
        JobStatus::StreamingReady => "streaming ready",
        JobStatus::VolumesReady => "inputs ready",
        JobStatus::ExecutionDone => "program ended",
        JobStatus::Completed => "completed",
        JobStatus::Rejected => "rejected",
        JobStatus::Failed => "failed",
        JobStatus::HordeFailed => "subnet failed",
    }
}

/// Whether the job's user cancelled it: a failure whose context states it.
fn is_cancelled(view: &JobView) -> bool {
    let Some(Outcome::Failed(details)) = failure_of(view) else {
        return false;
    };
    let context = details.context.as_ref();
    context.and_then(|context| context.get("cancelled")?.as_bool()) == Some(true)
}

/// The failure of an ended job, if it did not succeed.
pub fn failure_of(view: &JobView) -> Option<Outcome> {
    Outcome::failure_in(view.status_history.last()?.metadata.as_ref()?)
}

/// The shape of a kind. Screen readers read the word beside it.
pub fn shape(kind: StatusKind) -> Markup {
    html! {
        svg.shape viewBox="0 0 12 12" width="12" height="12" aria-hidden="true" focusable="false" {
            path fill-rule="evenodd" d=(kind.outline()) {}
        }
    }
}

/// A status with its shape. The script changes it in place.
pub fn badge(status: &ShownStatus) -> Markup {
    html! {
        span class=(format!("status {}", status.kind.as_str())) data-status {
            (shape(status.kind)) span data-word { (status.word) }
        }
    }
}
