//! Runs one container from its creation to its exit.

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

use crate::attempt_state::{AttemptFailure, ProgramExit};
use crate::engine::{ContainerEngine, EngineError};
use crate::images::engine_failed;
use crate::output_capture::OutputCapture;
use crate::retry;
use crate::warm_containers::AttachedContainer;

/// The exit codes of a shell whose program is not found, or may not be executed.
const NOT_FOUND: i64 = 127;
const NOT_EXECUTABLE: i64 = 126;

/// Creates and starts the container and waits until it ends. Everything that it prints goes into `capture` at once.
///
/// # Errors
/// The engine's failures. A failed program is a [`ProgramExit`].
pub(crate) async fn run(
    engine: ContainerEngine,
    name: String,
    body: ContainerCreateBody,
    capture: OutputCapture,
    clock: SharedClock,
    called_off: CancellationToken,
) -> Result<ProgramExit, AttemptFailure> {
    let create = || engine.create(&name, body.clone());
    retry::retry(&clock, "create a container", create)
        .await
        .map_err(|error| engine_failed(&error))?;
    let output = engine
        .attach(&name)
        .await
        .map_err(|error| engine_failed(&error))?;
    if called_off.is_cancelled() {
        return Err(AttemptFailure::horde(
            HordeFailureReason::GenericError,
            JobStage::Execution,
            "called off",
        ));
    }
    if let Err(error) = engine.start(&name).await {
        return judge_failed_start(&engine, &name, &error).await;
    }
    wait_for_end(&engine, &name, output, &capture, &clock).await
}

/// Waits until a container ends, and finds out how it ended.
async fn wait_for_end(
    engine: &ContainerEngine,
    name: &str,
    output: BoxStream<'_, Result<LogOutput, ApiError>>,
    capture: &OutputCapture,
    clock: &SharedClock,
) -> Result<ProgramExit, AttemptFailure> {
    let (outcome, ()) = tokio::join!(wait(engine, name, clock), drain(output, capture));
    let lost = |error: EngineError| {
        AttemptFailure::horde(
            HordeFailureReason::GenericError,
            JobStage::Execution,
            Causes(&error).to_string(),
        )
    };
    let (code, interrupted) = outcome.map_err(lost)?;
    if interrupted && code != 0 {
        let message = "the docker engine went away while the job ran, and the job with it";
        return Err(AttemptFailure::horde(
            HordeFailureReason::GenericError,
            JobStage::Execution,
            message,
        ));
    }
    let oom_killed = engine.inspect_exit(name).await.map_err(lost)?.oom_killed;
    Ok(ProgramExit {
        code,
        oom_killed,
        not_started: None,
    })
}

/// Sends `program` to the holder inside a warm container, and waits until the container ends. Everything that it prints
/// goes into `capture` at once, except for lines of the holder, which begin with `mark`.
///
/// # Errors
/// The engine's failures. A failed program is a [`ProgramExit`].
pub(crate) async fn run_in_warm(
    engine: ContainerEngine,
    warm: AttachedContainer,
    program: String,
    mark: String,
    capture: OutputCapture,
    clock: SharedClock,
) -> Result<ProgramExit, AttemptFailure> {
    let AttachedContainer {
        name,
        output,
        mut input,
        ..
    } = warm;
    if let Err(error) = write(&mut input, &program).await {
        let message = format!("the warm container of the job is gone: {error}");
        let reason = HordeFailureReason::GenericError;
        return Err(AttemptFailure::horde(reason, JobStage::Execution, message));
    }
    let mut not_started = None;
    // Only this executor and the holder know the mark, and the holder is gone once the program runs.
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
    let exit = wait_for_end(&engine, &name, output.boxed(), &capture, &clock).await?;
    // The engine closes the container's input with it.
    drop(input);
    Ok(ProgramExit { not_started, ..exit })
}

async fn write(input: &mut InputSink, program: &str) -> std::io::Result<()> {
    input.write_all(program.as_bytes()).await?;
    input.flush().await
}

/// The exit code, and whether the engine was away meanwhile: an engine may be restarted while its container runs on.
async fn wait(engine: &ContainerEngine, name: &str, clock: &SharedClock) -> Result<(i64, bool), EngineError> {
    let first = match engine.wait(name).await {
        Ok(code) => return Ok((code, false)),
        Err(error) => error,
    };
    if !first.is_recoverable() {
        return Err(first);
    }
    tracing::warn!(error = %Causes(&first), container = name, "the engine is away; waiting for it");
    let code = retry::retry(clock, "wait for a container", || engine.wait(name)).await?;
    Ok((code, true))
}

/// Judges a container that could not be started: a command that the image does not have is the user's mistake,
/// everything else is a failure of this machine.
async fn judge_failed_start(
    engine: &ContainerEngine,
    name: &str,
    error: &EngineError,
) -> Result<ProgramExit, AttemptFailure> {
    let code = engine.inspect_exit(name).await.map(|ended| ended.code);
    match (error.refusal(), code) {
        (Some(reason), Ok(code @ (NOT_FOUND | NOT_EXECUTABLE))) => Ok(ProgramExit {
            code,
            oom_killed: false,
            not_started: Some(reason.to_owned()),
        }),
        (Some(_) | None, _) => Err(engine_failed(error)),
    }
}

/// Captures everything that a container prints.
async fn drain(mut output: BoxStream<'_, Result<LogOutput, ApiError>>, capture: &OutputCapture) {
    while let Some(piece) = output.next().await {
        match piece {
            Ok(piece) => capture.push(&piece),
            Err(error) => {
                tracing::warn!(%error, "the stream of the job's output broke");
                return;
            }
        }
    }
}
