//! `/auth/nonce`, `/auth/login`, and who a bearer token belongs to.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use muster_protocol::rest::{Login, Nonce, Token};
use muster_protocol::{Signature, UserKey};

use super::body;
use super::refusal::Refusal;
use crate::door::Door;
use muster_porter::auth::TokenRefused;
use muster_porter::intake;

/// `GET /auth/nonce`.
pub(crate) async fn nonce(State(door): State<Arc<Door>>) -> Result<Json<Nonce>, Refusal> {
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

/// `POST /auth/login`.
pub(crate) async fn login(State(door): State<Arc<Door>>, request: Request) -> Result<Json<Token>, Refusal> {
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
    if !door.admits(user) {
        return Err(bad("Hotkey not allowed"));
    }
    let signature = Signature::from_hex(&signature).map_err(|_| wrong_signature())?;
    muster_identity::verify_login(user, &nonce, &signature).map_err(|_| wrong_signature())?;
    // Last, so that nobody but its owner can use a nonce up.
    if !door.store.use_nonce(&nonce, end, now).await? {
        return Err(bad("Nonce expired or not found"));
    }
    let token = door.issuer.token(user, now)?;
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

/// The user whom the request's bearer token names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User(pub(crate) UserKey);

impl FromRequestParts<Arc<Door>> for User {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, door: &Arc<Door>) -> Result<Self, Refusal> {
        let refuse = |detail: &str| Refusal::detail(StatusCode::UNAUTHORIZED, detail);
        let header = parts
            .headers
            .get(header::AUTHORIZATION)
            .ok_or_else(|| refuse("Authentication credentials were not provided."))?;
        let token = header
            .to_str()
            .ok()
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .ok_or_else(|| refuse("Invalid token."))?;
        let user = door
            .issuer
            .user_of(token, door.clock.now())
            .map_err(|refused| match refused {
                TokenRefused::Invalid => refuse("Invalid token."),
                // The SDK looks for these words and logs in again.
                TokenRefused::Expired => refuse("Token expired."),
            })?;
        if door.admits(user) {
            Ok(Self(user))
        } else {
            Err(Refusal::detail(StatusCode::FORBIDDEN, "Hotkey not allowed."))
        }
    }
}
