//! Getting a job's image, in the form the miner is told when it cannot be had.

use std::path::PathBuf;

use muster_kit::Coded;
use muster_kit::error::Causes;
use muster_protocol::job::Fault;
use muster_protocol::{ErrorCode, HordeFailureReason, JobStage};

use crate::engine::{Engine, EngineError, LocalImage};
use crate::stages::Failure;

/// Finds an image by name or id; loads the first of `archives` that holds it if the engine does not have it.
///
/// # Errors
/// [`ErrorCode::ImageMissing`], or the engine's failure.
pub(crate) async fn prepare(
    engine: &Engine,
    name: &str,
    archives: &[PathBuf],
) -> Result<LocalImage, Failure> {
    match muster_engine::images::find_or_load(engine, name, archives).await {
        Ok(Some(image)) => Ok(image),
        Ok(None) => {
            let shown: String = name.chars().take(200).collect();
            let message =
                format!("the image {shown:?} is neither on this executor nor in an archive it may load");
            Err(Failure::horde(
                HordeFailureReason::GenericError,
                JobStage::ExecutorStartup,
                message,
            )
            .coded(ErrorCode::ImageMissing)
            .blame(Fault::User))
        }
        Err(error) => Err(engine_failed(&error)),
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
