//! Jobs for tests.

use muster_protocol::rest::JobView;
use serde_json::{Value, json};

/// A job whose last status is `status`.
pub(super) fn ended(status: &str, metadata: &Value) -> JobView {
    let at = "2026-01-01T00:00:00Z";
    let view = json!({
        "uuid": "11111111-2222-4333-8444-555555555555", "executor_class": "always_on.test", "created_at": at,
        "last_update": at, "status": "", "docker_image": "alpine", "args": [], "env": {}, "use_gpu": false,
        "target_validator_hotkey": "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY", "download_time_limit": 1,
        "execution_time_limit": 1, "streaming_start_time_limit": 1, "upload_time_limit": 1,
        "status_history": [{"status": status, "metadata": metadata, "created_at": at}],
    });
    serde_json::from_value(view).unwrap()
}
