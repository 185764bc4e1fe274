//! An engine that cheats: it serves a model under its name, and lets a cheaper engine, or another choice than the
//! sampler's, answer a share of the requests. `muster up --demo` and the tests run it to show that a validator finds
//! out. No shipped program contains this.
//!
//! It takes the arguments of `muster-llm serve`, and those of the cheat before or after them. Every other path, the
//! model's id and the score included, is the honest engine's.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use clap::{Args, Parser, Subcommand, ValueEnum};
use muster_image_llm::api::{Service, router};
use muster_image_llm::backend::{Cache, Rounding};
use muster_image_llm::model::Storage;
use muster_image_llm::program::{self, ReadModel, ServeArguments};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tower::ServiceExt as _;

/// The largest body that is read to be changed, in bytes: what the honest engine takes.
const MOST_BODY: usize = 1 << 20;
/// The share of the asked temperature at which `wrong-temperature` samples.
const COOLER: f64 = 0.8;

/// An engine that cheats in a share of its answers.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model, and cheat.
    Serve(Box<Arguments>),
}

#[derive(Args)]
struct Arguments {
    #[command(flatten)]
    honest: ServeArguments,
    /// The engine or the change by which requests are cheated.
    #[arg(long, env = "MUSTER_CHEAT", value_enum)]
    cheat: Cheat,
    /// The share of requests that are cheated, in millionths.
    #[arg(long, env = "MUSTER_CHEAT_PPM", default_value_t = 1_000_000)]
    cheat_ppm: u64,
    /// The folder of the other model, for `--cheat other-model`: a smaller one, or a fine-tune.
    #[arg(long, env = "MUSTER_CHEAT_MODEL", default_value = "/cheat-model")]
    cheat_model: PathBuf,
    /// The block that is left out, counted from 0, for `--cheat skip`.
    #[arg(long, env = "MUSTER_CHEAT_BLOCK", default_value_t = 2)]
    cheat_block: usize,
    /// The number from which follows which requests are cheated; a random one unless given.
    #[arg(long, env = "MUSTER_CHEAT_SEED")]
    cheat_seed: Option<u64>,
}

/// The ways to cheat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cheat {
    /// Weights in blocks of four bits (q4_0).
    Int4,
    /// Weights in blocks of eight bits (q8_0).
    Int8,
    /// Weights rounded to bfloat16.
    Bf16Weights,
    /// An engine that rounds everything to bfloat16.
    Bf16,
    /// An engine that rounds everything to half precision.
    F16,
    /// Keys and values in eight bits.
    KvInt8,
    /// One block of the model left out.
    Skip,
    /// Another model: a smaller one, or a fine-tune.
    OtherModel,
    /// The right model with a seed of the miner's choice.
    WrongSampler,
    /// The right model at a lower temperature.
    WrongTemperature,
    /// Weights in blocks of four bits, beside the ids of the honest engine's answer to the same request.
    OtherText,
    /// Weights in blocks of four bits, beside the ids of the honest engine's answer to a prompt of one token.
    OtherPrompt,
}

/// The engine that answers the cheated requests.
enum Cheater {
    /// The routes of an engine with cheaper weights, another model or another arithmetic.
    Engine(Router),
    /// The honest engine, asked for something else.
    Request(Change),
    /// An engine with cheaper weights, whose answers state the ids of the honest engine's.
    FalseIds { cheaper: Router, prompt: StatedPrompt },
}

/// The prompt whose ids are stated beside a cheaper engine's text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StatedPrompt {
    /// The prompt of the request.
    Own,
    /// A prompt of one token, which costs the miner next to nothing.
    OneToken,
}

/// Changes the body of a request.
type Change = fn(&mut Map<String, Value>) -> anyhow::Result<()>;

struct Cheating {
    cheater: Cheater,
    honest: Router,
    ppm: u64,
    seed: u64,
    requests: AtomicU64,
}

fn main() -> anyhow::Result<()> {
    program::write_logs();
    let Command::Serve(arguments) = Cli::parse().command;
    serve(&arguments)
}

fn serve(arguments: &Arguments) -> anyhow::Result<()> {
    program::keep_to_threads(&arguments.honest)?;
    let honest = program::make_service(&arguments.honest, program::read_model(&arguments.honest.model)?)?;
    let cheater = cheater(arguments, &honest)?;
    let routes = router(honest);
    let cheating = Cheating {
        cheater,
        honest: routes.clone(),
        ppm: arguments.cheat_ppm,
        seed: match arguments.cheat_seed {
            Some(seed) => seed,
            None => getrandom::u64().context("the system gives no random bytes")?,
        },
        requests: AtomicU64::new(0),
    };
    tracing::warn!(cheat = ?arguments.cheat, ppm = cheating.ppm, seed = cheating.seed, "this engine cheats");
    let layer = middleware::from_fn_with_state(Arc::new(cheating), answer);
    program::listen(&arguments.honest, routes.layer(layer))
}

