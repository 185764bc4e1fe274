//! Every answer that is not a success, in the shapes that ComputeHorde's clients read.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use muster_process::error::Causes;
use muster_process::store::StoreError;
use muster_protocol::rest::{Detail, LoginError};
use serde_json::{Value, json};
use utoipa::openapi::schema::{Schema, SchemaType};
use utoipa::openapi::{ContentBuilder, Object, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema as _};

use crate::store::OverQuota;

use muster_facilitator_core::auth::IssueError;
use muster_facilitator_core::intake::BodyRefused;
use muster_facilitator_core::signature::SignatureRefused;

/// A refusal with its status and its body.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    body: Value,
    /// Seconds after which it is worth asking again.
    retry_after: Option<u64>,
}

/// Seconds after which a store or a machine that was overloaded may not be so any more.
const BREATHER: u64 = 5;

// === impl Refusal ===

impl Refusal {
    /// `{"detail": …}`, as the API answers.
    pub(crate) fn detail(status: StatusCode, detail: impl Into<String>) -> Self {
        let body = json!(Detail {
            detail: detail.into()
        });
        Self::new(status, body)
    }

    fn new(status: StatusCode, body: Value) -> Self {
        let retry_after = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(BREATHER);
        Self {
            status,
            body,
            retry_after,
        }
    }

    /// `{"error": …}`, as the login answers.
    pub(crate) fn error(status: StatusCode, error: impl Into<String>) -> Self {
        let body = json!(LoginError { error: error.into() });
        Self::new(status, body)
    }

    /// `["…"]`, as one validation of the whole job answers.
    pub(crate) fn list(reason: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, json!([reason]))
    }

    /// `{"field": ["…"]}`, as one field of a body or of a query answers.
    pub(crate) fn field(name: &str, reason: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, json!({name: [reason]}))
    }

    /// A page of a list that does not exist.
    pub(crate) fn no_such_page() -> Self {
        Self::detail(StatusCode::NOT_FOUND, "Invalid page.")
    }

    /// The answer of ComputeHorde's feedback call to a request without signature headers.
    pub(crate) fn signature_not_found(refused: &SignatureRefused) -> Self {
        let body = json!({"error": "Signature not found", "details": refused.to_string()});
        Self::new(StatusCode::BAD_REQUEST, body)
    }

    /// Somebody asks more often than they may.
    pub(crate) fn too_soon(wait: Duration) -> Self {
        let seconds = wait.as_secs().saturating_add(1);
        let mut refusal = Self::detail(
            StatusCode::TOO_MANY_REQUESTS,
            format!("Request was throttled. Expected available in {seconds} seconds."),
        );
        refusal.retry_after = Some(seconds);
        refusal
    }

    /// Its status.
    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }

    /// When it is worth asking again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.retry_after.map(Duration::from_secs)
    }

    /// What it says, in words.
    pub(crate) fn words(&self) -> String {
        let text = |key: &str| self.body.get(key).and_then(Value::as_str).map(str::to_owned);
        text("detail")
            .or_else(|| text("error"))
            .unwrap_or_else(|| self.body.to_string())
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
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
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

impl From<OverQuota> for Refusal {
    fn from(over: OverQuota) -> Self {
        let (reason, seconds) = match over {
            OverQuota::Open => (
                "The account has as many jobs as it may have at a time; wait for one to end, or cancel one.",
                BREATHER,
            ),
            OverQuota::Daily { resets_in_s } => (
                "The account has made as many jobs today as it may; the count begins anew at midnight, UTC.",
                resets_in_s,
            ),
        };
        let mut refusal = Self::detail(StatusCode::TOO_MANY_REQUESTS, reason);
        refusal.retry_after = Some(seconds);
        refusal
    }
}

/// How calls are refused, for the OpenAPI document.
impl IntoResponses for Refusal {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let detail = || Ref::from_schema_name(Detail::name()).into();
        let anything = || Object::with_type(SchemaType::AnyValue).into();
        let kinds: [(&str, &str, RefOr<Schema>); 9] = [
            (
                "400",
                "What was sent is wrong: an object of reasons by field, a list of reasons, or one of `detail` and `error`",
                anything(),
            ),
            (
                "401",
                "Who asks is not known, or the signature is not believed",
                anything(),
            ),
            ("403", "Who asks may not", detail()),
            (
                "404",
                "There is no such thing, or it is another account's",
                anything(),
            ),
            ("408", "The body did not arrive in time", detail()),
            ("409", "It cannot be done any more", detail()),
            (
                "413",
                "What is sent, or would be answered, is too large",
                detail(),
            ),
            ("415", "The body is not JSON", detail()),
            (
                "429",
                "Too much is asked; `Retry-After` says how long to wait",
                detail(),
            ),
        ];
        let mut responses = BTreeMap::new();
        let unavailable = (
            "503",
            "The store does not answer; `Retry-After` says how long to wait",
            detail(),
        );
        for (status, description, schema) in kinds.into_iter().chain([unavailable]) {
            let content = ContentBuilder::new().schema(Some(schema)).build();
            let response = ResponseBuilder::new()
                .description(description)
                .content("application/json", content)
                .build();
            responses.insert(status.to_owned(), response.into());
        }
        responses
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
            BodyRefused::Fields(fields) => Self::new(StatusCode::BAD_REQUEST, json!(fields)),
            BodyRefused::NotObject => Self::field("non_field_errors", &refused.to_string()),
            BodyRefused::NotJson(_) => Self::detail(StatusCode::BAD_REQUEST, refused.to_string()),
        }
    }
}
