//! `/v1/*`: OpenAI's interface, passed on to the gateway of a validator; and what each account had from it.
//!
//! Who asks is let in here, by API key or token; what they ask goes to the validator as it is, under a name that says nothing
//! about them, and the answer comes back as it arrives.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use muster_facilitator_core::account::Account;
use muster_facilitator_core::delivery::Presence;
use muster_gateway_client::{
    ForwardReport, ForwardRequest, GatewayTarget, bearer_token, collect_body, error_response,
};
use muster_openai::OpenAiError;
use muster_process::error::Causes;
use muster_process::store::StoreError;
use muster_protocol::ValidatorKey;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::caller::Caller;
use super::refusal::Refusal;
use crate::door::Door;
use crate::store::{Announced, DayUsage};

/// The largest request; gateways take less.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// By this a client chooses the validator whose gateway is to serve it.
const VALIDATOR: HeaderName = HeaderName::from_static("muster-validator");
/// What pages of any origin may send: nothing here is let in by cookies.
const ALLOWED: HeaderValue = HeaderValue::from_static("*");
const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, accept, openai-organization, openai-project, muster-client-nonce, \
     muster-validator, x-stainless-arch, x-stainless-lang, x-stainless-os, x-stainless-package-version, \
     x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout, \
     x-stainless-helper-method, x-stainless-async, x-stainless-read-timeout",
);
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, muster-proof, retry-after");
/// Rows of usage that are shown.
const SHOWN: i64 = 1_000;
/// Seconds of a day.
const DAY: i64 = 86_400;

/// The routes.
pub(super) fn routes() -> Router<Arc<Door>> {
    Router::new()
        .route("/v1/chat/completions", post(pass_on))
        .route("/v1/completions", post(pass_on))
        .route("/v1/embeddings", post(pass_on))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/proofs/{id}", get(proof))
        .route("/v1/{*anything}", any(unknown))
        .method_not_allowed_fallback(async |method: Method| {
            error_response(&OpenAiError::MethodNotAllowed(method.to_string()))
        })
        .layer(from_fn(cross_origin))
}

/// Pages of other origins may ask, as programs may: who has a key may use it from anywhere.
async fn cross_origin(request: Request, next: Next) -> Response {
    let asks_whether = request.method() == Method::OPTIONS;
    let mut response = if asks_whether {
        StatusCode::NO_CONTENT.into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ALLOWED);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    if asks_whether {
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("GET, POST, OPTIONS"),
        );
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
    }
    response
}

/// Whoever asks, if they may.
async fn admitted(door: &Arc<Door>, parts: &mut Parts) -> Result<Account, OpenAiError> {
    bearer_token(&parts.headers)?;
    match Caller::from_request_parts(parts, door).await {
        Ok(caller) => Ok(caller.account().clone()),
        Err(refusal) => Err(translated(&refusal)),
    }
}

/// A refusal of the door in OpenAI's words.
fn translated(refusal: &Refusal) -> OpenAiError {
    let message = refusal.words();
    let retry_after = refusal.retry_after().unwrap_or(Duration::from_secs(1));
    match refusal.status() {
        StatusCode::UNAUTHORIZED => OpenAiError::InvalidKey(message),
        StatusCode::FORBIDDEN => OpenAiError::Forbidden(message),
        StatusCode::TOO_MANY_REQUESTS => OpenAiError::RateLimited { message, retry_after },
        _ => OpenAiError::Unavailable { message, retry_after },
    }
}

fn unreadable(error: StoreError) -> OpenAiError {
    translated(&Refusal::from(error))
}

async fn unknown(request: Request) -> Response {
    error_response(&OpenAiError::UnknownUrl(
        request.uri().path().chars().take(200).collect(),
    ))
}

async fn pass_on(State(door): State<Arc<Door>>, request: Request) -> Response {
    passed_on(&door, request)
        .await
        .unwrap_or_else(|refusal| error_response(&refusal))
}

