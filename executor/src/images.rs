//! Getting a job's image, in the form the miner is told when it cannot be had, and removing those that nobody uses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_containers::cache::collect_if_due;
use muster_containers::images::{ImageError, ImageSettings, Resolved, ensure};
use muster_containers::lease::Lease;
use muster_containers::pull::Progress;
use muster_process::error::Causes;
use muster_process::{Coded, SharedClock};
use muster_protocol::job::Fault;
use muster_protocol::wire::muster::ListedImage;
use muster_protocol::{HordeFailureReason, ImageId, JobStage};

use crate::attempt_state::Failure;
use crate::config::Config;
use crate::engine::{Engine, EngineError};
use crate::engine_cache::Memory;
use crate::retry;

/// How often an executor of a machine looks for images to remove.
pub(crate) const COLLECT_EVERY: Duration = Duration::from_secs(600);

/// Has an image at hand: from the engine, an archive or its registry.
///
/// # Errors
/// It cannot be had: whose fault that is, and what to do about it.
pub(crate) async fn prepare(
    engine: &Engine,
    settings: &ImageSettings,
    name: &str,
    progress: &Progress,
    clock: &SharedClock,
) -> Result<Resolved, Failure> {
    let attempt = || ensure(engine, settings, name, progress, clock);
    let error = match retry::through(clock, "get an image", attempt).await {
        Ok(resolved) => return Ok(resolved),
        Err(ImageError::Engine(error)) => return Err(engine_failed(&error)),
        Err(error) => error,
    };
    let reason = match error.fault() {
        Fault::User => HordeFailureReason::GenericError,
        Fault::Nobody
        | Fault::Executor
        | Fault::Miner
        | Fault::Validator
        | Fault::Facilitator
        | Fault::Network => HordeFailureReason::ExecutorSpinupFailed,
    };
    let message = Causes(&error).to_string();
    let failure = Failure::horde(reason, JobStage::ExecutorStartup, message).blame(error.fault());
    Err(Failure {
        code: error.code(),
        ..failure
    })
}

/// Has the images at hand that validators may want sessions of, keeps those in `held`, and lets go of what is listed no more. One that
/// cannot be had is logged and tried again with the next round; a session would find out, too.
pub(crate) async fn fetch_listed(
    config: &Config,
    memory: &Memory,
    clock: &SharedClock,
    wanted: Vec<ListedImage>,
    held: &mut BTreeMap<ImageId, Lease>,
) {
    held.retain(|image, _| wanted.iter().any(|listed| listed.image == *image));
    for listed in wanted {
        if held.contains_key(&listed.image) {
            continue;
        }
        let engine = match memory.engine(&config.engine, clock).await {
            Ok(engine) => engine,
            Err(error) => {
                tracing::warn!(error = %Causes(&error), "whitelisted images are not at hand");
                return;
            }
        };
        match fetch(&engine, &config.images, &listed, clock).await {
            Ok(lease) => {
                tracing::info!(image = %listed.image, model = listed.model, "a whitelisted image is at hand");
                held.insert(listed.image, lease);
            }
            Err(why) => {
                tracing::warn!(image = %listed.image, model = listed.model, why, "a whitelisted image is not at hand");
            }
        }
    }
}

/// An image by its content, or by its name if that leads to the same content.
async fn fetch(
    engine: &Engine,
    settings: &ImageSettings,
    listed: &ListedImage,
    clock: &SharedClock,
) -> Result<Lease, String> {
    let unwatched: Progress = Arc::new(|_, _| {});
    let mut why = String::new();
    for name in std::iter::once(listed.image.to_string()).chain(listed.reference.clone()) {
        match ensure(engine, settings, &name, &unwatched, clock).await {
            Ok(resolved) if resolved.image.id == listed.image => return Ok(resolved.lease),
            Ok(resolved) => why = format!("{name} is the image {} now", resolved.image.id),
            Err(error) => why = Causes(&error).to_string(),
        }
    }
    Err(why)
}

/// Removes images that no executor of this machine has used for long, if it is time to look for them.
pub(crate) async fn collect(config: &Config, memory: &Memory, clock: &SharedClock) {
    let Some(engine) = memory.known_engine() else {
        return;
    };
    if let Err(error) = collect_if_due(&engine, &config.images, COLLECT_EVERY, clock).await {
        tracing::warn!(error = %Causes(&error), "unused images stay");
    }
}

/// An engine that fails before a job runs.
pub(crate) fn engine_failed(error: &EngineError) -> Failure {
    let failure = Failure::horde(
        HordeFailureReason::ExecutorSpinupFailed,
        JobStage::ExecutorStartup,
        Causes(error).to_string(),
    );
    Failure {
        code: error.code(),
        ..failure
    }
}
