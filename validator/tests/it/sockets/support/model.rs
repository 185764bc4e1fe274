//! A scripted language model whose answers are measured ones: each answer names in its first tokens the engine that
//! wrote it, and a reference scores it as that engine's answers were scored. All its texts are the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::ready;
use muster_audit::{Calibration, CellCounts, ENTROPY_EDGES, MARGIN_BINS, MARGIN_EDGES};
use serde_json::{Value, json};
use tokio::sync::watch;

/// The first token of an answer of an honest engine, of a cheaper one, of a reference, and of one that ends its scorer.
const HONEST: u64 = 1;
const CHEAPER: u64 = 2;
const OWN: u64 = 3;
const POISON: u64 = 4;

/// The text of every answer, and the ids of every prompt of a chat.
const TEXT: &str = "words";
const PROMPT: [u64; 2] = [5, 6];

/// The measured answers of `images/llm`'s engines.
pub(crate) fn calibration() -> Calibration {
    Calibration::parse(include_str!(
        "../../../../../tests/vectors/audit-calibration.json"
    ))
    .unwrap()
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

/// The tokens of a measured answer: the engine, the number of the answer, and as many more as it had or was asked for.
fn ids(engine: u64, number: usize, tokens: usize) -> Vec<u64> {
    let mut ids = vec![engine, u64::try_from(number).unwrap()];
    ids.resize(tokens.max(2), 9);
    ids
}

/// The program of a miner: it answers chats, honestly or with four-bit weights. Every `poison`-th answer ends a scorer.
pub(crate) fn model(cheats: bool, poison: Option<usize>) -> Router {
    Router::new()
        .route("/health", get(|| ready("well")))
        .merge(chats(cheats, poison, TEXT))
}

/// The program of a miner whose answers state the ids of an honest engine beside another text.
pub(crate) fn model_of_other_text() -> Router {
    Router::new()
        .route("/health", get(|| ready("well")))
        .merge(chats(false, None, "cheaper words"))
}

fn chats(cheats: bool, poison: Option<usize>, text: &'static str) -> Router {
    let engine = if cheats { CHEAPER } else { HONEST };
    let answers = Arc::new(answers(engine));
    let next = Arc::new(AtomicUsize::new(0));
    let chat = move |body: Bytes| {
        let number = next.fetch_add(7, Ordering::SeqCst) % answers.len();
        let tokens: u32 = answers[number].0.iter().flatten().sum();
        let is_poison = poison.is_some_and(|every| (number / 7) % every == every - 1);
        let engine = if is_poison { POISON } else { engine };
        let asked: Value = serde_json::from_slice(&body).unwrap();
        let most = asked["max_tokens"]
            .as_u64()
            .map_or(u32::MAX, |most| u32::try_from(most).unwrap());
        let tokens = tokens.min(most);
        let mut choice = json!({ "message": { "role": "assistant", "content": text } });
        if asked["return_token_ids"] != true && most != u32::MAX {
            // The text shows the tokens, as the texts of a real model do.
            let told = format!("{text} {engine} {number} {tokens}");
            choice["message"]["content"] = told.into();
        } else if asked["return_token_ids"] == true {
            choice["prompt_token_ids"] = json!(PROMPT);
            choice["token_ids"] = json!(ids(engine, number, tokens as usize));
        }
        let usage = json!({ "prompt_tokens": 2, "completion_tokens": tokens });
        ready(match asked["stream"] == true {
            true => streamed(choice, &usage),
            false => Json(json!({ "choices": [choice], "usage": usage })).into_response(),
        })
    };
    Router::new().route("/v1/chat/completions", post(chat))
}

/// An answer as an event stream: one event with the whole choice, then the usage.
fn streamed(mut choice: Value, usage: &Value) -> Response {
    let fields = choice.as_object_mut().unwrap();
    let message = fields.remove("message").unwrap();
    fields.insert("delta".to_owned(), message);
    fields.insert("index".to_owned(), json!(0));
    let (whole, last) = (
        json!({ "choices": [choice] }),
        json!({ "choices": [], "usage": usage }),
    );
    let body = format!("data: {whole}\n\ndata: {last}\n\ndata: [DONE]\n\n");
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// The whitelisted engine as a whole: it answers chats honestly, and scores.
pub(crate) fn whole_engine() -> Router {
    reference().merge(chats(false, None, TEXT))
}

/// The program of a reference: it scores answers, and its own ones as its own choices.
pub(crate) fn reference() -> Router {
    reference_with(|_, _, tokens| tokens)
}

/// The first token of an answer that a reference finds to be its own.
pub(crate) const OWN_TOKEN: u32 = 3;

/// The program of a reference that replays vLLM's sampler in this version: it scores answers by the number in `seed`.
pub(crate) fn seeded_reference(version: &'static str) -> Router {
    let measured = Arc::new([answers(HONEST), answers(CHEAPER)]);
    let score = move |body: Bytes| {
        let asked: Value = serde_json::from_slice(&body).unwrap();
        let is_written_here = asked["muster_seed"].is_string() && asked["token_ids"][0] == OWN;
        let is_replayed =
            asked["sampler"] == "vllm" && asked["sampler_version"] == version && asked["seed"].is_u64();
        let is_seeded = is_replayed && asked["muster_seed"].is_null();
        ready(if is_seeded || is_written_here {
            scored(&measured, &body, &|_, _, token| token)
        } else {
            let error = json!({ "error": { "message": "another sampler, or no seed" } });
            (axum::http::StatusCode::BAD_REQUEST, Json(error)).into_response()
        })
    };
    Router::new()
        .route("/health", get(|| ready("well")))
        .route("/v1/completions", post(write_own))
        .route("/v1/score", post(score))
}

/// The program of a reference that accuses honest engines: by it, every fourth token of their answers is off.
pub(crate) fn lying_reference() -> Router {
    reference_with(|engine, place, token| match (engine, place % 4) {
        (HONEST, 0) => json!({ "margin": 0.6, "entropy": token["entropy"] }),
        _ => token,
    })
}

/// The program of a reference that forges one token in twenty of honest answers, as little as convicts by its word.
pub(crate) fn forging_reference() -> Router {
    reference_with(|engine, place, token| match (engine, place % 20) {
        (HONEST, 0) => json!({ "margin": 0.4, "entropy": token["entropy"] }),
        _ => token,
    })
}

/// The program of a reference that reports of every answer that its ids are not those of its text.
pub(crate) fn accusing_reference() -> Router {
    let measured = Arc::new([answers(HONEST), answers(CHEAPER)]);
    let score = move |body: Bytes| {
        if is_own(&body) {
            return ready(scored(&measured, &body, &|_, _, token| token));
        }
        let error = json!({ "error": { "message": "the ids are false", "code": "text_differs" } });
        ready((axum::http::StatusCode::BAD_REQUEST, Json(error)).into_response())
    };
    Router::new()
        .route("/health", get(|| ready("well")))
        .route("/v1/completions", post(write_own))
        .route("/v1/score", post(score))
}

/// A reference whose first score does not come before `gate` opens; `asked` reports that it was asked for.
pub(crate) fn halting_reference(asked: watch::Sender<bool>, gate: watch::Receiver<bool>) -> Router {
    let measured = Arc::new([answers(HONEST), answers(CHEAPER)]);
    let score = move |body: Bytes| {
        let (measured, asked, mut gate) = (Arc::clone(&measured), asked.clone(), gate.clone());
        async move {
            let own = is_own(&body);
            if !own {
                asked.send_replace(true);
                let _ = gate.wait_for(|open| *open).await;
            }
            scored(&measured, &body, &|_, _, token| token)
        }
    };
    Router::new()
        .route("/health", get(|| ready("well")))
        .route("/v1/completions", post(write_own))
        .route("/v1/score", post(score))
}

/// A reference that is miscalibrated while the flag is set: it scores honest answers as those of four-bit weights.
pub(crate) fn misjudging_reference(is_wrong: &Arc<AtomicBool>) -> Router {
    let measured = Arc::new([answers(HONEST), answers(CHEAPER)]);
    let is_wrong = Arc::clone(is_wrong);
    let score = move |body: Bytes| {
        let asked: Value = serde_json::from_slice(&body).unwrap();
        let ids = asked["token_ids"]
            .as_array()
            .cloned()
            .or_else(|| told_ids(&asked));
        let honest = ids.filter(|ids| ids[0] == HONEST && is_wrong.load(Ordering::SeqCst));
        let Some(ids) = honest else {
            return ready(scored(&measured, &body, &|_, _, token| token));
        };
        let (cheap, number) = (&measured[1], usize::try_from(ids[1].as_u64().unwrap()).unwrap());
        let tokens = resized(tokens_of(&cheap[number % cheap.len()]), ids.len());
        ready(reply(&asked, tokens))
    };
    Router::new()
        .route("/health", get(|| ready("well")))
        .route("/v1/completions", post(write_own))
        .route("/v1/score", post(score))
}

fn is_own(body: &Bytes) -> bool {
    let asked: Value = serde_json::from_slice(body).unwrap();
    asked["token_ids"][0] == OWN
}

fn write_own() -> impl Future<Output = Json<Value>> {
    let choice = json!({ "text": TEXT, "prompt_token_ids": [5], "token_ids": [OWN, 0, 9, 9, 9, 9, 9, 9] });
    ready(Json(json!({ "choices": [choice] })))
}

/// A reference that states each token as `tell` does, which is given the answer's engine and the token's place.
fn reference_with(tell: fn(u64, usize, Value) -> Value) -> Router {
    let measured = Arc::new([answers(HONEST), answers(CHEAPER)]);
    let score = move |body: Bytes| ready(scored(&measured, &body, &tell));
    Router::new()
        .route("/health", get(|| ready("well")))
        .route("/v1/completions", post(write_own))
        .route("/v1/score", post(score))
}

fn scored(
    measured: &[Vec<CellCounts>; 2],
    body: &Bytes,
    tell: &dyn Fn(u64, usize, Value) -> Value,
) -> Response {
    let asked: Value = serde_json::from_slice(body).unwrap();
    let Some(ids) = asked["token_ids"]
        .as_array()
        .cloned()
        .or_else(|| told_ids(&asked))
    else {
        // The text of this answer shows no tokens.
        let error = json!({ "error": { "message": "it does not tell a token of the vocabulary" } });
        return (axum::http::StatusCode::BAD_REQUEST, Json(error)).into_response();
    };
    if asked["token_ids"].is_array()
        && let Some(code) = contradiction(&asked)
    {
        let error = json!({ "error": { "message": "the ids are false", "code": code } });
        return (axum::http::StatusCode::BAD_REQUEST, Json(error)).into_response();
    }
    let number = usize::try_from(ids[1].as_u64().unwrap()).unwrap();
    let engine = ids[0].as_u64().unwrap();
    let tokens: Vec<Value> = match engine {
        HONEST => last(tokens_of(&measured[0][number]), ids.len()),
        CHEAPER => last(tokens_of(&measured[1][number]), ids.len()),
        OWN => vec![json!({ "margin": 0.0, "entropy": 1.0 }); ids.len()],
        _ => {
            return (
                axum::http::StatusCode::INTERNAL_SERVER_ERROR,
                "the scorer panicked",
            )
                .into_response();
        }
    };
    let tokens = tokens.into_iter().enumerate();
    let tokens: Vec<Value> = tokens.map(|(place, token)| tell(engine, place, token)).collect();
    reply(&asked, tokens)
}

/// The tokens that the text of an answer without ids shows.
fn told_ids(asked: &Value) -> Option<Vec<Value>> {
    let told = asked["text"].as_str()?.strip_prefix(TEXT)?;
    let numbers: Vec<u64> = told
        .split_whitespace()
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    let [engine, number, tokens] = numbers[..] else {
        return None;
    };
    let ids = ids(
        engine,
        usize::try_from(number).ok()?,
        usize::try_from(tokens).ok()?,
    );
    Some(ids.into_iter().map(Value::from).collect())
}

/// The code by which a reference refuses ids that are not those of the request or of the text.
fn contradiction(asked: &Value) -> Option<&'static str> {
    let request = asked["request"].as_object()?;
    let is_prompt = match request.contains_key("messages") {
        true => asked["prompt_token_ids"] == json!(PROMPT),
        false => asked["prompt_token_ids"] == json!([5]),
    };
    if !is_prompt {
        return Some("prompt_ids_differ");
    }
    let is_text = asked.get("text").is_none_or(|text| text == TEXT);
    (!is_text).then_some("text_differs")
}

fn reply(asked: &Value, tokens: Vec<Value>) -> Response {
    let mut reply = json!({ "tokens": tokens });
    if asked["request"].is_object() {
        reply["compared"] = json!(true);
    }
    Json(reply).into_response()
}

/// The last ones of these tokens, which stand in the order of their entropy.
fn last(mut tokens: Vec<Value>, count: usize) -> Vec<Value> {
    tokens.split_off(tokens.len().saturating_sub(count))
}

/// As many of these tokens, from the beginning again if they are too few.
fn resized(tokens: Vec<Value>, count: usize) -> Vec<Value> {
    tokens.into_iter().cycle().take(count).collect()
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
