//! The calls of the validator's status page about audits: verdicts that count, audits that were begun, and the log that
//! they draw from. Everybody may read; what changes something needs the operator's token.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use muster_audit::{MAX_BUNDLE_BYTES, NoncePeriod};
use muster_gateway::store::{LoggedAnswer, StoredBucket};
use muster_process::error::Causes;
use muster_process::operator_token::OperatorToken;
use muster_process::{SharedClock, Tasks};
use muster_protocol::wire::audits::LeafOutcome;
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::BucketNumber;
use muster_store::StoreError;
use muster_subnet_view::SubnetView;
use muster_validator_store::{AuditOrigin, Store};
use muster_verdict_exchange::view_exchange;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::appeals::appeal_admission::{AppealRefusal, bundle_of};
use crate::audits::adoption::{Adopter, AdoptionRefusal};
use crate::evidence::outcome::BothOutcomes;
use crate::log::nonce_key_release::HiddenKey;
use crate::notices::contents::leaf_outcome;
use crate::reports::{AuditReports, NoReport};
use crate::runner::{AuditRunner, OrderRefusal};

/// The longest text of a signed appeal, in bytes.
const MAX_APPEAL_BYTES: usize = 8 * 1024;
/// How far back appeals are listed.
const APPEALS_LISTED: Duration = Duration::from_secs(30 * 86_400);
/// Entries of a list if the request names no `limit`, and at most.
const DEFAULT_LISTED: u32 = 100;
const MAX_LISTED: u32 = 1_000;

/// The parts of a validator that the calls use.
pub struct AuditCalls {
    /// The hotkey of the validator that answers.
    pub validator: ValidatorKey,
    /// The chain and the subnet.
    pub subnet: Arc<SubnetView>,
    /// The validator's store, with the verdicts that count.
    pub store: Arc<Store>,
    /// The spot checks; `None` without a gateway.
    pub runner: Option<AuditRunner>,
    /// The operator's token.
    pub operator: OperatorToken,
    /// The clock of the validator.
    pub clock: SharedClock,
    /// The tasks of the validator.
    pub tasks: Tasks,
}

/// The calls with what they remember.
struct OpenCalls {
    calls: AuditCalls,
    reports: AuditReports,
}

type CallState = State<Arc<OpenCalls>>;

/// The number of entries that a list is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListLimit {
    limit: Option<u32>,
}

impl ListLimit {
    fn get(&self) -> u32 {
        self.limit.unwrap_or(DEFAULT_LISTED).min(MAX_LISTED)
    }
}

/// The model of an order; all models by default.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ModelChoice {
    model: Option<String>,
}

/// A leaf of a bucket: the facts that its miner knows too, and whether the answer was drawn. The commitment to the
/// client stays out, as its miner has it in a notice.
#[derive(Debug, Serialize)]
struct LeafView {
    hash: Option<Digest>,
    session: String,
    sequence: u64,
    output_tokens: u64,
    earned: u64,
    drawn: bool,
    /// Null before it is revealed, and for an answer that was not drawn.
    outcome: Option<LeafOutcome>,
}

/// A call that is not carried out: the status and the reason as text.
struct CallRefusal(StatusCode, String);

impl IntoResponse for CallRefusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

impl From<StoreError> for CallRefusal {
    fn from(error: StoreError) -> Self {
        tracing::error!(error = %Causes(&error), "a call about audits cannot use the store");
        Self(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the store does not answer".to_owned(),
        )
    }
}

impl From<AdoptionRefusal> for CallRefusal {
    fn from(refusal: AdoptionRefusal) -> Self {
        let status = match refusal {
            AdoptionRefusal::Store(error) => return error.into(),
            AdoptionRefusal::NoChain | AdoptionRefusal::Ended => StatusCode::SERVICE_UNAVAILABLE,
            AdoptionRefusal::Bundle(_)
            | AdoptionRefusal::Subject(_)
            | AdoptionRefusal::Blocks(_)
            | AdoptionRefusal::TooFewScored { .. } => StatusCode::CONFLICT,
        };
        Self(status, Causes(&refusal).to_string())
    }
}

