//! Reports about adopted bundles for the operator: each is made once and remembered, because a replay and the
//! simulation of a calibration take seconds.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use muster_audit::{AuditReport, report_bundle};
use muster_process::error::Causes;
use muster_protocol::Digest;
use muster_store::StoreError;
use serde_json::json;
use tokio::sync::Mutex;

use crate::state::ValidatorState;
use crate::status::{StatusSources, StoreUnreadable, not_found};

/// Reports that are remembered.
const MOST_REPORTS: usize = 16;

/// The reports that were made, the newest last. The lock is held while one is made, so that only one takes a processor.
#[derive(Debug, Default)]
pub(crate) struct AuditReports(Mutex<VecDeque<(Digest, Arc<AuditReport>)>>);

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
enum NoReport {
    #[error("this validator has adopted no bundle with that digest")]
    NotAdopted,
    /// Adoption replays a bundle, so one that does not replay was adopted by a release with other rules.
    #[error("this release does not replay the bundle: {0}")]
    NotReplayed(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The call for the report of one bundle.
pub(crate) fn routes() -> Router<StatusSources> {
    Router::new().route("/v0/audits/{digest}/report", get(report))
}

async fn report(
    State(sources): State<StatusSources>,
    Path(digest): Path<Digest>,
) -> Result<Response, StoreUnreadable> {
    match sources.audit_reports.report(&sources.state, digest).await {
        Ok(report) => Ok(Json(&*report).into_response()),
        Err(NoReport::Store(error)) => Err(StoreUnreadable::from(error)),
        Err(error @ NoReport::NotAdopted) => Ok(not_found(&error.to_string())),
        Err(error @ NoReport::NotReplayed(_)) => {
            let body = json!({ "error": error.to_string() });
            Ok((StatusCode::CONFLICT, Json(body)).into_response())
        }
    }
}

impl AuditReports {
    async fn report(&self, state: &ValidatorState, digest: Digest) -> Result<Arc<AuditReport>, NoReport> {
        let mut made = self.0.lock().await;
        if let Some((_, report)) = made.iter().find(|(of, _)| *of == digest) {
            return Ok(Arc::clone(report));
        }
        let text = state
            .store
            .audit_bundle(digest)
            .await?
            .ok_or(NoReport::NotAdopted)?;
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
