//! Errors of an OpenAI-compatible interface, in the shape that OpenAI's client libraries read.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

/// An error with the status, the type and the code that OpenAI's clients look for. Its text is shown to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenAiError {
    /// The body is not JSON, or not the JSON of a request.
    #[error("the request's body cannot be read: {0}")]
    BadRequest(String),
    /// A parameter or header of the request is missing or wrong.
    #[error("{message}")]
    BadParameter {
        /// The name of the parameter or header.
        parameter: &'static str,
        /// The reason, as a text for the client.
        message: String,
    },
    /// The body is compressed, or of a type that is no JSON; which one, as a text for the client.
    #[error("{0}")]
    UnsupportedMedia(String),
    /// The body has more bytes than this.
    #[error("the request's body is larger than {0} bytes")]
    TooLarge(usize),
    /// The body did not arrive in time.
    #[error("the request's body did not arrive in time")]
    UploadTimeout,
    /// No route has this path.
    #[error("unknown request URL: {0}")]
    UnknownUrl(String),
    /// The path has a route, but not for this method.
    #[error("the method {0} is not allowed here")]
    MethodNotAllowed(String),
    /// No session serves this model.
    #[error("the model `{0}` does not exist or is not served here")]
    UnknownModel(String),
    /// No proof of this id is stored, or it belongs to another client.
    #[error("no proof with this id is known here")]
    UnknownProof,
    /// The request carries no API key.
    #[error("no API key was provided; send it as `Authorization: Bearer KEY`")]
    MissingKey,
    /// The API key or token is unknown, was revoked, or has expired; the reason, as a text for the client.
    #[error("{0}")]
    InvalidKey(String),
    /// The account may not do this; the reason, as a text for the client.
    #[error("{0}")]
    Forbidden(String),
    /// The account has used up its quota.
    #[error("{message}")]
    QuotaExceeded {
        /// Which quota, and when it begins anew.
        message: String,
        /// Time until the quota begins anew.
        retry_after: Duration,
    },
    /// The account sent too many requests in a short time.
    #[error("{message}")]
    RateLimited {
        /// Which limit was reached.
        message: String,
        /// Time until a request is admitted again.
        retry_after: Duration,
    },
    /// The queue, or the client's share of it, is full.
    #[error("{message}")]
    QueueFull {
        /// Which of the two is full.
        message: String,
        /// Time after which a place is likely.
        retry_after: Duration,
    },
    /// No session can serve the request now.
    #[error("{message}")]
    Unavailable {
        /// The reason, as a text for the client.
        message: String,
        /// Time after which a session is likely.
        retry_after: Duration,
    },
    /// The session failed, or its response could not be used.
    #[error("{0}")]
    UpstreamFailed(String),
    /// A defect or a fault of this program.
    #[error("{0}")]
    Internal(String),
}

