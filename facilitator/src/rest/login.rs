//! `/auth/nonce` and `/auth/login`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use muster_porter::account::Account;
use muster_porter::intake;
use muster_protocol::rest::{Login, Nonce, Token};
use muster_protocol::{Signature, UserKey};

use super::body;
use super::caller::Stranger;
use super::refusal::Refusal;
use crate::door::Door;
use crate::store::{Action, Actor};

/// A text for the login to sign.
#[utoipa::path(get, path = "/auth/nonce", tag = "login", responses((status = 200, body = Nonce), Refusal))]
pub(super) async fn nonce(_: Stranger, State(door): State<Arc<Door>>) -> Result<Json<Nonce>, Refusal> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| {
        tracing::error!(%error, "the operating system gives no randomness");
        Refusal::error(
            StatusCode::SERVICE_UNAVAILABLE,
            "No nonce can be drawn now; try again.",
        )
    })?;
    let nonce = door.issuer.nonce(random, door.clock.now())?;
    Ok(Json(Nonce { nonce }))
}

/// A token for who signs a nonce with their hotkey.
#[utoipa::path(post, path = "/auth/login", tag = "login", request_body = Login,
    responses((status = 200, body = Token), Refusal))]
pub(super) async fn login(
    _: Stranger,
    State(door): State<Arc<Door>>,
    request: Request,
) -> Result<Json<Token>, Refusal> {
    let (parts, body) = request.into_parts();
    let body = body::json(&parts.headers, body).await?;
    if !intake::is_object(&body) {
        return Err(bad("Invalid JSON: an object is expected"));
    }
    let login: Login = serde_json::from_slice(&body)
        .map_err(|error| bad(&format!("Invalid JSON: {}", shortened(&error))))?;
    let hotkey = login.hotkey.ok_or_else(|| bad("Missing hotkey"))?;
    let signature = login.signature.ok_or_else(|| bad("Missing signature"))?;
    let nonce = login.nonce.ok_or_else(|| bad("Missing nonce"))?;

    let now = door.clock.now();
    let end = door
        .issuer
        .check_nonce(&nonce, now)
        .map_err(|_| bad("Invalid nonce"))?;
    let user: UserKey = hotkey.parse().map_err(|_| bad("Hotkey not allowed"))?;
    if !door.admits(&Account::Hotkey(user)) {
        return Err(bad("Hotkey not allowed"));
    }
    let signature = Signature::from_hex(&signature).map_err(|_| wrong_signature())?;
    muster_identity::verify_login(user, &nonce, &signature).map_err(|_| wrong_signature())?;
    // Last, so that nobody but its owner can use a nonce up.
    if !door.store.use_nonce(&nonce, end, now).await? {
        return Err(bad("Nonce expired or not found"));
    }
    let token = door.issuer.token(user, now)?;
    door.store
        .audit(&Actor::user(user), Action::Login, &user.to_string(), now)
        .await?;
    tracing::info!(%user, "logged in");
    Ok(Json(Token { token }))
}

fn bad(reason: &str) -> Refusal {
    Refusal::error(StatusCode::BAD_REQUEST, reason)
}

fn wrong_signature() -> Refusal {
    Refusal::error(StatusCode::UNAUTHORIZED, "Invalid signature")
}

fn shortened(error: &serde_json::Error) -> String {
    error.to_string().chars().take(200).collect()
}
