//! Values that this crate's tests share.

use muster_identity::{Keypair, sign_receipt};
use muster_protocol::receipt::{StartedReceipt, StartedTag};
use muster_protocol::wire::miner::{ExecutorTiming, InitialJobRequest, JobRequest, OptionsPreset};
use muster_protocol::{AttemptId, ExecutorClass, MinerKey, ReceiptPayload, Timestamp, ValidatorKey};

pub(crate) fn validator_pair() -> Keypair {
    Keypair::from_uri("//Validator").unwrap()
}

pub(crate) fn miner_pair() -> Keypair {
    Keypair::from_uri("//Miner").unwrap()
}

/// An offer of the development validator to the development miner.
pub(crate) fn offer(attempt: AttemptId) -> InitialJobRequest {
    let payload = StartedReceipt {
        job_uuid: attempt,
        miner_hotkey: MinerKey(miner_pair().hotkey()),
        validator_hotkey: ValidatorKey(validator_pair().hotkey()),
        timestamp: Timestamp::from_secs(1_767_225_600),
        receipt_type: StartedTag,
        executor_class: ExecutorClass::AlwaysOnTest,
        is_organic: true,
        ttl: 7,
    };
    let signature = sign_receipt(&validator_pair(), &ReceiptPayload::Started(payload.clone()));
    InitialJobRequest {
        job_uuid: attempt,
        executor_class: ExecutorClass::AlwaysOnTest,
        docker_image: Some("hello:latest".to_owned()),
        timeout_seconds: Some(300),
        volume: None,
        job_started_receipt_payload: payload,
        job_started_receipt_signature: signature,
        streaming_details: None,
        executor_timing: Some(ExecutorTiming {
            allowed_leeway: 5,
            download_time_limit: 5,
            execution_time_limit: 10,
            upload_time_limit: 5,
            streaming_start_time_limit: 5,
        }),
        muster: None,
    }
}

/// The job that follows it.
pub(crate) fn job(attempt: AttemptId) -> JobRequest {
    JobRequest {
        job_uuid: attempt,
        executor_class: ExecutorClass::AlwaysOnTest,
        docker_image: "hello:latest".to_owned(),
        raw_script: None,
        docker_run_options_preset: OptionsPreset::None,
        docker_run_cmd: vec!["echo".to_owned()],
        env: Default::default(),
        volume: None,
        output_upload: None,
        artifacts_dir: None,
        muster: None,
    }
}