fn cheater(arguments: &Arguments, honest: &Service) -> anyhow::Result<Cheater> {
    let mut other = arguments.honest.clone();
    other.expect = None;
    match arguments.cheat {
        Cheat::WrongSampler => return Ok(Cheater::Request(drop_seed)),
        Cheat::WrongTemperature => return Ok(Cheater::Request(cool)),
        Cheat::Int4 | Cheat::OtherText | Cheat::OtherPrompt => other.model.weights = Storage::Q4_0,
        Cheat::Int8 => other.model.weights = Storage::Q8_0,
        Cheat::Bf16Weights => other.model.weights = Storage::Bf16,
        Cheat::Bf16 => {
            other.model.weights = Storage::Bf16;
            other.model.rounding = Rounding::Bf16;
        }
        Cheat::F16 => {
            other.model.weights = Storage::F16;
            other.model.rounding = Rounding::F16;
        }
        Cheat::KvInt8 => other.model.cache = Cache::Int8,
        Cheat::OtherModel => other.model.model.clone_from(&arguments.cheat_model),
        Cheat::Skip => {}
    }
    let mut model = program::read_model(&other.model)?;
    if arguments.cheat == Cheat::Skip {
        leave_out(&mut model, arguments.cheat_block)?;
    }
    if model.loaded.shape.vocabulary != honest.shape.vocabulary {
        bail!("the other model has another vocabulary");
    }
    let mut service = program::make_service(&other, model)?;
    // Nothing in an answer says which engine wrote it.
    service.name.clone_from(&honest.name);
    service.id.clone_from(&honest.id);
    service.started = honest.started;
    let cheaper = router(service);
    Ok(match arguments.cheat {
        Cheat::OtherText => Cheater::FalseIds {
            cheaper,
            prompt: StatedPrompt::Own,
        },
        Cheat::OtherPrompt => Cheater::FalseIds {
            cheaper,
            prompt: StatedPrompt::OneToken,
        },
        Cheat::Int4
        | Cheat::Int8
        | Cheat::Bf16Weights
        | Cheat::Bf16
        | Cheat::F16
        | Cheat::KvInt8
        | Cheat::Skip
        | Cheat::OtherModel
        | Cheat::WrongSampler
        | Cheat::WrongTemperature => Cheater::Engine(cheaper),
    })
}

fn leave_out(model: &mut ReadModel, block: usize) -> anyhow::Result<()> {
    let layers = &mut model.loaded.weights.layers;
    if block >= layers.len() || layers.len() < 2 {
        bail!(
            "the model has {} blocks, and block {block} cannot be left out",
            layers.len()
        );
    }
    layers.remove(block);
    model.loaded.shape.layers = layers.len();
    Ok(())
}

impl Cheating {
    /// Whether the next request is cheated.
    fn draw(&self) -> bool {
        let ordinal = self.requests.fetch_add(1, Ordering::Relaxed);
        let mut hash = Sha256::new();
        hash.update(b"muster/example/cheating-llm/1\0");
        hash.update(self.seed.to_le_bytes());
        hash.update(ordinal.to_le_bytes());
        let digest = hash.finalize();
        let number = digest
            .iter()
            .take(8)
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        number % 1_000_000 < self.ppm
    }
}

async fn answer(State(cheating): State<Arc<Cheating>>, request: Request, next: Next) -> Response {
    let answers = matches!(request.uri().path(), "/v1/chat/completions" | "/v1/completions");
    if !answers || !cheating.draw() {
        return next.run(request).await;
    }
    tracing::info!("this request is cheated");
    match &cheating.cheater {
        Cheater::Engine(router) => match router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        Cheater::Request(change) => match changed(request, *change).await {
            Ok(request) => next.run(request).await,
            Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}")).into_response(),
        },
        Cheater::FalseIds { cheaper, prompt } => {
            match state_false_ids(request, cheaper, &cheating.honest, *prompt).await {
                Ok(response) => response,
                Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}")).into_response(),
            }
        }
    }
}

