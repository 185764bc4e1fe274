//! The headers of every page.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use muster_web_pages::headers_and_assets;

/// A mark in a response's extensions: the page runs the module that checks proofs.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunsModule;

/// Adds the headers under which a browser loads nothing foreign, frames nothing and keeps nothing.
pub(super) async fn protect(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let runs_module = response.extensions().get::<RunsModule>().is_some();
    let headers = response.headers_mut();
    for (name, value) in headers_and_assets::PAGE_HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if runs_module {
        let policy = HeaderValue::from_static(headers_and_assets::MODULE_POLICY);
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}
