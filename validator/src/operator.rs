//! The operator's pages, and the page of the subnet that everybody may read.

use std::sync::Arc;

use axum::Router;
use muster_http::server::{self, Server, TowerToHyperService};
use muster_operator_pages::token_check::OperatorGate;
use muster_operator_pages::validator_router::ValidatorPages;
use muster_process::operator_token::OperatorToken;
use tokio::net::TcpListener;

use crate::validator_state::ValidatorState;

/// Serves the operator's address until the validator stops. `calls` are the calls of the status page.
pub(crate) async fn serve(
    state: Arc<ValidatorState>,
    calls: Router,
    token: OperatorToken,
    listener: TcpListener,
) {
    let (tasks, clock) = (state.tasks.clone(), Arc::clone(&state.clock));
    let gate = Arc::new(OperatorGate::new(token, Arc::clone(&clock)));
    let pages = ValidatorPages::new(state.key(), calls, Arc::clone(&clock));
    let service = TowerToHyperService::new(pages.router(gate, state.config.operator.public));
    let stop = tasks.token();
    let server = Server::new("operator", &state.config.http, tasks, clock, stop);
    server::serve(server, listener, move |_| service.clone()).await;
}
