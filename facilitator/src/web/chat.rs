//! A conversation with a model: the page, the answers as they come, and their proofs.

use axum::Extension;
use axum::body::Body;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use muster_response_proof::answer_proof::{AnswerProof, CheckedAnswer, check_answer};
use muster_web_pages::chat::{self, ChatModel};
use muster_web_pages::proof::{self, ShownProof};
use serde::Deserialize;

use super::api::{json_body, pass_headers};
use super::form::SignedFetch;
use super::page_headers::RunsModule;
use super::session::{SignedIn, as_part};

/// The headers of an answer that its browser gets.
const ANSWER_HEADERS: [&str; 3] = ["content-type", "x-request-id", "retry-after"];
/// The longest id of a proof, in characters.
const MAX_PROOF_ID: usize = 128;

/// `GET /v1/models` as pages read it.
#[derive(Debug, Deserialize)]
struct ModelList {
    data: Vec<ListedModel>,
}

#[derive(Debug, Deserialize)]
struct ListedModel {
    id: String,
}

/// The page of the conversation.
pub(super) async fn page(signed_in: SignedIn) -> impl IntoResponse {
    let models = signed_in.api.get::<ModelList>("/v1/models").await;
    let models = models.map(|list| {
        let shown = list.data.into_iter().map(|model| ChatModel { id: model.id });
        shown.collect::<Vec<_>>()
    });
    let page = chat::render(&signed_in.visitor(), &as_part(models));
    (Extension(RunsModule), Html(page))
}

/// Passes a request on to `POST /v1/chat/completions`, and its answer back as it comes.
pub(super) async fn complete(request: SignedFetch) -> Response {
    let SignedFetch { signed_in, body } = request;
    let path = "/v1/chat/completions";
    let response = signed_in.api.send(Method::POST, path, &[json_body()], body).await;
    let (parts, body) = response.into_parts();
    (parts.status, pass_headers(&parts.headers, &ANSWER_HEADERS), body).into_response()
}

/// The proof of an answer, checked here, as a fragment of the page.
pub(super) async fn proof(signed_in: SignedIn, Path(id): Path<String>) -> Response {
    let plain = id.len() <= MAX_PROOF_ID && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !plain {
        return signed_in.not_found();
    }
    let path = format!("/v1/proofs/{id}");
    match signed_in.api.get::<AnswerProof>(&path).await {
        Ok(found) => Html(proof::render(&shown(&found, &id))).into_response(),
        Err(failure) if failure.status == StatusCode::NOT_FOUND => {
            (StatusCode::NOT_FOUND, Body::empty()).into_response()
        }
        Err(failure) => signed_in.failure(&failure),
    }
}

/// The proof with the server's own check. The page checks it again, if its browser runs modules.
fn shown(found: &AnswerProof, id: &str) -> ShownProof {
    let CheckedAnswer {
        defect,
        statements,
        input,
    } = check_answer(found, id, None, muster_identity::verify);
    ShownProof {
        defect,
        statements,
        input,
        signed: serde_json::to_string(found).unwrap_or_default(),
    }
}
