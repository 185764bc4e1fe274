//! How people and programs are let in: `/auth/nonce`, `/auth/login`, `/api/v1/keys/` and `/api/v1/audit/`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use muster_facilitator_core::account::{Account, ApiKeySecret};
use muster_facilitator_core::intake;
use muster_facilitator_core::page::PageQuery;
use muster_protocol::rest::{ApiKey, AuditPage, CreateKey, KeyList, Login, Nonce, Token};
use muster_protocol::{Signature, UserKey};

use super::body;
use super::caller::{Caller, Stranger};
use super::refusal::Refusal;
use crate::door::Door;
use crate::store::{Action, Actor};

const AUDIT_PATH: &str = "/api/v1/audit/";

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

/// Makes an API key. The key itself is shown this once.
#[utoipa::path(post, path = "/api/v1/keys/", tag = "keys", request_body = CreateKey, security(("bearer" = [])),
    responses((status = 201, body = ApiKey), Refusal))]
pub(super) async fn create(
    State(door): State<Arc<Door>>,
    caller: Caller,
    request: Request,
) -> Result<(StatusCode, Json<ApiKey>), Refusal> {
    let (parts, body) = request.into_parts();
    let body = body::json(&parts.headers, body).await?;
    let wish = intake::read_key(&body)?;
    let account = match wish.account {
        None => caller.account().clone(),
        Some(_) if !door.administers(&caller.0) => {
            let reason = "Only an administrator of this facilitator makes keys for others.";
            return Err(Refusal::detail(StatusCode::FORBIDDEN, reason));
        }
        Some(name) => {
            let account = name.parse::<Account>();
            account.map_err(|error| Refusal::field("account", &error.to_string()))?
        }
    };
    let mut drawn = [0; 32];
    getrandom::fill(&mut drawn).map_err(|error| {
        tracing::error!(%error, "the operating system gives no randomness");
        Refusal::error(
            StatusCode::SERVICE_UNAVAILABLE,
            "No key can be drawn now; try again.",
        )
    })?;
    let secret = ApiKeySecret::from_bytes(drawn);
    let name = wish.name.trim();
    let key = door
        .store
        .create_key(&caller.0, &account, name, &secret, door.clock.now())
        .await?;
    let full = || {
        Refusal::detail(
            StatusCode::CONFLICT,
            "The account has too many keys; revoke some.",
        )
    };
    let key = key.ok_or_else(full)?;
    tracing::info!(%account, key = key.id, "an API key was made");
    Ok((StatusCode::CREATED, Json(key)))
}

/// The account's API keys, without the keys themselves.
#[utoipa::path(get, path = "/api/v1/keys/", tag = "keys", security(("bearer" = [])),
    responses((status = 200, body = KeyList), Refusal))]
pub(super) async fn list(State(door): State<Arc<Door>>, caller: Caller) -> Result<Json<KeyList>, Refusal> {
    let results = door.store.keys_of(caller.account()).await?;
    Ok(Json(KeyList { results }))
}

/// Revokes an API key at once.
#[utoipa::path(delete, path = "/api/v1/keys/{id}/", tag = "keys", security(("bearer" = [])),
    params(("id" = String, Path, description = "As the list of keys names it")),
    responses((status = 204, description = "It no longer holds"), Refusal))]
pub(super) async fn revoke(
    State(door): State<Arc<Door>>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Refusal> {
    let Path(id) = id.map_err(|_| Refusal::not_found())?;
    let id = id.parse().map_err(|_| Refusal::not_found())?;
    let whose = (!door.administers(&caller.0)).then(|| caller.account());
    if door
        .store
        .revoke_key(&caller.0, whose, id, door.clock.now())
        .await?
    {
        tracing::info!(key = %id, by = %caller.account(), "an API key was revoked");
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Refusal::not_found())
    }
}

/// Who did what under the account; for an administrator, under all of them.
#[utoipa::path(get, path = "/api/v1/audit/", tag = "keys", security(("bearer" = [])),
    params(
        ("page" = Option<u64>, Query, minimum = 1, description = "From 1"),
        ("page_size" = Option<u32>, Query, minimum = 1, description = "At most 256, else 10"),
    ),
    responses((status = 200, body = AuditPage), Refusal))]
pub(super) async fn audit(
    State(door): State<Arc<Door>>,
    caller: Caller,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<AuditPage>, Refusal> {
    let Query(query) = query.map_err(|_| Refusal::no_such_page())?;
    let page = PageQuery::read(&query).ok_or_else(Refusal::no_such_page)?;
    let whose = (!door.administers(&caller.0)).then(|| caller.account());
    let (count, results) = door.store.audited(whose, page.limit(), page.offset()).await?;
    if !page.exists(count) {
        return Err(Refusal::no_such_page());
    }
    let (next, previous) = page.links(&format!("{}{AUDIT_PATH}", door.public_url), "", count);
    Ok(Json(AuditPage {
        count,
        next,
        previous,
        results,
    }))
}
