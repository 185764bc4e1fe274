//! The guard before a role's pages: the sign-in, the headers under which browsers load nothing foreign, the styles.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use http_body_util::{BodyExt as _, Limited};
use maud::html;
use muster_page_layout::document::{outer_page, problem, render_again};
use muster_page_layout::headers_and_assets;
use serde::de::DeserializeOwned;
use tower::ServiceExt as _;

use crate::CallAnswer;
use crate::token_check::{OperatorGate, SignInRefusal};

/// The most bytes of a form.
const MAX_FORM: usize = 4_096;

/// Puts the gate before `pages`, which need not know it. `open` are the pages that everybody may read.
pub fn guard(gate: Arc<OperatorGate>, pages: Router, open: Router) -> Router {
    let guarded = pages.layer(from_fn_with_state(Arc::clone(&gate), admit));
    Router::new()
        .route("/sign-in", get(ask).post(sign_in))
        .route("/sign-out", post(sign_out))
        .with_state(gate)
        .route("/assets/{name}", get(asset))
        .merge(open)
        .merge(guarded)
        .layer(from_fn(protect))
}

/// Asks a JSON call of the same process.
///
/// # Errors
/// The reason as text: the call's own, or that its answer cannot be read.
pub async fn read_call<T: DeserializeOwned>(calls: &Router, path: &str) -> CallAnswer<T> {
    let request = Request::builder().uri(path).body(Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let response = match calls.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let status = response.status();
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|error| error.to_string())?;
    let body = body.to_bytes();
    if !status.is_success() {
        let told = serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default();
        let reason = told.get("error").and_then(serde_json::Value::as_str);
        return Err(reason.map_or_else(|| format!("no answer ({status})"), str::to_owned));
    }
    serde_json::from_slice(&body).map_err(|error| format!("the answer cannot be read: {error}"))
}

/// A page as an answer.
pub fn show(page: String) -> Response {
    Html(page).into_response()
}

/// Lets the operator through; leads others to the sign-in.
async fn admit(State(gate): State<Arc<OperatorGate>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if gate.admits(headers) {
        return next.run(request).await;
    }
    let sent = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_page = sent("sec-fetch-dest").is_none_or(|dest| dest == "document");
    let wants_page = sent("accept").is_some_and(|kinds| kinds.contains("text/html"));
    if !is_page || !wants_page || request.method() != Method::GET {
        let error = "this call needs the operator's token, which is in the file `operator.token` of the role";
        return (
            StatusCode::UNAUTHORIZED,
            axum::Json(serde_json::json!({ "error": error })),
        )
            .into_response();
    }
    // A link on another site brings no cookie. The page loads itself again from here, and the cookie comes with that.
    if sent("sec-fetch-site") == Some("cross-site") {
        return Html(render_again()).into_response();
    }
    Redirect::to("/sign-in").into_response()
}

async fn ask() -> Response {
    Html(render_sign_in(None)).into_response()
}

/// The form for the token.
fn render_sign_in(reason: Option<&str>) -> String {
    let body = html! {
        h1 { "Sign in" }
        @if let Some(reason) = reason { (problem(reason)) }
        form.stack method="post" action="/sign-in" {
            label for="token" { "Operator's token" }
            input #token.mono name="token" type="password" required autocomplete="off" spellcheck="false"
                aria-describedby="token-help" autofocus;
            p #token-help.help { "The role has drawn it and keeps it in the file that its configuration names." }
            button.main type="submit" { "Sign in" }
        }
    };
    outer_page("Sign in", &body)
}

async fn sign_in(State(gate): State<Arc<OperatorGate>>, request: Request) -> Response {
    if is_from_elsewhere(request.headers()) {
        return foreign();
    }
    let Ok(body) = Limited::new(request.into_body(), MAX_FORM).collect().await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "The form is too large.").into_response();
    };
    let body = body.to_bytes();
    let token = form_urlencoded::parse(&body)
        .find(|(name, _)| name == "token")
        .map(|(_, value)| value.trim().to_owned())
        .unwrap_or_default();
    let (status, reason) = match gate.sign_in(&token) {
        Ok(cookie) => {
            tracing::info!("an operator's browser is signed in");
            let mut response = Redirect::to("/").into_response();
            response.headers_mut().append(header::SET_COOKIE, cookie);
            return response;
        }
        Err(SignInRefusal::Wrong) => (StatusCode::UNAUTHORIZED, "That is not the operator's token."),
        Err(SignInRefusal::TooMany) => (
            StatusCode::TOO_MANY_REQUESTS,
            "Too many wrong tokens were shown; wait a minute.",
        ),
        Err(SignInRefusal::NoRandomness) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "The operating system gives no randomness; try again.",
        ),
    };
    (status, Html(render_sign_in(Some(reason)))).into_response()
}

async fn sign_out(State(gate): State<Arc<OperatorGate>>, headers: HeaderMap) -> Response {
    if is_from_elsewhere(&headers) {
        return foreign();
    }
    let mut response = Redirect::to("/sign-in").into_response();
    if let Some(cookie) = gate.sign_out(&headers) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

/// Whether another site has caused the request. Browsers report it, and scripts cannot change it.
fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let site = headers
        .get("sec-fetch-site")
        .and_then(|value| value.to_str().ok());
    matches!(site, Some("cross-site" | "same-site"))
}

fn foreign() -> Response {
    (StatusCode::FORBIDDEN, "Another site has sent this form.").into_response()
}

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
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Adds the headers under which a browser loads nothing foreign, frames nothing and keeps nothing.
async fn protect(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in headers_and_assets::PAGE_HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}
