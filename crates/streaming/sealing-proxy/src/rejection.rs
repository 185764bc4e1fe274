//! What the seal answers on its own account, in the form in which OpenAI's clients read errors.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use muster_openai::error_body;

/// A request that never reached the engine. It carries no proof: nothing was asked, nothing answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the request states its length in two ways; one of them is somebody else's request")]
    Smuggled,
    #[error("this server takes requests to itself only")]
    Connect,
    #[error("the request's path is longer than {} bytes", muster_response_proof::MAX_TEXT)]
    Path,
    #[error("the request's header {0} must be 64 hex digits")]
    Nonce(&'static str),
    #[error("the request's body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the request's body broke off")]
    Broken,
    #[error("the request's body took too long")]
    Slow,
    #[error("too many requests are under way")]
    Busy,
    #[error("the session is closed")]
    Closed,
    #[error("there is nothing here")]
    NotFound,
    #[error("this method is not for this path")]
    Method,
}

impl Refusal {
    const fn status(self) -> StatusCode {
        match self {
            Self::Smuggled | Self::Nonce(_) | Self::Broken => StatusCode::BAD_REQUEST,
            Self::Connect | Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Path => StatusCode::URI_TOO_LONG,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Busy | Self::Closed => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotFound => StatusCode::NOT_FOUND,
        }
    }

    /// What is left of the request on the connection is not to be read as the next one.
    const fn ends_connection(self) -> bool {
        match self {
            Self::Smuggled | Self::TooLarge(_) | Self::Broken | Self::Slow | Self::Connect => true,
            Self::Path | Self::Nonce(_) | Self::Busy | Self::Closed | Self::NotFound | Self::Method => false,
        }
    }

    pub(crate) fn response(self, http2: bool) -> Response<Full<Bytes>> {
        let (kind, code) = match self {
            Self::Busy => ("server_error", "busy"),
            Self::Closed => ("server_error", "session_closed"),
            Self::Smuggled
            | Self::Connect
            | Self::Path
            | Self::Nonce(_)
            | Self::TooLarge(_)
            | Self::Broken
            | Self::Slow
            | Self::NotFound
            | Self::Method => ("invalid_request_error", "bad_request"),
        };
        let mut response = error(self.status(), kind, code, &self.to_string());
        let headers = response.headers_mut();
        if self.ends_connection() && !http2 {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self == Self::Busy {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// An answer that is such an error.
pub(crate) fn error(status: StatusCode, kind: &str, code: &str, message: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(
        error_body(kind, code, None, message).to_string().into(),
    ));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
