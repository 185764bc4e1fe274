//! The HTTP side: routes, and answers for everything that is not one.

pub(crate) mod body;
mod jobs;
pub(crate) mod login;
pub(crate) mod refusal;

use std::any::Any;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tower_http::catch_panic::CatchPanicLayer;

use self::refusal::Refusal;
use crate::door::Door;
use crate::{files, socket};

/// Every address that the facilitator answers.
pub(crate) fn router(door: Arc<Door>) -> Router {
    let signed = muster_files::http::router(Arc::clone(&door.files));
    Router::new()
        .route("/health", get(health))
        .route("/auth/nonce", get(login::nonce))
        .route("/auth/login", post(login::login))
        .route("/api/v1/job-docker/", post(jobs::create))
        .route("/api/v1/jobs/", get(jobs::list))
        .route("/api/v1/jobs/{uuid}/", get(jobs::show))
        .route("/ws/v0/", any(socket::upgrade))
        .merge(files::routes())
        .fallback(async || Refusal::not_found())
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(door)
        .merge(signed)
        .layer(CatchPanicLayer::custom(after_panic))
}

/// `GET /health`: whether the store answers, and how many validators are connected.
async fn health(State(door): State<Arc<Door>>) -> Result<Json<Value>, Refusal> {
    door.store.ping().await?;
    Ok(Json(json!({"status": "ok", "validators": door.hub.validators()})))
}

async fn method_not_allowed(method: Method) -> Refusal {
    Refusal::detail(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("Method \"{method}\" not allowed."),
    )
}

/// A defect of ours costs one request, not the connection.
fn after_panic(_: Box<dyn Any + Send>) -> Response {
    tracing::error!("a request's handler panicked");
    Refusal::detail(
        StatusCode::INTERNAL_SERVER_ERROR,
        "The facilitator has a defect; its operator finds it in the log.",
    )
    .into_response()
}
