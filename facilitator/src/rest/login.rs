//! `/auth/nonce` and `/auth/login`: a token for a hotkey that signs a nonce.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use muster_facilitator_core::credentials::Account;
use muster_facilitator_core::login_rules::LoginRejection;
use muster_facilitator_core::request_bodies;
use muster_protocol::account_api::{LoginNonce, LoginRequest, Token};
use muster_protocol::login::NonceText;
use muster_protocol::{Signature, UserKey};

use super::authentication::{Admission, AnonymousCaller};
use super::json_body;
use muster_facilitator_store::{Actor, AuditAction};

use crate::rest::rejection::ApiRejection;

/// Returns a nonce to sign for the login.
#[utoipa::path(get, path = "/auth/nonce", tag = "login", responses((status = 200, body = LoginNonce), ApiRejection))]
pub(super) async fn nonce(
    _: AnonymousCaller,
    State(admission): State<Arc<Admission>>,
) -> Result<Json<LoginNonce>, ApiRejection> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| {
        tracing::error!(%error, "the operating system gives no randomness");
        ApiRejection::error(
            StatusCode::SERVICE_UNAVAILABLE,
            "No nonce can be drawn now; try again.",
        )
    })?;
    let nonce = admission.issuer.issue_nonce(random, admission.clock.now())?;
    let host = admission.login.host().map(ToString::to_string);
    Ok(Json(LoginNonce { nonce, host }))
}

/// Returns a token for a hotkey that has signed a nonce.
#[utoipa::path(post, path = "/auth/login", tag = "login", request_body = LoginRequest,
    responses((status = 200, body = Token), ApiRejection))]
pub(super) async fn login(
    _: AnonymousCaller,
    State(admission): State<Arc<Admission>>,
    request: Request,
) -> Result<Json<Token>, ApiRejection> {
    let (parts, body) = request.into_parts();
    let body = json_body::read_json(&parts.headers, body).await?;
    if !request_bodies::is_object(&body) {
        return Err(bad_request("Invalid JSON: an object is expected"));
    }
    let login: LoginRequest = serde_json::from_slice(&body)
        .map_err(|error| bad_request(&format!("Invalid JSON: {}", shorten(&error))))?;
    let hotkey = login.hotkey.ok_or_else(|| bad_request("Missing hotkey"))?;
    let signature = login.signature.ok_or_else(|| bad_request("Missing signature"))?;
    let nonce = login.nonce.ok_or_else(|| bad_request("Missing nonce"))?;

    let now = admission.clock.now();
    let end = admission
        .issuer
        .check_nonce(&nonce, now)
        .map_err(|_| bad_request("Invalid nonce"))?;
    let nonce: NonceText = nonce.parse().map_err(|_| bad_request("Invalid nonce"))?;
    let user: UserKey = hotkey.parse().map_err(|_| bad_request("Hotkey not allowed"))?;
    if !admission.policy.admits(&Account::Hotkey(user)) {
        return Err(bad_request("Hotkey not allowed"));
    }
    let signature = Signature::from_hex(&signature).map_err(|_| wrong_signature())?;
    admission
        .login
        .check(user, &nonce, &signature)
        .map_err(|rejection| match rejection {
            LoginRejection::Signature => wrong_signature(),
            LoginRejection::Unbound { .. } => bad_request(&rejection.to_string()),
        })?;
    // Last, so that only the owner of a nonce can use it up.
    if !admission.store.use_nonce(nonce.as_str(), end).await? {
        return Err(bad_request("Nonce expired or not found"));
    }
    let token = admission.issuer.issue_token(user, now)?;
    admission
        .store
        .audit(&Actor::user(user), AuditAction::Login, &user.to_string(), now)
        .await?;
    tracing::info!(%user, "logged in");
    Ok(Json(Token { token }))
}

fn bad_request(reason: &str) -> ApiRejection {
    ApiRejection::error(StatusCode::BAD_REQUEST, reason)
}

fn wrong_signature() -> ApiRejection {
    ApiRejection::error(StatusCode::UNAUTHORIZED, "Invalid signature")
}

fn shorten(error: &serde_json::Error) -> String {
    error.to_string().chars().take(200).collect()
}
