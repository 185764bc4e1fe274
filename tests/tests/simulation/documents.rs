//! The documents that the simulated validator writes: receipts, offers, jobs.

use std::time::Duration;

use muster_protocol::job::{AttemptPlan, ImageClock};
use muster_protocol::receipt::{
    AcceptedReceipt, AcceptedTag, FinishedReceipt, FinishedTag, ReceiptPayload, StartedReceipt, StartedTag,
};
use muster_protocol::wire::facilitator::{
    BittensorSignature, JobNew, JobRequestTag, SignatureScope, UserJobRequest, UserSignature,
};
use muster_protocol::wire::miner::{
    AcceptedReceiptRequest, ExecutorTiming, FinishedReceiptRequest, InitialJobRequest, JobRequest,
    OptionsPreset,
};
use muster_protocol::wire::muster::OfferExtension;
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{AttemptId, Hotkey, JobId, ReceiptKind, UserKey};

use crate::miner::{CLASS, SIGNED, miner_key, validator_key};
use crate::validator::RECONNECT;
use crate::world::World;

impl World {
    pub(crate) fn receipt_payload(&self, id: AttemptId, kind: ReceiptKind, paid: bool) -> ReceiptPayload {
        let now = self.now;
        let (miner, began) = self
            .validator
            .attempt(id)
            .map(|tried| (tried.miner, tried.began))
            .unwrap_or((0, now));
        let (miner_hotkey, validator_hotkey) = (miner_key(miner), validator_key());
        match kind {
            ReceiptKind::Started => ReceiptPayload::Started(StartedReceipt {
                job_uuid: id,
                miner_hotkey,
                validator_hotkey,
                timestamp: now,
                receipt_type: StartedTag,
                executor_class: CLASS,
                is_organic: true,
                ttl: 30,
            }),
            ReceiptKind::Accepted => ReceiptPayload::Accepted(AcceptedReceipt {
                job_uuid: id,
                miner_hotkey,
                validator_hotkey,
                timestamp: now,
                receipt_type: AcceptedTag,
                time_accepted: now,
                ttl: 300,
            }),
            ReceiptKind::Finished => ReceiptPayload::Finished(FinishedReceipt {
                job_uuid: id,
                miner_hotkey,
                validator_hotkey,
                timestamp: now,
                receipt_type: FinishedTag,
                time_started: began,
                time_took_us: u64::try_from(now.since(began).as_micros()).unwrap_or(u64::MAX),
                score_str: if paid { "60.000000" } else { "0.000000" }.to_owned(),
                block_numbers: vec![],
            }),
        }
    }
}

/// The times of an attempt. Where executors come back to their leases, a job takes longer than the peers wait for one
/// another, and its stages leave room for lost connections.
pub(crate) fn plan(reattaches: bool) -> AttemptPlan {
    let (allowed_leeway, execution_time_limit) = if reattaches { (120, 600) } else { (30, 60) };
    AttemptPlan {
        class: CLASS,
        streaming: false,
        timing: ExecutorTiming {
            allowed_leeway,
            download_time_limit: 30,
            execution_time_limit,
            upload_time_limit: 30,
            streaming_start_time_limit: 0,
        },
        dial: Duration::from_secs(30),
        reservation: Duration::from_secs(30),
        startup: Duration::from_secs(60),
        reconnect: RECONNECT,
        image: Some(ImageClock {
            limit: Duration::from_secs(600),
            silence: Duration::from_secs(600),
        }),
    }
}

pub(crate) fn deliver(payload: &ReceiptPayload, reattaches: bool) -> Option<ValidatorToMiner> {
    Some(match payload {
        ReceiptPayload::Started(payload) => {
            ValidatorToMiner::V0InitialJobRequest(Box::new(InitialJobRequest {
                job_uuid: payload.job_uuid,
                executor_class: CLASS,
                docker_image: Some("hello:latest".to_owned()),
                timeout_seconds: None,
                volume: None,
                job_started_receipt_payload: payload.clone(),
                job_started_receipt_signature: SIGNED,
                streaming_details: None,
                executor_timing: Some(plan(reattaches).timing),
                muster: Some(Box::new(OfferExtension {
                    image_time_limit: Some(600),
                    account: Some("a user".to_owned()),
                    ..OfferExtension::default()
                })),
            }))
        }
        ReceiptPayload::Accepted(payload) => {
            ValidatorToMiner::V0JobAcceptedReceiptRequest(AcceptedReceiptRequest {
                payload: payload.clone(),
                signature: SIGNED,
            })
        }
        ReceiptPayload::Finished(payload) => {
            ValidatorToMiner::V0JobFinishedReceiptRequest(FinishedReceiptRequest {
                payload: payload.clone(),
                signature: SIGNED,
            })
        }
    })
}

pub(crate) fn job_request(attempt: AttemptId) -> JobRequest {
    JobRequest {
        job_uuid: attempt,
        executor_class: CLASS,
        docker_image: "hello:latest".to_owned(),
        raw_script: None,
        docker_run_options_preset: OptionsPreset::None,
        docker_run_cmd: vec![],
        env: Default::default(),
        volume: None,
        output_upload: None,
        artifacts_dir: None,
        muster: None,
    }
}

/// The user's request for a job. The validator's shell has checked the signature.
pub(crate) fn user_request(job: JobId) -> UserJobRequest {
    let timing = plan(false).timing;
    UserJobRequest {
        signature: UserSignature {
            signature_type: BittensorSignature,
            signatory: UserKey(Hotkey::from_bytes([9; 32])),
            timestamp_ns: 0,
            signature: SIGNED,
            signature_scope: SignatureScope::SignedFields,
        },
        r#type: JobNew,
        message_type: JobRequestTag,
        uuid: job,
        job_namespace: None,
        executor_class: CLASS,
        docker_image: "hello:latest".to_owned(),
        args: vec![],
        env: Default::default(),
        use_gpu: false,
        volume: None,
        output_upload: None,
        artifacts_dir: None,
        on_trusted_miner: false,
        download_time_limit: timing.download_time_limit,
        execution_time_limit: timing.execution_time_limit,
        upload_time_limit: timing.upload_time_limit,
        streaming_start_time_limit: timing.streaming_start_time_limit,
        streaming_details: None,
        muster: None,
    }
}
