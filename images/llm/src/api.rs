//! OpenAI's HTTP interface, as far as a reference engine needs it, and an endpoint of our own for scoring.

mod answer;
mod request;
mod score;
mod serve;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt as _;
use serde_json::json;

use crate::engine::{Engine, Refused};
use crate::model::Shape;
use crate::noise::Seed;
use crate::text::{Template, TextError, Tokenizer};

pub use serve::{Address, serve, unix_seconds};

/// No request is larger. A context of 128k tokens as ids is about 800 KB.
const MOST_BODY: usize = 1 << 20;

/// How much of a larger one is read and thrown away, and how long: a client that is still sending when the connection
/// closes may lose the answer that states why.
const MOST_DRAINED: usize = 16 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// The state that every request can see.
pub struct Service {
    /// The handle of the engine's thread.
    pub engine: Engine,
    /// The model's size.
    pub shape: Shape,
    /// The tokenizer of the model.
    pub tokenizer: Tokenizer,
    /// Its chat template.
    pub template: Template,
    /// The model's name for clients.
    pub name: String,
    /// The model id: a digest in hex.
    pub id: String,
    /// When it was started, in seconds since 1970.
    pub started: u64,
}

type Shared = Arc<Service>;

/// The router with all routes.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/v1/models", get(models))
        .route("/v1/models/{id}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(complete))
        .route("/v1/score", post(score_text))
        .fallback(|| async { ApiError::no_route() })
        .method_not_allowed_fallback(|| async { ApiError::no_method() })
        .with_state(Arc::new(service))
}

async fn health(State(service): State<Shared>) -> Response {
    axum::Json(json!({"status": "ok", "model": service.id, "open": service.engine.open()})).into_response()
}

fn card(service: &Service) -> serde_json::Value {
    json!({
        "id": service.name, "object": "model", "created": service.started, "owned_by": "muster",
        "digest": service.id, "max_model_len": service.shape.context,
        "samplers": {
            "muster": crate::sampler::VERSION, "llama.cpp": crate::llama_cpp::VERSION,
            "vllm": crate::noise::VLLM_VERSION,
        },
    })
}

async fn models(State(service): State<Shared>) -> Response {
    axum::Json(json!({"object": "list", "data": [card(&service)]})).into_response()
}

async fn model(State(service): State<Shared>, Path(id): Path<String>) -> Result<Response, ApiError> {
    if id != service.name {
        return Err(ApiError::no_model(&id));
    }
    Ok(axum::Json(card(&service)).into_response())
}

async fn chat(State(service): State<Shared>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let seed = seed_of_seal(&headers)?;
    let plan = request::chat(&service, &taken(body).await?, seed)?;
    answer::run(service, plan).await
}

async fn complete(
    State(service): State<Shared>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let seed = seed_of_seal(&headers)?;
    let plan = request::completion(&service, &taken(body).await?, seed)?;
    answer::run(service, plan).await
}

async fn score_text(State(service): State<Shared>, body: Body) -> Result<Response, ApiError> {
    score::run(&service, &taken(body).await?).await
}

/// The seed that the sealing proxy sets for a request that names none of its own: 64 hexadecimal digits.
fn seed_of_seal(headers: &HeaderMap) -> Result<Option<Seed>, ApiError> {
    let Some(value) = headers.get("muster-seed") else {
        return Ok(None);
    };
    let mut bytes = [0; 32];
    match hex::decode_to_slice(value.as_bytes(), &mut bytes) {
        Ok(()) => Ok(Some(Seed(bytes))),
        Err(_) => Err(ApiError::param(
            "muster-seed",
            "the header is 64 hexadecimal digits",
        )),
    }
}

async fn taken(body: Body) -> Result<Vec<u8>, ApiError> {
    let (mut taken, mut pieces) = (Vec::new(), body.into_data_stream());
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| ApiError::body_ended())?;
        if taken.len() + piece.len() > MOST_BODY {
            drop(taken);
            // Whether it was drained or took too long, the answer is the same.
            let _ = tokio::time::timeout(DRAIN_TIME, drain(pieces)).await;
            return Err(ApiError::body_too_large());
        }
        taken.extend_from_slice(&piece);
    }
    Ok(taken)
}

async fn drain(mut pieces: BodyDataStream) {
    let mut drained = 0;
    while let Some(Ok(piece)) = pieces.next().await {
        drained += piece.len();
        if drained > MOST_DRAINED {
            return;
        }
    }
}

/// A request that was not answered: OpenAI's shape, so that its clients raise what they should.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<&'static str>,
    code: &'static str,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code,
        }
    }

    /// A parameter that is wrong: the client's fault.
    fn param(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param),
            ..Self::new(StatusCode::BAD_REQUEST, "invalid_value", message)
        }
    }

    fn json(error: &serde_json::Error) -> Self {
        let message = format!("the request is not what this endpoint takes: {error}");
        Self::new(StatusCode::BAD_REQUEST, "invalid_json", message)
    }

    fn context(tokens: usize, most: usize) -> Self {
        let message = format!(
            "this model's context is {most} tokens; prompt and answer come to {tokens}; shorten the prompt"
        );
        Self::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
    }

    /// The ids of an answer are not those of its request or text: the fault of the engine that stated them.
    fn differs(code: &'static str, message: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    fn no_model(name: &str) -> Self {
        let shown: String = name.chars().take(64).collect();
        Self::new(
            StatusCode::NOT_FOUND,
            "model_not_found",
            format!("there is no model {shown:?} here; see /v1/models"),
        )
    }

    fn no_route() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "unknown_url",
            "there is nothing at this path",
        )
    }

    fn no_method() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_supported",
            "this path takes another method",
        )
    }

    fn body_too_large() -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request_too_large",
            "the request's body is larger than 1 MiB",
        )
    }

    fn body_ended() -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "unreadable_request",
            "the request's body ended early",
        )
    }

    fn failed() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "engine_failed",
            "the engine failed; its log says why",
        )
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        Self::param("messages", error.to_string())
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let code = match refused {
            Refused::Full => "engine_full",
            Refused::Stopped => "engine_stopped",
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, refused.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let kind = if self.status.is_server_error() {
            "server_error"
        } else {
            "invalid_request_error"
        };
        let body =
            json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}});
        let mut response = (self.status, axum::Json(body)).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }
}
