//! The validator's own jobs: sessions that its gateway, its grading or its checks order, run as jobs whose user is the
//! validator. An order that names the trusted miner becomes a job for the trusted miner.

use std::sync::Arc;

use muster_gateway::backend::{JobNews, StreamingJobOrder};
use muster_gateway::session_job::{SessionJobParts, sign_session_job};
use muster_job_messages::outgoing::GRADING_NAMESPACE;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::wire::miner::GraderTerms;
use muster_protocol::{ExecutorClass, JobId, MinerKey};
use muster_store::StoreError;
use tokio::sync::mpsc;

use crate::driver::JobDrivers;
use crate::state::ValidatorState;

/// The namespace of the jobs that run the gateway's sessions.
const GATEWAY_NAMESPACE: &str = "muster.gateway";
/// The namespace of the sessions on the trusted miner.
const CHECK_NAMESPACE: &str = "muster.check";

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
        let now = state.clock.now();
        let request = sign_session_job(&order, job_parts(state, &order), now);
        self.begin(request, order.miner, order.news).await
    }

    /// Stores and starts a signed job of the validator's own. Only `miner` may run it, if not `None`. The error is text
    /// for the log.
    pub(super) async fn begin(
        &self,
        request: UserJobRequest,
        miner: Option<MinerKey>,
        news: mpsc::Sender<JobNews>,
    ) -> Result<(), String> {
        let state = &self.state;
        let now = state.clock.now();
        self.drivers.register_own(request.uuid, miner, news);
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

/// The validator's part of the job that runs a session.
fn job_parts<'a>(state: &'a ValidatorState, order: &StreamingJobOrder) -> SessionJobParts<'a> {
    let own = state.config.trusted_miner;
    let on_trusted_miner = order.miner.is_some_and(|miner| own.is(miner.0));
    let (namespace, grader) = match order.miner {
        None => (GATEWAY_NAMESPACE, grader_terms(state, order.service.class)),
        Some(_) if on_trusted_miner => (CHECK_NAMESPACE, None),
        Some(_) => (GRADING_NAMESPACE, None),
    };
    SessionJobParts {
        keypair: &state.keypair,
        namespace,
        on_trusted_miner,
        grader,
    }
}
