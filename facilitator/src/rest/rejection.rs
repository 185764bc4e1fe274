//! Every answer of the REST API that is not a success, in the shapes that ComputeHorde's clients read. This is the one
//! place that maps errors to HTTP statuses and bodies.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use muster_facilitator_core::login_tokens::IssueError;
use muster_facilitator_core::request_bodies::BodyRejection;
use muster_facilitator_core::signature::SignatureRejection;
use muster_file_store::FileError;
use muster_file_store::checkpoint_blocks::BlockStoreError;
use muster_process::error::Causes;
use muster_protocol::ErrorCode;
use muster_protocol::rest::Detail;
use muster_store::StoreError;
use serde_json::{Value, json};
use utoipa::openapi::schema::{Schema, SchemaType};
use utoipa::openapi::{ContentBuilder, Object, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema as _};

use muster_facilitator_store::QuotaExceeded;

/// The status, the body and the retry time of a rejected request.
#[derive(Debug)]
pub(crate) struct ApiRejection {
    status: StatusCode,
    body: Value,
    /// Seconds after which the client may try again.
    retry_after: Option<u64>,
}

tokio::task_local! {
    /// Whether the request that is answered asks for no change.
    static ONLY_READS: bool;
}

/// Notes for the rejections of a request whether it asks for a change.
pub(crate) async fn note_method(request: Request, next: Next) -> Response {
    let only_reads = request.method().is_safe();
    ONLY_READS.scope(only_reads, next.run(request)).await
}

/// Seconds after which the client may try again when a store or the machine was overloaded.
const OVERLOAD_RETRY_S: u64 = 5;

// === impl ApiRejection ===

impl ApiRejection {
    /// `{"detail": …}`, the shape of the API.
    pub(crate) fn detail(status: StatusCode, detail: impl Into<String>) -> Self {
        let body = json!(Detail {
            detail: detail.into()
        });
        Self::new(status, body)
    }

    fn new(status: StatusCode, body: Value) -> Self {
        let retry_after = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(OVERLOAD_RETRY_S);
        Self {
            status,
            body,
            retry_after,
        }
    }

    /// `{"error": …}`, the shape of the login.
    pub(crate) fn error(status: StatusCode, error: impl Into<String>) -> Self {
        let body = json!(muster_protocol::account_api::LoginError { error: error.into() });
        Self::new(status, body)
    }

    /// `["…"]`, the shape of a validation of the whole job.
    pub(crate) fn list(reason: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, json!([reason]))
    }

    /// `{"field": ["…"]}`, the shape of a wrong field of a body or a query.
    pub(crate) fn field(name: &str, reason: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, json!({name: [reason]}))
    }

    /// A page that the list does not have.
    pub(crate) fn no_such_page() -> Self {
        Self::detail(StatusCode::NOT_FOUND, "Invalid page.")
    }

    /// The shape in which ComputeHorde's feedback call rejects a request without signature headers.
    pub(crate) fn signature_not_found(rejection: &SignatureRejection) -> Self {
        let body = json!({"error": "Signature not found", "details": rejection.to_string()});
        Self::new(StatusCode::BAD_REQUEST, body)
    }

    /// The caller exceeds its request rate and must wait for `wait`.
    pub(crate) fn throttled(wait: Duration) -> Self {
        let seconds = wait.as_secs().saturating_add(1);
        let mut rejection = Self::detail(
            StatusCode::TOO_MANY_REQUESTS,
            format!("Request was throttled. Expected available in {seconds} seconds."),
        );
        rejection.retry_after = Some(seconds);
        rejection
    }

    /// The requested thing does not exist, or it is another account's: callers cannot distinguish these.
    pub(crate) fn not_found() -> Self {
        Self::detail(StatusCode::NOT_FOUND, "Not found.")
    }

    /// The HTTP status of the answer.
    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }

    /// The time after which the client may try again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.retry_after.map(Duration::from_secs)
    }

    /// The reason as one text.
    pub(crate) fn message(&self) -> String {
        let text = |key: &str| self.body.get(key).and_then(Value::as_str).map(str::to_owned);
        text("detail")
            .or_else(|| text("error"))
            .unwrap_or_else(|| self.body.to_string())
    }
}

