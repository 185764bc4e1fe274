//! The program around the engine: its arguments, reading a model, listening and stopping.

use std::io::IsTerminal as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use axum::Router;
use clap::Args;

use crate::api::{Address, Service, router, serve, unix_seconds};
#[cfg(feature = "torch")]
use crate::backend::Torch;
use crate::backend::{Backend, Cache, Candle, Rounding};
use crate::engine::{Engine, Limits};
use crate::model::{Loaded, Storage, load, model_id};
use crate::replay;
use crate::text::{Template, Tokenizer};

/// A model and the way in which it is held.
#[derive(Args, Clone, Debug)]
pub struct ModelArguments {
    /// A folder with config.json and *.safetensors, or a .gguf file with tokenizer.json beside it.
    #[arg(long, env = "MUSTER_LLM_MODEL", default_value = "/model")]
    pub model: PathBuf,
    /// Hold the weights as as-given, f16, bf16, q8_0 or q4_0.
    #[arg(long, default_value = "as-given", value_parser = storage)]
    pub weights: Storage,
    /// Keep keys and values as f32 or int8.
    #[arg(long, default_value = "f32", value_parser = cache)]
    pub cache: Cache,
    /// Round what goes through products to f32, f16 or bf16.
    #[arg(long, default_value = "f32", value_parser = rounding)]
    pub rounding: Rounding,
}

/// A model, the place where it is served, and the bounds of its engine.
#[derive(Args, Clone, Debug)]
pub struct ServeArguments {
    /// The model's files and the form in which its weights are held.
    #[command(flatten)]
    pub model: ModelArguments,
    /// The model's name for clients; the folder's name by default.
    #[arg(long)]
    pub name: Option<String>,
    /// Listen on this Unix socket.
    #[arg(long, env = "MUSTER_LLM_SOCKET", conflicts_with = "port")]
    pub socket: Option<PathBuf>,
    /// Listen on this port.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// The tensor library: candle, or in a build with libtorch also torch (the processor) and torch-cuda.
    #[arg(long, default_value = "candle", value_parser = library)]
    pub backend: Library,
    /// Refuse to serve any model but the one with this id, as `muster-llm id` prints it.
    #[arg(long, env = "MUSTER_LLM_EXPECT")]
    pub expect: Option<String>,
    /// Threads that multiply; as many as there are processors unless given.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Texts that are worked on at once.
    #[arg(long, default_value_t = 32)]
    pub streams: usize,
    /// Finished texts that are kept as prefixes.
    #[arg(long, default_value_t = 32)]
    pub kept: usize,
    /// Requests that may wait.
    #[arg(long, default_value_t = 256)]
    pub waiting: usize,
    /// Connections at once.
    #[arg(long, default_value_t = 1024)]
    pub connections: usize,
    /// A shorter context than the model's.
    #[arg(long)]
    pub context: Option<usize>,
}

/// A tensor library.
#[derive(Clone, Copy, Debug)]
pub enum Library {
    /// candle, on the processor.
    Candle,
    /// libtorch, on the processor.
    #[cfg(feature = "torch")]
    Torch,
    /// libtorch, on the first CUDA device.
    #[cfg(feature = "torch")]
    TorchCuda,
}

fn library(name: &str) -> Result<Library, String> {
    match name {
        "candle" => Ok(Library::Candle),
        #[cfg(feature = "torch")]
        "torch" => Ok(Library::Torch),
        #[cfg(feature = "torch")]
        "torch-cuda" => Ok(Library::TorchCuda),
        #[cfg(not(feature = "torch"))]
        "torch" | "torch-cuda" => Err("this program was built without libtorch (feature torch)".to_owned()),
        _ => Err("it is candle, torch or torch-cuda".to_owned()),
    }
}

fn storage(name: &str) -> Result<Storage, String> {
    Storage::named(name).ok_or_else(|| "it is as-given, f16, bf16, q8_0 or q4_0".to_owned())
}

fn cache(name: &str) -> Result<Cache, String> {
    match name {
        "f32" => Ok(Cache::F32),
        "int8" => Ok(Cache::Int8),
        _ => Err("it is f32 or int8".to_owned()),
    }
}

fn rounding(name: &str) -> Result<Rounding, String> {
    match name {
        "f32" => Ok(Rounding::F32),
        "f16" => Ok(Rounding::F16),
        "bf16" => Ok(Rounding::Bf16),
        _ => Err("it is f32, f16 or bf16".to_owned()),
    }
}

