//! The call of the validator's status page about cross-checks. Everybody may read.

use std::collections::BTreeMap;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use muster_gateway::store::GatewayStore;
use muster_process::error::Causes;
use muster_store::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::CrossChecks;
use crate::coldkey_test::ColdkeyTestResult;
use crate::store::CheckView;

/// Entries of the list if the request names no `limit`, and at most.
const DEFAULT_LISTED: u32 = 100;
const MAX_LISTED: u32 = 1_000;

/// `GET /v0/audits/cross-checks`.
#[derive(Debug, Serialize)]
struct CrossChecksView {
    /// The share of completed deterministic jobs that runs again, in millionths.
    share_ppm: u32,
    /// The results of the validator's own deterministic jobs of the last thirty days, one of each coldkey.
    coldkeys: Vec<ColdkeyTestResult>,
    /// The newest checks, newest first.
    checks: Vec<CheckView>,
    /// The number of refunded answers by the bundle that convicts their miner.
    refunded_answers: BTreeMap<String, u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListLimit {
    limit: Option<u32>,
}

/// The route of the call.
pub fn routes<S: Clone + Send + Sync + 'static>(checks: CrossChecks) -> Router<S> {
    Router::new()
        .route("/v0/audits/cross-checks", get(list))
        .with_state(checks)
}

async fn list(State(checks): State<CrossChecks>, Query(ListLimit { limit }): Query<ListLimit>) -> Response {
    let limit = limit.unwrap_or(DEFAULT_LISTED).min(MAX_LISTED);
    match view(&checks, limit).await {
        Ok(view) => Json(view).into_response(),
        Err(error) => {
            tracing::error!(error = %Causes(&error), "a call about cross-checks cannot use the store");
            let words = json!({ "error": "the store does not answer" });
            (StatusCode::INTERNAL_SERVER_ERROR, Json(words)).into_response()
        }
    }
}

async fn view(checks: &CrossChecks, limit: u32) -> Result<CrossChecksView, StoreError> {
    let state = &checks.state;
    Ok(CrossChecksView {
        share_ppm: state.settings.share_ppm,
        coldkeys: state.test_results().await?,
        checks: state.store.list(limit).await?,
        refunded_answers: GatewayStore::new(state.store.pool.clone(), state.store.writer.clone())
            .count_refunds()
            .await?,
    })
}
