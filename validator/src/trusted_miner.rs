//! The operator's check of the trusted miner: it opens a session of a served model there, asks for its health
//! and closes it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::intake::trusted_sessions::{SessionTimes, TrustedSessions};
use crate::status::{StatusSources, refuse_stranger};

/// How long a session that is only looked at may last.
const LOOK: Duration = Duration::from_secs(120);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckOrder {
    /// The model of `gateway.services` of which a session is opened.
    model: String,
}

/// The call.
pub(crate) fn routes() -> Router<StatusSources> {
    Router::new().route("/v0/trusted-miner/checks", post(check))
}

/// Opens a session and closes it; answers with the time that it took to come up. Only the operator may: a machine may be
/// provisioned for it.
async fn check(
    State(sources): State<StatusSources>,
    headers: HeaderMap,
    Json(CheckOrder { model }): Json<CheckOrder>,
) -> Response {
    if let Some(refused) = refuse_stranger(&sources, &headers) {
        return refused;
    }
    match run_check(&sources, &model).await {
        Ok(found) => Json(found).into_response(),
        Err(error) => (StatusCode::CONFLICT, Json(json!({ "error": error }))).into_response(),
    }
}

async fn run_check(sources: &StatusSources, model: &str) -> Result<Value, String> {
    let sessions: &TrustedSessions = sources
        .trusted
        .as_ref()
        .ok_or("this validator keeps no trusted miner: set [trusted_miner] in its configuration")?;
    let state = &sources.state;
    let gateway = &state.config.gateway;
    let service = gateway.services.iter().find(|service| service.model == model);
    let service = service.ok_or_else(|| format!("no model {model:?} is in gateway.services"))?;
    let times = SessionTimes {
        start: Duration::from_secs(gateway.start_s),
        lifetime: LOOK,
    };
    let began = state.clock.now();
    let mut session = sessions.open(service, times).await?;
    let up_s = state.clock.now().since(began).as_secs();
    let sealed = Arc::clone(session.sealed());
    tokio::select! {
        health = sealed.check_health() => health?,
        why = session.wait_for_end() => return Err(format!("its session ended: {why}")),
    }
    let found = json!({
        "model": model,
        "miner": sealed.miner(),
        "job": sealed.job(),
        "session": sealed.id().to_string(),
        "address": sealed.address(),
        "up_s": up_s,
    });
    match session.close().await {
        None => Ok(found),
        Some(fault) => Err(format!(
            "the session served, but did not close correctly: {fault}"
        )),
    }
}
