//! The gateway as part of the validator: it is opened here, and its sessions run as jobs of the validator's own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_gateway::backend::{StreamingJobOrder, ValidatorBackend};
use muster_gateway::miner_sessions::MinerSessions;
use muster_gateway::{Gateway, GatewayDeps};
use muster_protocol::{JobId, ValidatorKey};

use super::own_jobs::OwnJobIntake;
use crate::Error;

/// How long a session that has closed by itself may take to end as a completed job, before it is called off.
const CLOSE_GRACE: Duration = Duration::from_secs(20);

/// Opens the gateway; `None` if the configuration names no address for it.
pub(crate) async fn open_gateway(jobs: OwnJobIntake) -> Result<Option<Gateway>, Error> {
    let state = Arc::clone(&jobs.state);
    let Some(bind) = state.config.gateway.bind else {
        return Ok(None);
    };
    let failing = Arc::clone(&state);
    let parts = GatewayDeps {
        http: state.config.http.clone(),
        backend: Arc::new(jobs),
        pool: state.store.pool(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
        on_store_failure: Box::new(move |error| failing.fail(error)),
    };
    let gateway = Gateway::open(bind, state.config.gateway.clone(), parts).await?;
    Ok(Some(gateway))
}

/// Sessions on the trusted miner, for the validator's own checks; `None` if the configuration names no such miner.
pub(crate) fn trusted_sessions(jobs: &OwnJobIntake) -> Option<MinerSessions> {
    let state = &jobs.state;
    let own = state.config.trusted_miner.miner()?;
    Some(MinerSessions {
        backend: Arc::new(jobs.clone()),
        miner: own.miner,
        is_trusted: true,
        skew: state.config.gateway.skew(),
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
    })
}

impl ValidatorBackend for OwnJobIntake {
    fn validator(&self) -> ValidatorKey {
        self.state.key()
    }

    fn permits_address(&self, host: &str, address: SocketAddr) -> bool {
        self.state.rules.permit(host, address.ip(), address.port())
    }

    fn start_job(&self, order: StreamingJobOrder) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.order(order))
    }

    fn end_job(&self, job: JobId, why: &'static str, is_closed: bool) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if is_closed {
                let over = self.drivers.wait_for_own_end(job);
                let _ = tokio::time::timeout(CLOSE_GRACE, over).await;
            }
            self.cancel(job, why).await;
        })
    }
}
