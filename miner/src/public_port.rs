//! The miner's one port: two websocket paths, receipt pages, version, health.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Extension, Path, Request, State};
use axum::http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Json, Response};
use axum::routing::get;
use muster_http::range::{ContentRange, RequestedRange, unsatisfied};
use muster_http::server::{
    self, ClientAddress, HttpSettings, IsEncrypted, Server, ServerTls, TowerToHyperService, with_peer,
};
use muster_process::Tasks;
use muster_process::error::Causes;
use muster_protocol::FeatureSet;
use muster_protocol::receipt::parse_page_name;
use muster_websocket::server::upgrade;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;

use crate::miner_state::MinerState;
use crate::receipt_pages::PageContent;
use crate::{executor_session, validator_session};

/// The state that handlers share.
#[derive(Clone)]
struct HttpState {
    context: Arc<MinerState>,
    tasks: Tasks,
    refuses_plain: bool,
}

/// The miner's port.
#[derive(Clone, Debug)]
pub struct MinerPort {
    /// The bounds of its connections.
    pub settings: HttpSettings,
    /// Its TLS, if it speaks it.
    pub tls: Option<ServerTls>,
    /// Whether validators, and executors of other machines, that come without TLS are refused.
    pub refuses_plain: bool,
}

/// Serves until `stop` is cancelled. Sessions that were upgraded live on as tasks of their own.
pub async fn serve(
    listener: TcpListener,
    port: MinerPort,
    context: Arc<MinerState>,
    tasks: Tasks,
    stop: CancellationToken,
) {
    let clock = Arc::clone(&context.clock);
    let state = HttpState {
        context,
        tasks: tasks.clone(),
        refuses_plain: port.refuses_plain,
    };
    let sockets = Router::new()
        .route("/v0.1/validator_interface/{validator}", get(validator))
        .route("/v0.1/executor_interface/{token}", get(executor))
        .route("/v0/reattach", get(returning_executor))
        .layer(middleware::from_fn_with_state(state.clone(), refuse_plain));
    // Public and signed pages may be read without TLS.
    let router = sockets
        .route("/receipts/{page}", get(receipts))
        .route("/version", get(version))
        .route("/health", get(health))
        .with_state(state);
    let service_for = with_peer(TowerToHyperService::new(router), ConnectInfo::<SocketAddr>);
    let server = Server::new("http", &port.settings, tasks, clock, stop).with_tls(port.tls);
    server::serve(server, listener, service_for).await;
}

/// Refuses websockets without TLS where the operator wants that. Executors on this machine may do without.
async fn refuse_plain(
    State(state): State<HttpState>,
    Extension(IsEncrypted(is_encrypted)): Extension<IsEncrypted>,
    Extension(ClientAddress(client)): Extension<ClientAddress>,
    request: Request,
    next: Next,
) -> Response {
    let is_here =
        client.to_canonical().is_loopback() && !request.uri().path().contains("validator_interface");
    if is_encrypted || is_here || !state.refuses_plain {
        return next.run(request).await;
    }
    let text =
        "this miner takes connections over TLS only (wss://); its certificate's digest is on the chain";
    (StatusCode::UPGRADE_REQUIRED, text).into_response()
}

async fn validator(
    State(state): State<HttpState>,
    Path(claimed): Path<String>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(client): Extension<ClientAddress>,
    request: Request,
) -> Response {
    let context = Arc::clone(&state.context);
    let limits = context.limits;
    let on_socket = move |socket| validator_session::serve(socket, claimed, context);
    upgrade(request, client.at_port_of(peer), &limits, &state.tasks, on_socket).map(Body::new)
}

async fn executor(
    State(state): State<HttpState>,
    Path(token): Path<String>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(client): Extension<ClientAddress>,
    request: Request,
) -> Response {
    let context = Arc::clone(&state.context);
    let limits = context.limits;
    let on_socket = move |socket| executor_session::serve(socket, token, context);
    upgrade(request, client.at_port_of(peer), &limits, &state.tasks, on_socket).map(Body::new)
}

async fn returning_executor(
    State(state): State<HttpState>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(client): Extension<ClientAddress>,
    request: Request,
) -> Response {
    let context = Arc::clone(&state.context);
    let limits = context.limits;
    let on_socket = move |socket| executor_session::serve_returning(socket, context);
    upgrade(request, client.at_port_of(peer), &limits, &state.tasks, on_socket).map(Body::new)
}

async fn receipts(State(state): State<HttpState>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(page) = parse_page_name(&name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let range = headers.get(RANGE).and_then(|range| range.to_str().ok());
    let PageContent { range, size, bytes } = match state.context.pages.open_range(page, range).await {
        Ok(Some(content)) => content,
        Ok(None) => return StatusCode::NOT_FOUND.into_response(),
        Err(error) => {
            tracing::error!(error = %Causes(&error), "a receipt page could not be served");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    let kind = [(CONTENT_TYPE, "application/jsonl"), (ACCEPT_RANGES, "bytes")];
    let length = [(CONTENT_LENGTH, bytes.limit())];
    let body = Body::from_stream(ReaderStream::new(bytes));
    match range {
        RequestedRange::Whole => (kind, length, body).into_response(),
        RequestedRange::Part { first, end } => {
            let range = ContentRange::of_part(first, end, size).to_string();
            (
                StatusCode::PARTIAL_CONTENT,
                kind,
                length,
                [(CONTENT_RANGE, range)],
                body,
            )
                .into_response()
        }
        RequestedRange::Unsatisfiable => (
            StatusCode::RANGE_NOT_SATISFIABLE,
            [(CONTENT_RANGE, unsatisfied(size))],
        )
            .into_response(),
    }
}

async fn version() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    Json(json!({"miner_version": version, "runner_version": version})).into_response()
}

async fn health(State(state): State<HttpState>) -> Response {
    let gauge = &state.context.gauge;
    let health = json!({
        "status": "ok",
        "features": FeatureSet::ours(),
        "draining": gauge.is_draining(),
        "open_leases": gauge.open(),
    });
    Json(health).into_response()
}
