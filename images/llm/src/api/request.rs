//! Requests of clients, checked once: all later code works with valid numbers.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ApiError, Service};
use crate::noise::{ONE, Seed};
use crate::sampler::{Parameters, q24};
use crate::text::{Message, Stops};

/// Answers to one request.
const MOST_CHOICES: usize = 16;
const MOST_STOPS: usize = 16;
const MOST_STOP_BYTES: usize = 256;
const MOST_LIKELY: usize = 20;
const MOST_BIASES: usize = 1024;
/// Where a client does not state how long an answer may be.
const USUAL_LENGTH: usize = 256;

/// The fields that both endpoints accept.
#[derive(Deserialize)]
pub(super) struct Common {
    model: Option<String>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    logit_bias: Option<BTreeMap<String, f64>>,
    n: Option<usize>,
    #[serde(default)]
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    stop: Option<OneOrMore>,
    seed: Option<i64>,
    muster_seed: Option<String>,
    #[serde(default)]
    return_token_ids: Option<bool>,
    top_logprobs: Option<usize>,
    logprobs: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Said>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Deserialize)]
struct Said {
    role: String,
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    r#type: String,
    #[serde(default)]
    text: String,
}

#[derive(Deserialize)]
struct Completion {
    prompt: Prompt,
    #[serde(flatten)]
    common: Common,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
}

/// A request that can be carried out.
pub(super) struct Plan {
    pub(super) chat: bool,
    /// One for each prompt; each gets `choices` answers.
    pub(super) prompts: Vec<Vec<u32>>,
    pub(super) choices: usize,
    pub(super) parameters: Parameters,
    pub(super) seed: Seed,
    pub(super) max_tokens: Option<usize>,
    pub(super) stops: Stops,
    pub(super) likely: Option<usize>,
    pub(super) stream: bool,
    pub(super) usage: bool,
    pub(super) token_ids: bool,
}

/// `seed` is taken where the request names none.
pub(super) fn chat(service: &Service, body: &[u8], seed: Option<Seed>) -> Result<Plan, ApiError> {
    let request: Chat = serde_json::from_slice(body).map_err(|error| ApiError::json(&error))?;
    if request.messages.is_empty() {
        return Err(ApiError::param("messages", "there is no message"));
    }
    let messages = request
        .messages
        .into_iter()
        .map(message)
        .collect::<Result<Vec<_>, _>>()?;
    let prompt = service.tokenizer.encode(&service.template.render(&messages)?)?;
    let likely = match &request.common.logprobs {
        None | Some(Value::Null | Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(request.common.top_logprobs.unwrap_or(0)),
        Some(_) => return Err(ApiError::param("logprobs", "logprobs is true or false here")),
    };
    plan(service, vec![prompt], likely, true, request.common, seed)
}

/// `seed` is taken where the request names none.
pub(super) fn completion(service: &Service, body: &[u8], seed: Option<Seed>) -> Result<Plan, ApiError> {
    let request: Completion = serde_json::from_slice(body).map_err(|error| ApiError::json(&error))?;
    let encode = |text: String| {
        service
            .tokenizer
            .encode(&text)
            .map_err(|error| ApiError::param("prompt", error.to_string()))
    };
    let prompts = match request.prompt {
        Prompt::Text(text) => vec![encode(text)?],
        Prompt::Ids(ids) => vec![ids],
        Prompt::Texts(texts) => texts.into_iter().map(encode).collect::<Result<_, _>>()?,
        Prompt::Lists(lists) => lists,
    };
    let likely = match &request.common.logprobs {
        None | Some(Value::Null) => None,
        Some(value) => match value.as_u64() {
            Some(count) => Some(usize::try_from(count).unwrap_or(usize::MAX)),
            None => return Err(ApiError::param("logprobs", "logprobs is a whole number here")),
        },
    };
    plan(service, prompts, likely, false, request.common, seed)
}

fn message(said: Said) -> Result<Message, ApiError> {
    if !matches!(said.role.as_str(), "system" | "developer" | "user" | "assistant") {
        return Err(ApiError::param(
            "messages",
            "a role is none of system, user, assistant",
        ));
    }
    let role = if said.role == "developer" {
        "system".to_owned()
    } else {
        said.role
    };
    let content = match said.content {
        None => String::new(),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => {
            if parts.iter().any(|part| part.r#type != "text") {
                return Err(ApiError::param("messages", "this model takes text only"));
            }
            parts.into_iter().map(|part| part.text).collect()
        }
    };
    Ok(Message { role, content })
}

fn plan(
    service: &Service,
    prompts: Vec<Vec<u32>>,
    likely: Option<usize>,
    chat: bool,
    common: Common,
    seed: Option<Seed>,
) -> Result<Plan, ApiError> {
    model_of(service, &common)?;
    refuse_unsupported(&common.rest)?;
    let choices = common.n.unwrap_or(1);
    if prompts.is_empty() || choices == 0 || prompts.len().saturating_mul(choices) > MOST_CHOICES {
        return Err(ApiError::param(
            "n",
            format!("answers to one request are 1 to {MOST_CHOICES}"),
        ));
    }
    if likely.is_some_and(|count| count > MOST_LIKELY) {
        return Err(ApiError::param(
            "top_logprobs",
            format!("at most {MOST_LIKELY} likely tokens are reported"),
        ));
    }
    let max_tokens = common.max_completion_tokens.or(common.max_tokens);
    if max_tokens == Some(0) {
        return Err(ApiError::param("max_tokens", "an answer has at least one token"));
    }
    let max_tokens = max_tokens.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    let prompts = prompts
        .into_iter()
        .map(|prompt| checked_prompt(service, prompt, max_tokens))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Plan {
        chat,
        prompts,
        choices,
        parameters: parameters(service, &common)?,
        seed: match seed_of(&common)?.or(seed) {
            Some(seed) => seed,
            None => fresh_seed()?,
        },
        max_tokens: max_tokens.or((!chat).then_some(USUAL_LENGTH)),
        stops: stops(common.stop)?,
        likely,
        stream: common.stream.unwrap_or(false),
        usage: common.stream_options.is_some_and(|options| options.include_usage),
        token_ids: common.return_token_ids.unwrap_or(false),
    })
}

