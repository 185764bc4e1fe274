//! `/api/v1/account/`: what an account holds, and its deletion.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use muster_facilitator_core::credentials::{Account, Credential};
use muster_process::SharedClock;
use muster_protocol::account_api::{AccountDeleted, AccountView};
use muster_store::retention::{Pace, PaceSettings, sweep};
use serde::Deserialize;

use super::authentication::Caller;
use super::model_service::ModelService;
use super::rights::{AnyRight, KeysRight};
use muster_facilitator_store::{AccountDeletion, Store, deletions_of};

use crate::change_notices::{Notice, Notifier};
use crate::rest::rejection::ApiRejection;

/// The things that the facilitator does not delete, as texts for the user.
const STAYS: [&str; 3] = [
    "the validators' and miners' signed receipts of the account's jobs, which miners are paid by",
    "the validators' copies of jobs and users' signatures, until their own retention ends",
    "one entry of the audit log that says when the account was deleted, and today's count of jobs, until midnight UTC",
];

/// The services behind the calls about the account.
pub(crate) struct AccountService {
    pub(crate) store: Store,
    pub(crate) notifier: Notifier,
    pub(crate) clock: SharedClock,
}

/// The query of a deletion.
#[derive(Debug, Deserialize)]
pub(super) struct Confirmation {
    #[serde(default)]
    confirm: String,
}

/// Returns what the caller's account holds.
#[utoipa::path(get, path = "/api/v1/account/", tag = "account", security(("bearer" = [])),
    responses((status = 200, body = AccountView), ApiRejection))]
pub(super) async fn show(
    State(service): State<Arc<AccountService>>,
    caller: Caller<AnyRight>,
) -> Result<Json<AccountView>, ApiRejection> {
    let now = service.clock.now();
    Ok(Json(service.store.account_view(caller.account(), now).await?))
}

/// Deletes the caller's account: its keys, files, jobs, output and usage.
///
/// The account must have no open job. An account of a hotkey is deleted with a token of that hotkey, not with an API
/// key. A later login with the same hotkey begins with an empty account.
#[utoipa::path(delete, path = "/api/v1/account/", tag = "account", security(("bearer" = [])),
    params(("confirm" = String, Query, description = "The account's name, as GET returns it")),
    responses((status = 200, body = AccountDeleted), ApiRejection))]
pub(super) async fn remove(
    State(service): State<Arc<AccountService>>,
    State(models): State<Arc<ModelService>>,
    caller: Caller<KeysRight>,
    query: Result<Query<Confirmation>, QueryRejection>,
) -> Result<Json<AccountDeleted>, ApiRejection> {
    let account = caller.account().to_string();
    let confirmed = query.is_ok_and(|Query(given)| given.confirm == account);
    if !confirmed {
        let reason = format!("Confirm the deletion with ?confirm={account}; it cannot be undone.");
        return Err(ApiRejection::detail(StatusCode::BAD_REQUEST, reason));
    }
    match (caller.account(), &caller.actor.credential) {
        (Account::Hotkey(_), Credential::ApiKey(_) | Credential::Browser(_)) => {
            let reason = "Log in with the hotkey to delete its account; an API key or a browser may not.";
            return Err(ApiRejection::detail(StatusCode::FORBIDDEN, reason));
        }
        (Account::Hotkey(_), Credential::Hotkey) | (Account::Named(_), _) => {}
    }
    let now = service.clock.now();
    let client = models.gateway_name(caller.account());
    match service.store.delete_account(&caller.actor, &client, now).await? {
        AccountDeletion::Begun => {}
        AccountDeletion::OpenJobs(open) => {
            let reason =
                format!("{open} jobs of the account have not ended; cancel them, or wait for their end.");
            return Err(ApiRejection::detail(StatusCode::CONFLICT, reason));
        }
        AccountDeletion::DeletedToday => {
            let reason = "The account was deleted today already; it can be deleted again after midnight UTC.";
            return Err(ApiRejection::detail(StatusCode::CONFLICT, reason));
        }
    }
    service
        .notifier
        .publish(Notice::Sessions(caller.account().clone()));
    tracing::info!(account, "deletes an account");
    let mut deleted = std::collections::BTreeMap::new();
    // If the client goes away meanwhile, the janitor does the rest.
    if let Some(pending) = service.store.open_deletion_of(caller.account()).await? {
        let pace = Pace {
            pause: Duration::ZERO,
            ..PaceSettings::default().pace()
        };
        let due = deletions_of(&pending);
        for (table, rows) in sweep(&service.store.writer(), &due, pace, &*service.clock).await? {
            deleted.insert(table.to_owned(), rows);
        }
        service
            .store
            .finish_account_deletions(service.clock.now())
            .await?;
    }
    Ok(Json(AccountDeleted {
        account,
        deleted,
        stays: STAYS.map(str::to_owned).to_vec(),
    }))
}
