//! Requests that the proxy rejects itself, and its error responses, in the form that OpenAI's clients read.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use muster_openai::error_body;

/// Why a request is rejected before it reaches the engine. Such a response carries no proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestRejection {
    #[error("the request states its length in two ways")]
    Smuggled,
    #[error("this server does not forward to other servers")]
    Connect,
    #[error("the request's path is longer than {} bytes", muster_response_proof::MAX_TEXT)]
    Path,
    #[error("the request's header {0} must be 64 hex digits")]
    Nonce(&'static str),
    #[error("this session has taken a request with this nonce of the gateway's before")]
    Repeated,
    #[error("the request's body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the request's body broke off")]
    Broken,
    #[error("the request's body did not arrive in time")]
    Slow,
    #[error("too many requests are under way")]
    Busy,
    #[error("the session is closed")]
    Closed,
    #[error("nothing has this path")]
    NotFound,
    #[error("this path does not take this method")]
    Method,
}

impl RequestRejection {
    const fn status(self) -> StatusCode {
        match self {
            Self::Smuggled | Self::Nonce(_) | Self::Broken => StatusCode::BAD_REQUEST,
            Self::Connect | Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Path => StatusCode::URI_TOO_LONG,
            Self::Repeated => StatusCode::CONFLICT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Busy | Self::Closed => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotFound => StatusCode::NOT_FOUND,
        }
    }

    /// Whether the connection is closed, so that the rest of the request is not read as the next one.
    const fn ends_connection(self) -> bool {
        match self {
            Self::Smuggled | Self::TooLarge(_) | Self::Broken | Self::Slow | Self::Connect => true,
            Self::Path
            | Self::Nonce(_)
            | Self::Repeated
            | Self::Busy
            | Self::Closed
            | Self::NotFound
            | Self::Method => false,
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
            | Self::Repeated
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

/// A response that is an error in OpenAI's form.
pub(crate) fn error(status: StatusCode, kind: &str, code: &str, message: &str) -> Response<Full<Bytes>> {
    let body = error_body(kind, code, None, message).to_string();
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