impl IntoResponse for ApiRejection {
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

impl From<StoreError> for ApiRejection {
    /// The cause goes to the operator's log. The user learns only that the fault is not theirs.
    fn from(error: StoreError) -> Self {
        tracing::error!(error = %Causes(&error), "a request failed in the store");
        let only_reads = ONLY_READS.try_with(|only_reads| *only_reads).unwrap_or_default();
        if only_reads || !error.leaves_open() {
            return Self::detail(
                StatusCode::SERVICE_UNAVAILABLE,
                "The facilitator's store does not answer; try again.",
            );
        }
        let code = ErrorCode::OutcomeUnknown;
        let detail = format!(
            "The facilitator's store did not answer whether a change was made ({code}); look before you repeat it. The same \
             signed job, or one with the same Idempotency-Key, may be sent again."
        );
        // Without a time to retry: no program is asked to repeat what may be done.
        Self {
            retry_after: None,
            ..Self::detail(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }
}

impl From<FileError> for ApiRejection {
    fn from(error: FileError) -> Self {
        if let FileError::Store(error) = error {
            return error.into();
        }
        Self::detail(error.status(), error.public_detail())
    }
}

/// The checkpoints of a job cannot be granted, or its output cannot be read. It is the user's fault only where the
/// terms name a checkpoint that is not kept.
impl From<BlockStoreError> for ApiRejection {
    fn from(error: BlockStoreError) -> Self {
        match error {
            BlockStoreError::NoCheckpoint(..) => Self::field("muster", &error.to_string()),
            BlockStoreError::NotFound => Self::detail(
                StatusCode::NOT_FOUND,
                "The output of this job is not in the file store any more: its time there was over.",
            ),
            BlockStoreError::Throttled(wait_s) => {
                Self::throttled(Duration::from_secs(wait_s.saturating_sub(1)))
            }
            BlockStoreError::FalseLength(_) => Self::detail(StatusCode::NOT_FOUND, error.to_string()),
            BlockStoreError::Store(error) => error.into(),
            BlockStoreError::NotPermitted
            | BlockStoreError::Ended
            | BlockStoreError::AttemptEnded
            | BlockStoreError::OtherContent(_)
            | BlockStoreError::TooSlow
            | BlockStoreError::TooLong
            | BlockStoreError::Broken(_)
            | BlockStoreError::BeingDropped
            | BlockStoreError::Full
            | BlockStoreError::AttemptFull(_)
            | BlockStoreError::Storage(_) => {
                tracing::error!(error = %Causes(&error), "the blocks of a job cannot be granted or read");
                Self::detail(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "The facilitator's file store does not answer; try again.",
                )
            }
        }
    }
}

impl From<IssueError> for ApiRejection {
    fn from(error: IssueError) -> Self {
        tracing::error!(error = %Causes(&error), "cannot sign a nonce or a token");
        Self::error(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The facilitator cannot sign credentials.",
        )
    }
}

impl From<QuotaExceeded> for ApiRejection {
    fn from(exceeded: QuotaExceeded) -> Self {
        let (reason, seconds) = match exceeded {
            QuotaExceeded::Open => (
                "The account has as many open jobs as it may have; wait for one to end, or cancel one.",
                OVERLOAD_RETRY_S,
            ),
            QuotaExceeded::Daily { resets_in_s } => (
                "The account has created as many jobs today as it may; the count starts again at midnight UTC.",
                resets_in_s,
            ),
        };
        let mut rejection = Self::detail(StatusCode::TOO_MANY_REQUESTS, reason);
        rejection.retry_after = Some(seconds);
        rejection
    }
}

impl From<SignatureRejection> for ApiRejection {
    fn from(rejection: SignatureRejection) -> Self {
        let status = if rejection.is_malformed() {
            StatusCode::BAD_REQUEST
        } else {
            StatusCode::UNAUTHORIZED
        };
        Self::detail(status, rejection.to_string())
    }
}

impl From<BodyRejection> for ApiRejection {
    fn from(rejection: BodyRejection) -> Self {
        match rejection {
            BodyRejection::Fields(fields) => Self::new(StatusCode::BAD_REQUEST, json!(fields)),
            BodyRejection::NotObject => Self::field("non_field_errors", &rejection.to_string()),
            BodyRejection::NotJson(_) => Self::detail(StatusCode::BAD_REQUEST, rejection.to_string()),
        }
    }
}

/// The error responses that the OpenAPI document lists for every call.
impl IntoResponses for ApiRejection {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let detail = || Ref::from_schema_name(Detail::name()).into();
        let anything = || Object::with_type(SchemaType::AnyValue).into();
        let kinds: [(&str, &str, RefOr<Schema>); 10] = [
            (
                "400",
                "The request is wrong: an object of reasons by field, a list of reasons, or one of `detail` and `error`",
                anything(),
            ),
            (
                "401",
                "The credentials or the signature are missing or not valid",
                anything(),
            ),
            ("403", "The caller may not do this", detail()),
            (
                "404",
                "There is no such object, or it is another account's",
                anything(),
            ),
            ("408", "The body did not arrive in time", detail()),
            (
                "409",
                "The state of the object does not allow this any more",
                detail(),
            ),
            ("413", "The request or its answer is too large", detail()),
            ("415", "The body is not JSON", detail()),
            (
                "429",
                "A rate or a quota is exceeded; `Retry-After` gives the seconds to wait",
                detail(),
            ),
            (
                "503",
                "The store does not answer; `Retry-After` gives the seconds to wait",
                detail(),
            ),
        ];
        let mut responses = BTreeMap::new();
        for (status, description, schema) in kinds {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_request_for_blocks_is_the_users_fault_only_where_the_terms_are() {
        let job = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        let outage = StoreError::corrupt("job_checkpoints.kept", "it is no list");
        for (error, status) in [
            (BlockStoreError::from(outage), StatusCode::SERVICE_UNAVAILABLE),
            (BlockStoreError::Full, StatusCode::SERVICE_UNAVAILABLE),
            (BlockStoreError::NoCheckpoint(job, 3), StatusCode::BAD_REQUEST),
            (BlockStoreError::NotFound, StatusCode::NOT_FOUND),
            (BlockStoreError::FalseLength(9), StatusCode::NOT_FOUND),
            (BlockStoreError::Throttled(3), StatusCode::TOO_MANY_REQUESTS),
        ] {
            let text = error.to_string();
            let rejection = ApiRejection::from(error);
            assert_eq!(rejection.status(), status, "{text}");
            if status == StatusCode::TOO_MANY_REQUESTS {
                assert_eq!(rejection.retry_after, Some(3));
            }
        }
    }
}
