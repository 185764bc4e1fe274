//! `/v1/*`: OpenAI's interface, forwarded to the gateway of a validator.
//!
//! The facilitator checks the API key or token and the account's quota. The request goes to the gateway unchanged,
//! under a pseudonym of the account, and the answer is passed on as it arrives.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRef, Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use muster_gateway_client::{ForwardReport, ForwardRequest, collect_body, error_response};
use muster_openai::{OpenAiError, without_mark};
use muster_response_proof::headers::{PASSED_TO_CLIENTS, PROOF};
use serde_json::{Value, json};

use super::model_service::ModelService;
use crate::gateways::ReachableGateway;
use muster_facilitator_store::TokenPair;

/// The largest request, in bytes. Gateways accept less.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// Pages of every origin may call: no call to these paths is authenticated by cookies.
const ALLOWED_ORIGINS: HeaderValue = HeaderValue::from_static("*");
/// The answer to a preflight that asks for no header by name. A wildcard does not stand for `authorization`.
const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static("authorization, content-type, *");
/// The headers of an answer that pages may read: all that the gateway's answer may bring, and those of our own errors.
static EXPOSED_HEADERS: LazyLock<HeaderValue> = LazyLock::new(|| {
    let passed = PASSED_TO_CLIENTS.into_iter();
    let all = passed.chain([PROOF, header::WWW_AUTHENTICATE]);
    let names: Vec<String> = all.map(|name| name.to_string()).collect();
    // Names of headers with commas between them are a valid value.
    HeaderValue::try_from(names.join(", ")).unwrap_or(ALLOWED_ORIGINS)
});
/// The most gateways that one request is given to.
const MAX_TRIES: usize = 3;
/// The characters of a model's id that are repeated in an error.
const MAX_SHOWN: usize = 200;
/// The longest id of a proof.
const MAX_PROOF_ID: usize = 128;

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
        .route("/v1", any(reject_unknown_url))
        .route("/v1/", any(reject_unknown_url))
        .route("/v1/{*anything}", any(reject_unknown_url))
        .method_not_allowed_fallback(async |method: Method| {
            error_response(&OpenAiError::MethodNotAllowed(method.to_string()))
        })
        .layer(from_fn(allow_other_origins))
}

/// Lets pages of other origins call, as programs may: an API key works from anywhere. A preflight is allowed the
/// headers that it asks for, because clients send headers that no list of ours knows, and a header opens nothing here
/// but the one with the key.
async fn allow_other_origins(request: Request, next: Next) -> Response {
    let preflight = request.method() == Method::OPTIONS;
    let asked = request
        .headers()
        .get(header::ACCESS_CONTROL_REQUEST_HEADERS)
        .cloned();
    let mut response = if preflight {
        StatusCode::NO_CONTENT.into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ALLOWED_ORIGINS);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS.clone());
    if preflight {
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("GET, POST, OPTIONS"),
        );
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            asked.unwrap_or(ALLOWED_HEADERS),
        );
        headers.insert(
            header::VARY,
            HeaderValue::from_static("access-control-request-headers"),
        );
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
    }
    response
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
    let body = collect_body(&parts.headers, body, MAX_BODY).await?;
    let RequestedAnswer { model, is_stream } = requested_answer(&body)?;
    let gateways = service.gateways(&parts).await?;
    let any = !gateways.is_empty();
    let serving: Vec<_> = gateways
        .into_iter()
        .filter(|gateway| gateway.announced.serves(&model))
        .take(MAX_TRIES)
        .collect();
    let forwarded = |gateway: &ReachableGateway| ForwardRequest {
        client: service.pseudonym(&account),
        client_key: service.client_key(&account, &gateway.validator),
        method: parts.method.clone(),
        path: path_and_query(&parts.uri),
        headers: parts.headers.clone(),
        body: body.clone(),
        head_limit: if is_stream {
            service.head_limit
        } else {
            service.silence_limit
        },
    };
    let mut last = if any {
        OpenAiError::UnknownModel(model.chars().take(MAX_SHOWN).collect())
    } else {
        OpenAiError::Unavailable {
            message: "no validator with a gateway is connected".to_owned(),
            retry_after: Duration::from_secs(5),
        }
    };
    if serving.is_empty() {
        return Err(last);
    }
    let counted = service.reserve(&account, &model, &body).await?;
    for gateway in serving {
        let counted = Arc::clone(&counted);
        let report = move |passed: ForwardReport| {
            let used = TokenPair {
                input: passed.usage.input,
                output: passed.usage.output,
            };
            counted.settle(passed.status.is_success().then_some(used));
        };
        match service.ask(&gateway, forwarded(&gateway), report).await {
            Ok(response) => return Ok(response),
            // This gateway does not answer, but the next one may.
            Err(error) => last = error.to_openai(),
        }
    }
    Err(last)
}

/// The part of a request's body that the facilitator reads.
#[derive(Debug, PartialEq, Eq)]
struct RequestedAnswer {
    model: String,
    /// Whether the answer is to come as it is made.
    is_stream: bool,
}

/// The model that a body asks for, and whether as a stream. The gateway checks everything else in it.
fn requested_answer(body: &[u8]) -> Result<RequestedAnswer, OpenAiError> {
    let value: Value = serde_json::from_slice(without_mark(body))
        .map_err(|error| OpenAiError::BadRequest(error.to_string()))?;
    match value.get("model") {
        Some(Value::String(model)) if !model.is_empty() => Ok(RequestedAnswer {
            model: model.clone(),
            is_stream: value.get("stream") == Some(&Value::Bool(true)),
        }),
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

/// Shows one model. An id has slashes, and official clients send them encoded: `org%2Fname`.
async fn show_model(
    State(service): State<Arc<ModelService>>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    // An id that is no UTF-8 is no model's.
    let Path(id) = id.unwrap_or_else(|_| Path(request.uri().path().to_owned()));
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
        for served in &gateway.announced.models {
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
    let id = parts.uri.path().trim_start_matches("/v1/proofs/");
    if id.len() > MAX_PROOF_ID || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(OpenAiError::UnknownProof);
    }
    let mut refused = None;
    for gateway in service.gateways(&parts).await? {
        let forwarded = ForwardRequest {
            client: service.pseudonym(&account),
            client_key: service.client_key(&account, &gateway.validator),
            method: Method::GET,
            path: format!("/v1/proofs/{id}"),
            headers: parts.headers.clone(),
            body: axum::body::Bytes::new(),
            head_limit: service.head_limit,
        };
        match service.ask(&gateway, forwarded, |_| ()).await {
            Ok(response) if response.status().is_success() => return Ok(response),
            // A gateway that refuses must not hide the proof that the next one has.
            Ok(response) if response.status() == StatusCode::NOT_FOUND => {}
            Ok(response) => refused = refused.or(Some(Ok(response))),
            Err(error) => refused = refused.or(Some(Err(error.to_openai()))),
        }
    }
    refused.unwrap_or(Err(OpenAiError::UnknownProof))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_a_model_or_is_rejected_in_openais_words() {
        assert_eq!(
            requested_answer(br#"{"model":"m","messages":[]}"#),
            Ok(RequestedAnswer {
                model: "m".to_owned(),
                is_stream: false
            })
        );
        for (body, code) in [
            (&b"{"[..], "invalid_json"),
            (b"{}", "invalid_value"),
            (b"[]", "invalid_value"),
        ] {
            assert_eq!(requested_answer(body).unwrap_err().code(), code);
        }
    }
}
