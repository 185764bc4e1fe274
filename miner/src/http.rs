//! The miner's one port: two websocket paths, receipt pages, version, health.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::header::{ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Json, Response};
use axum::routing::get;
use axum::{Router, serve::ListenerExt as _};
use muster_process::Tasks;
use muster_process::error::Causes;
use muster_websocket::server::upgrade;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::pages::{Selection, parse_name, select};
use crate::state::MinerState;
use crate::{executor_session, validator_session};

/// The state that handlers share.
#[derive(Clone)]
struct HttpState {
    context: Arc<MinerState>,
    tasks: Tasks,
}

/// Serves until `stop` is cancelled. Sessions that were upgraded live on as tasks of their own.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: TcpListener,
    context: Arc<MinerState>,
    tasks: Tasks,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let door = HttpState { context, tasks };
    let router = Router::new()
        .route("/v0.1/validator_interface/{validator}", get(validator))
        .route("/v0.1/executor_interface/{token}", get(executor))
        .route("/receipts/{page}", get(receipts))
        .route("/version", get(version))
        .route("/health", get(health))
        .with_state(door);
    // Messages are small and each is waited for.
    let listener = listener.tap_io(|tcp| {
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "a connection is already gone");
        }
    });
    axum::serve(
        listener,
        router.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .with_graceful_shutdown(stop.cancelled_owned())
    .await
}

async fn validator(
    State(door): State<HttpState>,
    Path(claimed): Path<String>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let context = Arc::clone(&door.context);
    let limits = context.limits;
    let on_socket = move |socket| validator_session::serve(socket, claimed, context);
    upgrade(request, peer, &limits, &door.tasks, on_socket).map(Body::new)
}

async fn executor(
    State(door): State<HttpState>,
    Path(token): Path<String>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let context = Arc::clone(&door.context);
    let limits = context.limits;
    let on_socket = move |socket| executor_session::serve(socket, token, context);
    upgrade(request, peer, &limits, &door.tasks, on_socket).map(Body::new)
}

async fn receipts(State(door): State<HttpState>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(page) = parse_name(&name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let content = match door.context.pages.read(page).await {
        Ok(Some(content)) => content,
        Ok(None) => return StatusCode::NOT_FOUND.into_response(),
        Err(error) => {
            tracing::error!(error = %Causes(&error), "a receipt page could not be served");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    let kind = [(CONTENT_TYPE, "application/jsonl"), (ACCEPT_RANGES, "bytes")];
    let length = content.len();
    match select(headers.get(RANGE).and_then(|range| range.to_str().ok()), length) {
        Selection::Whole => (kind, content).into_response(),
        Selection::Part { first, last } => {
            let range = [(CONTENT_RANGE, format!("bytes {first}-{last}/{length}"))];
            let part = content.get(first..=last).unwrap_or_default().to_vec();
            (StatusCode::PARTIAL_CONTENT, kind, range, part).into_response()
        }
        Selection::Unsatisfiable => {
            let range = [(CONTENT_RANGE, format!("bytes */{length}"))];
            (StatusCode::RANGE_NOT_SATISFIABLE, range).into_response()
        }
    }
}

async fn version() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    Json(json!({"miner_version": version, "runner_version": version})).into_response()
}

async fn health() -> Response {
    Json(json!({"status": "ok"})).into_response()
}
