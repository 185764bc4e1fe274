//! How a client of an OpenAI-compatible door is told that something cannot be: in the shape that its library reads.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

/// A refusal with the status, the type and the code that OpenAI's clients look for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The body is no JSON, or none that a request can be.
    #[error("the request's body cannot be read: {0}")]
    BadRequest(String),
    /// A part of the request is missing or wrong.
    #[error("{message}")]
    BadParameter {
        /// Which.
        parameter: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// The body is larger than it may be.
    #[error("the request's body is larger than {0} bytes")]
    TooLarge(usize),
    /// The body did not come in time.
    #[error("the request's body did not arrive in time")]
    TooSlow,
    /// No such address.
    #[error("unknown request URL: {0}")]
    UnknownUrl(String),
    /// The address is known, but not this way of asking.
    #[error("{0} is not how this is asked for")]
    UnknownMethod(String),
    /// No such model here.
    #[error("the model `{0}` does not exist or is not served here")]
    UnknownModel(String),
    /// No such proof here.
    #[error("no proof of this id is known here")]
    UnknownProof,
    /// Nobody said who asks.
    #[error("no API key was provided; send it as `Authorization: Bearer KEY`")]
    NoKey,
    /// The key is unknown, was revoked, or holds no longer.
    #[error("{0}")]
    BadKey(String),
    /// Who asks may not.
    #[error("{0}")]
    Forbidden(String),
    /// What the account may use is used up.
    #[error("{message}")]
    QuotaUsedUp {
        /// Which quota, and when it begins anew.
        message: String,
        /// When it is worth asking again.
        retry_after: Duration,
    },
    /// Too many requests of one account in a short time.
    #[error("{message}")]
    TooOften {
        /// Why.
        message: String,
        /// When it is worth asking again.
        retry_after: Duration,
    },
    /// The queue is full.
    #[error("{message}")]
    QueueFull {
        /// Whose.
        message: String,
        /// When it is worth asking again.
        retry_after: Duration,
    },
    /// Nothing can serve it now.
    #[error("{message}")]
    Unavailable {
        /// Why.
        message: String,
        /// When it is worth asking again.
        retry_after: Duration,
    },
    /// The session died, or what it said could not be used.
    #[error("{0}")]
    Upstream(String),
    /// A defect or a fault of ours.
    #[error("{0}")]
    Internal(String),
}

impl Refusal {
    /// The HTTP status, where there still is one to be sent.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::BadParameter { .. } => StatusCode::BAD_REQUEST,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::UnknownUrl(_) | Self::UnknownModel(_) | Self::UnknownProof => StatusCode::NOT_FOUND,
            Self::UnknownMethod(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoKey | Self::BadKey(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::QuotaUsedUp { .. } | Self::TooOften { .. } | Self::QueueFull { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Upstream(_) => StatusCode::BAD_GATEWAY,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// OpenAI's word for the kind of error.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::BadRequest(_)
            | Self::BadParameter { .. }
            | Self::TooLarge(_)
            | Self::TooSlow
            | Self::UnknownUrl(_)
            | Self::UnknownMethod(_)
            | Self::UnknownModel(_)
            | Self::UnknownProof => "invalid_request_error",
            Self::NoKey | Self::BadKey(_) => "authentication_error",
            Self::Forbidden(_) => "permission_error",
            Self::QuotaUsedUp { .. } => "insufficient_quota",
            Self::TooOften { .. } | Self::QueueFull { .. } => "rate_limit_error",
            Self::Unavailable { .. } | Self::Upstream(_) | Self::Internal(_) => "server_error",
        }
    }

    /// OpenAI's code, or ours where it has none.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "invalid_json",
            Self::BadParameter { .. } => "invalid_value",
            Self::TooLarge(_) => "request_too_large",
            Self::TooSlow => "request_timeout",
            Self::UnknownUrl(_) => "unknown_url",
            Self::UnknownMethod(_) => "method_not_allowed",
            Self::UnknownModel(_) => "model_not_found",
            Self::UnknownProof => "proof_not_found",
            Self::NoKey | Self::BadKey(_) => "invalid_api_key",
            Self::Forbidden(_) => "forbidden",
            Self::QuotaUsedUp { .. } => "insufficient_quota",
            Self::TooOften { .. } => "rate_limit_exceeded",
            Self::QueueFull { .. } => "queue_full",
            Self::Unavailable { .. } => "no_session",
            Self::Upstream(_) => "upstream_failed",
            Self::Internal(_) => "internal_error",
        }
    }

    /// Whole seconds after which it is worth asking again, at least one.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::QuotaUsedUp { retry_after, .. }
            | Self::TooOften { retry_after, .. }
            | Self::QueueFull { retry_after, .. }
            | Self::Unavailable { retry_after, .. } => {
                let rounded_up = u64::from(retry_after.subsec_nanos() > 0);
                Some(retry_after.as_secs().saturating_add(rounded_up).max(1))
            }
            Self::BadRequest(_)
            | Self::BadParameter { .. }
            | Self::TooLarge(_)
            | Self::TooSlow
            | Self::UnknownUrl(_)
            | Self::UnknownMethod(_)
            | Self::UnknownModel(_)
            | Self::UnknownProof
            | Self::NoKey
            | Self::BadKey(_)
            | Self::Forbidden(_)
            | Self::Upstream(_)
            | Self::Internal(_) => None,
        }
    }

    /// The body: `{"error": {"message", "type", "param", "code"}}`.
    pub fn body(&self) -> Value {
        let parameter = match self {
            Self::BadParameter { parameter, .. } => Some(*parameter),
            Self::UnknownModel(_) => Some("model"),
            Self::BadRequest(_)
            | Self::TooLarge(_)
            | Self::TooSlow
            | Self::UnknownUrl(_)
            | Self::UnknownMethod(_)
            | Self::UnknownProof
            | Self::NoKey
            | Self::BadKey(_)
            | Self::Forbidden(_)
            | Self::QuotaUsedUp { .. }
            | Self::TooOften { .. }
            | Self::QueueFull { .. }
            | Self::Unavailable { .. }
            | Self::Upstream(_)
            | Self::Internal(_) => None,
        };
        json!({ "error": {
            "message": self.to_string(), "type": self.kind(), "param": parameter, "code": self.code(),
        }})
    }

    /// The event that tells a client whose stream has begun. OpenAI's clients raise what is under `error`.
    pub fn event(&self) -> String {
        format!("data: {}\n\n", self.body())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_shape_that_clients_read() {
        let refusal = Refusal::UnknownModel("gpt".to_owned());
        assert_eq!(
            refusal.body(),
            json!({"error": {
                "message": "the model `gpt` does not exist or is not served here",
                "type": "invalid_request_error", "param": "model", "code": "model_not_found",
            }})
        );
        assert_eq!(refusal.status(), StatusCode::NOT_FOUND);
        assert!(refusal.event().starts_with("data: {") && refusal.event().ends_with("}\n\n"));
    }

    #[test]
    fn who_is_to_come_back_is_told_when_and_never_at_once() {
        let full = |millis| Refusal::QueueFull {
            message: "full".to_owned(),
            retry_after: Duration::from_millis(millis),
        };
        assert_eq!(full(0).retry_after(), Some(1));
        assert_eq!(full(1_500).retry_after(), Some(2));
        assert_eq!(Refusal::NoKey.retry_after(), None);
    }
}
