//! `/v1/*`: OpenAI's interface, forwarded to the gateway of a validator.
//!
//! The facilitator checks the API key or token and the account's quota. The request goes to the gateway unchanged,
//! under a pseudonym of the account, and the answer is passed on as it arrives.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use muster_facilitator_core::account::Account;
use muster_facilitator_core::connections::Presence;
use muster_gateway_client::{
    ForwardReport, ForwardRequest, GatewayClient, GatewayTarget, bearer_token, collect_body, error_response,
};
use muster_openai::OpenAiError;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::{Digest, ValidatorKey};
use muster_store::StoreError;
use serde_json::{Value, json};

use super::admission::Admission;
use super::rejection::ApiRejection;
use crate::allowlist::Allowlist;
use crate::store::{AnnouncedGateway, Store};

/// The largest request, in bytes. Gateways accept less.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// The header by which a client chooses the validator whose gateway serves it.
const VALIDATOR: HeaderName = HeaderName::from_static("muster-validator");
/// Pages of every origin may call: no call is authenticated by cookies.
const ALLOWED_ORIGINS: HeaderValue = HeaderValue::from_static("*");
const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, accept, openai-organization, openai-project, muster-client-nonce, \
     muster-validator, x-stainless-arch, x-stainless-lang, x-stainless-os, x-stainless-package-version, \
     x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout, \
     x-stainless-helper-method, x-stainless-async, x-stainless-read-timeout",
);
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static("x-request-id, muster-proof, retry-after");
/// Seconds of a day.
const DAY_S: i64 = 86_400;

/// The services behind the calls about models.
pub(crate) struct ModelService {
    pub(crate) store: Store,
    pub(crate) admission: Arc<Admission>,
    pub(crate) allowlist: Allowlist,
    /// Forwards requests to validators' gateways.
    pub(crate) gateway_client: GatewayClient,
    /// The secret that pseudonyms of accounts are derived from.
    pub(crate) client_secret: Vec<u8>,
    /// Tokens that one account may use a day (UTC); `None` for no limit.
    pub(crate) daily_tokens: Option<u64>,
    pub(crate) clock: SharedClock,
    pub(crate) tasks: Tasks,
}

/// The routes of OpenAI's interface.
pub(super) fn routes<S>() -> Router<S>
where
    S: Clone + Send + Sync + 'static,
    Arc<ModelService>: FromRef<S>,
{
    Router::new()
        .route("/v1/chat/completions", post(forward_completion))
        .route("/v1/completions", post(forward_completion))
        .route("/v1/embeddings", post(forward_completion))
        .route("/v1/models", get(list_models))
        .route("/v1/models/{*id}", get(show_model))
        .route("/v1/proofs/{id}", get(forward_proof))
        .route("/v1/{*anything}", any(reject_unknown_url))
        .method_not_allowed_fallback(async |method: Method| {
            error_response(&OpenAiError::MethodNotAllowed(method.to_string()))
        })
        .layer(from_fn(allow_other_origins))
}

/// Lets pages of other origins call, as programs may: an API key works from anywhere.
async fn allow_other_origins(request: Request, next: Next) -> Response {
    let preflight = request.method() == Method::OPTIONS;
    let mut response = if preflight {
        StatusCode::NO_CONTENT.into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ALLOWED_ORIGINS);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    if preflight {
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("GET, POST, OPTIONS"),
        );
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
    }
    response
}

// === impl ModelService ===

impl ModelService {
    async fn admit(&self, parts: &Parts) -> Result<Account, OpenAiError> {
        bearer_token(&parts.headers)?;
        match self.admission.admit(&parts.headers).await {
            Ok(caller) => Ok(caller.account().clone()),
            Err(rejection) => Err(to_openai(&rejection)),
        }
    }

    async fn check_quota(&self, account: &Account) -> Result<(), OpenAiError> {
        let Some(limit) = self.daily_tokens else {
            return Ok(());
        };
        let now = self.clock.now();
        let used = self
            .store
            .tokens_today(account, now)
            .await
            .map_err(store_unavailable)?;
        if used < limit {
            return Ok(());
        }
        let left = DAY_S - now.secs().rem_euclid(DAY_S);
        Err(OpenAiError::QuotaExceeded {
            message: format!(
                "the account has used {used} of its {limit} tokens a day; the count starts again at midnight UTC"
            ),
            retry_after: Duration::from_secs(u64::try_from(left).unwrap_or(1)),
        })
    }