/// Logs to stderr, at the level that `RUST_LOG` names.
pub fn write_logs() {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// A model that was read, with the text files beside its weights. No engine runs it yet.
pub struct ReadModel {
    /// The shape and the weights.
    pub loaded: Loaded,
    /// The tokenizer beside the weights.
    pub tokenizer: Tokenizer,
    /// The chat template beside the weights.
    pub template: Template,
    /// The model id in hexadecimal digits.
    pub id: String,
}

/// Reads a model.
///
/// # Errors
/// A file is missing or broken.
pub fn read_model(model: &ModelArguments) -> anyhow::Result<ReadModel> {
    let loaded = load(&model.model, model.weights)?;
    let folder = if model.model.is_file() {
        model.model.parent().unwrap_or(Path::new("."))
    } else {
        &model.model
    };
    let tokenizer = Tokenizer::load(&folder.join("tokenizer.json"), loaded.shape.vocabulary)?;
    let template = Template::load(&folder.join("tokenizer_config.json"))?;
    let id = hex::encode(model_id(
        &loaded.digest,
        model.weights,
        tokenizer.digest(),
        template.digest(),
    ));
    Ok(ReadModel {
        loaded,
        tokenizer,
        template,
        id,
    })
}

/// Holds the process to `--threads`. The tensor library asks the environment, and nobody else, how many threads it may
/// have: where the environment says something else, the program begins again with the environment that it wants.
///
/// # Errors
/// The program cannot begin again.
pub fn keep_to_threads(arguments: &ServeArguments) -> anyhow::Result<()> {
    const NAMES: [&str; 2] = ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];
    let Some(threads) = arguments.threads else {
        return Ok(());
    };
    #[cfg(feature = "torch")]
    tch::set_num_threads(i32::try_from(threads)?);
    let wanted = threads.max(1).to_string();
    if NAMES
        .iter()
        .all(|name| std::env::var(name).is_ok_and(|found| found == wanted))
    {
        return Ok(());
    }
    let failed = std::process::Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .envs(NAMES.map(|name| (name, &wanted)))
        .exec();
    Err(failed).context("cannot begin again with as many threads as --threads says")
}

/// Reads the model that the arguments name and serves it until the process is asked to end.
///
/// # Errors
/// The model cannot be read or is another one than expected, or the address cannot be had.
pub fn serve_model(arguments: &ServeArguments) -> anyhow::Result<()> {
    keep_to_threads(arguments)?;
    let service = make_service(arguments, read_model(&arguments.model)?)?;
    listen(arguments, router(service))
}

/// Starts the engine of a model.
///
/// # Errors
/// The model is another one than expected, or the tensor library does not take it.
pub fn make_service(arguments: &ServeArguments, model: ReadModel) -> anyhow::Result<Service> {
    replay::self_test()?;
    let ReadModel {
        mut loaded,
        tokenizer,
        template,
        id,
    } = model;
    if let Some(expected) = &arguments.expect
        && !expected.eq_ignore_ascii_case(&id)
    {
        bail!(
            "the model is {id}, not {expected}: other weights, another --weights, another tokenizer or template"
        );
    }
    if let Some(context) = arguments.context {
        if context > loaded.shape.context || context < 2 {
            bail!("--context is 2 to the model's {}", loaded.shape.context);
        }
        loaded.shape.context = context;
    }
    let name = match (&arguments.name, arguments.model.model.file_stem()) {
        (Some(name), _) => name.clone(),
        (None, Some(stem)) => stem.to_string_lossy().into_owned(),
        (None, None) => "model".to_owned(),
    };
    let shape = loaded.shape.clone();
    tracing::info!(model = %id, name, layers = shape.layers, context = shape.context, "model read");
    let limits = Limits {
        streams: arguments.streams.max(1),
        waiting: arguments.waiting.max(1),
        ..Limits::default()
    };
    let backend = backend(arguments, loaded, limits.streams + arguments.kept)?;
    Ok(Service {
        engine: Engine::start(backend, limits)?,
        shape,
        tokenizer,
        template,
        name,
        id,
        started: unix_seconds(),
    })
}

/// Serves a router where the arguments say, until the process is asked to end.
///
/// # Errors
/// The address cannot be had.
pub fn listen(arguments: &ServeArguments, router: Router) -> anyhow::Result<()> {
    let address = match &arguments.socket {
        Some(path) => Address::Socket(path.clone()),
        None => Address::Port(arguments.port),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let stop = stopped()?;
        tracing::info!(?address, "listening");
        serve(&address, arguments.connections.max(1), router, stop)
            .await
            .with_context(|| format!("cannot listen on {address:?}"))
    })
}

fn backend(arguments: &ServeArguments, loaded: Loaded, slots: usize) -> anyhow::Result<Box<dyn Backend>> {
    let Loaded { shape, weights, .. } = loaded;
    let ModelArguments { cache, rounding, .. } = arguments.model;
    Ok(match arguments.backend {
        Library::Candle => Box::new(Candle::new(shape, weights, cache, slots)?.rounding(rounding)),
        #[cfg(feature = "torch")]
        Library::Torch => Box::new(Torch::new(shape, weights, cache, slots)?.rounding(rounding)?),
        #[cfg(feature = "torch")]
        Library::TorchCuda => Box::new(Torch::cuda(shape, weights, cache, slots)?.rounding(rounding)?),
    })
}

/// Resolves when the process is asked to end.
fn stopped() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
