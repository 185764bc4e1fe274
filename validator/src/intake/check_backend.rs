//! Cross-checks as part of the validator: the jobs that run again are jobs of the validator's own on its own miner.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_audit_runner::AuditRunner;
use muster_cross_checks::{CheckBackend, CheckDeps, CrossChecks};
use muster_protocol::wire::facilitator::UserJobRequest;
use tokio::sync::mpsc;

use super::audit_backend;
use super::own_jobs::OwnJobIntake;

/// The cross-checks of a validator.
pub(crate) fn cross_checks(jobs: OwnJobIntake, audits: Option<AuditRunner>) -> CrossChecks {
    let state = Arc::clone(&jobs.state);
    let deps = CheckDeps {
        chain: audit_backend::backend(&state, None),
        audits,
        store: Arc::clone(&state.store),
        keypair: state.keypair.clone(),
        clock: Arc::clone(&state.clock),
        backend: match state.config.trusted_miner.miner() {
            Some(_) => Some(Arc::new(jobs)),
            None => None,
        },
    };
    CrossChecks::new(state.config.cross_checks.clone(), deps)
}

impl CheckBackend for OwnJobIntake {
    fn run_job(&self, job: UserJobRequest) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let id = job.uuid;
            // A job without a session has no news but its end.
            self.begin(job, None, mpsc::channel(1).0).await?;
            self.drivers.wait_for_own_end(id).await;
            Ok(())
        })
    }
}