impl From<AppealRefusal> for CallRefusal {
    fn from(refusal: AppealRefusal) -> Self {
        let status = match refusal {
            AppealRefusal::Store(error) => return error.into(),
            AppealRefusal::Unreadable => StatusCode::BAD_REQUEST,
            AppealRefusal::Unsigned => StatusCode::UNAUTHORIZED,
            AppealRefusal::NoChain | AppealRefusal::NoAudits => StatusCode::SERVICE_UNAVAILABLE,
            AppealRefusal::TooMany => StatusCode::TOO_MANY_REQUESTS,
            AppealRefusal::OtherSubnet
            | AppealRefusal::NotCounting
            | AppealRefusal::NoAccusation
            | AppealRefusal::OtherMiner
            | AppealRefusal::OtherAuthor(_)
            | AppealRefusal::OutOfTime
            | AppealRefusal::Open(_) => StatusCode::CONFLICT,
        };
        Self(status, refusal.to_string())
    }
}

impl From<OrderRefusal> for CallRefusal {
    fn from(refusal: OrderRefusal) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, refusal.to_string())
    }
}

impl From<HiddenKey> for CallRefusal {
    fn from(hidden: HiddenKey) -> Self {
        let status = match hidden {
            HiddenKey::NotYet(_) | HiddenKey::NotUsed => StatusCode::NOT_FOUND,
            HiddenKey::NoChain => StatusCode::SERVICE_UNAVAILABLE,
            HiddenKey::Store(error) => return error.into(),
        };
        Self(status, hidden.to_string())
    }
}

fn not_found(error: &str) -> CallRefusal {
    CallRefusal(StatusCode::NOT_FOUND, error.to_owned())
}

impl AuditCalls {
    /// The routes of the calls.
    pub fn routes<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        let verdicts = get(list)
            .post(adopt)
            .layer(DefaultBodyLimit::max(MAX_BUNDLE_BYTES));
        let appeals = post(hear).layer(DefaultBodyLimit::max(MAX_APPEAL_BYTES));
        Router::new()
            .route("/v0/audits", verdicts)
            .route("/v0/audits/endorsements", get(list_endorsements))
            .route("/v0/audits/{digest}", get(bundle))
            .route("/v0/audits/{digest}/report", get(report))
            .route("/v0/audits/{digest}/appeals", appeals)
            .route("/v0/audits/appeals", get(list_appeals))
            .route("/v0/audits/runs", get(list_runs).post(run_now))
            .route(
                "/v0/audits/self-tests",
                get(list_self_tests).post(order_self_test),
            )
            .route("/v0/audits/self-tests/{test}", get(self_test_bundle))
            .route("/v0/audits/buckets/{bucket}", get(read_bucket))
            .route("/v0/audits/nonce-keys/{period}", get(read_nonce_key))
            .with_state(Arc::new(OpenCalls {
                calls: self,
                reports: AuditReports::default(),
            }))
    }

    /// Refuses a caller without the operator's token.
    fn admit(&self, headers: &HeaderMap) -> Result<(), CallRefusal> {
        let shown = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        if self.operator.admits(shown) {
            return Ok(());
        }
        let error =
            "this call needs the operator's token, which is in the file `operator_token` of the validator";
        Err(CallRefusal(StatusCode::UNAUTHORIZED, error.to_owned()))
    }
}

/// The verdicts that count or did, newest first; the convictions that have ended and are not settled; others' bundles
/// with their states; and validators' self-tests.
async fn list(State(open): CallState, Query(limit): Query<ListLimit>) -> Result<Json<Value>, CallRefusal> {
    let calls = &open.calls;
    let audits = calls.store.audits(limit.get()).await?;
    let ended = calls.store.ended_convictions().await?;
    let others = view_exchange(&calls.store, limit.get(), calls.clock.now()).await?;
    Ok(Json(json!({
        "validator": calls.validator, "audits": audits, "ended": ended, "offers": others.offers,
        "self_tests": others.self_tests,
        "second_headers": others.second_headers,
    })))
}

/// The signed statements of validators that scored pairs of a bundle again and adopted it, newest first.
async fn list_endorsements(
    State(open): CallState,
    Query(limit): Query<ListLimit>,
) -> Result<Json<Value>, CallRefusal> {
    let calls = &open.calls;
    let endorsements = calls.store.endorsements(limit.get()).await?;
    Ok(Json(
        json!({ "validator": calls.validator, "endorsements": endorsements }),
    ))
}

