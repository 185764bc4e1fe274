//! A validator's messages about one job. Everything here is pure but for the signatures
//! and the export of spans.
//!
//! * [`attempt_step`]: what an event changes in an attempt, what is stored of it, and what is sent afterwards.
//! * [`attempt_connection`]: how an attempt's steps depend on the ups and downs of the connection to its miner.
//! * [`incoming`]: the meaning of a miner's message for the attempt.
//! * [`job_trace`]: the stages of a job's way, of the validator and of those behind it.
//! * [`job_spans`]: these stages as spans, for a process that exports them.
//! * [`outgoing`]: the offer, the job, the cancellation and the receipts that a miner is sent, and [`IssuedReceipt`].
//! * [`hardware`]: an executor's hardware in a few words.
//! * [`pay`]: which ends of an attempt are paid, and how much.
//! * [`last_status`]: the report of a job's end, for its user and for the log.

pub mod attempt_connection;
pub mod attempt_step;
pub mod hardware;
pub mod incoming;
pub mod job_spans;
pub mod job_trace;
pub mod last_status;
pub mod outgoing;
pub mod pay;

pub use attempt_connection::AttemptConnection;
pub use attempt_step::{AttemptStep, MinerAbilities, StepMessage};
pub use job_trace::{JobTimes, attempt_stages, trace_job};
pub use outgoing::IssuedReceipt;

/// Values for the unit tests of this crate.
#[cfg(test)]
mod testing {
    use std::time::Duration;

    use muster_protocol::job::AttemptPlan;
    use muster_protocol::wire::facilitator::UserJobRequest;
    use muster_protocol::wire::miner::ExecutorTiming;
    use muster_protocol::{ExecutorClass, Hotkey, JobId, MinerKey, Signature};
    use serde_json::json;
    use uuid::Uuid;

    pub(crate) fn miner(seed: u8) -> MinerKey {
        MinerKey(Hotkey::from_bytes([seed; 32]))
    }

    pub(crate) fn job(seed: u128) -> JobId {
        JobId::from_uuid(Uuid::from_u128(seed))
    }

    /// An attempt's plan with times of a minute and more.
    pub(crate) fn plan() -> AttemptPlan {
        AttemptPlan {
            class: ExecutorClass::AlwaysOnTest,
            streaming: false,
            timing: ExecutorTiming {
                allowed_leeway: 30,
                download_time_limit: 30,
                execution_time_limit: 60,
                upload_time_limit: 30,
                streaming_start_time_limit: 0,
            },
            dial: Duration::from_secs(30),
            reservation: Duration::from_secs(30),
            startup: Duration::from_secs(60),
            reconnect: Duration::from_secs(60),
            image: None,
        }
    }

    /// A user's job that is within every limit; its signature is not checked by anything pure.
    pub(crate) fn request() -> UserJobRequest {
        let value = json!({
            "signature": {
                "signature_type": "bittensor", "signatory": Hotkey::from_bytes([7; 32]), "timestamp_ns": 1,
                "signature": Signature::from_bytes([1; 64]).to_base64(),
                "signature_scope": "SignedFields",
            },
            "type": "job.new", "message_type": "V2JobRequest", "uuid": "11111111-2222-4333-8444-555555555555",
            "executor_class": "always_on.test", "docker_image": "alpine:latest", "args": ["echo"], "env": {"A": "b"},
            "use_gpu": false, "on_trusted_miner": false, "download_time_limit": 1, "execution_time_limit": 1,
            "upload_time_limit": 1, "streaming_start_time_limit": 1,
        });
        serde_json::from_value(value).unwrap()
    }
}
