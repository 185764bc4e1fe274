//! `POST /v1/score`: the probabilities and margins of an answer that is there already, as the ids of its tokens, or as
//! its text beside the request that it answers.

mod retrace;

use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::retrace::{Retraced, TextAnswer};
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
    top_likely: Option<usize>,
    slack: Option<Given>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Deserialize)]
struct Given {
    share: f64,
    logit: f64,
    clip: f64,
}

/// An answer of which the text is known.
#[derive(Deserialize)]
struct TextRequest {
    /// The request that it answers: a chat completion's if it has messages, a completion's otherwise.
    request: Map<String, Value>,
    /// The text of its one answer.
    text: String,
    /// Why the answer ended, as the engine said: `stop`, `length`, or something else.
    #[serde(default)]
    finish_reason: Option<String>,
    /// The seed of a request that names none.
    #[serde(default)]
    muster_seed: Option<String>,
}

pub(super) async fn run(service: &Service, body: &[u8]) -> Result<Response, ApiError> {
    if let Ok(asked) = serde_json::from_slice::<TextRequest>(body) {
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
    Ok(axum::Json(report(service, scored).await?).into_response())
}

/// Scores an answer as far as its text tells its tokens.
async fn run_text(service: &Service, asked: TextRequest) -> Result<Response, ApiError> {
    let (plan, seed) = plan_of(service, &asked)?;
    let ([prompt], 1) = (plan.prompts.as_slice(), plan.choices) else {
        return Err(ApiError::param("request", "an answer is scored alone"));
    };
    let room = service.shape.context.saturating_sub(prompt.len());
    let answer = TextAnswer {
        prompt,
        parameters: &plan.parameters,
        seed,
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
        chooser: Some(Chooser::Muster(seed)),
        slack: Slack::default(),
        likely: 0,
    };
    let mut body = report(service, scored).await?;
    if let Some(object) = body.as_object_mut() {
        object.insert("retraced".to_owned(), json!({ "whole": is_whole }));
    }
    Ok(axum::Json(body).into_response())
}

/// The request as the engine that answered it read it, and the seed of its answer.
fn plan_of(service: &Service, asked: &TextRequest) -> Result<(Plan, Seed), ApiError> {
    let names = |name: &str| asked.request.get(name).is_some_and(|value| !value.is_null());
    let given = match &asked.muster_seed {
        None => None,
        Some(text) => {
            let mut bytes = [0; 32];
            hex::decode_to_slice(text, &mut bytes)
                .map_err(|_| ApiError::param("muster_seed", "it is 64 hexadecimal digits"))?;
            Some(Seed(bytes))
        }
    };
    if given.is_none() && !names("seed") && !names("muster_seed") {
        return Err(ApiError::param(
            "muster_seed",
            "the tokens of a text follow from its seed, and there is none",
        ));
    }
    let body = serde_json::to_vec(&asked.request).map_err(|error| ApiError::json(&error))?;
    let plan = match names("messages") {
        true => chat(service, &body, given)?,
        false => completion(service, &body, given)?,
    };
    let seed = plan.seed.choice(0);
    Ok((plan, seed))
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
    let other = match request.sampler.as_deref() {
        None | Some("muster") => {
            return Ok(seed_of(&request.common)?.map(|seed| Chooser::Muster(seed.choice(request.choice))));
        }
        Some(other) => other,
    };
    if request.choice != 0 {
        return Err(ApiError::param(
            "choice",
            "only our own sampler has a seed for each answer",
        ));
    }
    match (other, number_of(&request.common)?) {
        ("vllm" | "llama.cpp", None) => Ok(None),
        ("vllm", Some(number)) => Ok(Some(Chooser::Vllm(number))),
        ("llama.cpp", Some(_)) if has_penalties(parameters) => Err(ApiError::param(
            "sampler",
            "llama.cpp's penalties look at the prompt, too, and are not replayed",
        )),
        ("llama.cpp", Some(number)) => {
            let seed = u32::try_from(number)
                .map_err(|_| ApiError::param("seed", "llama.cpp's seeds are numbers of 32 bits"))?;
            // One more than there are tokens, for the end.
            let uniforms = Uniforms::new(seed, request.token_ids.len() + 1);
            Ok(Some(Chooser::LlamaCpp(uniforms)))
        }
        (_, _) => Err(ApiError::param("sampler", "it is muster, llama.cpp or vllm")),
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
