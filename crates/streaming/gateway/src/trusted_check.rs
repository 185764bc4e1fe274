//! The operator's check of the trusted miner: it opens a session of a served model there, asks for its health
//! and closes it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use muster_process::SharedClock;
use muster_process::operator_token::OperatorToken;
use muster_session_pool::Service;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::miner_sessions::{MinerSessions, SessionTimes};

/// How long a session that is only looked at may last.
const LOOK: Duration = Duration::from_secs(120);

/// The parts of a validator that the check uses.
pub struct TrustedCheck {
    /// Sessions on the trusted miner; `None` if there is no such miner.
    pub sessions: Option<MinerSessions>,
    /// The whitelisted services.
    pub services: Vec<Service>,
    /// How long machine, image and engine may take to be there.
    pub start: Duration,
    /// The operator's token.
    pub operator: OperatorToken,
    /// The clock of the validator.
    pub clock: SharedClock,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckOrder {
    /// The model of `gateway.services` of which a session is opened.
    model: String,
}

impl TrustedCheck {
    /// The route of the check.
    pub fn routes<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        Router::new()
            .route("/v0/trusted-miner/checks", post(check))
            .with_state(Arc::new(self))
    }

    async fn run(&self, model: &str) -> Result<Value, String> {
        let sessions = self.sessions.as_ref();
        let sessions = sessions.ok_or("this validator keeps no trusted miner: set [trusted_miner]")?;
        let service = self.services.iter().find(|service| service.model == model);
        let service = service.ok_or_else(|| format!("no model {model:?} is in gateway.services"))?;
        let times = SessionTimes {
            start: self.start,
            lifetime: LOOK,
        };
        let began = self.clock.now();
        let mut session = sessions.open(service, times).await?;
        let up_s = self.clock.now().since(began).as_secs();
        let sealed = Arc::clone(session.sealed());
        tokio::select! {
            health = sealed.check_health() => health?,
            why = session.wait_for_end() => return Err(format!("its session ended: {why}")),
        }
        let found = json!({
            "miner": sealed.miner(), "job": sealed.job(), "session": sealed.id().to_string(),
            "address": sealed.address(), "up_s": up_s,
        });
        let (_, fault) = session.close().await;
        match fault {
            None => Ok(found),
            Some(fault) => Err(format!(
                "the session served, but did not close correctly: {fault}"
            )),
        }
    }
}

/// Opens a session and closes it; answers with the time that it took to come up. Only the operator may: it may
/// provision a machine.
async fn check(
    State(this): State<Arc<TrustedCheck>>,
    headers: HeaderMap,
    Json(order): Json<CheckOrder>,
) -> Response {
    let shown = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    if !this.operator.admits(shown) {
        let error =
            "this call needs the operator's token, which is in the file `operator_token` of the validator";
        return (StatusCode::UNAUTHORIZED, Json(json!({ "error": error }))).into_response();
    }
    match this.run(&order.model).await {
        Ok(found) => Json(found).into_response(),
        Err(error) => (StatusCode::CONFLICT, Json(json!({ "error": error }))).into_response(),
    }
}