pub(super) fn model_of(service: &Service, common: &Common) -> Result<(), ApiError> {
    match common.model.as_deref() {
        Some(name) if name != service.name => Err(ApiError::no_model(name)),
        Some(_) | None => Ok(()),
    }
}

/// A client that asks for these means them; to leave them out silently would be a lie.
fn refuse_unsupported(rest: &Map<String, Value>) -> Result<(), ApiError> {
    const NEVER: [&str; 6] = [
        "tools",
        "functions",
        "suffix",
        "audio",
        "guided_json",
        "repetition_penalty",
    ];
    let asks = |name: &str| {
        rest.get(name)
            .is_some_and(|value| !value.is_null() && *value != Value::Array(vec![]))
    };
    if let Some(name) = NEVER.into_iter().find(|name| asks(name)) {
        return Err(ApiError::param(name, format!("{name} is not supported")));
    }
    if rest.get("echo") == Some(&Value::Bool(true)) {
        return Err(ApiError::param(
            "echo",
            "echo is not supported; POST /v1/score gives a prompt's probabilities",
        ));
    }
    if rest
        .get("best_of")
        .and_then(Value::as_u64)
        .is_some_and(|best| best > 1)
    {
        return Err(ApiError::param("best_of", "best_of is not supported"));
    }
    let format = rest.get("response_format").and_then(|format| format.get("type"));
    if format.is_some_and(|format| format != "text") {
        return Err(ApiError::param("response_format", "only text is supported"));
    }
    Ok(())
}

/// A prompt that has a beginning, known tokens, and room for an answer.
pub(super) fn checked_prompt(
    service: &Service,
    mut prompt: Vec<u32>,
    answer: Option<usize>,
) -> Result<Vec<u32>, ApiError> {
    let shape = &service.shape;
    if let Some(begin) = shape.begin.filter(|begin| prompt.first() != Some(begin)) {
        prompt.insert(0, begin);
    }
    if prompt.is_empty() {
        // Texts of a model without a beginning stand after the end of another.
        prompt.extend(shape.ends.first());
    }
    if prompt.is_empty() || prompt.iter().any(|id| *id as usize >= shape.vocabulary) {
        return Err(ApiError::param(
            "prompt",
            "it is empty or has tokens outside the vocabulary",
        ));
    }
    let all = prompt.len().saturating_add(answer.unwrap_or(1));
    if all > shape.context {
        return Err(ApiError::context(all, shape.context));
    }
    Ok(prompt)
}

