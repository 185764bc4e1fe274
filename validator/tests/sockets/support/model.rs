//! A scripted language model whose answers are measured ones: each answer says in its first tokens which engine wrote
//! it, and a reference scores it as that engine's answers were scored.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::ready;
use muster_audit::{Calibration, CellCounts, ENTROPY_EDGES, MARGIN_BINS, MARGIN_EDGES};
use serde_json::{Value, json};

/// The first token of an answer of an honest engine, of a cheaper one, of a reference, and of one that ends its scorer.
const HONEST: u64 = 1;
const CHEAPER: u64 = 2;
const OWN: u64 = 3;
const POISON: u64 = 4;

/// The measured answers of `images/llm`'s engines.
pub(crate) fn calibration() -> Calibration {
    Calibration::parse(include_str!("../../../../tests/vectors/audit-calibration.json")).unwrap()
}

fn answers(engine: u64) -> Vec<CellCounts> {
    let calibration = calibration();
    match engine {
        CHEAPER => {
            let mut cheaper = calibration.alternatives.into_iter();
            cheaper.find(|one| one.name == "int4").unwrap().answers
        }
        _ => calibration
            .machines
            .into_iter()
            .flat_map(|run| run.answers)
            .collect(),
    }
}

/// The tokens of a measured answer: the engine, the number of the answer, and as many more as it had.
fn ids(engine: u64, number: usize, tokens: usize) -> Vec<u64> {
    let mut ids = vec![engine, u64::try_from(number).unwrap()];
    ids.resize(tokens.max(2), 9);
    ids
}

/// The program of a miner: it answers chats, honestly or with four-bit weights. Every `poison`-th answer ends a scorer.
pub(crate) fn model(cheats: bool, poison: Option<usize>) -> Router {
    let engine = if cheats { CHEAPER } else { HONEST };
    let answers = Arc::new(answers(engine));
    let next = Arc::new(AtomicUsize::new(0));
    let chat = move |body: Bytes| {
        let number = next.fetch_add(7, Ordering::SeqCst) % answers.len();
        let tokens: u32 = answers[number].0.iter().flatten().sum();
        let is_poison = poison.is_some_and(|every| (number / 7) % every == every - 1);
        let engine = if is_poison { POISON } else { engine };
        let asked: Value = serde_json::from_slice(&body).unwrap();
        let mut choice = json!({ "message": { "role": "assistant", "content": "words" } });
        if asked["return_token_ids"] == true {
            choice["prompt_token_ids"] = json!([5, 6]);
            choice["token_ids"] = json!(ids(engine, number, tokens as usize));
        }
        let usage = json!({ "prompt_tokens": 2, "completion_tokens": tokens });
        ready(Json(json!({ "choices": [choice], "usage": usage })))
    };
    Router::new()
        .route("/health", get(|| ready("well")))
        .route("/v1/chat/completions", post(chat))
}

/// The program of a reference: it scores answers, and its own ones as its own choices.
pub(crate) fn reference() -> Router {
    let measured = Arc::new([answers(HONEST), answers(CHEAPER)]);
    let score = move |body: Bytes| ready(scored(&measured, &body));
    let write = || {
        let choice =
            json!({ "text": "words", "prompt_token_ids": [5], "token_ids": [OWN, 0, 9, 9, 9, 9, 9, 9] });
        ready(Json(json!({ "choices": [choice] })))
    };
    Router::new()
        .route("/health", get(|| ready("well")))
        .route("/v1/completions", post(write))
        .route("/v1/score", post(score))
}

fn scored(measured: &[Vec<CellCounts>; 2], body: &Bytes) -> Response {
    let asked: Value = serde_json::from_slice(body).unwrap();
    let Some(ids) = asked["token_ids"].as_array() else {
        // The text of a scripted answer has no tokens.
        let error = json!({ "error": { "message": "it does not tell a token of the vocabulary" } });
        return (axum::http::StatusCode::BAD_REQUEST, Json(error)).into_response();
    };
    let number = usize::try_from(ids[1].as_u64().unwrap()).unwrap();
    let tokens: Vec<Value> = match ids[0].as_u64().unwrap() {
        HONEST => tokens_of(&measured[0][number]),
        CHEAPER => tokens_of(&measured[1][number]),
        OWN => vec![json!({ "margin": 0.0, "entropy": 1.0 }); ids.len()],
        _ => {
            return (
                axum::http::StatusCode::INTERNAL_SERVER_ERROR,
                "the scorer panicked",
            )
                .into_response();
        }
    };
    Json(json!({ "tokens": tokens })).into_response()
}

/// Tokens that fall into these cells, in nats.
fn tokens_of(cells: &CellCounts) -> Vec<Value> {
    let mut tokens = Vec::new();
    for (entropy, row) in cells.0.iter().enumerate() {
        let entropy = if entropy == 0 {
            0
        } else {
            ENTROPY_EDGES[entropy - 1]
        };
        for (margin, count) in row.iter().enumerate() {
            let margin = match margin {
                0 => json!(0.0),
                last if last == MARGIN_BINS - 1 => json!("impossible"),
                bin => json!(f64::from(MARGIN_EDGES[bin - 1] + 1) / 1e6),
            };
            let token = json!({ "margin": margin, "entropy": f64::from(entropy) / 1e3 });
            tokens.extend(std::iter::repeat_n(token, usize::try_from(*count).unwrap()));
        }
    }
    tokens
}
