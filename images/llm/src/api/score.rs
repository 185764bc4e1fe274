//! `POST /v1/score`: the probabilities and margins of an answer that is there already, as the ids of its tokens, or as
//! its text beside the request that it answers. Ids with a request and a text are compared with them first.

mod retrace;
mod stated_ids;

use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use self::retrace::{Retraced, TextAnswer};
use self::stated_ids::StatedAnswer;
use super::request::{
    Common, Plan, chat, checked_prompt, completion, has_penalties, model_of, number_of, parameters, seed_of,
};
use super::{ApiError, Service};
use crate::engine::{Margin, Score, Scored};
use crate::llama_cpp::Uniforms;
use crate::noise::{ONE, Seed};
use crate::replay::Chooser;
use crate::sampler::{Parameters, Slack, q24};

const MOST_LIKELY: usize = 20;
/// The mark for bytes that make no letter. A text does not show which bytes it stands for, and engines differ in the
/// number of marks for a letter that stays unfinished.
const BROKEN_LETTER: char = '\u{FFFD}';

#[derive(Deserialize)]
struct Request {
    /// The tokens before the answer.
    prompt_token_ids: Vec<u32>,
    /// The answer, the token that ended it included.
    token_ids: Vec<u32>,
    /// Which of a request's answers it was.
    #[serde(default)]
    choice: u32,
    /// The sampler that chose: muster (the default), llama.cpp or vllm.
    sampler: Option<String>,
    /// The version of that engine, if the replay has to be of it.
    sampler_version: Option<String>,
    top_likely: Option<usize>,
    slack: Option<Given>,
    /// The request that is answered: with it the ids have to be those that this engine would state.
    request: Option<Map<String, Value>>,
    /// The text that was sent, which the ids have to give. Only beside a request.
    text: Option<String>,
    /// Why the answer ended, as the engine reported. Only beside a request.
    finish_reason: Option<String>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Deserialize)]
struct Given {
    share: f64,
    logit: f64,
    clip: f64,
}

/// Whether the ids of an answer are known.
#[derive(Deserialize)]
struct AnswerForm {
    token_ids: Option<IgnoredAny>,
}

/// An answer of which the text is known.
#[derive(Deserialize)]
struct TextRequest {
    /// The request that it answers: a chat completion's if it has messages, a completion's otherwise.
    request: Map<String, Value>,
    /// The text of its one answer.
    text: String,
    /// Why the answer ended, as the engine reported: `stop`, `length`, or something else.
    #[serde(default)]
    finish_reason: Option<String>,
    /// The seed of a request that names none.
    #[serde(default)]
    muster_seed: Option<String>,
    /// As for an answer of which the ids are known. Without a seed the text is tokenized, and no token has a margin.
    #[serde(default)]
    sampler: Option<String>,
    #[serde(default)]
    sampler_version: Option<String>,
}

pub(super) async fn run(service: &Service, body: &[u8]) -> Result<Response, ApiError> {
    let has_ids = serde_json::from_slice::<AnswerForm>(body).is_ok_and(|form| form.token_ids.is_some());
    if !has_ids && let Ok(asked) = serde_json::from_slice::<TextRequest>(body) {
        return run_text(service, asked).await;
    }
    let request: Request = serde_json::from_slice(body).map_err(|error| ApiError::json(&error))?;
    model_of(service, &request.common)?;
    let likely = request.top_likely.unwrap_or(0);
    if likely > MOST_LIKELY {
        return Err(ApiError::param(
            "top_likely",
            format!("at most {MOST_LIKELY} likely tokens are reported"),
        ));
    }
    let parameters = parameters(service, &request.common)?;
    let chooser = chooser(&request, &parameters)?;
    let is_compared = compare(service, &request)?;
    let answer = request.token_ids;
    if answer.is_empty() || answer.iter().any(|id| *id as usize >= service.shape.vocabulary) {
        return Err(ApiError::param(
            "token_ids",
            "it is empty or has tokens outside the vocabulary",
        ));
    }
    let mut tokens = checked_prompt(service, request.prompt_token_ids, Some(answer.len()))?;
    let prompt = tokens.len();
    tokens.extend(answer);
    let scored = Score {
        tokens,
        prompt,
        parameters,
        chooser,
        slack: slack(request.slack)?,
        likely,
    };
    let mut body = report(service, scored).await?;
    if is_compared && let Some(object) = body.as_object_mut() {
        object.insert("compared".to_owned(), json!(true));
    }
    Ok(axum::Json(body).into_response())
}

/// Compares the ids of an answer with its request and its text; `false` without a request.
fn compare(service: &Service, request: &Request) -> Result<bool, ApiError> {
    let Some(answered) = &request.request else {
        return match request.text.is_some() || request.finish_reason.is_some() {
            true => Err(ApiError::param(
                "request",
                "a text is compared beside its request",
            )),
            false => Ok(false),
        };
    };
    let stated = StatedAnswer {
        request: answered,
        prompt: &request.prompt_token_ids,
        ids: &request.token_ids,
        text: request.text.as_deref(),
        finish_reason: request.finish_reason.as_deref(),
    };
    stated.compare(service)?;
    Ok(true)
}

