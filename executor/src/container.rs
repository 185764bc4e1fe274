//! Running one container from creation to exit.

use bollard::models::ContainerCreateBody;
use futures_util::StreamExt;
use muster_kit::SharedClock;
use muster_kit::error::Causes;
use muster_protocol::{HordeFailureReason, JobStage};
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, EngineError, OutputStream};
use crate::images::engine_failed;
use crate::outputs::Capture;
use crate::retry;
use crate::stages::{Exit, Failure};

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
    let (outcome, ()) = tokio::join!(wait(&engine, &name, &clock), drain(output, &capture));
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
    let oom_killed = engine.ended(&name).await.map_err(lost)?.oom_killed;
    Ok(Exit {
        code,
        oom_killed,
        not_started: None,
    })
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

async fn drain(mut output: OutputStream, capture: &Capture) {
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
