//! The calls of the validator's status page about audits: verdicts that count, audits that were begun, and the log that
//! they draw from. Everybody may read; what changes something needs the operator's token.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use muster_audit::{MAX_BUNDLE_BYTES, NoncePeriod};
use muster_gateway::store::{LoggedAnswer, StoredBucket};
use muster_process::error::Causes;
use muster_process::operator_token::OperatorToken;
use muster_process::{SharedClock, Tasks};
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::BucketNumber;
use muster_store::StoreError;
use muster_validator_store::Store;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::adoption::{Adopter, AdoptionRefusal};
use crate::backend::AuditBackend;
use crate::reports::{AuditReports, NoReport};
use crate::{AuditRunner, HiddenKey, OrderRefusal};

/// Entries of a list if the request names no `limit`, and at most.
const DEFAULT_LISTED: u32 = 100;
const MAX_LISTED: u32 = 1_000;

/// The parts of a validator that the calls use.
pub struct AuditCalls {
    /// The hotkey of the validator that answers.
    pub validator: ValidatorKey,
    /// The validator, as spot checks use it.
    pub backend: Arc<dyn AuditBackend>,
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

/// A leaf of a bucket: the facts that its miner knows too, and whether the answer was drawn. The client's pseudonym is
/// in the miner's own proof.
#[derive(Debug, Serialize)]
struct LeafView {
    hash: Option<Digest>,
    session: String,
    sequence: u64,
    output_tokens: u64,
    earned: u64,
    drawn: bool,
}

/// A call that is not carried out: the status and the reason in words.
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
            | AdoptionRefusal::OtherSubnet
            | AdoptionRefusal::NotRegistered
            | AdoptionRefusal::OtherOwner { .. } => StatusCode::CONFLICT,
        };
        Self(status, Causes(&refusal).to_string())
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
        Router::new()
            .route("/v0/audits", verdicts)
            .route("/v0/audits/{digest}", get(bundle))
            .route("/v0/audits/{digest}/report", get(report))
            .route("/v0/audits/runs", get(list_runs).post(run_now))
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

/// The verdicts that count or did, newest first.
async fn list(State(open): CallState, Query(limit): Query<ListLimit>) -> Result<Json<Value>, CallRefusal> {
    let calls = &open.calls;
    let audits = calls.store.audits(limit.get()).await?;
    Ok(Json(json!({ "validator": calls.validator, "audits": audits })))
}

/// The text of an adopted bundle: the digest is that of the answer's bytes.
async fn bundle(State(open): CallState, Path(digest): Path<Digest>) -> Result<Response, CallRefusal> {
    let calls = &open.calls;
    let text = calls.store.audit_bundle(digest).await?;
    let text = text.ok_or_else(|| not_found("this validator has adopted no bundle with that digest"))?;
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
        backend: Arc::clone(&calls.backend),
        store: Arc::clone(&calls.store),
        clock: Arc::clone(&calls.clock),
    };
    let adopted = adopter.adopt(text).await?;
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

/// A closed bucket: its header, the shares and, once the draw block exists, the draw and the leaves.
async fn read_bucket(State(open): CallState, Path(bucket): Path<u64>) -> Result<Json<Value>, CallRefusal> {
    let calls = &open.calls;
    let runner = calls.runner.as_ref();
    let runner = runner.ok_or_else(|| not_found("this validator has no gateway, so it logs no answers"))?;
    let (log, bucket) = (runner.log(), BucketNumber(bucket));
    let closed = log.store().find_bucket(bucket).await?;
    let closed = closed.ok_or_else(|| not_found("this validator has closed no bucket of that number"))?;
    let answers = log.store().answers_of_bucket(bucket).await?;
    Ok(Json(view(&closed, &answers)))
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

fn view(closed: &StoredBucket, answers: &[LoggedAnswer]) -> Value {
    let leaf = |answer: &LoggedAnswer| LeafView {
        hash: answer.leaf().map(|leaf| leaf.hash()),
        session: answer.session.to_string(),
        sequence: answer.sequence,
        output_tokens: answer.output_tokens,
        earned: answer.earned,
        drawn: answer.is_drawn,
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
