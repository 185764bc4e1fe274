//! The door: OpenAI's routes, and the proofs of what they answered.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use muster_gateway_client::{collect_body, error_response};
use muster_openai::{OpenAiError, TokenUsage};
use muster_protocol::{MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::Nonce;
use muster_sealing_proxy::headers::CLIENT_NONCE;
use muster_session_pool::Service;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::auth::Client;
use crate::gateway::Core;
use crate::line::draw;
use crate::relay::{self, Asking};
use crate::reply::reply;

/// Pieces of an answer that wait for a client that reads slowly. It holds up its own session's connection and no other.
const AHEAD: usize = 4;
/// The longest model id that is repeated in an error.
const MAX_SHOWN: usize = 200;

/// What is known of one answer and of who gave it: all that is needed to check it without asking anybody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofView {
    /// The answer's id: the nonce that the gateway drew for it.
    pub id: String,
    /// `proven`, or why it is not.
    pub verdict: String,
    /// The model.
    pub model: String,
    /// Who ran it.
    pub miner: MinerKey,
    /// Who checked it.
    pub validator: ValidatorKey,
    /// How it ended.
    pub end: String,
    /// The gateway's own stamps.
    pub asked_at: Timestamp,
    /// See above.
    pub first_byte_at: Option<Timestamp>,
    /// See above.
    pub ended_at: Timestamp,
    /// Bytes of the answer.
    pub bytes: u64,
    /// Tokens, by the gateway's own count.
    pub usage: TokenUsage,
    /// What it cost, in rao.
    pub cost: u64,
    /// The session's word: base64 of the statement and its signature.
    pub proof: Option<String>,
    /// The miner's word for the session.
    pub attestation: String,
}

/// All that a gateway looks at in a request's body.
#[derive(Deserialize)]
struct Asked {
    model: Option<Value>,
    stream: Option<Value>,
}

type Shared = State<Arc<Core>>;

/// The routes.
pub(crate) fn router(core: Arc<Core>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        // Ids of models have slashes in them as often as not.
        .route("/v1/models/{*id}", get(model))
        .route("/v1/proofs/{id}", get(proof))
        .fallback(async |uri: Uri| {
            error_response(&OpenAiError::UnknownUrl(
                uri.path().chars().take(MAX_SHOWN).collect(),
            ))
        })
        .method_not_allowed_fallback(async |method: Method| {
            error_response(&OpenAiError::MethodNotAllowed(method.to_string()))
        })
        .with_state(core)
}

async fn health(State(core): Shared) -> Json<Value> {
    Json(json!({ "status": "ok", "validator": core.host.me(), "models": core.desk.look().await }))
}

async fn chat(state: Shared, headers: HeaderMap, body: Body) -> Response {
    ask(state, "/v1/chat/completions", headers, body).await
}

async fn completions(state: Shared, headers: HeaderMap, body: Body) -> Response {
    ask(state, "/v1/completions", headers, body).await
}

async fn embeddings(state: Shared, headers: HeaderMap, body: Body) -> Response {
    ask(state, "/v1/embeddings", headers, body).await
}

async fn ask(State(core): Shared, path: &'static str, headers: HeaderMap, body: Body) -> Response {
    match asked(&core, path, &headers, body).await {
        Ok(response) => response,
        Err(refusal) => {
            metrics::counter!("muster_gateway_refused_total", "code" => refusal.code()).increment(1);
            error_response(&refusal)
        }
    }
}

async fn asked(
    core: &Arc<Core>,
    path: &'static str,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, OpenAiError> {
    let Client(client) = core.porter.admit(headers, core.clock.now())?;
    let Ok(permit) = Arc::clone(&core.permits).try_acquire_owned() else {
        return Err(OpenAiError::QueueFull {
            message: "the gateway serves as many requests as it may".to_owned(),
            retry_after: Duration::from_secs(1),
        });
    };
    let client_nonce = client_nonce(headers)?;
    let body = collect_body(body, core.settings.max_body()).await?;
    let (model, streams) = read(&body)?;
    let services = core.whitelist.services();
    let pool = services
        .iter()
        .position(|service| service.model == model)
        .ok_or_else(|| OpenAiError::UnknownModel(model.chars().take(MAX_SHOWN).collect()))?;
    let nonce = draw().map_err(|error| OpenAiError::Internal(error.to_string()))?;
    let asking = Asking {
        path,
        body,
        client,
        client_nonce,
        nonce,
    };
    let ticket = core.desk.enter(pool, client);
    let (to, from) = mpsc::channel(AHEAD);
    let running = relay::run(Arc::clone(core), ticket, asking, to);
    drop(core.tasks.spawn("request", async move {
        running.await;
        drop(permit);
    }));
    let heartbeat = Duration::from_secs(core.settings.heartbeat_s);
    Ok(reply(from, streams, heartbeat, relay::id(&nonce)).await)
}

