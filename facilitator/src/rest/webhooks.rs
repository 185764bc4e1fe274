//! `/api/v1/webhook/`: the URL that is notified of the ends of an account's jobs, and the secret that signs
//! the messages.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use muster_facilitator_core::request_bodies;
use muster_job_data::Notifications;
use muster_process::SharedClock;
use muster_protocol::rest::{AccountWebhookView, SetWebhook};
use muster_webhooks::message::{MAX_URL, WebhookSecret};

use super::authentication::Caller;
use super::json_body;
use super::rights::{KeysRight, ReadRight};
use muster_facilitator_store::Store;

use crate::rest::rejection::ApiRejection;

/// The services behind the calls about webhooks.
pub(crate) struct WebhookService {
    pub(crate) store: Store,
    pub(crate) notifications: Notifications,
    pub(crate) clock: SharedClock,
}

/// Checks a webhook's URL. Its name is resolved only when a message is sent.
///
/// # Errors
/// The reason, in the shape of a wrong field.
pub(super) fn check_url(notifications: &Notifications, field: &str, url: &str) -> Result<(), ApiRejection> {
    if url.len() > MAX_URL {
        let reason = format!("Ensure this field has no more than {MAX_URL} bytes.");
        return Err(ApiRejection::field(field, &reason));
    }
    notifications
        .check(url)
        .map_err(|reason| ApiRejection::field(field, &reason))
}

/// Sets the account's webhook. The answer contains the secret only if this call has drawn it.
#[utoipa::path(put, path = "/api/v1/webhook/", tag = "webhooks", request_body = SetWebhook, security(("bearer" = [])),
    responses((status = 200, body = AccountWebhookView), ApiRejection))]
pub(super) async fn set(
    State(service): State<Arc<WebhookService>>,
    caller: Caller<KeysRight>,
    request: Request,
) -> Result<Json<AccountWebhookView>, ApiRejection> {
    let (parts, body) = request.into_parts();
    let body = json_body::read_json(&parts.headers, body).await?;
    let wanted: SetWebhook = request_bodies::parse_webhook(&body)?;
    let url = wanted.url.filter(|url| !url.is_empty());
    if let Some(url) = &url {
        check_url(&service.notifications, "url", url)?;
    }
    let mut drawn = [0; 32];
    getrandom::fill(&mut drawn).map_err(|error| {
        tracing::error!(%error, "the operating system gives no randomness");
        ApiRejection::error(
            StatusCode::SERVICE_UNAVAILABLE,
            "No secret can be drawn now; try again.",
        )
    })?;
    let (drawn, now) = (WebhookSecret::from_bytes(drawn), service.clock.now());
    let new = service
        .store
        .set_account_webhook(&caller.actor, url.as_deref(), &drawn, wanted.new_secret, now)
        .await?;
    tracing::info!(account = %caller.account(), new_secret = new.is_some(), "set a webhook");
    Ok(Json(AccountWebhookView {
        url,
        secret: new.map(|secret| secret.reveal()),
        changed_at: now,
    }))
}

/// Returns the account's webhook, without its secret. 404 if the account has none.
#[utoipa::path(get, path = "/api/v1/webhook/", tag = "webhooks", security(("bearer" = [])),
    responses((status = 200, body = AccountWebhookView), ApiRejection))]
pub(super) async fn show(
    State(service): State<Arc<WebhookService>>,
    caller: Caller<ReadRight>,
) -> Result<Json<AccountWebhookView>, ApiRejection> {
    let webhook = service
        .store
        .webhooks()
        .account_webhook(&caller.account().to_string())
        .await?;
    let webhook = webhook.ok_or_else(ApiRejection::not_found)?;
    Ok(Json(AccountWebhookView {
        url: webhook.url,
        secret: None,
        changed_at: webhook.changed_at,
    }))
}

/// Removes the account's webhook and its secret. Messages that are not delivered yet are given up.
#[utoipa::path(delete, path = "/api/v1/webhook/", tag = "webhooks", security(("bearer" = [])),
    responses((status = 204, description = "The webhook is removed"), ApiRejection))]
pub(super) async fn remove(
    State(service): State<Arc<WebhookService>>,
    caller: Caller<KeysRight>,
) -> Result<StatusCode, ApiRejection> {
    let now = service.clock.now();
    if service.store.remove_account_webhook(&caller.actor, now).await? {
        tracing::info!(account = %caller.account(), "removed a webhook");
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiRejection::not_found())
    }
}
