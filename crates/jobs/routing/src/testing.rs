//! Values for this crate's own tests.

use muster_protocol::Hotkey;
use muster_protocol::wire::facilitator::UserJobRequest;
use serde_json::json;

pub(crate) fn hotkey(seed: u8) -> Hotkey {
    Hotkey::from_bytes([seed; 32])
}

/// A user's job within every limit; no pure function checks its signature.
pub(crate) fn request() -> UserJobRequest {
    let value = json!({
        "signature": {
            "signature_type": "bittensor", "signatory": hotkey(7), "timestamp_ns": 1,
            "signature": muster_protocol::Signature::from_bytes([1; 64]).to_base64(),
            "signature_scope": "SignedFields",
        },
        "type": "job.new", "message_type": "V2JobRequest", "uuid": "11111111-2222-4333-8444-555555555555",
        "executor_class": "always_on.test", "docker_image": "alpine:latest", "args": ["echo"], "env": {"A": "b"},
        "use_gpu": false, "on_trusted_miner": false, "download_time_limit": 1, "execution_time_limit": 1,
        "upload_time_limit": 1, "streaming_start_time_limit": 1,
    });
    serde_json::from_value(value).unwrap()
}
