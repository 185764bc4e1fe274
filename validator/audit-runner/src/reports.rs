//! Reports about adopted bundles for the operator: each is made once and remembered, because a replay and the
//! simulation of a calibration take seconds.

use std::collections::VecDeque;
use std::sync::Arc;

use muster_audit::{AuditReport, report_bundle};
use muster_process::error::Causes;
use muster_protocol::Digest;
use muster_store::StoreError;
use muster_validator_store::Store;
use tokio::sync::Mutex;

/// Reports that are remembered.
const MOST_REPORTS: usize = 16;

/// The reports that were made, the newest last. The lock is held while one is made, so that only one takes a processor.
#[derive(Debug, Default)]
pub(crate) struct AuditReports(Mutex<VecDeque<(Digest, Arc<AuditReport>)>>);

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoReport {
    /// No bundle with the digest was adopted.
    #[error("this validator has adopted no bundle with that digest")]
    NotAdopted,
    /// Adoption replays a bundle, so one that does not replay was adopted by a release with other rules.
    #[error("this release does not replay the bundle: {0}")]
    NotReplayed(String),
    /// The database fails.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AuditReports {
    /// The report about an adopted bundle.
    pub(crate) async fn report(&self, store: &Store, digest: Digest) -> Result<Arc<AuditReport>, NoReport> {
        let mut made = self.0.lock().await;
        if let Some((_, report)) = made.iter().find(|(of, _)| *of == digest) {
            return Ok(Arc::clone(report));
        }
        let text = store.audit_bundle(digest).await?.ok_or(NoReport::NotAdopted)?;
        let making = tokio::task::spawn_blocking(move || report_bundle(&text)).await;
        let report = match making {
            Ok(Ok(report)) => Arc::new(report),
            Ok(Err(error)) => return Err(NoReport::NotReplayed(Causes(&error).to_string())),
            Err(error) => return Err(NoReport::NotReplayed(error.to_string())),
        };
        made.push_back((digest, Arc::clone(&report)));
        if made.len() > MOST_REPORTS {
            made.pop_front();
        }
        Ok(report)
    }
}