    /// The gateways that can be reached now: that of the validator that the client named, or all of them.
    async fn gateways(&self, parts: &Parts) -> Result<Vec<AnnouncedGateway>, OpenAiError> {
        let wanted = match parts.headers.get(VALIDATOR) {
            None => None,
            Some(named) => {
                let named = named
                    .to_str()
                    .ok()
                    .and_then(|text| text.parse::<ValidatorKey>().ok());
                Some(named.ok_or(OpenAiError::BadParameter {
                    parameter: "muster-validator",
                    message: "the header muster-validator must be the ss58 address of a validator".to_owned(),
                })?)
            }
        };
        let now = self.clock.now();
        let mut gateways = self.store.gateways().await.map_err(store_unavailable)?;
        gateways.retain(|gateway| {
            gateway.notice.url.is_some()
                && wanted.is_none_or(|wanted| wanted == gateway.validator)
                && self.allowlist.admits(gateway.validator)
                && Presence::of(gateway.seen, now) == Presence::Selectable
        });
        Ok(gateways)
    }

    /// The name under which gateways know an account. Without the facilitator's secret it reveals nothing.
    fn pseudonym(&self, account: &Account) -> Digest {
        let mut named = self.client_secret.clone();
        named.extend_from_slice(account.to_string().as_bytes());
        Digest::of(&named)
    }

    /// Counts the tokens of a forwarded request in the background.
    fn count_usage(&self, account: Account, model: String, passed: &ForwardReport) {
        if !passed.status.is_success() {
            return;
        }
        let (store, clock) = (self.store.clone(), self.clock.clone());
        let tokens = (passed.usage.input, passed.usage.output);
        drop(self.tasks.spawn("usage", async move {
            let now = clock.now();
            if let Err(error) = store.count_usage(&account, &model, tokens, now).await {
                tracing::error!(error = %Causes(&error), %account, ?tokens, "cannot count an account's usage");
            }
        }));
    }
}

/// Translates a rejection of the REST API into OpenAI's shape.
fn to_openai(rejection: &ApiRejection) -> OpenAiError {
    let message = rejection.message();
    let retry_after = rejection.retry_after().unwrap_or(Duration::from_secs(1));
    match rejection.status() {
        StatusCode::UNAUTHORIZED => OpenAiError::InvalidKey(message),
        StatusCode::FORBIDDEN => OpenAiError::Forbidden(message),
        StatusCode::TOO_MANY_REQUESTS => OpenAiError::RateLimited { message, retry_after },
        _ => OpenAiError::Unavailable { message, retry_after },
    }
}

fn store_unavailable(error: StoreError) -> OpenAiError {
    to_openai(&ApiRejection::from(error))
}

async fn reject_unknown_url(request: Request) -> Response {
    error_response(&OpenAiError::UnknownUrl(
        request.uri().path().chars().take(200).collect(),
    ))
}

async fn forward_completion(State(service): State<Arc<ModelService>>, request: Request) -> Response {
    try_forward_completion(&service, request)
        .await
        .unwrap_or_else(|rejection| error_response(&rejection))
}

async fn try_forward_completion(
    service: &Arc<ModelService>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let (parts, body) = request.into_parts();
    let account = service.admit(&parts).await?;
    service.check_quota(&account).await?;
    let body = collect_body(body, MAX_BODY).await?;
    let model = requested_model(&body)?;
    let gateways = service.gateways(&parts).await?;
    let serving: Vec<&AnnouncedGateway> = gateways
        .iter()
        .filter(|gateway| gateway.notice.models.iter().any(|served| served.id == model))
        .collect();
    if serving.is_empty() {
        return Err(if gateways.is_empty() {
            OpenAiError::Unavailable {
                message: "no validator with a gateway is connected".to_owned(),
                retry_after: Duration::from_secs(5),
            }
        } else {
            OpenAiError::UnknownModel(model)
        });
    }
    let forwarded = ForwardRequest {
        client: service.pseudonym(&account),
        method: parts.method,
        path: path_and_query(&parts.uri),
        headers: parts.headers,
        body,
    };
    let mut last = None;
    for gateway in serving {
        let (counting, account, model) = (Arc::clone(service), account.clone(), model.clone());
        let report = move |passed: ForwardReport| counting.count_usage(account, model, &passed);
        match service
            .gateway_client
            .forward(&target(gateway), forwarded.clone(), report)
            .await
        {
            Ok(response) => return Ok(response.map(Body::new)),
            // This gateway cannot be reached, but the next one may be.
            Err(rejection) => last = Some(rejection),
        }
    }
    Err(last.unwrap_or(OpenAiError::UnknownModel(model)))
}