/// The sampler's parameters, each within its bounds.
pub(super) fn parameters(service: &Service, common: &Common) -> Result<Parameters, ApiError> {
    let within = |param: &'static str, value: Option<f64>, usual: f64, low: f64, high: f64| {
        let value = value.unwrap_or(usual);
        if (low..=high).contains(&value) {
            Ok(q24(value))
        } else {
            Err(ApiError::param(
                param,
                format!("{param} is a number from {low} to {high}"),
            ))
        }
    };
    let top_k = match common.top_k.unwrap_or(0) {
        -1 | 0 => 0,
        k @ 1..=0x10_0000 => k as u32,
        _ => return Err(ApiError::param("top_k", "top_k is 1 to 1048576, or 0 for all")),
    };
    let mut logit_bias = BTreeMap::new();
    for (token, bias) in common.logit_bias.iter().flatten().take(MOST_BIASES + 1) {
        let id = token
            .parse()
            .ok()
            .filter(|id: &u32| (*id as usize) < service.shape.vocabulary);
        let id = id.ok_or_else(|| ApiError::param("logit_bias", "its keys are token ids"))?;
        logit_bias.insert(id, within("logit_bias", Some(*bias), 0.0, -100.0, 100.0)?);
    }
    if logit_bias.len() > MOST_BIASES {
        return Err(ApiError::param(
            "logit_bias",
            format!("it has more than {MOST_BIASES} tokens"),
        ));
    }
    Ok(Parameters {
        temperature: within("temperature", common.temperature, 1.0, 0.0, 2.0)?,
        top_p: within("top_p", common.top_p, 1.0, 0.0, 1.0)?.min(ONE),
        top_k,
        min_p: within("min_p", common.min_p, 0.0, 0.0, 1.0)?,
        presence_penalty: within("presence_penalty", common.presence_penalty, 0.0, -2.0, 2.0)?,
        frequency_penalty: within("frequency_penalty", common.frequency_penalty, 0.0, -2.0, 2.0)?,
        logit_bias,
    })
}

/// The seed that a request names: OpenAI's number, or 32 bytes in hex that stand for themselves.
pub(super) fn seed_of(common: &Common) -> Result<Option<Seed>, ApiError> {
    let openai = common.seed;
    let Some(own) = &common.muster_seed else {
        return Ok(openai.map(Seed::of_openai));
    };
    let mut bytes = [0; 32];
    match hex::decode_to_slice(own, &mut bytes) {
        Ok(()) if openai.is_none() => Ok(Some(Seed(bytes))),
        Ok(()) => Err(ApiError::param("muster_seed", "a request has one seed")),
        Err(_) => Err(ApiError::param("muster_seed", "it is 64 hexadecimal digits")),
    }
}

/// The number that an engine with a sampler of its own was seeded with.
pub(super) fn number_of(common: &Common) -> Result<Option<i64>, ApiError> {
    match &common.muster_seed {
        Some(_) => Err(ApiError::param(
            "muster_seed",
            "this sampler is seeded by a number in seed",
        )),
        None => Ok(common.seed),
    }
}

/// Whether penalties or a bias change with the tokens that were chosen.
pub(super) fn has_penalties(parameters: &Parameters) -> bool {
    parameters.presence_penalty != 0 || parameters.frequency_penalty != 0
}

fn fresh_seed() -> Result<Seed, ApiError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "the system gives no random bytes");
        ApiError::failed()
    })?;
    Ok(Seed(bytes))
}

fn stops(stop: Option<OneOrMore>) -> Result<Stops, ApiError> {
    let stops = match stop {
        None => vec![],
        Some(OneOrMore::One(stop)) => vec![stop],
        Some(OneOrMore::More(stops)) => stops,
    };
    let fits = |stop: &String| (1..=MOST_STOP_BYTES).contains(&stop.len());
    if stops.len() > MOST_STOPS || !stops.iter().all(fits) {
        let message = format!("at most {MOST_STOPS} sequences of 1 to {MOST_STOP_BYTES} bytes");
        return Err(ApiError::param("stop", message));
    }
    Ok(Stops(stops))
}
