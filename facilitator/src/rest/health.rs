//! `/health`: whether the facilitator works.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use muster_protocol::FeatureSet;
use serde_json::{Value, json};

use muster_facilitator_store::Store;

use crate::request_signer::RequestSigner;
use crate::rest::rejection::ApiRejection;
use crate::validator_sessions::ValidatorSessions;

/// The services behind the health check.
pub(crate) struct HealthService {
    pub(crate) store: Store,
    pub(crate) sessions: Arc<ValidatorSessions>,
    pub(crate) signer: Arc<RequestSigner>,
}

/// Checks the store, and returns the number of connected validators, the hotkey that signs for accounts without one,
/// and the features that this facilitator knows.
#[utoipa::path(get, path = "/health", tag = "about", responses((status = 200, body = Value), ApiRejection))]
pub(super) async fn health(State(service): State<Arc<HealthService>>) -> Result<Json<Value>, ApiRejection> {
    service.store.ping().await?;
    Ok(Json(json!({
        "status": "ok",
        "validators": service.sessions.validator_count(),
        "hotkey": service.signer.hotkey(),
        "features": FeatureSet::ours(),
    })))
}