/// The text of a bundle that was adopted, or waits for its adoption: the digest is that of the answer's bytes.
async fn bundle(State(open): CallState, Path(digest): Path<Digest>) -> Result<Response, CallRefusal> {
    let calls = &open.calls;
    let text = match calls.store.audit_bundle(digest).await? {
        Some(text) => Some(text),
        None => calls.store.offer_body(digest).await?,
    };
    let text = text.ok_or_else(|| not_found("this validator has no bundle with that digest"))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// The report about an adopted bundle, for the operator's pages.
async fn report(State(open): CallState, Path(digest): Path<Digest>) -> Result<Response, CallRefusal> {
    match open.reports.report(&open.calls.store, digest).await {
        Ok(report) => Ok(Json(&*report).into_response()),
        Err(NoReport::Store(error)) => Err(error.into()),
        Err(error @ NoReport::NotAdopted) => Err(not_found(&error.to_string())),
        Err(error @ NoReport::NotReplayed(_)) => Err(CallRefusal(StatusCode::CONFLICT, error.to_string())),
    }
}

/// Replays a bundle and adopts its verdict. Only the operator may.
async fn adopt(State(open): CallState, headers: HeaderMap, text: String) -> Result<Response, CallRefusal> {
    let calls = &open.calls;
    calls.admit(&headers)?;
    let adopter = Adopter {
        subnet: Arc::clone(&calls.subnet),
        store: Arc::clone(&calls.store),
        clock: Arc::clone(&calls.clock),
    };
    let adopted = adopter.adopt(text, AuditOrigin::Operator, 0).await?.audit;
    tracing::warn!(
        bundle = %adopted.digest, coldkey = %adopted.coldkey, model = adopted.model, verdict = adopted.verdict,
        "the operator adopted a verdict"
    );
    Ok(Json(adopted).into_response())
}

/// The audits that were begun, newest first.
async fn list_runs(
    State(open): CallState,
    Query(limit): Query<ListLimit>,
) -> Result<Json<Value>, CallRefusal> {
    let calls = &open.calls;
    let runs = match &calls.runner {
        Some(runner) => runner.store().list_runs(limit.get()).await?,
        None => Vec::new(),
    };
    Ok(Json(json!({ "validator": calls.validator, "runs": runs })))
}

/// Audits everything that has gathered, and answers once the audits have ended. Only the operator may.
async fn run_now(
    State(open): CallState,
    Query(choice): Query<ModelChoice>,
    headers: HeaderMap,
) -> Result<Json<Value>, CallRefusal> {
    let calls = &open.calls;
    calls.admit(&headers)?;
    let refuse = |error: &str| CallRefusal(StatusCode::CONFLICT, error.to_owned());
    let runner = calls.runner.clone().ok_or_else(|| {
        refuse("this validator has no gateway, so it has no answers to audit: [gateway] bind opens one")
    })?;
    if !runner.has_references() {
        let error = "this validator has no miner of its own for references: [trusted_miner] names one";
        return Err(refuse(error));
    }
    // The audits go on if the operator goes away.
    let running = calls
        .tasks
        .spawn("ordered audit", async move { runner.run_now(choice.model).await });
    let ended = running.join().await.map_err(|_| {
        let error = "the audit ended early: look at `muster audit ls`";
        CallRefusal(StatusCode::SERVICE_UNAVAILABLE, error.to_owned())
    })?;
    Ok(Json(json!({ "runs": ended? })))
}

/// The tests of the spot checks, newest first.
async fn list_self_tests(
    State(open): CallState,
    Query(limit): Query<ListLimit>,
) -> Result<Json<Value>, CallRefusal> {
    let calls = &open.calls;
    let tests = match &calls.runner {
        Some(runner) => runner.store().list_self_tests(limit.get()).await?,
        None => Vec::new(),
    };
    Ok(Json(json!({ "validator": calls.validator, "self_tests": tests })))
}

/// The text of the bundle of a test: the test's digest is that of the answer's bytes.
async fn self_test_bundle(State(open): CallState, Path(test): Path<String>) -> Result<Response, CallRefusal> {
    let text = match &open.calls.runner {
        Some(runner) => runner.store().self_test_evidence(&test).await?,
        None => None,
    };
    let text = text.ok_or_else(|| not_found("this validator has no bundle of such a self-test"))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// Orders a test of the spot checks with one model. Only the operator may.
async fn order_self_test(
    State(open): CallState,
    Query(choice): Query<ModelChoice>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<Value>), CallRefusal> {
    let calls = &open.calls;
    calls.admit(&headers)?;
    let refuse = |error: String| CallRefusal(StatusCode::CONFLICT, error);
    let runner = calls.runner.as_ref().ok_or_else(|| {
        refuse(
            "this validator has no gateway, so it has no answers to audit: [gateway] bind opens one"
                .to_owned(),
        )
    })?;
    let model = choice
        .model
        .ok_or_else(|| CallRefusal(StatusCode::BAD_REQUEST, "name the model: ?model=NAME".to_owned()))?;
    runner.order_self_test(&model).map_err(refuse)?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "model": model }))))
}

