//! The addresses of a validator's pages, which ask the calls of its status page in the same process.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, get};
use muster_process::SharedClock;
use muster_protocol::{Digest, JobId, MinerKey, ValidatorKey};

use crate::sign_in::{guard, read_call, show};
use crate::token_check::OperatorGate;
use crate::validator::{self as pages, ValidatorVisit};

/// The pages of one validator.
#[derive(Clone)]
pub struct ValidatorPages {
    calls: Router,
    key: Arc<str>,
    clock: SharedClock,
}

impl ValidatorPages {
    /// The pages of the validator `key`, which ask `calls`, those of its status page.
    pub fn new(key: ValidatorKey, calls: Router, clock: SharedClock) -> Self {
        Self {
            calls,
            key: key.to_string().into(),
            clock,
        }
    }

    /// The pages behind `gate`, with the calls that only read. If `is_public`, the subnet in numbers is for everybody.
    pub fn router(self, gate: Arc<OperatorGate>, is_public: bool) -> Router {
        let calls = self.calls.clone();
        let own = Router::new()
            .route("/", get(subnet))
            .route("/jobs", get(jobs))
            .route("/jobs/{job}", get(route))
            .route("/grading", get(grading))
            .route("/weights", get(weights))
            .route("/sessions", get(sessions))
            .route("/miners/{miner}", get(miner))
            .route("/audits", get(audits))
            .route("/audits/{digest}", get(audit))
            .with_state(self.clone())
            .route("/v0/{*call}", read_only(calls));
        let open = if is_public {
            Router::new().route("/subnet", get(public)).with_state(self)
        } else {
            Router::new()
        };
        guard(gate, own, open)
    }

    fn visit(&self) -> ValidatorVisit<'_> {
        ValidatorVisit {
            validator: &self.key,
            now: self.clock.now(),
        }
    }
}

/// The calls that read: nothing changes at this address.
fn read_only(calls: Router) -> MethodRouter {
    MethodRouter::new().on_service(MethodFilter::GET, calls)
}

async fn subnet(State(own): State<ValidatorPages>) -> Response {
    let status = read_call(&own.calls, "/v0/state?limit=100").await;
    let subnet = read_call(&own.calls, "/v0/subnet").await;
    let miners = read_call(&own.calls, "/v0/miners").await;
    show(pages::subnet(&own.visit(), &status, &subnet, &miners))
}

async fn jobs(State(own): State<ValidatorPages>) -> Response {
    let queue = read_call(&own.calls, "/v0/queue").await;
    let status = read_call(&own.calls, "/v0/state?limit=100").await;
    show(pages::jobs(&own.visit(), &queue, &status))
}

async fn route(State(own): State<ValidatorPages>, Path(job): Path<JobId>) -> Response {
    let routes = read_call(&own.calls, &format!("/v0/jobs/{job}/route")).await;
    show(pages::route(&own.visit(), &job.to_string(), &routes))
}

async fn grading(State(own): State<ValidatorPages>) -> Response {
    let batches = read_call(&own.calls, "/v0/batches").await;
    show(pages::grading(&own.visit(), &batches))
}

async fn weights(State(own): State<ValidatorPages>) -> Response {
    let status = read_call(&own.calls, "/v0/state?limit=50").await;
    let subnet = read_call(&own.calls, "/v0/subnet").await;
    show(pages::weights(&own.visit(), &status, &subnet))
}

async fn sessions(State(own): State<ValidatorPages>) -> Response {
    let sessions = read_call(&own.calls, "/v0/sessions").await;
    show(pages::sessions(&own.visit(), &sessions))
}

async fn miner(State(own): State<ValidatorPages>, Path(miner): Path<MinerKey>) -> Response {
    let miners = read_call(&own.calls, "/v0/miners").await;
    let grades = read_call(&own.calls, &format!("/v0/grades/{miner}")).await;
    show(pages::miner(&own.visit(), &miner.to_string(), &miners, &grades))
}

async fn audits(State(own): State<ValidatorPages>) -> Response {
    let audits = read_call(&own.calls, "/v0/audits").await;
    show(pages::audits(&own.visit(), &audits))
}

async fn audit(State(own): State<ValidatorPages>, Path(digest): Path<Digest>) -> Response {
    let report = read_call(&own.calls, &format!("/v0/audits/{digest}/report")).await;
    show(pages::audit(&own.visit(), &digest.to_string(), &report))
}

async fn public(State(own): State<ValidatorPages>) -> Response {
    let status = read_call(&own.calls, "/v0/state?limit=0").await;
    let queue = read_call(&own.calls, "/v0/queue?limit=0").await;
    let miners = read_call(&own.calls, "/v0/miners").await;
    show(pages::public(&own.visit(), &status, &queue, &miners))
}