async fn passed_on(door: &Arc<Door>, request: Request) -> Result<Response, OpenAiError> {
    let (mut parts, body) = request.into_parts();
    let account = admitted(door, &mut parts).await?;
    within_quota(door, &account).await?;
    let body = collect_body(body, MAX_BODY).await?;
    let model = asked_for(&body)?;
    let gateways = gateways(door, &parts).await?;
    let serving: Vec<&Announced> = gateways
        .iter()
        .filter(|one| one.notice.models.iter().any(|served| served.id == model))
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
    let ask = ForwardRequest {
        client: door.pseudonym(&account),
        method: parts.method,
        path: path(&parts.uri),
        headers: parts.headers,
        body,
    };
    let mut last = None;
    for gateway in serving {
        let (counting, account, model) = (Arc::clone(door), account.clone(), model.clone());
        let report = move |passed: ForwardReport| {
            if !passed.status.is_success() {
                return;
            }
            let tasks = counting.tasks.clone();
            drop(tasks.spawn("usage", async move {
                let tokens = (passed.usage.input, passed.usage.output);
                let now = counting.clock.now();
                if let Err(error) = counting.store.used(&account, &model, tokens, now).await {
                    tracing::error!(error = %Causes(&error), %account, ?tokens, "what was used is not counted");
                }
            }));
        };
        match door.way.forward(&target(gateway), ask.clone(), report).await {
            Ok(response) => return Ok(response.map(Body::new)),
            // It is not there: another one may be.
            Err(refusal) => last = Some(refusal),
        }
    }
    Err(last.unwrap_or(OpenAiError::UnknownModel(model)))
}

async fn within_quota(door: &Door, account: &Account) -> Result<(), OpenAiError> {
    let Some(most) = door.daily_tokens else {
        return Ok(());
    };
    let now = door.clock.now();
    let used = door.store.tokens_today(account, now).await.map_err(unreadable)?;
    if used < most {
        return Ok(());
    }
    let left = DAY - now.secs().rem_euclid(DAY);
    Err(OpenAiError::QuotaExceeded {
        message: format!(
            "the account has used {used} of the {most} tokens that it has a day; the count begins anew at midnight, UTC"
        ),
        retry_after: Duration::from_secs(u64::try_from(left).unwrap_or(1)),
    })
}

