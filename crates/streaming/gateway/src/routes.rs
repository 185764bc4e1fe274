//! The routes of a gateway: OpenAI's, and the proofs of their answers.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use muster_gateway_client::{collect_body, error_response};
use muster_http::server::ClientAddress;
use muster_openai::OpenAiError;
use muster_process::connections::{AddressGroup, ConnectionPermit};
use muster_response_proof::{Envelope, ResponseProof};
use muster_session_pool::Service;
use serde_json::{Value, json};

use crate::proof_view::ProofView;
use crate::request::{RequestOrigin, read_client_nonce, read_consent};
use crate::request_client::AdmittedClient;
use crate::state::GatewayState;
use crate::submission::{Question, shorten, submit};
use crate::waiting_response::reply;

/// The router with all routes.
pub(crate) fn router(state: Arc<GatewayState>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        // A model id may contain slashes.
        .route("/v1/models/{*id}", get(model))
        .route("/v1/proofs/{id}", get(proof))
        .fallback(async |uri: Uri| error_response(&OpenAiError::UnknownUrl(shorten(uri.path()))))
        .method_not_allowed_fallback(async |method: Method| {
            error_response(&OpenAiError::MethodNotAllowed(method.to_string()))
        })
        .with_state(state)
}

async fn health(State(state): State<Arc<GatewayState>>) -> Json<Value> {
    let models = state.scheduler.list_models().await;
    Json(json!({ "status": "ok", "validator": state.backend.validator(), "models": models }))
}

impl FromRequestParts<Arc<GatewayState>> for AdmittedClient {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<GatewayState>) -> Result<Self, Response> {
        // The server gives every request its client's address.
        let address = parts.extensions.get().copied();
        let ClientAddress(address) = address.unwrap_or(ClientAddress(Ipv6Addr::UNSPECIFIED.into()));
        let address = AddressGroup::of(address);
        let admitted = state
            .authenticator
            .authenticate(&parts.headers, address, state.clock.now());
        admitted.map_err(|error| refuse(&error))
    }
}

fn refuse(error: &OpenAiError) -> Response {
    metrics::counter!("muster_gateway_refused_total", "code" => error.code()).increment(1);
    error_response(error)
}

/// The place of the request's connection among those of the gateway.
type PlaceExtension = Extension<Arc<ConnectionPermit>>;

async fn chat(
    state: State<Arc<GatewayState>>,
    client: AdmittedClient,
    place: PlaceExtension,
    headers: HeaderMap,
    body: Body,
) -> Response {
    ask(state, client, place, "/v1/chat/completions", headers, body).await
}

async fn completions(
    state: State<Arc<GatewayState>>,
    client: AdmittedClient,
    place: PlaceExtension,
    headers: HeaderMap,
    body: Body,
) -> Response {
    ask(state, client, place, "/v1/completions", headers, body).await
}

async fn embeddings(
    state: State<Arc<GatewayState>>,
    client: AdmittedClient,
    place: PlaceExtension,
    headers: HeaderMap,
    body: Body,
) -> Response {
    ask(state, client, place, "/v1/embeddings", headers, body).await
}

async fn ask(
    State(state): State<Arc<GatewayState>>,
    client: AdmittedClient,
    Extension(place): PlaceExtension,
    path: &'static str,
    headers: HeaderMap,
    body: Body,
) -> Response {
    // A facilitator has one address for all of its users.
    place.release_address();
    match try_ask(&state, client, path, &headers, body).await {
        Ok(response) => response,
        Err(error) => refuse(&error),
    }
}

async fn try_ask(
    state: &Arc<GatewayState>,
    client: AdmittedClient,
    path: &'static str,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, OpenAiError> {
    let question = Question {
        client,
        path,
        client_nonce: read_client_nonce(headers)?,
        bound: None,
        consent: read_consent(headers)?,
        origin: RequestOrigin::User,
        body: collect_body(headers, body, state.settings.max_body()).await?,
    };
    let asked = submit(state, question)?;
    let heartbeat = Duration::from_secs(state.settings.heartbeat_s);
    Ok(reply(asked.parts, asked.place, heartbeat, asked.id.header()).await)
}

async fn models(State(state): State<Arc<GatewayState>>, _: AdmittedClient) -> Response {
    let services = state.whitelist.services().iter();
    let all: Vec<Value> = services.map(|service| describe(&state, service)).collect();
    Json(json!({ "object": "list", "data": all })).into_response()
}

async fn model(
    State(state): State<Arc<GatewayState>>,
    _: AdmittedClient,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Response {
    // An id that is no UTF-8 is no model's.
    let Path(id) = id.unwrap_or_else(|_| Path(uri.path().to_owned()));
    match state.whitelist.of_model(&id) {
        Ok(service) => Json(describe(&state, service)).into_response(),
        Err(_) => error_response(&OpenAiError::UnknownModel(shorten(&id))),
    }
}

/// A model as OpenAI's clients read it. The member `muster` has its image and prices.
fn describe(state: &GatewayState, service: &Service) -> Value {
    json!({
        "id": service.model, "object": "model", "created": 0, "owned_by": state.backend.validator(),
        "muster": {
            "image": service.image, "weights": service.weights, "scheme": service.scheme.name(),
            "input_price": service.input_price, "output_price": service.output_price,
        },
    })
}

/// The nonce that a session signed; `None` if its statement cannot be decoded.
fn signed_nonce(proof: &str) -> Option<String> {
    let envelope = Envelope::<ResponseProof>::from_text(proof).ok()?;
    Some(envelope.statement().ok()?.gateway_nonce?.hex())
}

async fn proof(
    State(state): State<Arc<GatewayState>>,
    client: AdmittedClient,
    Path(id): Path<String>,
) -> Response {
    match state.store.find_response(&id).await {
        // A proof is visible to the client that asked only.
        Ok(Some((response, session))) if response.client == client.name => Json(ProofView {
            id: response.id,
            nonce: response.proof.as_deref().and_then(signed_nonce),
            pseudonym_nonce: response.pseudonym_nonce,
            verdict: response.verdict,
            model: response.model,
            miner: session.miner,
            validator: state.backend.validator(),
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
            tracing::error!(%error, "a proof cannot be read from the store");
            error_response(&OpenAiError::Internal(
                "the gateway's store does not answer".to_owned(),
            ))
        }
    }
}
