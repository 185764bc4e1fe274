//! The operator's check of the trusted miner: it opens a session of a served model there, asks for its health
//! and closes it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use muster_gateway::trusted_sessions::SessionTimes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::status::{StatusSources, refuse_stranger};

/// How long a session that is only looked at may last.
const LOOK: Duration = Duration::from_secs(120);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckOrder {
    /// The model of `gateway.services` of which a session is opened.
    model: String,
}

/// The route of the operator's check.
pub(crate) fn routes() -> Router<StatusSources> {
    Router::new().route("/v0/trusted-miner/checks", post(check))
}

/// Opens a session and closes it; answers with the time that it took to come up. Only the operator may: it may
/// provision a machine.
async fn check(
    State(sources): State<StatusSources>,
    headers: HeaderMap,
    Json(order): Json<CheckOrder>,
) -> Response {
    if let Some(refused) = refuse_stranger(&sources, &headers) {
        return refused;
    }
    match run_check(&sources, &order.model).await {
        Ok(found) => Json(found).into_response(),
        Err(error) => (StatusCode::CONFLICT, Json(json!({ "error": error }))).into_response(),
    }
}

async fn run_check(sources: &StatusSources, model: &str) -> Result<Value, String> {
    let sessions = sources.trusted.as_ref();
    let sessions = sessions.ok_or("this validator keeps no trusted miner: set [trusted_miner]")?;
    let (gateway, clock) = (&sources.state.config.gateway, &sources.state.clock);
    let service = gateway.services.iter().find(|service| service.model == model);
    let service = service.ok_or_else(|| format!("no model {model:?} is in gateway.services"))?;
    let times = SessionTimes {
        start: Duration::from_secs(gateway.start_s),
        lifetime: LOOK,
    };
    let began = clock.now();
    let mut session = sessions.open(service, times).await?;
    let up_s = clock.now().since(began).as_secs();
    let sealed = Arc::clone(session.sealed());
    tokio::select! {
        health = sealed.check_health() => health?,
        why = session.wait_for_end() => return Err(format!("its session ended: {why}")),
    }
    let found = json!({
        "miner": sealed.miner(), "job": sealed.job(), "session": sealed.id().to_string(),
        "address": sealed.address(), "up_s": up_s,
    });
    match session.close().await.1 {
        None => Ok(found),
        Some(fault) => Err(format!(
            "the session served, but did not close correctly: {fault}"
        )),
    }
}
