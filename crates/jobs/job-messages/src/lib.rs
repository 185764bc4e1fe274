//! A validator's messages about one job. Everything here is pure but for the signatures.
//!
//! * [`incoming`]: the meaning of a miner's message for the attempt.
//! * [`outgoing`]: the offer, the job, the cancellation and the receipts that a miner is sent, and [`IssuedReceipt`].
//! * [`hardware`]: an executor's hardware in a few words.
//! * [`report`]: the report of a job's end, for its user and for the log.

pub mod hardware;
pub mod incoming;
pub mod outgoing;
pub mod report;

pub use outgoing::IssuedReceipt;

/// Values for the unit tests of this crate.
#[cfg(test)]
mod testing {
    use muster_protocol::wire::facilitator::JobRequest;
    use muster_protocol::{Hotkey, JobId, MinerKey, Signature};
    use serde_json::json;
    use uuid::Uuid;

    pub(crate) fn miner(seed: u8) -> MinerKey {
        MinerKey(Hotkey::from_bytes([seed; 32]))
    }

    pub(crate) fn job(seed: u128) -> JobId {
        JobId::from_uuid(Uuid::from_u128(seed))
    }

    /// A user's job that is within every limit; its signature is not checked by anything pure.
    pub(crate) fn request() -> JobRequest {
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