/// The model that a body asks for. Everything else in it is the gateway's to judge.
fn asked_for(body: &[u8]) -> Result<String, OpenAiError> {
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

/// The gateways that can be asked now, the validator that the client named or all of them.
async fn gateways(door: &Door, parts: &Parts) -> Result<Vec<Announced>, OpenAiError> {
    let wanted = match parts.headers.get(VALIDATOR) {
        None => None,
        Some(named) => {
            let named = named
                .to_str()
                .ok()
                .and_then(|text| text.parse::<ValidatorKey>().ok());
            Some(named.ok_or(OpenAiError::BadParameter {
                parameter: "muster-validator",
                message: "the header muster-validator is the ss58 address of a validator".to_owned(),
            })?)
        }
    };
    let now = door.clock.now();
    let mut all = door.store.gateways().await.map_err(unreadable)?;
    all.retain(|one| {
        one.notice.url.is_some()
            && wanted.is_none_or(|wanted| wanted == one.validator)
            && door.roll.admits(one.validator)
            && Presence::of(one.seen, now) == Presence::Selectable
    });
    Ok(all)
}

fn target(gateway: &Announced) -> GatewayTarget {
    GatewayTarget {
        validator: gateway.validator,
        url: gateway.notice.url.clone().unwrap_or_default(),
    }
}

fn path(uri: &axum::http::Uri) -> String {
    uri.path_and_query()
        .map_or_else(|| uri.path().to_owned(), ToString::to_string)
}

async fn models(State(door): State<Arc<Door>>, request: Request) -> Response {
    match described(&door, request).await {
        Ok(all) => Json(json!({ "object": "list", "data": all })).into_response(),
        Err(refusal) => error_response(&refusal),
    }
}

async fn model(State(door): State<Arc<Door>>, request: Request) -> Response {
    let id = request.uri().path().trim_start_matches("/v1/models/").to_owned();
    match described(&door, request).await {
        Ok(all) => match all.into_iter().find(|one| one["id"] == id) {
            Some(found) => Json(found).into_response(),
            None => error_response(&OpenAiError::UnknownModel(id.chars().take(200).collect())),
        },
        Err(refusal) => error_response(&refusal),
    }
}

/// Every model that some gateway serves, once.
async fn described(door: &Arc<Door>, request: Request) -> Result<Vec<Value>, OpenAiError> {
    let (mut parts, _) = request.into_parts();
    admitted(door, &mut parts).await?;
    let mut all: Vec<Value> = Vec::new();
    for gateway in gateways(door, &parts).await? {
        for served in &gateway.notice.models {
            if all.iter().all(|one| one["id"] != served.id.as_str()) {
                all.push(json!({
                    "id": served.id, "object": "model", "created": 0, "owned_by": gateway.validator,
                    "muster": { "input_price": served.input_price, "output_price": served.output_price },
                }));
            }
        }
    }
    Ok(all)
}

/// The proof of an answer, from whichever gateway gave it.
async fn proof(State(door): State<Arc<Door>>, request: Request) -> Response {
    proven(&door, request)
        .await
        .unwrap_or_else(|refusal| error_response(&refusal))
}

async fn proven(door: &Arc<Door>, request: Request) -> Result<Response, OpenAiError> {
    let (mut parts, _) = request.into_parts();
    let account = admitted(door, &mut parts).await?;
    let mut last = OpenAiError::UnknownProof;
    for gateway in gateways(door, &parts).await? {
        let ask = ForwardRequest {
            client: door.pseudonym(&account),
            method: Method::GET,
            path: path(&parts.uri),
            headers: parts.headers.clone(),
            body: axum::body::Bytes::new(),
        };
        match door.way.forward(&target(&gateway), ask, |_| ()).await {
            Ok(response) if response.status() == StatusCode::NOT_FOUND => {}
            Ok(response) => return Ok(response.map(Body::new)),
            Err(refusal) => last = refusal,
        }
    }
    Err(last)
}

/// What an account had from models.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct UsageList {
    /// One entry a day and model, the newest days first.
    results: Vec<DayUsage>,
}

/// What the account had from models: tokens and requests, by day and model.
#[utoipa::path(get, path = "/api/v1/usage/", tag = "models", security(("bearer" = [])),
    responses((status = 200, body = UsageList), Refusal))]
pub(super) async fn usage(State(door): State<Arc<Door>>, caller: Caller) -> Result<Json<UsageList>, Refusal> {
    let results = door.store.usage_of(caller.account(), SHOWN).await?;
    Ok(Json(UsageList { results }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_a_model_or_is_refused_in_openais_words() {
        assert_eq!(asked_for(br#"{"model":"m","messages":[]}"#), Ok("m".to_owned()));
        for (body, code) in [
            (&b"{"[..], "invalid_json"),
            (b"{}", "invalid_value"),
            (b"[]", "invalid_value"),
        ] {
            assert_eq!(asked_for(body).unwrap_err().code(), code);
        }
    }

    #[test]
    fn refusals_of_the_door_become_openais() {
        let refusal = translated(&Refusal::too_soon(Duration::from_secs(2)));
        assert_eq!(
            (refusal.kind(), refusal.retry_after()),
            ("rate_limit_error", Some(3))
        );
        let refusal = translated(&Refusal::detail(StatusCode::UNAUTHORIZED, "Invalid API key."));
        assert_eq!(refusal, OpenAiError::InvalidKey("Invalid API key.".to_owned()));
    }
}
