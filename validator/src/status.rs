//! The validator's state over HTTP, read-only: for people, the demonstration and tests. Loopback unless configured.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use muster_gateway::View;
use muster_gateway::store::{Account, SessionRow};
use muster_process::Coded;
use muster_process::error::Causes;
use muster_process::store::StoreError;
use muster_protocol::wire::muster::GatewayNotice;
use muster_protocol::{JobId, MinerKey, Timestamp, ValidatorKey};
use muster_scoring::{Faulty, Score};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;

use crate::Error;
use crate::shared::{LinkState, Shared};
use crate::store::{CycleState, JobView, KeptRoute, ReceiptView, RefusedView, StoredCycle};

/// Entries of each list if the caller does not say.
const DEFAULT_LIMIT: u32 = 100;
/// Microseconds of a day.
const DAY_MICROS: i64 = 24 * 3_600 * 1_000_000;
/// Entries of each list at most.
const MAX_LIMIT: u32 = 1_000;

/// `GET /v0/state`.
#[derive(Debug, Serialize)]
struct StateView {
    validator: ValidatorKey,
    time: Timestamp,
    /// The newest finalised block seen; none before the chain has answered.
    block: Option<u64>,
    chain: LinkState,
    facilitator: LinkState,
    /// Status updates that the facilitator has not acknowledged.
    updates_waiting: u64,
    jobs: Vec<JobView>,
    /// Of those jobs and others; the attempt is the receipt's `job_uuid`.
    receipts: Vec<ReceiptView>,
    cycles: Vec<StoredCycle>,
    /// Receipts of all validators that miners' pages brought.
    gathered: u64,
    /// What was refused of those pages.
    refused: Vec<RefusedView>,
    /// Pieces of live output that went nowhere since the start.
    live_dropped: u64,
}

/// `GET /v0/jobs/{job}/route`.
#[derive(Debug, Serialize)]
struct RouteView {
    job: JobId,
    /// One entry an attempt, oldest first; the last may be of an attempt that nobody could be found for.
    routes: Vec<KeptRoute>,
}

/// `GET /v0/sessions`.
#[derive(Debug, Serialize)]
struct SessionsView {
    /// What facilitators are told.
    gateway: GatewayNotice,
    address: SocketAddr,
    time: Timestamp,
    models: Vec<View>,
    sessions: Vec<SessionRow>,
    /// Within the last day.
    earned: Vec<Account>,
    /// What came of it in the cycle that was scored last.
    scored: Option<ScoredView>,
}

/// What the answers of sessions were worth in a cycle.
#[derive(Debug, Serialize)]
struct ScoredView {
    cycle: u64,
    state: CycleState,
    /// Of those miners whose answers earned something.
    miners: Vec<Score>,
    /// Sessions with answers that pay nothing, and what is wrong with them.
    faults: Vec<Faulty>,
}

