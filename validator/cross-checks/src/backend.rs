//! The services that cross-checks need from the validator.

use futures_util::future::BoxFuture;
use muster_protocol::wire::facilitator::UserJobRequest;

/// The validator, as cross-checks use it. Blocks and owners come from [`muster_audit_runner::AuditBackend`].
pub trait CheckBackend: Send + Sync + 'static {
    /// Runs a job of the validator's own, and returns once it is over. The error is text for the log.
    fn run_job(&self, job: UserJobRequest) -> BoxFuture<'_, Result<(), String>>;
}
