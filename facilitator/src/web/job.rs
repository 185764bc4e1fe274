//! One job: its page, its events, its output and artifacts, and its cancellation.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_protocol::JobId;
use muster_protocol::rest::{JobMetricsView, JobView};
use muster_protocol::wire::checks::JobCheck;
use muster_span_export::{order_stages, trace_of};
use muster_web_pages::checked_receipts::check_receipts;
use muster_web_pages::job::{self, JobFindings};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tracing::{Instrument as _, Span};

use super::api::{ApiFailure, SessionApi, pass_headers};
use super::form::SignedForm;
use super::outside::notice_outside;
use super::session::SignedIn;
use super::session_end::until_session_ends;
use super::state::WebState;

/// The headers of an event stream that its browser gets.
const EVENT_HEADERS: [&str; 3] = ["content-type", "cache-control", "x-accel-buffering"];

/// One of the session's own jobs, as the API shows it.
pub(super) async fn job_of(api: &SessionApi, id: &str) -> Result<JobView, ApiFailure> {
    api.get(&format!("{}/", job_path(id)?)).await
}

async fn metrics_of(api: &SessionApi, id: JobId) -> Result<JobMetricsView, ApiFailure> {
    api.get(&format!("/api/v1/jobs/{id}/metrics/")).await
}

/// The validator's finding by running the job again; `None` if it has reported none.
async fn check_of(api: &SessionApi, id: JobId) -> Result<Option<JobCheck>, ApiFailure> {
    let found = api.get(&format!("/api/v1/jobs/{id}/check/")).await.map(Some);
    let is_absent = |failure: &ApiFailure| failure.status == StatusCode::NOT_FOUND;
    found.or_else(|failure| is_absent(&failure).then_some(None).ok_or(failure))
}

/// The API's path of a job, without the slash at its end. Any other text is answered like a job that does not exist.
fn job_path(id: &str) -> Result<String, ApiFailure> {
    let id = id.parse::<JobId>().map_err(|_| ApiFailure {
        status: StatusCode::NOT_FOUND,
        words: String::new(),
    })?;
    Ok(format!("/api/v1/jobs/{id}"))
}

/// The page of a job.
///
/// It is made on a thread for blocking work. Its documents are large and short-lived; on a thread of the connections
/// the allocator would put what a connection keeps into the memory that they leave, and each browser that goes on to
/// watch the job would hold several kilobytes more.
pub(super) async fn show(
    State(state): State<WebState>,
    signed_in: SignedIn,
    Path(id): Path<String>,
) -> Response {
    let (runtime, span) = (Handle::current(), Span::current());
    let making = spawn_blocking(move || runtime.block_on(make_page(state, signed_in, id).instrument(span)));
    match making.await {
        Ok(page) => page,
        Err(error) => {
            tracing::error!(%error, "the page of a job could not be made");
            let words = "The facilitator has a defect; the operator's log describes it.";
            notice_outside(StatusCode::INTERNAL_SERVER_ERROR, "No page", words)
        }
    }
}

async fn make_page(state: WebState, signed_in: SignedIn, id: String) -> Response {
    match job_of(&signed_in.api, &id).await {
        Ok(view) => {
            let receipts = check_receipts(&view, state.service.clock.now());
            let (api, id) = (&signed_in.api, view.uuid);
            let (metrics, check) = match tokio::try_join!(metrics_of(api, id), check_of(api, id)) {
                Ok(found) => found,
                Err(failure) => return signed_in.failure(&failure),
            };
            let way = order_stages(&trace_of(&view).stages);
            let found = JobFindings {
                metrics: &metrics,
                receipts: &receipts,
                way: &way,
                check: check.as_ref(),
            };
            let page = job::render(&signed_in.visitor(), &view, &found);
            Html(page).into_response()
        }
        Err(failure) => signed_in.failure(&failure),
    }
}

/// The job's events as they come, until the session ends.
pub(super) async fn events(
    State(state): State<WebState>,
    signed_in: SignedIn,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let path = match job_path(&id) {
        Ok(path) => format!("{path}/events/"),
        Err(failure) => return signed_in.failure(&failure),
    };
    let resume = HeaderName::from_static("last-event-id");
    let resumed: Vec<_> = headers
        .get(&resume)
        .map(|id| (resume, id.clone()))
        .into_iter()
        .collect();
    let response = signed_in
        .api
        .send(Method::GET, &path, &resumed, Body::empty())
        .await;
    let (parts, body) = response.into_parts();
    let response = (parts.status, pass_headers(&parts.headers, &EVENT_HEADERS), body).into_response();
    until_session_ends(&state.service, &signed_in, response)
}

/// Cancels the job.
pub(super) async fn cancel(Path(id): Path<String>, form: SignedForm) -> Response {
    let path = match job_path(&id) {
        Ok(path) => format!("{path}/cancel/"),
        Err(failure) => return form.signed_in.failure(&failure),
    };
    match form.signed_in.api.act(Method::POST, &path).await {
        Ok(()) => Redirect::to(&format!("/jobs/{id}")).into_response(),
        Err(failure) => form.signed_in.failure(&failure),
    }
}

/// The whole output of one stream, as text.
pub(super) async fn output(signed_in: SignedIn, Path((id, stream)): Path<(String, String)>) -> Response {
    let view = match job_of(&signed_in.api, &id).await {
        Ok(view) => view,
        Err(failure) => return signed_in.failure(&failure),
    };
    let text = match stream.as_str() {
        "stdout" => view.stdout,
        "stderr" => view.stderr,
        _ => return signed_in.not_found(),
    };
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// One artifact, by its number in the job's list. Browsers save it and never show it as a page of this server.
pub(super) async fn artifact(signed_in: SignedIn, Path((id, number)): Path<(String, usize)>) -> Response {
    let view = match job_of(&signed_in.api, &id).await {
        Ok(view) => view,
        Err(failure) => return signed_in.failure(&failure),
    };
    let Some((path, contents)) = view.artifacts.get_index(number) else {
        return signed_in.not_found();
    };
    let Ok(bytes) = STANDARD.decode(contents) else {
        return signed_in.failure(&ApiFailure {
            status: StatusCode::BAD_GATEWAY,
            words: "The artifact came in a form that cannot be read; its miner is at fault.".to_owned(),
        });
    };
    let name = path.rsplit('/').next().unwrap_or(path);
    let encoded: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
    let disposition = format!("attachment; filename*=UTF-8''{}", encoded.replace('+', "%20"));
    let mut response = bytes.into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    if let Ok(value) = HeaderValue::try_from(disposition) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    response
}
