//! Every answer that is not a success, in the shapes that ComputeHorde's clients read.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use muster_kit::error::Causes;
use muster_kit::store::StoreError;
use muster_protocol::rest::{Detail, LoginError};
use serde_json::{Value, json};

use muster_porter::auth::IssueError;
use muster_porter::intake::BodyRefused;
use muster_porter::signature::SignatureRefused;

/// A refusal with its status and its body.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    body: Value,
}

// === impl Refusal ===

impl Refusal {
    /// `{"detail": …}`, as the API answers.
    pub(crate) fn detail(status: StatusCode, detail: impl Into<String>) -> Self {
        let body = json!(Detail {
            detail: detail.into()
        });
        Self { status, body }
    }

    /// `{"error": …}`, as the login answers.
    pub(crate) fn error(status: StatusCode, error: impl Into<String>) -> Self {
        let body = json!(LoginError { error: error.into() });
        Self { status, body }
    }

    /// `["…"]`, as one validation of the whole job answers.
    pub(crate) fn list(reason: &str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            body: json!([reason]),
        }
    }

    /// Also what a user gets for another user's job.
    pub(crate) fn not_found() -> Self {
        Self::detail(StatusCode::NOT_FOUND, "Not found.")
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }
}

impl From<StoreError> for Refusal {
    /// The operator reads the cause, the user that it is not their fault.
    fn from(error: StoreError) -> Self {
        tracing::error!(error = %Causes(&error), "a request failed in the store");
        Self::detail(
            StatusCode::SERVICE_UNAVAILABLE,
            "The facilitator's store does not answer; try again.",
        )
    }
}

impl From<IssueError> for Refusal {
    fn from(error: IssueError) -> Self {
        tracing::error!(error = %Causes(&error), "a credential could not be made");
        Self::error(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The facilitator cannot sign credentials.",
        )
    }
}

impl From<SignatureRefused> for Refusal {
    fn from(refused: SignatureRefused) -> Self {
        let status = if refused.is_malformed() {
            StatusCode::BAD_REQUEST
        } else {
            StatusCode::UNAUTHORIZED
        };
        Self::detail(status, refused.to_string())
    }
}

impl From<BodyRefused> for Refusal {
    fn from(refused: BodyRefused) -> Self {
        match refused {
            BodyRefused::Fields(fields) => Self {
                status: StatusCode::BAD_REQUEST,
                body: json!(fields),
            },
            BodyRefused::NotObject => Self {
                status: StatusCode::BAD_REQUEST,
                body: json!({"non_field_errors": [refused.to_string()]}),
            },
            BodyRefused::NotJson(_) => Self::detail(StatusCode::BAD_REQUEST, refused.to_string()),
        }
    }
}
