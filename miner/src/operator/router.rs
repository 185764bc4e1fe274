//! The operator's address: the status as JSON, and the pages that ask it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use muster_http::server::{self, HttpSettings, Server, TowerToHyperService};
use muster_operator_pages::miner::{MinerPage, render};
use muster_operator_pages::sign_in::{guard, read_call, show};
use muster_operator_pages::token_check::OperatorGate;
use muster_process::Tasks;
use muster_process::operator_token::OperatorToken;
use muster_status_views::miner::{MAX_LISTED, MinerStatus, Places, PoolStatus, ServedValidator, WantedImage};
use tokio::net::TcpListener;

use crate::lease_table::Event;
use crate::miner_state::MinerState;
use crate::persistent::ExecutorPool;

/// How long a call waits for the dispatcher's list of leases. An older list is shown then.
const LEASES_LIMIT: Duration = Duration::from_secs(1);

/// Everything that the status is made of.
#[derive(Clone)]
pub(crate) struct OperatorSources {
    pub(crate) state: Arc<MinerState>,
    pub(crate) pool: ExecutorPool,
}

/// The pages' own state: the calls that they ask.
#[derive(Clone)]
struct Pages {
    sources: OperatorSources,
    calls: Router,
}

/// Serves the operator's address until the miner stops.
pub(crate) async fn open(
    sources: OperatorSources,
    token: OperatorToken,
    listener: TcpListener,
    settings: HttpSettings,
    tasks: Tasks,
) {
    let clock = Arc::clone(&sources.state.clock);
    let service = TowerToHyperService::new(router(sources, token));
    let stop = tasks.token();
    let server = Server::new("operator", &settings, tasks, clock, stop);
    server::serve(server, listener, move |_| service.clone()).await;
}

fn router(sources: OperatorSources, token: OperatorToken) -> Router {
    let gate = Arc::new(OperatorGate::new(token, Arc::clone(&sources.state.clock)));
    let calls = Router::new()
        .route("/v0/state", get(status))
        .with_state(sources.clone());
    let state = Pages {
        sources,
        calls: calls.clone(),
    };
    let mut pages = Router::new();
    for page in MinerPage::ALL {
        pages = pages.route(page.path(), get(move |state| show_page(page, state)));
    }
    guard(gate, calls.merge(pages.with_state(state)), Router::new())
}

async fn show_page(page: MinerPage, State(pages): State<Pages>) -> Response {
    let status = read_call(&pages.calls, "/v0/state").await;
    let state = &pages.sources.state;
    show(render(page, &state.me().to_string(), state.clock.now(), &status))
}

async fn status(State(sources): State<OperatorSources>) -> Json<MinerStatus> {
    let OperatorSources { state, pool } = &sources;
    let own = state.pools.places();
    let mut answers = state.board.ask_leases();
    state.inbox.send(Event::Tick).await;
    // Without an answer in time the last list is shown.
    let _ = tokio::time::timeout(LEASES_LIMIT, answers.changed()).await;
    let listed = answers.borrow().clone();
    let past = state.board.past();
    let (working, lent) = (state.gauge.working(), pool.usage());
    let working = u32::try_from(working).unwrap_or(u32::MAX);
    let now = state.clock.now();
    Json(MinerStatus {
        miner: state.me(),
        time: now,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        draining: state.gauge.is_draining(),
        validators: validators(state),
        started: Places {
            all: own,
            busy: working.saturating_sub(lent.busy).min(own),
        },
        pools: state.pools.status().into_iter().map(pool_status).collect(),
        persistent: Places {
            all: lent.places,
            busy: lent.busy,
        },
        machines: state.machines.status(now),
        leases: listed.leases,
        more_leases: listed.more,
        earnings: past.earnings.list(),
        receipts: past.earnings.newest(),
        images: pool
            .watch_whitelist()
            .borrow()
            .iter()
            .take(MAX_LISTED)
            .map(WantedImage::from)
            .collect(),
        ended: past.ended.into(),
        declines: past.declines.into(),
        grades: state.board.grades().list(),
    })
}

fn pool_status(pool: crate::executor_pools::PoolStatus) -> PoolStatus {
    let waiting = pool.waiting.into_iter().take(MAX_LISTED);
    PoolStatus {
        name: pool.name,
        class: pool.class.to_string(),
        engine: pool.engine.name().to_owned(),
        places: Places {
            all: pool.places,
            busy: pool.used,
        },
        waiting: waiting
            .map(|(attempt, reason)| (attempt.to_string(), reason))
            .collect(),
        fault: pool.fault,
    }
}

/// The validators that are served or connected, the connected ones first.
fn validators(state: &MinerState) -> Vec<ServedValidator> {
    let (sessions, served) = (state.seats.by_validator(), state.served.all());
    let known = served
        .iter()
        .chain(sessions.keys().filter(|key| !served.contains(key)));
    let mut list: Vec<_> = known
        .map(|key| ServedValidator {
            validator: key.to_string(),
            sessions: sessions.get(key).copied().unwrap_or(0),
            served: served.contains(key),
        })
        .collect();
    list.sort_by_key(|validator| Reverse(validator.sessions));
    list.truncate(MAX_LISTED);
    list
}
