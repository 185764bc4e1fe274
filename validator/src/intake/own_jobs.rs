//! The validator's own jobs: sessions that its gateway, its grading or its checks order, run as jobs whose user is the
//! validator. An order that names the trusted miner becomes a job for the trusted miner.

use std::sync::Arc;

use indexmap::IndexMap;
use muster_gateway::backend::StreamingJobOrder;
use muster_identity::sign_job;
use muster_job_messages::outgoing::GRADING_NAMESPACE;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{
    BittensorSignature, JobNew, JobRequest, JobRequestTag, SignatureScope, UserSignature,
};
use muster_protocol::wire::miner::{GraderTerms, SealTerms, StreamingDetails};
use muster_protocol::{ExecutorClass, JobId, Signature, UserKey};
use muster_store::StoreError;

use crate::driver::JobDrivers;
use crate::state::ValidatorState;

/// The namespace of the jobs that run the gateway's sessions.
const GATEWAY_NAMESPACE: &str = "muster.gateway";
/// The namespace of the sessions on the trusted miner.
const CHECK_NAMESPACE: &str = "muster.check";
/// Seconds for the inputs and outputs of a session, which has none.
const NO_DATA_SECS: u64 = 5;

/// Orders and cancels the validator's own jobs.
#[derive(Clone)]
pub(crate) struct OwnJobIntake {
    pub(super) state: Arc<ValidatorState>,
    pub(super) drivers: Arc<JobDrivers>,
}

impl OwnJobIntake {
    pub(crate) fn new(state: Arc<ValidatorState>, drivers: Arc<JobDrivers>) -> Self {
        Self { state, drivers }
    }

    /// Stores and starts the job of a session. The error is text for the log.
    pub(super) async fn order(&self, order: StreamingJobOrder) -> Result<(), String> {
        let state = &self.state;
        let request = session_job(state, &order);
        let now = state.clock.now();
        self.drivers
            .register_own(order.job, order.miner, order.news.clone());
        match state.store.admit_own(&request, &encode(&request), now).await {
            Ok(true) => {
                self.drivers.start(request, now, None);
                Ok(())
            }
            Ok(false) => Err("its job has an id that was used before".to_owned()),
            Err(error) => {
                let text = error.to_string();
                state.fail(error);
                Err(text)
            }
        }
    }

    /// Calls a session's job off, if it has not ended.
    pub(super) async fn cancel(&self, job: JobId, reason: &'static str) {
        match self.state.store.cancel(job, reason).await {
            Ok(true) => {
                if let Err(error) = self.drivers.cancel(job, reason).await {
                    self.state.fail(error);
                }
            }
            Ok(false) => {}
            Err(error) => self.state.fail(error),
        }
    }
}

/// Calls off the session jobs of an earlier process, before any job is resumed: only that process had the keys that
/// their endpoints let in.
pub(crate) async fn cancel_earlier_sessions(state: &ValidatorState) -> Result<(), StoreError> {
    for job in state.store.open_own_jobs().await? {
        state.store.cancel(job, "the gateway was started anew").await?;
    }
    Ok(())
}

/// The grader that challenges an executor of this class while it serves; `None` if the class is not graded.
fn grader_terms(state: &ValidatorState, class: ExecutorClass) -> Option<GraderTerms> {
    let service = state.config.grading.service(class)?;
    let terms = service.terms();
    Some(GraderTerms {
        image: service.image,
        docker_image: service.pull_by(),
        args: service.args,
        socket: terms.socket?,
        health: service.health,
    })
}

/// The job that runs a session, signed by the validator as its user.
fn session_job(state: &ValidatorState, order: &StreamingJobOrder) -> JobRequest {
    let service = &order.service;
    let on_trusted_miner = order
        .miner
        .is_some_and(|miner| state.config.trusted_miner.is(miner.0));
    let namespace = match order.miner {
        None => GATEWAY_NAMESPACE,
        Some(_) if on_trusted_miner => CHECK_NAMESPACE,
        Some(_) => GRADING_NAMESPACE,
    };
    let unsigned = UserSignature {
        signature_type: BittensorSignature,
        signatory: UserKey(state.keypair.hotkey()),
        timestamp_ns: 0,
        signature: Signature::from_bytes([0; 64]),
        signature_scope: SignatureScope::SignedFields,
    };
    let mut job = JobRequest {
        signature: unsigned,
        r#type: JobNew,
        message_type: JobRequestTag,
        uuid: order.job,
        job_namespace: Some(namespace.to_owned()),
        executor_class: service.class,
        docker_image: service.pull_by(),
        args: service.args.clone(),
        env: IndexMap::clone(&service.env),
        use_gpu: service.class.has_gpu(),
        volume: None,
        output_upload: None,
        artifacts_dir: None,
        on_trusted_miner,
        download_time_limit: NO_DATA_SECS,
        execution_time_limit: order.lifetime.as_secs(),
        upload_time_limit: NO_DATA_SECS,
        streaming_start_time_limit: order.start_limit.as_secs(),
        streaming_details: Some(StreamingDetails {
            public_key: order.certificate.clone(),
            executor_ip: None,
            muster: Some(SealTerms {
                grader: order
                    .miner
                    .is_none()
                    .then(|| grader_terms(state, service.class))
                    .flatten(),
                ..service.terms()
            }),
        }),
        muster: None,
    };
    let now_ns = state.clock.now().micros().saturating_mul(1_000);
    job.signature = sign_job(&state.keypair, &job.signed_fields(), now_ns);
    job
}