/// Scores an answer as far as its text shows its tokens.
async fn run_text(service: &Service, asked: TextRequest) -> Result<Response, ApiError> {
    let (plan, chooser) = plan_of(service, &asked)?;
    let ([prompt], 1) = (plan.prompts.as_slice(), plan.choices) else {
        return Err(ApiError::param("request", "an answer is scored alone"));
    };
    let Some(chooser) = chooser else {
        return run_unseeded(service, prompt.clone(), &plan, &asked.text).await;
    };
    let room = service.shape.context.saturating_sub(prompt.len());
    let answer = TextAnswer {
        prompt,
        parameters: &plan.parameters,
        chooser: &chooser,
        text: &asked.text,
        max_tokens: plan.max_tokens.unwrap_or(room).clamp(1, room.max(1)),
        is_open: !plan.stops.0.is_empty(),
        is_ended: asked.finish_reason.as_deref() == Some("stop") && plan.stops.0.is_empty(),
    };
    let Retraced { ids, is_whole } = answer.retrace(service).await?;
    if ids.is_empty() {
        return Err(ApiError::param(
            "text",
            "it does not tell a token of the vocabulary that was chosen",
        ));
    }
    let mut tokens = prompt.clone();
    tokens.extend(ids);
    let scored = Score {
        tokens,
        prompt: prompt.len(),
        parameters: plan.parameters.clone(),
        chooser: Some(chooser),
        slack: Slack::default(),
        likely: 0,
    };
    let mut body = report(service, scored).await?;
    if let Some(object) = body.as_object_mut() {
        object.insert("retraced".to_owned(), json!({ "whole": is_whole }));
    }
    Ok(axum::Json(body).into_response())
}

/// Scores a text whose seed nobody knows, as the tokenizer reads it.
async fn run_unseeded(
    service: &Service,
    mut tokens: Vec<u32>,
    plan: &Plan,
    text: &str,
) -> Result<Response, ApiError> {
    let prompt = tokens.len();
    tokens.extend(service.tokenizer.encode(text)?);
    if tokens.len() == prompt {
        return Err(ApiError::param("text", "it has no token of the vocabulary"));
    }
    if tokens.len() > service.shape.context {
        return Err(ApiError::context(tokens.len(), service.shape.context));
    }
    let scored = Score {
        tokens,
        prompt,
        parameters: plan.parameters.clone(),
        chooser: None,
        slack: Slack::default(),
        likely: 0,
    };
    Ok(axum::Json(report(service, scored).await?).into_response())
}

/// The request as the engine that answered it read it; `seed` is that of a request that names none.
fn read_plan(service: &Service, request: &Map<String, Value>, seed: Option<Seed>) -> Result<Plan, ApiError> {
    let body = serde_json::to_vec(request).map_err(|error| ApiError::json(&error))?;
    match is_named(request, "messages") {
        true => chat(service, &body, seed),
        false => completion(service, &body, seed),
    }
}

fn is_named(request: &Map<String, Value>, name: &str) -> bool {
    request.get(name).is_some_and(|value| !value.is_null())
}

/// The request as the engine that answered it read it, and the sampler of its answer; no sampler of another engine if
/// the request names no seed for it.
fn plan_of(service: &Service, asked: &TextRequest) -> Result<(Plan, Option<Chooser>), ApiError> {
    let sampler = sampler_of(asked.sampler.as_deref(), asked.sampler_version.as_deref())?;
    let names = |name: &str| is_named(&asked.request, name);
    let given = match &asked.muster_seed {
        None => None,
        Some(text) => {
            let mut bytes = [0; 32];
            hex::decode_to_slice(text, &mut bytes)
                .map_err(|_| ApiError::param("muster_seed", "it is 64 hexadecimal digits"))?;
            Some(Seed(bytes))
        }
    };
    if sampler == Sampler::Muster && given.is_none() && !names("seed") && !names("muster_seed") {
        return Err(ApiError::param(
            "muster_seed",
            "the tokens of a text follow from its seed, and there is none",
        ));
    }
    let plan = read_plan(service, &asked.request, given)?;
    if sampler == Sampler::Muster {
        let chooser = Chooser::Muster(plan.seed.choice(0));
        return Ok((plan, Some(chooser)));
    }
    if given.is_some() || names("muster_seed") {
        return Err(ApiError::param(
            "muster_seed",
            "this sampler is seeded by a number in seed",
        ));
    }
    let number = asked.request.get("seed").and_then(Value::as_i64);
    let longest = service.shape.context;
    let chooser = chooser_of(sampler, number, &plan.parameters, longest)?;
    Ok((plan, chooser))
}