/// The model that a body asks for. The gateway checks everything else in it.
fn requested_model(body: &[u8]) -> Result<String, OpenAiError> {
    let value: Value =
        serde_json::from_slice(body).map_err(|error| OpenAiError::BadRequest(error.to_string()))?;
    match value.get("model") {
        Some(Value::String(model)) if !model.is_empty() => Ok(model.clone()),
        Some(_) => Err(OpenAiError::BadParameter {
            parameter: "model",
            message: "`model` must be the id of a model".to_owned(),
        }),
        None => Err(OpenAiError::BadParameter {
            parameter: "model",
            message: "you must provide a model parameter".to_owned(),
        }),
    }
}

fn target(gateway: &AnnouncedGateway) -> GatewayTarget {
    GatewayTarget {
        validator: gateway.validator,
        url: gateway.notice.url.clone().unwrap_or_default(),
    }
}

fn path_and_query(uri: &axum::http::Uri) -> String {
    uri.path_and_query()
        .map_or_else(|| uri.path().to_owned(), ToString::to_string)
}

async fn list_models(State(service): State<Arc<ModelService>>, request: Request) -> Response {
    match describe_models(&service, request).await {
        Ok(models) => Json(json!({ "object": "list", "data": models })).into_response(),
        Err(rejection) => error_response(&rejection),
    }
}

async fn show_model(State(service): State<Arc<ModelService>>, request: Request) -> Response {
    let id = request.uri().path().trim_start_matches("/v1/models/").to_owned();
    match describe_models(&service, request).await {
        Ok(models) => match models.into_iter().find(|model| model["id"] == id) {
            Some(found) => Json(found).into_response(),
            None => error_response(&OpenAiError::UnknownModel(id.chars().take(200).collect())),
        },
        Err(rejection) => error_response(&rejection),
    }
}

/// Describes each model that a reachable gateway serves, once.
async fn describe_models(service: &ModelService, request: Request) -> Result<Vec<Value>, OpenAiError> {
    let (parts, _) = request.into_parts();
    service.admit(&parts).await?;
    let mut models: Vec<Value> = Vec::new();
    for gateway in service.gateways(&parts).await? {
        for served in &gateway.notice.models {
            if models.iter().all(|model| model["id"] != served.id.as_str()) {
                models.push(json!({
                    "id": served.id, "object": "model", "created": 0, "owned_by": gateway.validator,
                    "muster": { "input_price": served.input_price, "output_price": served.output_price },
                }));
            }
        }
    }
    Ok(models)
}

/// Returns the proof of an answer, from the gateway that gave the answer.
async fn forward_proof(State(service): State<Arc<ModelService>>, request: Request) -> Response {
    try_forward_proof(&service, request)
        .await
        .unwrap_or_else(|rejection| error_response(&rejection))
}

async fn try_forward_proof(service: &ModelService, request: Request) -> Result<Response, OpenAiError> {
    let (parts, _) = request.into_parts();
    let account = service.admit(&parts).await?;
    let mut last = OpenAiError::UnknownProof;
    for gateway in service.gateways(&parts).await? {
        let forwarded = ForwardRequest {
            client: service.pseudonym(&account),
            method: Method::GET,
            path: path_and_query(&parts.uri),
            headers: parts.headers.clone(),
            body: axum::body::Bytes::new(),
        };
        match service
            .gateway_client
            .forward(&target(&gateway), forwarded, |_| ())
            .await
        {
            Ok(response) if response.status() == StatusCode::NOT_FOUND => {}
            Ok(response) => return Ok(response.map(Body::new)),
            Err(rejection) => last = rejection,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_a_model_or_is_rejected_in_openais_words() {
        assert_eq!(
            requested_model(br#"{"model":"m","messages":[]}"#),
            Ok("m".to_owned())
        );
        for (body, code) in [
            (&b"{"[..], "invalid_json"),
            (b"{}", "invalid_value"),
            (b"[]", "invalid_value"),
        ] {
            assert_eq!(requested_model(body).unwrap_err().code(), code);
        }
    }

    #[test]
    fn rejections_of_the_rest_api_become_openais() {
        let rejection = to_openai(&ApiRejection::throttled(Duration::from_secs(2)));
        assert_eq!(
            (rejection.kind(), rejection.retry_after()),
            ("rate_limit_error", Some(3))
        );
        let rejection = to_openai(&ApiRejection::detail(
            StatusCode::UNAUTHORIZED,
            "Invalid API key.",
        ));
        assert_eq!(rejection, OpenAiError::InvalidKey("Invalid API key.".to_owned()));
    }
}
