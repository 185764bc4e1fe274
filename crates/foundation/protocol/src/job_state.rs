//! Where a job stands, in the words of every page and every command. Programs read a job's statuses instead, which are
//! the wire's.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::job::Outcome;
use crate::rest::JobView;
use crate::status::{JobStatus, ParticipantType};

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JobState {
    /// No miner has the job yet.
    Waiting,
    /// A miner has the job; its executor starts, and fetches the image and the inputs.
    Preparing,
    /// The program runs.
    Running,
    /// The program has ended, and its outputs are delivered.
    Delivering,
    /// The job succeeded.
    Done,
    /// The job failed, whosever fault it was.
    Failed,
    /// Its user stopped the job.
    Cancelled,
}

impl JobState {
    /// Every state, in the order in which a job reaches them.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Preparing,
        Self::Running,
        Self::Delivering,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The word for the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Preparing => "preparing",
            Self::Running => "running",
            Self::Delivering => "delivering",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for JobState {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.as_str())
    }
}

impl JobStatus {
    /// The state of a job with this status. Only the whole job shows whether it was cancelled.
    pub const fn state(self) -> JobState {
        match self {
            Self::Unknown | Self::Sent | Self::Received => JobState::Waiting,
            Self::Accepted | Self::ExecutorReady => JobState::Preparing,
            // The program starts as soon as its inputs are there.
            Self::VolumesReady | Self::StreamingReady => JobState::Running,
            Self::ExecutionDone => JobState::Delivering,
            Self::Completed => JobState::Done,
            Self::Rejected | Self::Failed | Self::HordeFailed => JobState::Failed,
        }
    }

    /// The words for the step that led to this status.
    pub const fn step(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Sent => "sent",
            Self::Received => "received",
            Self::Accepted => "accepted",
            Self::ExecutorReady => "executor ready",
            Self::StreamingReady => "streaming ready",
            Self::VolumesReady => "inputs ready",
            Self::ExecutionDone => "program ended",
            Self::Completed => "completed",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::HordeFailed => "subnet failed",
        }
    }
}

impl JobView {
    /// Where the job stands.
    pub fn state(&self) -> JobState {
        match self.last_status().state() {
            JobState::Failed if self.is_cancelled() => JobState::Cancelled,
            state @ (JobState::Waiting
            | JobState::Preparing
            | JobState::Running
            | JobState::Delivering
            | JobState::Done
            | JobState::Failed
            | JobState::Cancelled) => state,
        }
    }

    /// How the job failed, if it has.
    pub fn failure(&self) -> Option<Outcome> {
        Outcome::failure_in(self.status_history.last()?.metadata.as_ref()?)
    }

    /// Whether the job ended because its user cancelled it.
    fn is_cancelled(&self) -> bool {
        match self.failure() {
            // The facilitator ends a job so that no validator had taken.
            Some(Outcome::Rejected(details)) => {
                let context = details.context.as_ref();
                let cancelled = context.and_then(|context| context.get("cancelled")?.as_bool());
                details.rejected_by == ParticipantType::Facilitator && cancelled == Some(true)
            }
            Some(outcome @ (Outcome::Failed(_) | Outcome::HordeFailed(_) | Outcome::Completed(_))) => {
                outcome.is_cancellation()
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ended(status: &str, metadata: &Value) -> JobView {
        let key = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
        serde_json::from_value(json!({
            "uuid": "11111111-2222-4333-8444-555555555555", "executor_class": "always_on.test",
            "created_at": "2026-01-01T00:00:00Z", "last_update": "2026-01-01T00:00:00Z", "status": "", "docker_image": "a",
            "args": [], "env": {}, "use_gpu": false, "target_validator_hotkey": key, "download_time_limit": 1,
            "execution_time_limit": 1, "streaming_start_time_limit": 1, "upload_time_limit": 1,
            "status_history": [{"status": status, "metadata": metadata, "created_at": "2026-01-01T00:00:00Z"}],
        }))
        .unwrap()
    }

    #[test]
    fn states_go_forward_with_the_statuses_and_each_has_one_word() {
        let order = [
            JobStatus::Sent,
            JobStatus::Received,
            JobStatus::Accepted,
            JobStatus::ExecutorReady,
            JobStatus::VolumesReady,
            JobStatus::StreamingReady,
            JobStatus::ExecutionDone,
            JobStatus::Completed,
        ];
        assert!(order.map(JobStatus::state).is_sorted());
        let mut words = JobState::ALL.map(JobState::as_str).to_vec();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), JobState::ALL.len());
    }

    #[test]
    fn job_that_its_user_stopped_is_cancelled_and_every_other_end_is_a_failure() {
        let rejected = |context: Value, by: &str| json!({"job_rejection_details": {"rejected_by": by, "reason": "unknown", "message": "", "context": context}});
        let failed = |context: Value| json!({"job_failure_details": {"reason": "unknown", "stage": "execution", "message": "", "context": context}});
        let stopped = json!({"cancelled": true});
        for (status, metadata, state) in [
            ("failed", failed(stopped.clone()), JobState::Cancelled),
            ("failed", failed(Value::Null), JobState::Failed),
            (
                "rejected",
                rejected(stopped.clone(), "facilitator"),
                JobState::Cancelled,
            ),
            ("rejected", rejected(stopped, "miner"), JobState::Failed),
            ("rejected", rejected(Value::Null, "facilitator"), JobState::Failed),
            ("completed", json!({}), JobState::Done),
            ("received", json!({}), JobState::Waiting),
        ] {
            assert_eq!(ended(status, &metadata).state(), state, "{status} {metadata}");
        }
    }
}