/// Scores a text and reports it.
async fn report(service: &Service, scored: Score) -> Result<Value, ApiError> {
    let prompt = scored.prompt;
    let answer = scored.tokens.len() - prompt;
    let scores = service
        .engine
        .score(scored)?
        .await
        .map_err(|_| ApiError::failed())?;
    Ok(json!({
        "object": "score", "model": service.name, "digest": service.id,
        "tokens": scores.tokens.iter().map(document).collect::<Vec<_>>(),
        "ends": scores.ends.iter().map(document).collect::<Vec<_>>(),
        "usage": {
            "prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": scores.cached},
        },
    }))
}

/// The sampler of an answer; none where no seed is named.
fn chooser(request: &Request, parameters: &Parameters) -> Result<Option<Chooser>, ApiError> {
    let sampler = sampler_of(request.sampler.as_deref(), request.sampler_version.as_deref())?;
    if sampler == Sampler::Muster {
        return Ok(seed_of(&request.common)?.map(|seed| Chooser::Muster(seed.choice(request.choice))));
    }
    if request.choice != 0 {
        return Err(ApiError::param(
            "choice",
            "only our own sampler has a seed for each answer",
        ));
    }
    let number = number_of(&request.common)?;
    chooser_of(sampler, number, parameters, request.token_ids.len())
}

/// The samplers whose choices are replayed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sampler {
    Muster,
    LlamaCpp,
    Vllm,
    /// One that nobody replays: there are no margins.
    Unknown,
}

/// The sampler of this name, if its replay is of this version.
fn sampler_of(name: Option<&str>, version: Option<&str>) -> Result<Sampler, ApiError> {
    let (sampler, known) = match name {
        None | Some("muster") => (Sampler::Muster, crate::sampler::VERSION),
        Some("llama.cpp") => (Sampler::LlamaCpp, crate::llama_cpp::VERSION),
        Some("vllm") => (Sampler::Vllm, crate::noise::VLLM_VERSION),
        Some("unknown") => return Ok(Sampler::Unknown),
        Some(_) => {
            return Err(ApiError::param(
                "sampler",
                "it is muster, llama.cpp, vllm or unknown",
            ));
        }
    };
    match version {
        Some(version) if version != known => Err(ApiError::param(
            "sampler_version",
            format!("the replay of this sampler is of version {known}"),
        )),
        Some(_) | None => Ok(sampler),
    }
}

/// Another engine's sampler under a seed, for `tokens` tokens; none where no seed is named.
fn chooser_of(
    sampler: Sampler,
    number: Option<i64>,
    parameters: &Parameters,
    tokens: usize,
) -> Result<Option<Chooser>, ApiError> {
    match (sampler, number) {
        (_, None) | (Sampler::Unknown, _) => Ok(None),
        (Sampler::Muster, Some(number)) => Ok(Some(Chooser::Muster(Seed::of_openai(number)))),
        (Sampler::Vllm, Some(number)) => Ok(Some(Chooser::Vllm(number))),
        (Sampler::LlamaCpp, Some(_)) if has_penalties(parameters) => Err(ApiError::param(
            "sampler",
            "llama.cpp's penalties look at the prompt, too, and are not replayed",
        )),
        (Sampler::LlamaCpp, Some(number)) => {
            let seed = u32::try_from(number)
                .map_err(|_| ApiError::param("seed", "llama.cpp's seeds are numbers of 32 bits"))?;
            // One more than there are tokens, for the end.
            let uniforms = Uniforms::new(seed, tokens + 1);
            Ok(Some(Chooser::LlamaCpp(uniforms)))
        }
    }
}

fn slack(given: Option<Given>) -> Result<Slack, ApiError> {
    let Some(given) = given else {
        return Ok(Slack::default());
    };
    let within = |value: f64, most: f64| (0.0..=most).contains(&value);
    if !within(given.share, 1.0) || !within(given.logit, 100.0) || !within(given.clip, 1000.0) {
        return Err(ApiError::param(
            "slack",
            "share is 0 to 1, logit 0 to 100, clip 0 to 1000",
        ));
    }
    Ok(Slack {
        share: q24(given.share),
        logit: q24(given.logit),
        clip: q24(given.clip),
    })
}

fn document(scored: &Scored) -> Value {
    let mut document = json!({"token_id": scored.id, "logprob": scored.logprob, "entropy": scored.entropy});
    let margin = match scored.margin {
        Margin::Unknown => None,
        Margin::Known(q24) => Some(json!(q24 as f64 / ONE as f64)),
        Margin::Impossible => Some(json!("impossible")),
    };
    if let Some(object) = document.as_object_mut() {
        object.extend(margin.map(|margin| ("margin".to_owned(), margin)));
        if !scored.likely.is_empty() {
            let likely = scored
                .likely
                .iter()
                .map(|likely| json!([likely.id, likely.logprob]))
                .collect();
            object.insert("likely".to_owned(), Value::Array(likely));
        }
    }
    document
}
