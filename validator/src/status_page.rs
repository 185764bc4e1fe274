//! The status page: the validator's state over HTTP for operators and tests, and the request to run a grading batch
//! now. Reading needs no password, and it listens on the loopback address unless configured otherwise; a request that
//! changes something needs the operator's token.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use muster_audit_runner::{AuditCalls, AuditRunner};
use muster_cross_checks::CrossChecks;
use muster_facilitator_link::live_output::LiveOutput;
use muster_gateway::miner_sessions::MinerSessions;
use muster_gateway::store::{MinerEarnings, SessionRow};
use muster_gateway::trusted_check::TrustedCheck;
use muster_gateway::{Gateway, ModelStatus};
use muster_grading_runner::GradingRunner;
use muster_http::server::{self, Server, TowerToHyperService};
use muster_process::Coded;
use muster_process::error::Causes;
use muster_process::operator_token::OperatorToken;
use muster_protocol::wire::muster::GatewayNotice;
use muster_protocol::{Digest, FeatureSet, JobId, JobIdPrefix, MinerKey, Timestamp, ValidatorKey};
use muster_scoring::ObservationKind;
use muster_store::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::LinkState;
use crate::collateral::{CollateralStatus, SlashRefusal, SlashRequest};
use crate::driver::JobDrivers;
use crate::leadership::{LEADER_PATH, LeaderView, process_name};
use crate::miner_reports::neurons::{SubnetView, view_subnet};
use crate::snapshot_body::snapshot_body;
use crate::store::{Contradiction, JobView, ReceiptView, RefusedView, RouteView, StoredCycle};
use crate::validator_state::ValidatorState;

/// Entries of each list if the request names no `limit`.
const DEFAULT_LIMIT: u32 = 100;
/// Microseconds of a day.
const DAY_MICROS: i64 = 24 * 3_600 * 1_000_000;
/// Entries of each list, at most.
const MAX_LIMIT: u32 = 1_000;
/// Jobs that an ambiguous beginning of an id lists, at most.
const MAX_CANDIDATES: u32 = 5;

/// `GET /v0/state`.
#[derive(Debug, Serialize)]
struct StateView {
    validator: ValidatorKey,
    time: Timestamp,
    /// The newest finalised block seen; `None` before the chain has answered.
    block: Option<u64>,
    chain: LinkState,
    facilitator: LinkState,
    collateral: CollateralStatus,
    /// Status updates that the facilitator has not acknowledged.
    updates_waiting: u64,
    jobs: Vec<JobView>,
    /// The newest receipts, of those jobs and of others. The attempt is the receipt's `job_uuid`.
    receipts: Vec<ReceiptView>,
    cycles: Vec<StoredCycle>,
    /// Receipts of all validators that were gathered from miners' pages.
    gathered: u64,
    /// Lines of those pages that were refused.
    refused: Vec<RefusedView>,
    /// The newest validators that contradicted themselves, with the digests of the two statements that show it.
    contradictions: Vec<Contradiction>,
    /// Pieces of live output that were dropped since the start.
    live_dropped: u64,
}

/// `GET /v0/jobs/{job}/route`.
#[derive(Debug, Serialize)]
struct RoutesView {
    job: JobId,
    /// One entry an attempt, oldest first. The last may be of an attempt for which no miner was found.
    routes: Vec<RouteView>,
}

/// `GET /v0/sessions`.
#[derive(Debug, Serialize)]
struct SessionsView {
    /// The gateway as it is reported to facilitators.
    gateway: GatewayNotice,
    address: SocketAddr,
    time: Timestamp,
    models: Vec<ModelStatus>,
    sessions: Vec<SessionRow>,
    /// The miners' earnings within the last day.
    earned: Vec<MinerEarnings>,
}

#[derive(Debug, Deserialize)]
struct BatchChoice {
    /// The kind of the batch to run; an announced one by default.
    #[serde(default = "announced")]
    kind: ObservationKind,
}

