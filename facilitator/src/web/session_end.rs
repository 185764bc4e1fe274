//! Ends a stream with the session of the browser that reads it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::StreamExt as _;
use muster_facilitator_core::web_session::WebSecret;
use muster_process::error::Causes;

use super::session::SignedIn;
use super::state::WebService;
use crate::job_watchers::SessionWatch;

/// The time after which a shared store is asked although nothing woke the stream: notices of other facilitators may be
/// lost.
const CHECK_SHARED_STORE: Duration = Duration::from_secs(20);

/// The response whose body ends with the session, if that ends first.
pub(super) fn until_session_ends(
    service: &Arc<WebService>,
    signed_in: &SignedIn,
    response: Response,
) -> Response {
    if response.status() != StatusCode::OK {
        return response;
    }
    // The session is looked up after this, so no end of it is missed.
    let account = signed_in.api.caller.actor.account.clone();
    let watch = service.browsers.watch(account);
    let ended = session_end(Arc::clone(service), signed_in.secret, watch);
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(ended))))
}

/// Returns when the session has ended: signed out, revoked with its key, or over. It also returns if the store fails;
/// the browser then connects again.
async fn session_end(service: Arc<WebService>, secret: WebSecret, mut watch: SessionWatch) {
    loop {
        let now = service.clock.now();
        let left = match service.store.find_web_session(&secret, now).await {
            Ok(Some(session)) => session.expires_at.since(now),
            Ok(None) => return,
            Err(error) => {
                tracing::error!(error = %Causes(&error), "cannot look for the session of an event stream");
                return;
            }
        };
        let pause = if service.store.is_shared() {
            left.min(CHECK_SHARED_STORE)
        } else {
            left
        };
        tokio::select! {
            () = watch.changed() => {}
            () = service.clock.sleep(pause) => {}
        }
    }
}
