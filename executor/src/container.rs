//! Running one container from creation to exit.

use std::future::ready;

use bollard::container::LogOutput;
use bollard::errors::Error as ApiError;
use bollard::models::ContainerCreateBody;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use muster_containers::engine::InputSink;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{HordeFailureReason, JobStage};
use tokio::io::AsyncWriteExt as _;
use tokio_util::sync::CancellationToken;

use crate::attempt_state::{Exit, Failure};
use crate::engine::{Engine, EngineError};
use crate::images::engine_failed;
use crate::outputs::Capture;
use crate::retry;
use crate::warm::Waiting;

/// What a shell says of a program that it does not find, or may not execute.
const NOT_FOUND: i64 = 127;
const NOT_EXECUTABLE: i64 = 126;

/// Creates and starts the container and waits for its end. Everything it prints goes into `capture` as it comes.
///
/// # Errors
/// The engine's failures. A program that fails is an [`Exit`].
pub(crate) async fn run(
    engine: Engine,
    name: String,
    body: ContainerCreateBody,
    capture: Capture,
    clock: SharedClock,
    called_off: CancellationToken,
) -> Result<Exit, Failure> {
    let create = || engine.create(&name, body.clone());
    retry::through(&clock, "create a container", create)
        .await
        .map_err(|error| engine_failed(&error))?;
    let output = engine
        .attach(&name)
        .await
        .map_err(|error| engine_failed(&error))?;
    if called_off.is_cancelled() {
        return Err(Failure::horde(
            HordeFailureReason::GenericError,
            JobStage::Execution,
            "called off",
        ));
    }
    if let Err(error) = engine.start(&name).await {
        return not_started(&engine, &name, &error).await;
    }
    ended(&engine, &name, output, &capture, &clock).await
}

async fn ended(
    engine: &Engine,
    name: &str,
    output: BoxStream<'_, Result<LogOutput, ApiError>>,
    capture: &Capture,
    clock: &SharedClock,
) -> Result<Exit, Failure> {
    let (outcome, ()) = tokio::join!(wait(engine, name, clock), drain(output, capture));
    let lost = |error: EngineError| {
        Failure::horde(
            HordeFailureReason::GenericError,
            JobStage::Execution,
            Causes(&error).to_string(),
        )
    };
    let (code, interrupted) = outcome.map_err(lost)?;
    if interrupted && code != 0 {
        let message = "the docker engine went away while the job ran, and the job with it";
        return Err(Failure::horde(
            HordeFailureReason::GenericError,
            JobStage::Execution,
            message,
        ));
    }
    let oom_killed = engine.ended(name).await.map_err(lost)?.oom_killed;
    Ok(Exit {
        code,
        oom_killed,
        not_started: None,
    })
}

/// Tells a container that waits what it is to run, and waits for its end. Everything it prints goes into `capture` as it
/// comes.
///
/// # Errors
/// As for [`run`].
pub(crate) async fn run_held(
    engine: Engine,
    waiting: Waiting,
    orders: String,
    mark: String,
    capture: Capture,
    clock: SharedClock,
) -> Result<Exit, Failure> {
    let Waiting {
        name,
        output,
        mut input,
        ..
    } = waiting;
    if let Err(error) = tell(&mut input, &orders).await {
        let message = format!("the container that waited for the job is gone: {error}");
        let reason = HordeFailureReason::GenericError;
        return Err(Failure::horde(reason, JobStage::Execution, message));
    }
    let mut not_started = None;
    // Nobody but us and the holder knows the mark, and the holder is gone where the program runs.
    let output = output.filter(|piece| {
        let words = match piece {
            Ok(LogOutput::StdErr { message }) => message.strip_prefix(mark.as_bytes()),
            Ok(LogOutput::StdOut { .. } | LogOutput::StdIn { .. } | LogOutput::Console { .. }) | Err(_) => {
                None
            }
        };
        if let Some(words) = words {
            not_started = Some(String::from_utf8_lossy(words).trim_end().to_owned());
        }
        ready(words.is_none())
    });
    let exit = ended(&engine, &name, output.boxed(), &capture, &clock).await?;
    // The engine closes the container's input with it.
    drop(input);
    Ok(Exit { not_started, ..exit })
}

async fn tell(input: &mut InputSink, orders: &str) -> std::io::Result<()> {
    input.write_all(orders.as_bytes()).await?;
    input.flush().await
}

/// The exit code, and whether the engine was away meanwhile: it may have been restarted under a container that goes on.
async fn wait(engine: &Engine, name: &str, clock: &SharedClock) -> Result<(i64, bool), EngineError> {
    let first = match engine.wait(name).await {
        Ok(code) => return Ok((code, false)),
        Err(error) => error,
    };
    if !first.is_recoverable() {
        return Err(first);
    }
    tracing::warn!(error = %Causes(&first), container = name, "the engine is away; waiting for it");
    let code = retry::through(clock, "wait for a container", || engine.wait(name)).await?;
    Ok((code, true))
}

/// A command that the image does not have is its user's mistake; everything else is the machine's.
async fn not_started(engine: &Engine, name: &str, error: &EngineError) -> Result<Exit, Failure> {
    let code = engine.ended(name).await.map(|ended| ended.code);
    match (error.refusal(), code) {
        (Some(reason), Ok(code @ (NOT_FOUND | NOT_EXECUTABLE))) => Ok(Exit {
            code,
            oom_killed: false,
            not_started: Some(reason.to_owned()),
        }),
        (Some(_) | None, _) => Err(engine_failed(error)),
    }
}

async fn drain(mut output: BoxStream<'_, Result<LogOutput, ApiError>>, capture: &Capture) {
    while let Some(piece) = output.next().await {
        match piece {
            Ok(piece) => capture.push(&piece),
            Err(error) => {
                tracing::warn!(%error, "the job's output broke off");
                return;
            }
        }
    }
}