const fn announced() -> ObservationKind {
    ObservationKind::Announced
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MinerFilter {
    miner: Option<MinerKey>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListLimit {
    limit: Option<u32>,
}

/// The parts of the validator that the status page shows.
#[derive(Clone)]
pub(crate) struct StatusSources {
    pub(crate) state: Arc<ValidatorState>,
    /// The connection to the facilitator.
    pub(crate) link: watch::Receiver<LinkState>,
    pub(crate) live_output: Arc<LiveOutput>,
    pub(crate) gateway: Option<Gateway>,
    /// The spot checks of the gateway's answers.
    pub(crate) audits: Option<AuditRunner>,
    pub(crate) checks: CrossChecks,
    pub(crate) grading: GradingRunner,
    pub(crate) drivers: Arc<JobDrivers>,
    pub(crate) operator: OperatorToken,
    /// Sessions on the trusted miner, if it keeps one.
    pub(crate) trusted: Option<MinerSessions>,
}

/// Serves the status page until the validator stops.
pub(crate) async fn serve(sources: StatusSources, listener: TcpListener) {
    let (tasks, clock) = (sources.state.tasks.clone(), Arc::clone(&sources.state.clock));
    let settings = sources.state.config.http.clone();
    let service = TowerToHyperService::new(router(sources));
    let stop = tasks.token();
    let server = Server::new("status", &settings, tasks, clock, stop);
    server::serve(server, listener, move |_| service.clone()).await;
}

/// The calls of the status page.
pub(crate) fn router(sources: StatusSources) -> Router {
    let audits = AuditCalls {
        validator: sources.state.key(),
        subnet: Arc::clone(&sources.state.subnet),
        store: Arc::clone(&sources.state.store),
        runner: sources.audits.clone(),
        operator: sources.operator.clone(),
        clock: Arc::clone(&sources.state.clock),
        tasks: sources.state.tasks.clone(),
    };
    let trusted = TrustedCheck {
        sessions: sources.trusted.clone(),
        services: sources.state.config.gateway.services.clone(),
        start: Duration::from_secs(sources.state.config.gateway.start_s),
        operator: sources.operator.clone(),
        clock: Arc::clone(&sources.state.clock),
    };
    Router::new()
        .route("/health", get(health))
        .route(LEADER_PATH, get(leader))
        .route("/v0/state", get(state))
        .route("/v0/jobs/{job}/route", get(route))
        .route("/v0/queue", get(queue))
        .route("/v0/miners", get(miners))
        .route("/v0/collateral", get(list_collateral))
        .route("/v0/collateral/slashes", post(slash_miner))
        .route("/v0/sessions", get(sessions))
        .route("/v0/batches", get(batches).post(run_batch))
        .route("/v0/batches/{batch}", get(batch))
        .route("/v0/grades/{miner}", get(grades))
        .route("/v0/scoring-snapshots/{digest}", get(scoring_snapshot))
        .route("/v0/capacity-statements/{digest}", get(capacity_statement))
        .route("/v0/subnet", get(subnet))
        .merge(audits.routes())
        .merge(muster_cross_checks::routes(sources.checks.clone()))
        .merge(trusted.routes())
        .with_state(sources)
}

/// Answers 200 while the process works, with the state of its connections.
async fn health(State(sources): State<StatusSources>) -> Json<serde_json::Value> {
    let facilitator = sources.link.borrow().clone();
    let chain = sources.state.subnet.link_state();
    let features = FeatureSet::ours();
    Json(json!({ "status": "ok", "facilitator": facilitator, "chain": chain, "features": features }))
}

/// Answers 200: this process leads. One that stands by answers 503.
async fn leader() -> Json<LeaderView> {
    let process = process_name();
    Json(LeaderView {
        leads: true,
        leader: Some(process.clone()),
        process,
    })
}

async fn state(
    State(sources): State<StatusSources>,
    Query(ListLimit { limit }): Query<ListLimit>,
) -> Result<Json<StateView>, StoreUnreadable> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let facilitator = sources.link.borrow().clone();
    Ok(Json(StateView {
        validator: sources.state.key(),
        time: sources.state.clock.now(),
        block: sources.state.subnet.head().map(|head| head.0),
        chain: sources.state.subnet.link_state(),
        facilitator,
        collateral: sources.state.collateral.status(),
        updates_waiting: sources.state.store.updates_waiting().await?,
        jobs: sources.state.store.jobs(limit).await?,
        receipts: sources.state.store.receipts(limit.saturating_mul(3)).await?,
        cycles: sources.state.store.cycles(limit).await?,
        gathered: sources.state.store.gathered_count().await?,
        refused: sources.state.store.refused_receipts(limit).await?,
        contradictions: sources.state.store.contradictions(limit).await?,
        live_dropped: sources.live_output.dropped(),
    }))
}

/// The queue: its line for each class, and the jobs that wait, in the order in which they start.
async fn queue(
    State(sources): State<StatusSources>,
    Query(ListLimit { limit }): Query<ListLimit>,
) -> Response {
    let limit = limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let view = sources
        .drivers
        .queue
        .view(usize::try_from(limit).unwrap_or(usize::MAX));
    Json(view).into_response()
}

/// The miners: the facts that grading proved, and beside them what each miner claims of its machines.
async fn miners(State(sources): State<StatusSources>) -> Result<Response, StoreUnreadable> {
    let miners = sources.drivers.list_miners(sources.grading.store()).await?;
    let (validator, time) = (sources.state.key(), sources.state.clock.now());
    Ok(Json(json!({ "validator": validator, "time": time, "miners": miners })).into_response())
}

/// Every neuron of the subnet: the weight that this validator last decided on, the one that the chain shows, and how
/// its attempts went lately.
async fn subnet(State(sources): State<StatusSources>) -> Result<Json<SubnetView>, StoreUnreadable> {
    let state = &sources.state;
    let Some(metagraph) = state.subnet.last_metagraph() else {
        return Ok(Json(SubnetView::default()));
    };
    let cycles = state.store.cycles(1).await?;
    let decided = cycles
        .first()
        .map(|cycle| cycle.weights.as_slice())
        .unwrap_or_default();
    // A chain that does not answer leaves its columns empty.
    let chain = state.subnet.chain();
    let (shown, stated) = tokio::join!(chain.read_weights(), chain.manifests());
    let shown = shown.map(|shown| shown.weights).unwrap_or_default();
    let miners = metagraph.neurons.iter().map(|neuron| MinerKey(neuron.hotkey));
    let stats = sources
        .drivers
        .records
        .ledger()
        .stats(miners, &BTreeSet::new(), state.clock.now());
    let (own, stated) = (state.keypair.hotkey(), stated.unwrap_or_default());
    let view = view_subnet(&metagraph, own, &stats, decided, &shown, &stated);
    Ok(Json(view))
}

/// The gateway: the state of each model, the newest sessions, and what miners have earned with them within a day.
async fn sessions(
    State(sources): State<StatusSources>,
    Query(ListLimit { limit }): Query<ListLimit>,
) -> Result<Response, StoreUnreadable> {
    let Some(gateway) = &sources.gateway else {
        let error = "this validator has no gateway: set gateway.bind in its configuration";
        return Ok((StatusCode::NOT_FOUND, Json(json!({ "error": error }))).into_response());
    };
    let limit = limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let now = sources.state.clock.now();
    let yesterday = Timestamp::from_micros(now.micros().saturating_sub(DAY_MICROS));
    Ok(Json(SessionsView {
        gateway: gateway.notice(),
        address: gateway.address(),
        time: now,
        models: gateway.list_models().await,
        sessions: gateway.store().list_sessions(limit).await?,
        earned: gateway.store().sum_earnings(yesterday).await?,
    })
    .into_response())
}

/// Batches of known-answer proofs, the newest first.
async fn batches(
    State(sources): State<StatusSources>,
    Query(ListLimit { limit }): Query<ListLimit>,
) -> Result<Response, StoreUnreadable> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let batches = sources.grading.store().batches(limit).await?;
    Ok(Json(json!({ "validator": sources.state.key(), "batches": batches })).into_response())
}