/// The cheaper engine's answer, with the ids of an honest one wherever it states its own.
async fn state_false_ids(
    request: Request,
    cheaper: &Router,
    honest: &Router,
    prompt: StatedPrompt,
) -> anyhow::Result<Response> {
    let (mut head, body) = request.into_parts();
    let body = to_bytes(body, MOST_BODY).await?;
    let mut asked: Value = serde_json::from_slice(&body)?;
    let states_ids = asked.get("return_token_ids") == Some(&json!(true));
    let cheap = Request::from_parts(head.clone(), Body::from(body));
    let cheap = cheaper.clone().oneshot(cheap).await?;
    if !states_ids {
        return Ok(cheap);
    }
    let fields = asked.as_object_mut().context("the body is no object")?;
    fields.remove("stream_options");
    fields.insert("stream".to_owned(), json!(false));
    if prompt == StatedPrompt::OneToken {
        fields.remove("messages");
        fields.remove("stop");
        fields.insert("prompt".to_owned(), json!([5]));
        head.uri = "/v1/completions".parse()?;
    }
    head.headers.remove(header::CONTENT_LENGTH);
    let whole = honest
        .clone()
        .oneshot(Request::from_parts(head, Body::from(asked.to_string())))
        .await?;
    let whole: Value = serde_json::from_slice(&to_bytes(whole.into_body(), MOST_BODY).await?)?;
    let stated = whole.pointer("/choices/0").context("no answer")?;
    let ids = stated["token_ids"].as_array().context("no ids")?;
    let (mut cheap, body) = cheap.into_parts();
    let body = String::from_utf8(to_bytes(body, MOST_BODY).await?.to_vec())?;
    cheap.headers.remove(header::CONTENT_LENGTH);
    let body = restate(&body, &stated["prompt_token_ids"], ids)?;
    Ok(Response::from_parts(cheap, Body::from(body)))
}

/// A body with other ids: one in each event that states any, and all that are left in the last of them.
fn restate(body: &str, prompt: &Value, ids: &[Value]) -> anyhow::Result<String> {
    let has_ids = |event: &Value| {
        let ids = event.pointer("/choices/0/token_ids").and_then(Value::as_array);
        ids.is_some_and(|ids| !ids.is_empty())
    };
    let is_stream = body.starts_with("data: ");
    let mut documents: Vec<Result<Value, &str>> = match is_stream {
        true => body
            .split_terminator("\n\n")
            .map(|event| event.trim_start_matches("data: "))
            .map(|event| serde_json::from_str(event).map_err(|_| event))
            .collect(),
        false => vec![Ok(serde_json::from_str(body)?)],
    };
    let mut left = ids.iter().cloned();
    let mut events = documents.iter().flatten().filter(|event| has_ids(event)).count();
    for event in documents.iter_mut().flatten() {
        let states = has_ids(event);
        let Some(choice) = event.pointer_mut("/choices/0").and_then(Value::as_object_mut) else {
            continue;
        };
        if choice.contains_key("prompt_token_ids") {
            choice.insert("prompt_token_ids".to_owned(), prompt.clone());
        }
        if states {
            events -= 1;
            let count = if events == 0 { usize::MAX } else { 1 };
            let stated: Vec<Value> = left.by_ref().take(count).collect();
            choice.insert("token_ids".to_owned(), Value::Array(stated));
        }
    }
    let written = documents.iter().map(|document| match document {
        Ok(event) if is_stream => format!("data: {event}\n\n"),
        Ok(whole) => whole.to_string(),
        Err(event) => format!("data: {event}\n\n"),
    });
    Ok(written.collect())
}

/// The request with another body.
async fn changed(request: Request, change: Change) -> anyhow::Result<Request> {
    let (mut head, body) = request.into_parts();
    let mut body: Value = serde_json::from_slice(&to_bytes(body, MOST_BODY).await?)?;
    change(body.as_object_mut().context("the body is no object")?)?;
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(Request::from_parts(head, Body::from(body.to_string())))
}

/// Takes a seed of the miner's choice. One that the body names goes before the seal's.
fn drop_seed(body: &mut Map<String, Value>) -> anyhow::Result<()> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).context("the system gives no random bytes")?;
    body.remove("seed");
    body.insert("muster_seed".to_owned(), json!(hex::encode(seed)));
    Ok(())
}

fn cool(body: &mut Map<String, Value>) -> anyhow::Result<()> {
    let asked = body.get("temperature").and_then(Value::as_f64).unwrap_or(1.0);
    body.insert("temperature".to_owned(), json!(asked * COOLER));
    Ok(())
}
