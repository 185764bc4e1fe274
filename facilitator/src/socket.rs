//! `/ws/v0/`: the websocket of validators. [`greeting`] authenticates a validator, [`session`] then exchanges
//! messages with it, [`delivery`] sends it jobs, and [`frames`] reads and answers its frames.

mod delivery;
mod frames;
mod greeting;
mod services;
mod session;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, Extension, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response as HttpResponse;
use muster_http::server::ClientAddress;
use muster_process::connections::ConnectionPermit;
use muster_process::error::Causes;
use muster_websocket::Greeting;

use self::services::LIMITS;
pub(crate) use self::services::{SessionServices, count_unauthenticated};
use self::session::ValidatorSession;

use crate::change_notices::Notice;

/// Answers the upgrade request and runs the session in a task of its own.
pub(crate) async fn upgrade(
    State(services): State<Arc<SessionServices>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(client): Extension<ClientAddress>,
    request: Request,
) -> HttpResponse {
    // The number, the frames and the time of unauthenticated connections are bounded.
    let Ok(permit) = services.unauthenticated.admit(Some(client.0)) else {
        tracing::warn!("rejected a connection: too many others have not authenticated yet");
        let mut response =
            HttpResponse::new(Body::from("too many connections are being greeted; try again\n"));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        return response;
    };
    let tasks = services.tasks.clone();
    muster_websocket::server::upgrade(request, client.at_port_of(peer), &LIMITS, &tasks, move |socket| {
        serve(Greeting::new(socket), services, permit)
    })
    .map(Body::new)
}

async fn serve(greeting: Greeting, services: Arc<SessionServices>, permit: ConnectionPermit) {
    let stop = services.tasks.token();
    let greeted = tokio::select! {
        () = stop.cancelled() => return,
        greeted = tokio::time::timeout(LIMITS.handshake, greeting::greet(greeting, &services)) => greeted,
    };
    // A timeout needs no answer; a rejection has been answered.
    let Ok(Some((session, trust))) = greeted else {
        return;
    };
    drop(permit);
    let validator = session.peer().0;
    let now = services.clock.now();
    let registration = services.sessions.register(validator, trust, now);
    tracing::info!(%validator, ?trust, "a validator connected");
    if !registration.holds_jobs(now) {
        tracing::warn!(%validator, "an older connection of the validator keeps its jobs while it sends heartbeats");
    }
    ValidatorSession::new(session, registration, trust, Arc::clone(&services))
        .run()
        .await;
    if !services.sessions.is_connected(validator) {
        match services.store.release(validator).await {
            Ok(()) => services.notifier.publish(Notice::Look(validator)),
            Err(error) => {
                tracing::warn!(error = %Causes(&error), "cannot record that a validator has disconnected");
            }
        }
    }
    tracing::info!(%validator, "a validator disconnected");
}