/// The miners' collateral and the newest slashes.
async fn list_collateral(State(sources): State<StatusSources>) -> Result<Response, StoreUnreadable> {
    let state = &sources.state;
    let metagraph = state.subnet.last_metagraph();
    let page = state.collateral.page(state.key(), metagraph.as_deref()).await?;
    Ok(Json(page).into_response())
}

/// Slashes a miner, or reports the effect of that. Only the operator may.
async fn slash_miner(
    State(sources): State<StatusSources>,
    headers: HeaderMap,
    Json(request): Json<SlashRequest>,
) -> Response {
    if let Some(refused) = refuse_stranger(&sources, &headers) {
        return refused;
    }
    let metagraph = sources.state.subnet.last_metagraph();
    match sources
        .state
        .collateral
        .slash(&request, metagraph.as_deref())
        .await
    {
        Ok(answer) => Json(answer).into_response(),
        Err(SlashRefusal::Store(error)) => StoreUnreadable::from(error).into_response(),
        Err(refused) => {
            let error = json!({ "error": refused.to_string() });
            (StatusCode::CONFLICT, Json(error)).into_response()
        }
    }
}

/// The refusal of a caller without the operator's token; `None` for the operator.
fn refuse_stranger(sources: &StatusSources, headers: &HeaderMap) -> Option<Response> {
    let shown = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    if sources.operator.admits(shown) {
        return None;
    }
    let error =
        "this call needs the operator's token, which is in the file `operator_token` of the validator";
    Some((StatusCode::UNAUTHORIZED, Json(json!({ "error": error }))).into_response())
}

