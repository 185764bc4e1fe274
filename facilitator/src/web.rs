//! The web page: what users of the facilitator look at in a browser.
//!
//! A page asks the REST API of its own process, in the name of the browser's session ([`api`]). So rights, rates and
//! ownership are decided at one place, and a page shows nothing that its account's API key could not read. `session`
//! decides who a browser is and which forms are its own; `muster-web-pages` makes the HTML.

mod account;
mod api;
mod chat;
mod files;
mod form;
mod job;
mod job_events;
mod jobs;
mod new_job;
mod outside;
mod page_headers;
mod session;
mod session_end;
mod sign_in;
mod state;

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, Uri, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use muster_web_pages::headers_and_assets;

use self::outside::notice_outside;
use self::page_headers::protect;
pub(crate) use self::state::WebService;
use self::state::WebState;

/// The routes of the pages, which ask `api`.
pub(crate) fn router(service: Arc<WebService>, api: Router) -> Router {
    Router::new()
        .route("/", get(account::overview))
        .route("/sign-in", get(sign_in::form).post(sign_in::with_key))
        .route("/sign-in/link", get(sign_in::link).post(sign_in::use_link))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/sign-out/everywhere", post(sign_in::sign_out_everywhere))
        .route("/jobs", get(jobs::list).post(new_job::create))
        .route("/jobs/events", get(job_events::events))
        .route("/jobs/new", get(new_job::form))
        .route("/jobs/spec", post(new_job::create_from_spec))
        .route("/jobs/{id}", get(job::show))
        .route("/jobs/{id}/events", get(job::events))
        .route("/jobs/{id}/cancel", post(job::cancel))
        .route("/jobs/{id}/output/{stream}", get(job::output))
        .route("/jobs/{id}/artifacts/{number}", get(job::artifact))
        .route("/chat", get(chat::page))
        .route("/chat/completions", post(chat::complete))
        .route("/chat/proofs/{id}", get(chat::proof))
        .route("/usage", get(account::usage))
        .route("/keys", get(account::keys).post(account::make_key))
        .route("/keys/{id}/revoke", post(account::revoke_key))
        .route("/files", get(files::list).post(files::create))
        .route("/files/{id}/download", get(files::download))
        .route("/files/{id}/delete", post(files::delete))
        .route("/assets/{name}", get(asset))
        .with_state(WebState { service, api })
        .layer(from_fn(protect))
}

/// A file that pages load. Its path changes with its bytes.
async fn asset(uri: Uri) -> Response {
    match headers_and_assets::find(uri.path()) {
        Some(found) => (
            [
                (header::CONTENT_TYPE, found.kind),
                (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
            ],
            found.contents,
        )
            .into_response(),
        None => notice_outside(
            StatusCode::NOT_FOUND,
            "Not found",
            "There is nothing at this address.",
        ),
    }
}
