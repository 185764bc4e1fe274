//! The validator as its gateway uses it: the gateway's sessions are jobs of the validator's own.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_gateway::backend::{StreamingJobOrder, ValidatorBackend};
use muster_protocol::{ExecutorClass, Hotkey, JobId, MinerKey, ValidatorKey};

use tokio::sync::watch;

use crate::OwnJobs;

/// How long a session that has closed by itself may take to end as a completed job, before it is called off.
const CLOSE_GRACE: Duration = Duration::from_secs(20);

impl ValidatorBackend for OwnJobs {
    fn validator(&self) -> ValidatorKey {
        ValidatorKey(self.deps.keypair.hotkey())
    }

    fn permits_address(&self, host: &str, address: SocketAddr) -> bool {
        self.deps.rules.permit(host, address.ip(), address.port())
    }

    fn owner_of(&self, miner: MinerKey) -> Hotkey {
        (self.deps.owner_of)(miner)
    }

    fn start_job(&self, order: StreamingJobOrder) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.begin(order))
    }

    fn room_changes(&self) -> watch::Receiver<()> {
        self.deps.registry.room_changes()
    }

    fn waiting_jobs(&self) -> watch::Receiver<BTreeSet<ExecutorClass>> {
        self.deps.registry.waiting_jobs()
    }

    fn end_job(&self, job: JobId, reason: &'static str, is_closed: bool) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if is_closed {
                let over = self.deps.registry.wait_for_end(job);
                let _ = tokio::time::timeout(CLOSE_GRACE, over).await;
            }
            self.end(job, reason).await;
        })
    }
}
