//! Grading as part of the validator: it is opened here, and its challenges run as jobs of the validator's own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_gateway::Gateway;
use muster_gateway::backend::StreamingJobOrder;
use muster_grading_runner::{Announcements, GradingBackend, GradingDeps, GradingRunner};
use muster_protocol::{JobId, ValidatorKey};
use muster_sealed_client::SealedSession;
use muster_store::StoreError;

use super::census::take_census;
use super::own_jobs::OwnJobIntake;

/// The validator as grading uses it: its own jobs, and the gateway's sessions if there is a gateway.
struct ValidatorGrading {
    jobs: OwnJobIntake,
    gateway: Option<Gateway>,
}

/// Starts grading: it waits for blocks that begin a batch, and for the operator's requests.
pub(crate) async fn open_grading(
    jobs: OwnJobIntake,
    gateway: Option<Gateway>,
) -> Result<GradingRunner, StoreError> {
    let state = Arc::clone(&jobs.state);
    let failing = Arc::clone(&state);
    let deps = GradingDeps {
        backend: Arc::new(ValidatorGrading { jobs, gateway }),
        pool: state.store.pool(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
        on_store_failure: Box::new(move |error| failing.fail(error)),
    };
    GradingRunner::open(state.config.grading.clone(), deps).await
}

impl GradingBackend for ValidatorGrading {
    fn validator_key(&self) -> ValidatorKey {
        self.jobs.state.key()
    }

    fn permits_address(&self, host: &str, address: SocketAddr) -> bool {
        self.jobs.state.rules.permit(host, address.ip(), address.port())
    }

    fn next_block(&self, block: u64) -> BoxFuture<'_, (u64, [u8; 32])> {
        Box::pin(self.jobs.state.subnet.wait_for_block_after(block))
    }

    fn collect_announcements(&self) -> BoxFuture<'_, Announcements> {
        Box::pin(take_census(&self.jobs.state, &self.jobs.drivers))
    }

    fn counting_stakes(&self) -> BTreeMap<ValidatorKey, u64> {
        self.jobs.state.stakes.lock().clone()
    }

    fn serving_sessions(&self) -> BoxFuture<'_, Vec<Arc<SealedSession>>> {
        Box::pin(async move {
            match &self.gateway {
                Some(gateway) => gateway.list_live_sessions().await,
                None => Vec::new(),
            }
        })
    }

    fn drain_session(&self, job: JobId) {
        if let Some(gateway) = &self.gateway {
            gateway.drain_session(job);
        }
    }

    fn begin_job(&self, order: StreamingJobOrder) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.jobs.order(order))
    }

    fn end_job(&self, job: JobId, why: &'static str) -> BoxFuture<'_, ()> {
        Box::pin(self.jobs.cancel(job, why))
    }
}
