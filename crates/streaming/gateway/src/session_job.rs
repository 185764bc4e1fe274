//! The job as which a session runs, signed by the validator as its user.

use indexmap::IndexMap;
use muster_identity::{Keypair, sign_job};
use muster_protocol::wire::facilitator::{
    BittensorSignature, JobNew, JobRequestTag, SignatureScope, UserJobRequest, UserSignature,
};
use muster_protocol::wire::miner::{GraderTerms, SealTerms, StreamingDetails};
use muster_protocol::{Signature, Timestamp, UserKey};

use crate::backend::StreamingJobOrder;

/// Seconds for the inputs and outputs of a session, which has none.
const NO_DATA_SECS: u64 = 5;

/// The validator's part of a session's job.
#[derive(Debug)]
pub struct SessionJobParts<'a> {
    /// The validator's key.
    pub keypair: &'a Keypair,
    /// The account to which the job counts.
    pub namespace: &'static str,
    /// Whether the trusted miner runs it.
    pub on_trusted_miner: bool,
    /// The grader beside the engine; `None` for a session that is not challenged.
    pub grader: Option<GraderTerms>,
}

/// Writes and signs the job of a session.
pub fn sign_session_job(
    order: &StreamingJobOrder,
    parts: SessionJobParts<'_>,
    now: Timestamp,
) -> UserJobRequest {
    let service = &order.service;
    let unsigned = UserSignature {
        signature_type: BittensorSignature,
        signatory: UserKey(parts.keypair.hotkey()),
        timestamp_ns: 0,
        signature: Signature::from_bytes([0; 64]),
        signature_scope: SignatureScope::SignedFields,
    };
    let mut job = UserJobRequest {
        signature: unsigned,
        r#type: JobNew,
        message_type: JobRequestTag,
        uuid: order.job,
        job_namespace: Some(parts.namespace.to_owned()),
        executor_class: service.class,
        docker_image: service.pull_by(),
        args: service.args.clone(),
        env: IndexMap::clone(&service.env),
        use_gpu: service.class.has_gpu(),
        volume: None,
        output_upload: None,
        artifacts_dir: None,
        on_trusted_miner: parts.on_trusted_miner,
        download_time_limit: NO_DATA_SECS,
        execution_time_limit: order.lifetime.as_secs(),
        upload_time_limit: NO_DATA_SECS,
        streaming_start_time_limit: order.start_limit.as_secs(),
        streaming_details: Some(StreamingDetails {
            public_key: order.certificate.clone(),
            executor_ip: None,
            muster: Some(SealTerms {
                grader: parts.grader,
                ..service.terms()
            }),
        }),
        muster: None,
    };
    let now_ns = now.micros().saturating_mul(1_000);
    job.signature = sign_job(parts.keypair, &job.signed_fields(), now_ns);
    job
}
