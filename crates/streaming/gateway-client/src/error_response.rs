//! Turns an error into the HTTP response that OpenAI's clients expect.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use muster_openai::OpenAiError;

/// The response to a request that failed with `error`, with `Retry-After` and `WWW-Authenticate` where they apply.
pub fn error_response(error: &OpenAiError) -> Response {
    let mut response = (error.status(), Json(error.body())).into_response();
    let headers = response.headers_mut();
    if let Some(seconds) = error.retry_after() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if error.status() == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