/// A closed bucket: its header, the shares and the leaves, and once the draw block exists, the draw.
async fn read_bucket(State(open): CallState, Path(bucket): Path<u64>) -> Result<Json<Value>, CallRefusal> {
    let calls = &open.calls;
    let runner = calls.runner.as_ref();
    let runner = runner.ok_or_else(|| not_found("this validator has no gateway, so it logs no answers"))?;
    let (log, bucket) = (runner.log(), BucketNumber(bucket));
    let closed = log.store().find_bucket(bucket).await?;
    let closed = closed.ok_or_else(|| not_found("this validator has closed no bucket of that number"))?;
    let answers = log.store().answers_of_bucket(bucket).await?;
    let is_due = runner.is_reveal_due(&closed);
    let found = runner.store().revealed_outcomes(bucket.0, is_due).await?;
    Ok(Json(view(&closed, &answers, &found, is_due)))
}

/// The key of a period's nonces, once no nonce is made by it any more.
async fn read_nonce_key(State(open): CallState, Path(period): Path<u64>) -> Result<Json<Value>, CallRefusal> {
    let runner = open.calls.runner.as_ref();
    let runner = runner.ok_or_else(|| not_found("this validator has no gateway, so it makes no nonces"))?;
    let period = NoncePeriod(period);
    let told = runner.state.reveal_nonce_key(period).await?;
    Ok(Json(json!({
        "validator": open.calls.validator,
        "genesis": told.auditor.genesis,
        "netuid": told.auditor.netuid,
        "period": period.0,
        "first_block": period.first_block(),
        "block_hash": told.revealed.block_hash,
        "proof": told.revealed.proof,
        "key": hex::encode(told.key),
    })))
}

/// Hears a miner's appeal against a verdict. The signature admits it: no token is needed.
async fn hear(
    State(open): CallState,
    Path(digest): Path<Digest>,
    text: String,
) -> Result<Response, CallRefusal> {
    let runner = open.calls.runner.as_ref();
    let runner = runner.ok_or_else(|| not_found("this validator has no gateway, so it audits no answers"))?;
    if bundle_of(&text).is_some_and(|bundle| bundle != digest) {
        let error = "the appeal is about another bundle than the path names";
        return Err(CallRefusal(StatusCode::CONFLICT, error.to_owned()));
    }
    let appeal = runner.hear_appeal(&text).await?;
    Ok((StatusCode::ACCEPTED, Json(appeal)).into_response())
}

/// The appeals of the last days and those that are open, newest first.
async fn list_appeals(State(open): CallState) -> Result<Json<Value>, CallRefusal> {
    let calls = &open.calls;
    let since = calls.clock.now().minus(APPEALS_LISTED);
    let appeals = match &calls.runner {
        Some(runner) => runner.store().appeals(since).await?,
        None => Vec::new(),
    };
    Ok(Json(json!({ "validator": calls.validator, "appeals": appeals })))
}

fn view(
    closed: &StoredBucket,
    answers: &[LoggedAnswer],
    found: &BTreeMap<String, BothOutcomes>,
    is_due: bool,
) -> Value {
    let leaf = |answer: &LoggedAnswer| LeafView {
        hash: answer.leaf().map(|leaf| leaf.hash()),
        session: answer.session.to_string(),
        sequence: answer.sequence,
        output_tokens: answer.output_tokens,
        earned: answer.earned,
        drawn: answer.is_drawn,
        outcome: (answer.is_drawn && (is_due || found.contains_key(&answer.id)))
            .then(|| leaf_outcome(found.get(&answer.id))),
    };
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    json!({
        "bucket": closed.bucket.0,
        "header": closed.header,
        "shares": parsed(&closed.shares),
        "closed_at": closed.closed_at,
        "block_hash": closed.draw.as_ref().map(|draw| draw.block_hash),
        "draw": closed.draw.as_ref().map(|draw| parsed(&draw.text)),
        "leaves": answers.iter().map(leaf).collect::<Vec<_>>(),
    })
}
