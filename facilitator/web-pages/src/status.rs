//! A job's status as a word and a shape. Colour only repeats what both show.

use maud::{Markup, html};
use muster_protocol::rest::JobView;
use muster_protocol::{JobState, JobStatus};

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

/// The status of a job: its state, with its place while it waits.
pub fn of_job(view: &JobView) -> ShownStatus {
    let state = view.state();
    let kind = match state {
        JobState::Waiting => StatusKind::Waiting,
        JobState::Preparing | JobState::Running | JobState::Delivering => StatusKind::Running,
        JobState::Done => StatusKind::Succeeded,
        JobState::Cancelled => StatusKind::Cancelled,
        JobState::Failed if view.last_status() == JobStatus::HordeFailed => StatusKind::SubnetFailed,
        JobState::Failed => StatusKind::Failed,
    };
    let place = view.queue.as_ref().filter(|_| state == JobState::Waiting);
    let word = match place {
        Some(place) => format!("{state}, {} of {}", place.position, place.waiting),
        None => state.to_string(),
    };
    ShownStatus { kind, word }
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
