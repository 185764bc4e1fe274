//! The overview, the usage and the keys.

use axum::extract::{Path, State};
use axum::http::Method;
use axum::response::{Html, IntoResponse, Redirect, Response};
use muster_facilitator_core::credentials::KeyId;
use muster_facilitator_core::granted_rights::CallerProof;
use muster_facilitator_store::WebSessionEntry;
use muster_process::error::Causes;
use muster_protocol::account_api::{AccountView, ApiKey, CreateKey, KeyList};
use muster_protocol::rest::{JobPage, SubnetCapacity};
use muster_web_pages::keys::{KeysPage, SignedInBrowser};
use muster_web_pages::overview::Overview;
use muster_web_pages::usage::ModelUse;
use muster_web_pages::{PagePart, keys as keys_page, overview as overview_page, usage as usage_page};

use super::api::{ApiFailure, SessionApi};
use super::form::SignedForm;
use super::session::{SignedIn, as_part};
use super::state::WebState;

const DAY_S: i64 = 86_400;

/// The newest jobs, the subnet's offers, and the account in numbers.
pub(super) async fn overview(signed_in: SignedIn) -> Html<String> {
    let api = &signed_in.api;
    let visitor = signed_in.visitor();
    let today = visitor.now.secs().div_euclid(DAY_S);
    let (account, jobs, subnet, usage) = tokio::join!(
        api.get::<AccountView>("/api/v1/account/"),
        api.get::<JobPage>("/api/v1/jobs/?page_size=8"),
        api.get::<SubnetCapacity>("/api/v1/subnet/"),
        usage_of(api),
    );
    let tokens_today = usage.map(|usage| {
        let of_today = usage.days.iter().filter(|entry| entry.day == today);
        of_today
            .map(|entry| entry.input_tokens.saturating_add(entry.output_tokens))
            .sum()
    });
    Html(overview_page::render(
        &visitor,
        &Overview {
            account: as_part(account),
            jobs: as_part(jobs),
            subnet: as_part(subnet),
            tokens_today: as_part(tokens_today),
        },
    ))
}

async fn usage_of(api: &SessionApi) -> Result<ModelUse, ApiFailure> {
    api.get("/api/v1/usage/").await
}

/// The tokens by day and model.
pub(super) async fn usage(signed_in: SignedIn) -> Html<String> {
    let days = usage_of(&signed_in.api).await;
    Html(usage_page::render(&signed_in.visitor(), &as_part(days)))
}

/// The keys and the signed-in browsers.
pub(super) async fn keys(State(state): State<WebState>, signed_in: SignedIn) -> Response {
    keys_with(&state, &signed_in, None, None).await
}

async fn keys_with(
    state: &WebState,
    signed_in: &SignedIn,
    made: Option<&ApiKey>,
    failed: Option<&ApiFailure>,
) -> Response {
    let keys = signed_in.api.get::<KeyList>("/api/v1/keys/").await;
    let page = keys_page::render(
        &signed_in.visitor(),
        &KeysPage {
            keys: &as_part(keys),
            browsers: &browsers(state, signed_in).await,
            may_end_sessions: signed_in.api.caller.authority.may_end_sessions(),
            making: &making(state, signed_in),
            made,
            problem: failed.map(|failure| failure.words.as_str()),
        },
    );
    let status = failed.map_or(axum::http::StatusCode::OK, |failure| failure.status);
    (status, Html(page)).into_response()
}

async fn browsers(state: &WebState, signed_in: &SignedIn) -> PagePart<Vec<SignedInBrowser>> {
    if !signed_in.api.caller.authority.may_list_sessions() {
        let words =
            "The API key that signed this browser in lacks the right `read`, so it lists no browsers.";
        return Err(words.to_owned());
    }
    let (service, account) = (&state.service, &signed_in.api.caller.actor.account);
    let found = service
        .store
        .list_web_sessions(account, &signed_in.secret, service.clock.now())
        .await;
    let shown = |entry: WebSessionEntry| SignedInBrowser {
        credential: entry.credential,
        browser: entry.browser,
        created_at: entry.created_at,
        expires_at: entry.expires_at,
        is_own: entry.is_own,
    };
    match found {
        Ok(entries) => Ok(entries.into_iter().map(shown).collect()),
        Err(error) => {
            tracing::error!(error = %Causes(&error), "cannot list the sessions of browsers");
            Err("The facilitator's store does not answer; try again.".to_owned())
        }
    }
}

/// Whether the browser may make keys now, or the reason why not.
fn making(state: &WebState, signed_in: &SignedIn) -> PagePart<()> {
    let signed_at = signed_in.api.caller.signed_at;
    CallerProof::Session { signed_at }
        .check_key_making(state.service.clock.now())
        .map_err(|error| error.to_string())
}

/// Makes a key and shows it, once.
pub(super) async fn make_key(State(state): State<WebState>, form: SignedForm) -> Response {
    let SignedForm { signed_in, fields } = form;
    let wanted = CreateKey {
        name: fields.get("name").trim().to_owned(),
        account: None,
        rights: Some(fields.all("right").filter_map(|name| name.parse().ok()).collect()),
        // It ends with the browser's session.
        days: None,
    };
    match signed_in.api.post::<ApiKey>("/api/v1/keys/", &wanted).await {
        Ok(made) => keys_with(&state, &signed_in, Some(&made), None).await,
        Err(failure) => keys_with(&state, &signed_in, None, Some(&failure)).await,
    }
}

/// Revokes a key.
pub(super) async fn revoke_key(
    State(state): State<WebState>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Response {
    let Ok(id) = id.parse::<KeyId>() else {
        return form.signed_in.not_found();
    };
    let path = format!("/api/v1/keys/{id}/");
    match form.signed_in.api.act(Method::DELETE, &path).await {
        Ok(()) => Redirect::to("/keys").into_response(),
        Err(failure) => keys_with(&state, &form.signed_in, None, Some(&failure)).await,
    }
}
