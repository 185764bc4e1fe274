//! `/api/v1/keys/` and `/api/v1/audit/`: API keys, and the audit log.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use muster_facilitator_core::access_policy::AccessPolicy;
use muster_facilitator_core::credentials::{Account, ApiKeySecret};
use muster_facilitator_core::list_page::PageQuery;
use muster_facilitator_core::request_bodies;
use muster_process::SharedClock;
use muster_protocol::account_api::{ApiKey, AuditPage, CreateKey, KeyList};

use super::authentication::Caller;
use super::json_body;
use super::rights::{KeysRight, ReadRight};
use muster_facilitator_store::{Actor, KeyCreation, NewKey, Store};

use crate::change_notices::{Notice, Notifier};
use crate::rest::rejection::ApiRejection;

/// The path of the audit log, for the links between its pages.
const AUDIT_PATH: &str = "/api/v1/audit/";

/// The services behind the calls about API keys and the audit log.
pub(crate) struct KeyService {
    pub(crate) store: Store,
    pub(crate) policy: Arc<AccessPolicy>,
    pub(crate) notifier: Notifier,
    pub(crate) clock: SharedClock,
    /// The beginning of links, without a slash at the end; empty for relative links.
    pub(crate) public_url: String,
}

impl KeyService {
    fn is_administrator(&self, actor: &Actor) -> bool {
        self.policy.is_administrator(&actor.account, &actor.credential)
    }
}

/// Creates an API key. Only this answer contains the key itself.
///
/// A login with a hotkey may make any key of its account. A key needs the right `keys`; the keys that it makes have no
/// other rights than its own, end with it, and are revoked with it. The same holds for the session of a browser, which
/// makes keys only in the ten minutes after its hotkey has signed.
#[utoipa::path(post, path = "/api/v1/keys/", tag = "keys", request_body = CreateKey, security(("bearer" = [])),
    responses((status = 201, body = ApiKey), ApiRejection))]
pub(super) async fn create(
    State(service): State<Arc<KeyService>>,
    caller: Caller<KeysRight>,
    request: Request,
) -> Result<(StatusCode, Json<ApiKey>), ApiRejection> {
    let (parts, body) = request.into_parts();
    let body = json_body::read_json(&parts.headers, body).await?;
    let wanted = request_bodies::parse_key_request(&body)?;
    let account = match wanted.account {
        None => caller.account().clone(),
        Some(_) if !service.is_administrator(&caller.actor) => {
            let reason = "Only an administrator of this facilitator may create keys for other accounts.";
            return Err(ApiRejection::detail(StatusCode::FORBIDDEN, reason));
        }
        Some(name) => {
            let account = name.parse::<Account>();
            account.map_err(|error| ApiRejection::field("account", &error.to_string()))?
        }
    };
    let now = service.clock.now();
    caller
        .proof
        .check_key_making(now)
        .map_err(|error| ApiRejection::detail(StatusCode::FORBIDDEN, error.to_string()))?;
    let authority = caller
        .authority
        .grant(wanted.rights.as_deref(), wanted.days, now)
        .map_err(|error| ApiRejection::field("rights", &error.to_string()))?;
    let mut drawn = [0; 32];
    getrandom::fill(&mut drawn).map_err(|error| {
        tracing::error!(%error, "the operating system gives no randomness");
        ApiRejection::error(
            StatusCode::SERVICE_UNAVAILABLE,
            "No key can be drawn now; try again.",
        )
    })?;
    let new = NewKey {
        account: &account,
        name: wanted.name.trim(),
        secret: &ApiKeySecret::from_bytes(drawn),
        authority: &authority,
    };
    let key = match service.store.create_key(&caller.actor, new, now).await? {
        KeyCreation::Created(key) => key,
        KeyCreation::TooMany => {
            let reason = "The account has too many keys; revoke some.";
            return Err(ApiRejection::detail(StatusCode::CONFLICT, reason));
        }
        KeyCreation::MakerEnded => {
            let reason = "The API key or the browser's session that makes the key has ended.";
            return Err(ApiRejection::detail(StatusCode::UNAUTHORIZED, reason));
        }
    };
    tracing::info!(%account, key = key.id, "created an API key");
    Ok((StatusCode::CREATED, Json(key)))
}

/// Lists the account's API keys, without the keys themselves.
#[utoipa::path(get, path = "/api/v1/keys/", tag = "keys", security(("bearer" = [])),
    responses((status = 200, body = KeyList), ApiRejection))]
pub(super) async fn list(
    State(service): State<Arc<KeyService>>,
    caller: Caller<ReadRight>,
) -> Result<Json<KeyList>, ApiRejection> {
    let now = service.clock.now();
    let results = service.store.list_keys(caller.account(), now).await?;
    Ok(Json(KeyList { results }))
}

/// Revokes an API key immediately, and all keys that it has made.
#[utoipa::path(delete, path = "/api/v1/keys/{id}/", tag = "keys", security(("bearer" = [])),
    params(("id" = String, Path, description = "The key's id from the list of keys")),
    responses((status = 204, description = "The key is revoked"), ApiRejection))]
pub(super) async fn revoke(
    State(service): State<Arc<KeyService>>,
    caller: Caller<KeysRight>,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiRejection> {
    let Path(id) = id.map_err(|_| ApiRejection::not_found())?;
    let id = id.parse().map_err(|_| ApiRejection::not_found())?;
    let account = (!service.is_administrator(&caller.actor)).then(|| caller.account());
    let revoked = service
        .store
        .revoke_key(&caller.actor, account, id, service.clock.now())
        .await?;
    let owner = revoked.ok_or_else(ApiRejection::not_found)?;
    tracing::info!(key = %id, by = %caller.account(), "revoked an API key");
    // The browsers that it has signed in are signed out.
    service.notifier.publish(Notice::Sessions(owner));
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the account's actions, newest first; for an administrator, the actions of all accounts.
#[utoipa::path(get, path = "/api/v1/audit/", tag = "keys", security(("bearer" = [])),
    params(
        ("page" = Option<u64>, Query, minimum = 1, description = "Page number, from 1"),
        ("page_size" = Option<u32>, Query, minimum = 1, description = "Results on a page, at most 256; 10 if absent"),
    ),
    responses((status = 200, body = AuditPage), ApiRejection))]
pub(super) async fn audit(
    State(service): State<Arc<KeyService>>,
    caller: Caller<ReadRight>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<AuditPage>, ApiRejection> {
    let Query(query) = query.map_err(|_| ApiRejection::no_such_page())?;
    let page = PageQuery::parse(&query).ok_or_else(ApiRejection::no_such_page)?;
    let account = (!service.is_administrator(&caller.actor)).then(|| caller.account());
    let (count, results) = service
        .store
        .audit_log(account, page.limit(), page.offset())
        .await?;
    if !page.exists(count) {
        return Err(ApiRejection::no_such_page());
    }
    let (next, previous) = page.links(&format!("{}{AUDIT_PATH}", service.public_url), "", count);
    Ok(Json(AuditPage {
        count,
        next,
        previous,
        results,
    }))
}