fn client_nonce(headers: &HeaderMap) -> Result<Option<Nonce>, OpenAiError> {
    let Some(value) = headers.get(CLIENT_NONCE) else {
        return Ok(None);
    };
    let nonce = value.to_str().ok().and_then(Nonce::from_hex);
    nonce.map(Some).ok_or(OpenAiError::BadParameter {
        parameter: "muster-client-nonce",
        message: "the header muster-client-nonce has 64 hex digits".to_owned(),
    })
}

/// The model that is asked for, and whether the answer is to be a stream.
fn read(body: &[u8]) -> Result<(String, bool), OpenAiError> {
    let asked: Asked =
        serde_json::from_slice(body).map_err(|error| OpenAiError::BadRequest(error.to_string()))?;
    let model = match asked.model {
        Some(Value::String(model)) if !model.is_empty() => model,
        Some(_) => {
            return Err(OpenAiError::BadParameter {
                parameter: "model",
                message: "`model` must be the id of a model".to_owned(),
            });
        }
        None => {
            return Err(OpenAiError::BadParameter {
                parameter: "model",
                message: "you must provide a model parameter".to_owned(),
            });
        }
    };
    let streams = match asked.stream {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(_) => {
            return Err(OpenAiError::BadParameter {
                parameter: "stream",
                message: "`stream` must be true or false".to_owned(),
            });
        }
    };
    Ok((model, streams))
}

async fn models(State(core): Shared, headers: HeaderMap) -> Response {
    if let Err(refusal) = core.porter.admit(&headers, core.clock.now()) {
        return error_response(&refusal);
    }
    let all: Vec<Value> = core
        .whitelist
        .services()
        .iter()
        .map(|one| described(&core, one))
        .collect();
    Json(json!({ "object": "list", "data": all })).into_response()
}

async fn model(State(core): Shared, headers: HeaderMap, Path(id): Path<String>) -> Response {
    if let Err(refusal) = core.porter.admit(&headers, core.clock.now()) {
        return error_response(&refusal);
    }
    match core.whitelist.of_model(&id) {
        Ok(service) => Json(described(&core, service)).into_response(),
        Err(_) => error_response(&OpenAiError::UnknownModel(id.chars().take(MAX_SHOWN).collect())),
    }
}

/// A model as OpenAI's clients read it, with what Muster knows of it beside.
fn described(core: &Core, service: &Service) -> Value {
    json!({
        "id": service.model, "object": "model", "created": 0, "owned_by": core.host.me(),
        "muster": {
            "image": service.image, "weights": service.weights, "scheme": service.scheme.name(),
            "input_price": service.input_price, "output_price": service.output_price,
        },
    })
}

async fn proof(State(core): Shared, headers: HeaderMap, Path(id): Path<String>) -> Response {
    let client = match core.porter.admit(&headers, core.clock.now()) {
        Ok(client) => client,
        Err(refusal) => return error_response(&refusal),
    };
    match core.book.response(&id).await {
        // Another client's is not there for this one.
        Ok(Some((response, session))) if response.client == client.0 => Json(ProofView {
            id: response.id,
            verdict: response.verdict,
            model: response.model,
            miner: session.miner,
            validator: core.host.me(),
            end: response.end,
            asked_at: response.asked_at,
            first_byte_at: response.first_byte_at,
            ended_at: response.ended_at,
            bytes: response.bytes,
            usage: response.usage,
            cost: response.earned,
            proof: response.proof,
            attestation: session.attestation,
        })
        .into_response(),
        Ok(Some(_) | None) => error_response(&OpenAiError::UnknownProof),
        Err(error) => {
            tracing::error!(%error, "a proof cannot be read");
            error_response(&OpenAiError::Internal(
                "the gateway's store does not answer".to_owned(),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_model_and_whether_it_streams() {
        assert_eq!(
            read(br#"{"model":"m","stream":true,"x":1}"#),
            Ok(("m".to_owned(), true))
        );
        assert_eq!(
            read(br#"{"model":"m","stream":null}"#),
            Ok(("m".to_owned(), false))
        );
        for (body, code) in [
            (&b"{"[..], "invalid_json"),
            (b"[]", "invalid_json"),
            (b"{}", "invalid_value"),
            (br#"{"model":7}"#, "invalid_value"),
            (br#"{"model":""}"#, "invalid_value"),
            (br#"{"model":"m","stream":"yes"}"#, "invalid_value"),
        ] {
            let refusal = read(body).unwrap_err();
            assert_eq!((refusal.code(), refusal.status().as_u16()), (code, 400));
        }
    }
}