impl From<StoredCycle> for ScoredView {
    fn from(cycle: StoredCycle) -> Self {
        let miners = cycle.scores.scores.into_iter();
        Self {
            cycle: cycle.number,
            state: cycle.state,
            miners: miners.filter(|score| score.rao > 0).collect(),
            faults: cycle.scores.faults,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Of {
    miner: Option<MinerKey>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Limit {
    limit: Option<u32>,
}

/// Serves until the validator stops.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener) -> Result<(), Error> {
    let stop = shared.tasks.token();
    let router = Router::new()
        .route("/health", get(health))
        .route("/v0/state", get(state))
        .route("/v0/jobs/{job}/route", get(route))
        .route("/v0/sessions", get(sessions))
        .route("/v0/batches", get(batches).post(run_batch))
        .route("/v0/batches/{batch}", get(batch))
        .route("/v0/grades/{miner}", get(grades))
        .with_state(shared);
    axum::serve(listener, router)
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .await
        .map_err(Error::Serve)
}

/// 200 while this process can do its work; how its links stand is told beside it.
async fn health(State(shared): State<Arc<Shared>>) -> Json<serde_json::Value> {
    let facilitator = shared.link.borrow().clone();
    let chain = shared.outlook.state();
    Json(json!({ "status": "ok", "facilitator": facilitator, "chain": chain }))
}

async fn state(
    State(shared): State<Arc<Shared>>,
    Query(Limit { limit }): Query<Limit>,
) -> Result<Json<StateView>, Unreadable> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let facilitator = shared.link.borrow().clone();
    Ok(Json(StateView {
        validator: shared.me(),
        time: shared.clock.now(),
        block: shared.outlook.head().map(|head| head.0),
        chain: shared.outlook.state(),
        facilitator,
        updates_waiting: shared.store.updates_waiting().await?,
        jobs: shared.store.jobs(limit).await?,
        receipts: shared.store.receipts(limit.saturating_mul(3)).await?,
        cycles: shared.store.cycles(limit).await?,
        gathered: shared.store.gathered_count().await?,
        refused: shared.store.refused_receipts(limit).await?,
        live_dropped: shared.live.dropped(),
    }))
}

/// The gateway: how each model stands, the newest sessions, and what miners have earned with them within a day.
async fn sessions(
    State(shared): State<Arc<Shared>>,
    Query(Limit { limit }): Query<Limit>,
) -> Result<Response, Unreadable> {
    let Some(gateway) = shared.gateway.get() else {
        let error = "this validator has no gateway: set gateway.bind in its configuration";
        return Ok((StatusCode::NOT_FOUND, Json(json!({ "error": error }))).into_response());
    };
    let limit = limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let now = shared.clock.now();
    let yesterday = Timestamp::from_micros(now.micros().saturating_sub(DAY_MICROS));
    Ok(Json(SessionsView {
        gateway: gateway.notice(),
        address: gateway.address(),
        time: now,
        models: gateway.look().await,
        sessions: gateway.book().sessions(limit).await?,
        earned: gateway.book().accounts(yesterday).await?,
        scored: shared.store.cycles(1).await?.pop().map(ScoredView::from),
    })
    .into_response())
}

/// Batches of known-answer proofs, the newest first.
async fn batches(
    State(shared): State<Arc<Shared>>,
    Query(Limit { limit }): Query<Limit>,
) -> Result<Response, Unreadable> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let Some(roll_call) = shared.roll_call.get() else {
        return Ok(unknown("grading has not begun yet"));
    };
    let batches = roll_call.book().batches(limit).await?;
    Ok(Json(json!({ "validator": shared.me(), "batches": batches })).into_response())
}

/// The operator wants a batch now. Answers when everybody in it is judged.
async fn run_batch(State(shared): State<Arc<Shared>>) -> Response {
    let Some(roll_call) = shared.roll_call.get() else {
        return unknown("grading has not begun yet");
    };
    match roll_call.run_now().await {
        Ok(batch) => Json(json!({ "batch": batch })).into_response(),
        Err(refused) => {
            let error = json!({ "error": refused.to_string() });
            (StatusCode::CONFLICT, Json(error)).into_response()
        }
    }
}

/// The evidence of a batch: all of it, or that about one miner's executors.
async fn batch(
    State(shared): State<Arc<Shared>>,
    Path(batch): Path<String>,
    Query(Of { miner }): Query<Of>,
) -> Result<Response, Unreadable> {
    let file = match shared.roll_call.get() {
        Some(roll_call) => roll_call.book().file(&batch, miner).await?,
        None => None,
    };
    Ok(match file {
        Some(file) => Json(file).into_response(),
        None => unknown("no batch of that id is over here"),
    })
}

/// What a miner's executors came to.
async fn grades(
    State(shared): State<Arc<Shared>>,
    Path(miner): Path<MinerKey>,
    Query(Limit { limit }): Query<Limit>,
) -> Result<Response, Unreadable> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let Some(roll_call) = shared.roll_call.get() else {
        return Ok(unknown("grading has not begun yet"));
    };
    let grades = roll_call.book().grades_of(miner, limit).await?;
    Ok(Json(json!({ "miner": miner, "grades": grades })).into_response())
}

fn unknown(error: &str) -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "error": error }))).into_response()
}

/// Why a job's attempts went where they went. 404 for a job that was never routed here, or so long ago that it is forgotten.
async fn route(State(shared): State<Arc<Shared>>, Path(job): Path<JobId>) -> Result<Response, Unreadable> {
    let routes = shared.store.routes_of(job).await?;
    if routes.is_empty() {
        let error = "this validator remembers no route of that job";
        return Ok((StatusCode::NOT_FOUND, Json(json!({ "error": error }))).into_response());
    }
    Ok(Json(RouteView { job, routes }).into_response())
}

/// The store cannot be read; the operator's log has the cause, the caller the code.
struct Unreadable(StoreError);

impl From<StoreError> for Unreadable {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Unreadable {
    fn into_response(self) -> Response {
        tracing::error!(error = %Causes(&self.0), "the state cannot be read");
        let code = self.0.code().map(|code| code.to_string());
        (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({ "error": "the store cannot be read", "code": code })),
        )
            .into_response()
    }
}
