//! The router of the pages by which this validator shows its receipts, its statements of capacity with their evidence,
//! the statements that it has read of others, its scoring snapshots, and its bundles of audit evidence. They are
//! public: all of it is signed or content-addressed, and meant to be checked by others.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use muster_chain::Epoch;
use muster_http::range::{ContentRange, RequestedRange, unsatisfied};
use muster_http::server::{self, Server, TowerToHyperService};
use muster_process::error::Causes;
use muster_protocol::Digest;
use muster_protocol::receipt::parse_page_name;
use muster_scoring::capacity_statements::{SeenDigest, SeenList, SignedStatement};
use muster_store::StoreError;
use muster_verdict_exchange::{ExchangePages, page_routes};
use tokio::net::TcpListener;

use crate::snapshot_body::snapshot_body;
use crate::validator_state::ValidatorState;

/// Lines of a page in one answer; the next request asks for the rest.
const MAX_LINES: u32 = 4_000;

/// Serves the pages until the validator stops.
pub(crate) async fn serve(state: Arc<ValidatorState>, listener: TcpListener) -> Result<(), StoreError> {
    let (tasks, clock) = (state.tasks.clone(), Arc::clone(&state.clock));
    let settings = state.config.http.clone();
    let audits = ExchangePages {
        validator: state.key(),
        store: Arc::clone(&state.store),
    };
    let router = Router::new()
        .merge(page_routes(audits))
        .route("/receipts/{page}", get(receipts))
        .route("/capacity/{cycle}", get(statement))
        .route("/capacity-evidence/{digest}", get(evidence))
        .route("/capacity-seen/{cycle}", get(seen_statements))
        .route("/capacity-statements/{digest}", get(seen_statement))
        .route("/scoring-snapshots/{digest}", get(snapshot))
        .with_state(state);
    let service = TowerToHyperService::new(router);
    let stop = tasks.token();
    let server = Server::new("pages", &settings, tasks, clock, stop);
    server::serve(server, listener, move |_| service.clone()).await;
    Ok(())
}

async fn receipts(
    State(state): State<Arc<ValidatorState>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let Some(page) = parse_page_name(&name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let asked = headers.get(RANGE).and_then(|range| range.to_str().ok());
    // Readers ask for a page from some byte on. The end that they name is not needed: whole lines are answered.
    let from = match RequestedRange::parse(asked, u64::MAX) {
        RequestedRange::Whole | RequestedRange::Unsatisfiable => 0,
        RequestedRange::Part { first, .. } => first,
    };
    let part = match state.store.receipt_page(page, from, MAX_LINES).await {
        Ok(Some(part)) => part,
        Ok(None) => return StatusCode::NOT_FOUND.into_response(),
        Err(error) => return unreadable(&error),
    };
    let kind = [(CONTENT_TYPE, "application/jsonl"), (ACCEPT_RANGES, "bytes")];
    if part.lines.is_empty() {
        let range = [(CONTENT_RANGE, unsatisfied(part.size))];
        return (StatusCode::RANGE_NOT_SATISFIABLE, range).into_response();
    }
    let skipped = usize::try_from(from.saturating_sub(part.first)).unwrap_or(usize::MAX);
    let Some(lines) = part.lines.get(skipped..).map(str::to_owned) else {
        // The byte lies within a letter of a line: nobody who reads whole lines asks for it.
        return StatusCode::BAD_REQUEST.into_response();
    };
    let length = u64::try_from(lines.len()).unwrap_or(u64::MAX);
    if from == 0 && length == part.size {
        return (kind, lines).into_response();
    }
    let range = ContentRange::of_part(from, from.saturating_add(length), part.size).to_string();
    (StatusCode::PARTIAL_CONTENT, kind, [(CONTENT_RANGE, range)], lines).into_response()
}

async fn statement(State(state): State<Arc<ValidatorState>>, Path(cycle): Path<u64>) -> Response {
    let read = state.store.statement_of(state.key(), Epoch(cycle)).await;
    json_text(read)
}

async fn evidence(State(state): State<Arc<ValidatorState>>, Path(digest): Path<Digest>) -> Response {
    json_text(state.store.evidence(digest).await)
}

/// The statements for a cycle that this validator has read. 404 if it has read none.
async fn seen_statements(State(state): State<Arc<ValidatorState>>, Path(cycle): Path<u64>) -> Response {
    let listed = state.store.sightings_in(Epoch(cycle)).await.map(|sightings| {
        let digests = sightings.iter().filter_map(|seen| {
            let statement: SignedStatement = serde_json::from_str(&seen.body).ok()?;
            Some(SeenDigest::of(&statement))
        });
        let statements: Vec<_> = digests.collect();
        (!statements.is_empty()).then(|| SeenList { statements }.to_text())
    });
    json_text(listed)
}

async fn seen_statement(State(state): State<Arc<ValidatorState>>, Path(digest): Path<Digest>) -> Response {
    json_text(state.store.sighting(digest).await)
}

async fn snapshot(State(state): State<Arc<ValidatorState>>, Path(digest): Path<Digest>) -> Response {
    match snapshot_body(&state.store, digest).await {
        Ok(Some(body)) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => unreadable(&error),
    }
}

fn json_text(read: Result<Option<String>, StoreError>) -> Response {
    match read {
        Ok(Some(text)) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => unreadable(&error),
    }
}

fn unreadable(error: &StoreError) -> Response {
    tracing::error!(error = %Causes(error), "a page could not be read from the store");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}
