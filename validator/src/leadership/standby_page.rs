//! The status address of a process that stands by: it answers who leads, and that it serves nothing else.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use muster_http::server::{self, Server, TowerToHyperService};
use muster_process::Tasks;
use muster_protocol::ErrorCode;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use tokio::net::TcpListener;

use super::StandbyParts;
use crate::store::LeaseView;

/// The path that answers 200 at the process that leads and 503 at the others: the check of a load balancer.
pub(crate) const LEADER_PATH: &str = "/v0/leader";

/// Requests that are under way when the process begins to lead have this long to end.
const DRAIN: Duration = Duration::from_secs(1);
/// The page's tasks have this long to end.
const GRACE: Duration = Duration::from_secs(2);

/// `GET /v0/leader`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LeaderView {
    /// Whether this process leads.
    pub(crate) leads: bool,
    /// The name of this process: its machine's name and its id.
    pub(crate) process: String,
    /// The name of the process that leads; `None` while nobody does.
    pub(crate) leader: Option<String>,
}

/// The running page.
pub(super) struct StandbyPage {
    view: Arc<Mutex<LeaderView>>,
    tasks: Tasks,
}

impl StandbyPage {
    /// Serves on `listener`.
    pub(super) fn start(
        parts: &StandbyParts<'_>,
        listener: TcpListener,
        process: String,
        view: &LeaseView,
    ) -> Self {
        let shown = Arc::new(Mutex::new(LeaderView {
            leads: false,
            process,
            leader: view.holder().map(str::to_owned),
        }));
        let router = Router::new()
            .route("/health", get(health))
            .route(LEADER_PATH, get(leader))
            .fallback(stands_by)
            .with_state(Arc::clone(&shown));
        let service = TowerToHyperService::new(router);
        let tasks = Tasks::new();
        let (settings, clock, stop) = (&parts.config.http, Arc::clone(parts.clock), tasks.token());
        let mut server = Server::new("standby", settings, tasks.clone(), clock, stop);
        server.limits.drain = DRAIN;
        let serving = server::serve(server, listener, move |_| service.clone());
        tasks.spawn("standby's status", serving);
        Self { view: shown, tasks }
    }

    /// Shows who leads by the last look.
    pub(super) fn show(&self, view: &LeaseView) {
        self.view.lock().leader = view.holder().map(str::to_owned);
    }

    /// Ends the page; requests under way have a second.
    pub(super) async fn stop(self) {
        self.tasks.shutdown();
        if let Err(error) = self.tasks.wait(GRACE).await {
            tracing::debug!(%error, "the standby's status page ends later");
        }
    }
}

type Shown = State<Arc<Mutex<LeaderView>>>;

/// Answers 200, since the process does its work: it stands by.
async fn health(State(shown): Shown) -> Response {
    let view = shown.lock().clone();
    Json(json!({ "status": "standby", "process": view.process, "leader": view.leader })).into_response()
}

async fn leader(State(shown): Shown) -> Response {
    let view = shown.lock().clone();
    (StatusCode::SERVICE_UNAVAILABLE, Json(view)).into_response()
}

/// Answers everything else: only the leader can.
async fn stands_by(State(shown): Shown) -> Response {
    let view = shown.lock().clone();
    let leader = match &view.leader {
        Some(leader) => format!("the process {leader} leads: ask that one"),
        None => "no process leads now: ask again in a few seconds".to_owned(),
    };
    let code = ErrorCode::NotLeading;
    let error = format!("this process ({}) stands by; {leader} ({code})", view.process);
    (
        StatusCode::SERVICE_UNAVAILABLE,
        Json(json!({ "error": error, "code": code.code() })),
    )
        .into_response()
}
