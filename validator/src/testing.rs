//! Values for the unit tests of the pure parts.

use std::net::SocketAddr;

use muster_chain::{BlockNumber, Metagraph, Netuid, Neuron, Uid};
use muster_protocol::receipt::{FinishedReceipt, FinishedTag};
use muster_protocol::wire::facilitator::JobRequest;
use muster_protocol::{AttemptId, Hotkey, JobId, MinerKey, Timestamp, ValidatorKey};
use serde_json::json;
use uuid::Uuid;

pub(crate) fn hotkey(seed: u8) -> Hotkey {
    Hotkey::from_bytes([seed; 32])
}

pub(crate) fn miner(seed: u8) -> MinerKey {
    MinerKey(hotkey(seed))
}

pub(crate) fn job(seed: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(seed))
}

pub(crate) fn neuron(seed: u8, axon: Option<SocketAddr>) -> Neuron {
    Neuron {
        uid: Uid(u16::from(seed)),
        hotkey: hotkey(seed),
        coldkey: hotkey(seed),
        axon,
        stake: 0,
        permit: false,
        active: true,
        registered: BlockNumber(0),
        last_update: BlockNumber(0),
        incentive: 0,
    }
}

pub(crate) fn metagraph(neurons: &[(u8, Option<SocketAddr>)]) -> Metagraph {
    Metagraph {
        block: BlockNumber(1),
        tempo: 10,
        last_epoch: BlockNumber(0),
        netuid: Netuid(1),
        neurons: neurons.iter().map(|(seed, axon)| neuron(*seed, *axon)).collect(),
    }
}

pub(crate) fn finished(attempt: u128, of: u8, score: &str) -> FinishedReceipt {
    FinishedReceipt {
        job_uuid: AttemptId::from_uuid(Uuid::from_u128(attempt)),
        miner_hotkey: miner(of),
        validator_hotkey: ValidatorKey(hotkey(255)),
        timestamp: Timestamp::from_secs(1_769_000_000),
        receipt_type: FinishedTag,
        time_started: Timestamp::from_secs(1_769_000_000),
        time_took_us: 1,
        score_str: score.to_owned(),
        block_numbers: vec![],
    }
}

/// A user's job that is within every limit; its signature is not checked by anything pure.
pub(crate) fn request() -> JobRequest {
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
