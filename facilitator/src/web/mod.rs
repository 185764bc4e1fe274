//! The web page: what users of the facilitator look at in a browser.
//!
//! A page asks the REST API of its own process, in the name of the browser's session ([`api`]). So rights, rates and
//! ownership are decided at one place, and a page shows nothing that its account's API key could not read. `session`
//! says who a browser is and which forms are its own; `muster-web-pages` makes the HTML.

mod account;
mod api;
mod chat;
mod files;
mod form;
mod job;
mod job_events;
mod jobs;
mod new_job;
mod session;
mod sign_in;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRef, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use muster_facilitator_core::web_cookies::CookieRules;
use muster_facilitator_core::web_session::FormKey;
use muster_facilitator_store::Store;
use muster_process::SharedClock;
use muster_web_pages::{assets, notice};

pub(crate) use self::api::SessionCaller;
use crate::rest::admission::Admission;
use crate::rest::events::EventService;

/// The services behind the pages.
pub(crate) struct WebService {
    pub(crate) store: Store,
    pub(crate) admission: Arc<Admission>,
    /// Limits and wakes the streams of events.
    pub(crate) events: Arc<EventService>,
    pub(crate) form_key: FormKey,
    /// Whether browsers reach the facilitator over TLS only.
    pub(crate) over_tls: bool,
    /// The time from a sign-in to the end of its session.
    pub(crate) session_lifetime: Duration,
    pub(crate) clock: SharedClock,
}

/// The state of the handlers of pages.
#[derive(Clone)]
pub(crate) struct WebState {
    service: Arc<WebService>,
    /// The REST API of this process.
    api: Router,
}

impl FromRef<WebState> for Arc<Admission> {
    fn from_ref(state: &WebState) -> Self {
        Arc::clone(&state.service.admission)
    }
}

impl WebState {
    fn cookies(&self) -> CookieRules {
        CookieRules {
            over_tls: self.service.over_tls,
        }
    }
}

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

/// A mark in a response's extensions: the page runs the module that checks proofs.
#[derive(Clone, Copy, Debug)]
struct RunsModule;

/// Adds the headers under which a browser loads nothing foreign, frames nothing and keeps nothing.
async fn protect(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let runs_module = response.extensions().get::<RunsModule>().is_some();
    let headers = response.headers_mut();
    for (name, value) in assets::PAGE_HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if runs_module {
        let policy = HeaderValue::from_static(assets::MODULE_POLICY);
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// A file that pages load. Its path changes with its bytes.
async fn asset(uri: Uri) -> Response {
    match assets::find(uri.path()) {
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

/// A notice for a browser that is not signed in.
fn notice_outside(status: StatusCode, title: &str, words: &str) -> Response {
    (status, Html(notice::render_outside(title, words))).into_response()
}
