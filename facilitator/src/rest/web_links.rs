//! `/api/v1/web-links/`: links that sign a browser in once.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use muster_facilitator_core::credentials::Credential;
use muster_facilitator_core::web_session::WebSecret;
use muster_process::SharedClock;

use super::authentication::Caller;
use super::files::base_url;
use super::rights::AnyRight;
use muster_facilitator_store::{Store, WebSignIn};

use crate::rest::rejection::ApiRejection;

/// The time in which a link must be used.
const LIFETIME: Duration = Duration::from_secs(60);

/// The services behind the links.
pub(crate) struct WebLinkService {
    pub(crate) store: Store,
    pub(crate) clock: SharedClock,
    /// The beginning of links, without a slash at the end; empty for the host of the request.
    pub(crate) public_url: String,
}

/// Draws a link that signs a browser in as the caller, once and within a minute.
///
/// The browser's session has the rights of the token or API key that drew the link, and ends with that key. It makes
/// keys only if a token drew the link, and only for ten minutes after the login that the token is of.
#[utoipa::path(post, path = "/api/v1/web-links/", tag = "login", security(("bearer" = [])),
    responses((status = 201, body = muster_protocol::account_api::WebLink), ApiRejection))]
pub(super) async fn create(
    State(service): State<Arc<WebLinkService>>,
    caller: Caller<AnyRight>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<muster_protocol::account_api::WebLink>), ApiRejection> {
    match &caller.actor.credential {
        Credential::Hotkey | Credential::ApiKey(_) => {}
        Credential::Browser(_) => {
            // Otherwise a session could make another one whenever it is about to end.
            let reason = "A browser's session draws no links; use the hotkey or an API key.";
            return Err(ApiRejection::detail(StatusCode::FORBIDDEN, reason));
        }
    }
    let mut drawn = [0; 32];
    getrandom::fill(&mut drawn).map_err(|error| {
        tracing::error!(%error, "the operating system gives no randomness");
        ApiRejection::error(
            StatusCode::SERVICE_UNAVAILABLE,
            "No link can be drawn now; try again.",
        )
    })?;
    let (secret, now) = (WebSecret::from_bytes(drawn), service.clock.now());
    let expires_at = now.plus(LIFETIME);
    let sign_in = WebSignIn {
        signed_at: caller.proof.signed_at(),
        actor: caller.actor,
    };
    service
        .store
        .create_web_link(&sign_in, &secret, expires_at, now)
        .await?;
    let base = base_url(&service.public_url, &headers);
    Ok((
        StatusCode::CREATED,
        Json(muster_protocol::account_api::WebLink {
            url: format!("{base}/sign-in/link?token={}", secret.reveal()),
            expires_at,
        }),
    ))
}
