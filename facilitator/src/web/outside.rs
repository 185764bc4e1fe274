//! Answers to a browser that is not signed in.

use axum::http::StatusCode;
use axum::response::{Html, IntoResponse as _, Response};
use muster_web_pages::notice;

/// A notice for a browser that is not signed in.
pub(super) fn notice_outside(status: StatusCode, title: &str, words: &str) -> Response {
    (status, Html(notice::render_outside(title, words))).into_response()
}
