//! Running one container from creation to exit, and watching what it writes meanwhile.

use std::path::PathBuf;
use std::time::Duration;

use bollard::models::ContainerCreateBody;
use futures_util::StreamExt;
use muster_kit::SharedClock;
use muster_kit::error::Causes;
use muster_protocol::{HordeFailureReason, JobStage};
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, EngineError, OutputStream};
use crate::images::engine_failed;
use crate::outputs::Capture;
use crate::stages::{Exit, Failure};
use crate::workspace;

/// How often the job's folders are measured, at most.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Measuring may take this part of the time, however many files there are.
const WATCH_SHARE: u32 = 20;
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
    called_off: CancellationToken,
) -> Result<Exit, Failure> {
    engine
        .create(&name, body)
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
    let (outcome, ()) = tokio::join!(engine.wait(&name), drain(output, &capture));
    let lost = |error: EngineError| {
        Failure::horde(
            HordeFailureReason::GenericError,
            JobStage::Execution,
            Causes(&error).to_string(),
        )
    };
    let code = outcome.map_err(lost)?;
    let oom_killed = engine.ended(&name).await.map_err(lost)?.oom_killed;
    Ok(Exit {
        code,
        oom_killed,
        not_started: None,
    })
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

/// Ends when `folder` has grown by more than `limit` bytes.
pub(crate) async fn watch_disk(folder: PathBuf, limit: u64, clock: SharedClock) {
    let start = measure(&folder).await;
    let mut pause = WATCH_EVERY;
    loop {
        clock.sleep(pause).await;
        let began = clock.now();
        if measure(&folder).await.saturating_sub(start) > limit {
            return;
        }
        pause = WATCH_EVERY.max(clock.now().since(began) * WATCH_SHARE);
    }
}

async fn measure(folder: &std::path::Path) -> u64 {
    let folder = folder.to_owned();
    let measured = tokio::task::spawn_blocking(move || workspace::used(&folder)).await;
    measured.unwrap_or_else(|error| {
        tracing::error!(%error, "measuring the job's folders was interrupted");
        0
    })
}