/// Runs a grading batch now; answers once every executor in it is judged. Only the operator may: a batch costs every
/// miner time.
async fn run_batch(
    State(sources): State<StatusSources>,
    Query(BatchChoice { kind }): Query<BatchChoice>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = refuse_stranger(&sources, &headers) {
        return refused;
    }
    match sources.grading.run_now(kind).await {
        Ok(batch) => Json(json!({ "batch": batch })).into_response(),
        Err(refused) => {
            let error = json!({ "error": refused.to_string() });
            (StatusCode::CONFLICT, Json(error)).into_response()
        }
    }
}

/// The evidence of a batch, or the part of it about one miner's executors.
async fn batch(
    State(sources): State<StatusSources>,
    Path(batch): Path<String>,
    Query(MinerFilter { miner }): Query<MinerFilter>,
) -> Result<Response, StoreUnreadable> {
    let file = sources.grading.store().batch_file(&batch, miner).await?;
    Ok(match file {
        Some(file) => Json(file).into_response(),
        None => not_found("this validator has no finished batch with that id"),
    })
}

/// The grades of a miner's executors, newest first.
async fn grades(
    State(sources): State<StatusSources>,
    Path(miner): Path<MinerKey>,
    Query(ListLimit { limit }): Query<ListLimit>,
) -> Result<Response, StoreUnreadable> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let grades = sources.grading.store().grades_of(miner, limit).await?;
    Ok(Json(json!({ "miner": miner, "grades": grades })).into_response())
}

/// The snapshot by which a cycle was scored, as its canonical text: the digest is that of the answer's bytes.
async fn scoring_snapshot(
    State(sources): State<StatusSources>,
    Path(digest): Path<Digest>,
) -> Result<Response, StoreUnreadable> {
    let body = snapshot_body(&sources.state.store, digest).await?;
    Ok(match body {
        Some(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        None => not_found("this validator has no scoring snapshot with that digest, or no more"),
    })
}

/// A statement of capacity that this validator has read, with its signature: the evidence of a contradiction.
async fn capacity_statement(
    State(sources): State<StatusSources>,
    Path(digest): Path<Digest>,
) -> Result<Response, StoreUnreadable> {
    let text = sources.state.store.sighting(digest).await?;
    Ok(match text {
        Some(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        None => {
            not_found("this validator has read no statement of capacity with that digest, or has it no more")
        }
    })
}

pub(crate) fn not_found(error: &str) -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "error": error }))).into_response()
}

/// Why each attempt of a job went to its miner. The job is named by its id, or by a beginning that no other routed job
/// has. 404 for a job that was never routed here, or so long ago that its routes are deleted; 409 for several jobs.
async fn route(
    State(sources): State<StatusSources>,
    Path(text): Path<String>,
) -> Result<Response, StoreUnreadable> {
    let refused =
        |status: StatusCode, error: String| (status, Json(json!({ "error": error }))).into_response();
    let prefix: JobIdPrefix = match text.parse() {
        Ok(prefix) => prefix,
        Err(error) => return Ok(refused(StatusCode::BAD_REQUEST, error.to_string())),
    };
    let store = &sources.state.store;
    let found = store.routed_jobs(&prefix, MAX_CANDIDATES).await?;
    match found.as_slice() {
        [] => Ok(not_found("this validator remembers no route of that job")),
        [job] => {
            let routes = store.routes_of(*job).await?;
            Ok(Json(RoutesView { job: *job, routes }).into_response())
        }
        several => {
            let ids: Vec<_> = several.iter().map(JobId::to_string).collect();
            let error = format!(
                "several jobs with routes here begin with {prefix}: {}; give more of the id",
                ids.join(", ")
            );
            Ok(refused(StatusCode::CONFLICT, error))
        }
    }
}

/// The store cannot be read: the log gets the cause, the caller only the error code.
pub(crate) struct StoreUnreadable(StoreError);

impl From<StoreError> for StoreUnreadable {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

impl IntoResponse for StoreUnreadable {
    fn into_response(self) -> Response {
        tracing::error!(error = %Causes(&self.0), "the status page cannot read the store");
        let code = self.0.code().map(|code| code.to_string());
        (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({ "error": "the store cannot be read", "code": code })),
        )
            .into_response()
    }
}