impl OpenAiError {
    /// The HTTP status, for a response that has not begun.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::BadParameter { .. } => StatusCode::BAD_REQUEST,
            Self::UnsupportedMedia(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UploadTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::UnknownUrl(_) | Self::UnknownModel(_) | Self::UnknownProof => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::MissingKey | Self::InvalidKey(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::QuotaExceeded { .. } | Self::RateLimited { .. } | Self::QueueFull { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::UpstreamFailed(_) => StatusCode::BAD_GATEWAY,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// OpenAI's `type` of the error.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::BadRequest(_)
            | Self::BadParameter { .. }
            | Self::UnsupportedMedia(_)
            | Self::TooLarge(_)
            | Self::UploadTimeout
            | Self::UnknownUrl(_)
            | Self::MethodNotAllowed(_)
            | Self::UnknownModel(_)
            | Self::UnknownProof => "invalid_request_error",
            Self::MissingKey | Self::InvalidKey(_) => "authentication_error",
            Self::Forbidden(_) => "permission_error",
            Self::QuotaExceeded { .. } => "insufficient_quota",
            Self::RateLimited { .. } | Self::QueueFull { .. } => "rate_limit_error",
            Self::Unavailable { .. } | Self::UpstreamFailed(_) | Self::Internal(_) => "server_error",
        }
    }

    /// OpenAI's `code` of the error, or ours where OpenAI has none.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "invalid_json",
            Self::BadParameter { .. } => "invalid_value",
            Self::UnsupportedMedia(_) => "unsupported_media_type",
            Self::TooLarge(_) => "request_too_large",
            Self::UploadTimeout => "request_timeout",
            Self::UnknownUrl(_) => "unknown_url",
            Self::MethodNotAllowed(_) => "method_not_allowed",
            Self::UnknownModel(_) => "model_not_found",
            Self::UnknownProof => "proof_not_found",
            Self::MissingKey | Self::InvalidKey(_) => "invalid_api_key",
            Self::Forbidden(_) => "forbidden",
            Self::QuotaExceeded { .. } => "insufficient_quota",
            Self::RateLimited { .. } => "rate_limit_exceeded",
            Self::QueueFull { .. } => "queue_full",
            Self::Unavailable { .. } => "no_session",
            Self::UpstreamFailed(_) => "upstream_failed",
            Self::Internal(_) => "internal_error",
        }
    }

    /// Whole seconds after which a retry may succeed, at least 1; the value of `Retry-After`.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::QuotaExceeded { retry_after, .. }
            | Self::RateLimited { retry_after, .. }
            | Self::QueueFull { retry_after, .. }
            | Self::Unavailable { retry_after, .. } => {
                let rounded_up = u64::from(retry_after.subsec_nanos() > 0);
                Some(retry_after.as_secs().saturating_add(rounded_up).max(1))
            }
            Self::BadRequest(_)
            | Self::BadParameter { .. }
            | Self::UnsupportedMedia(_)
            | Self::TooLarge(_)
            | Self::UploadTimeout
            | Self::UnknownUrl(_)
            | Self::MethodNotAllowed(_)
            | Self::UnknownModel(_)
            | Self::UnknownProof
            | Self::MissingKey
            | Self::InvalidKey(_)
            | Self::Forbidden(_)
            | Self::UpstreamFailed(_)
            | Self::Internal(_) => None,
        }
    }

    /// The body: `{"error": {"message", "type", "param", "code"}}`.
    pub fn body(&self) -> Value {
        let parameter = match self {
            Self::BadParameter { parameter, .. } => Some(*parameter),
            Self::UnknownModel(_) => Some("model"),
            Self::BadRequest(_)
            | Self::UnsupportedMedia(_)
            | Self::TooLarge(_)
            | Self::UploadTimeout
            | Self::UnknownUrl(_)
            | Self::MethodNotAllowed(_)
            | Self::UnknownProof
            | Self::MissingKey
            | Self::InvalidKey(_)
            | Self::Forbidden(_)
            | Self::QuotaExceeded { .. }
            | Self::RateLimited { .. }
            | Self::QueueFull { .. }
            | Self::Unavailable { .. }
            | Self::UpstreamFailed(_)
            | Self::Internal(_) => None,
        };
        error_body(self.kind(), self.code(), parameter, &self.to_string())
    }

    /// The event that carries the error inside a stream that has begun. OpenAI's clients raise the member `error`.
    pub fn event(&self) -> String {
        format!("data: {}\n\n", self.body())
    }
}

/// The body of an error response: `{"error": {"message", "type", "param", "code"}}`.
pub fn error_body(kind: &str, code: &str, parameter: Option<&str>, message: &str) -> Value {
    json!({ "error": { "message": message, "type": kind, "param": parameter, "code": code } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_shape_that_clients_read() {
        let error = OpenAiError::UnknownModel("gpt".to_owned());
        assert_eq!(
            error.body(),
            json!({"error": {
                "message": "the model `gpt` does not exist or is not served here",
                "type": "invalid_request_error", "param": "model", "code": "model_not_found",
            }})
        );
        assert_eq!(error.status(), StatusCode::NOT_FOUND);
        assert!(error.event().starts_with("data: {") && error.event().ends_with("}\n\n"));
    }

    #[test]
    fn retry_after_is_rounded_up_to_whole_seconds_and_is_never_zero() {
        let full = |millis| OpenAiError::QueueFull {
            message: "full".to_owned(),
            retry_after: Duration::from_millis(millis),
        };
        assert_eq!(full(0).retry_after(), Some(1));
        assert_eq!(full(1_500).retry_after(), Some(2));
        assert_eq!(OpenAiError::MissingKey.retry_after(), None);
    }
}
