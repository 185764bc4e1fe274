//! A job's image from its user's own archive: fetched under the rules of inputs, checked, and loaded into the engine.

use std::sync::Arc;

use muster_containers::docker_engine::ContainerEngine;
use muster_containers::image_error::ImageError;
use muster_containers::image_pull::unwatched;
use muster_containers::images::{LeasedImage, ensure};
use muster_containers::owned_folders::ClaimedFolder;
use muster_containers::user_archive::load_user_image;
use muster_job_data::known_file::KnownFile;
use muster_job_data::{Fetcher, HttpError};
use muster_process::error::Causes;
use muster_protocol::job::{ArchiveSource, Fault};
use muster_protocol::wire::executor::ProgressOf;
use muster_protocol::{ErrorCode, HordeFailureReason, ImageId, JobStage};
use tokio::task::spawn_blocking;

use crate::attempt_state::AttemptFailure;
use crate::context::AttemptContext;
use crate::images::image_failed;

/// The name of the archive in its folder.
const FILE: &str = "image.tar";

/// Gets the image `name` ready, which must be an id: from the engine if it is there, else from the archive at `source`.
///
/// # Errors
/// The image cannot be had. The failure names the party at fault and the mend.
pub(crate) async fn prepare(
    context: &AttemptContext,
    engine: &ContainerEngine,
    name: &str,
    source: &ArchiveSource,
) -> Result<LeasedImage, AttemptFailure> {
    let (config, clock) = (context.config(), context.clock());
    let progress = context.live.progress_sink(ProgressOf::ImagePull);
    let id: ImageId = name.parse().map_err(|_| {
        let message = "a job whose image lies in an archive names the image by its id, such as sha256:1f0c…";
        failed(message.to_owned(), Fault::User)
    })?;
    match ensure(engine, &config.images, name, &unwatched(), clock).await {
        Ok(leased) => return Ok(leased),
        Err(ImageError::Missing(_)) => {}
        Err(error) => return Err(image_failed(&error)),
    }
    // The folder is locked like a job's own, so that the next executor removes the archive of a killed one.
    let (work_dir, attempt) = (config.work_dir.clone(), context.attempt());
    let folder = spawn_blocking(move || ClaimedFolder::new(&work_dir, attempt))
        .await
        .map_err(|error| failed(Causes(&error).to_string(), Fault::Executor))?
        .map_err(|error| failed(Causes(&error).to_string(), Fault::Executor))?;
    let archive = folder.path().join(FILE);
    let fetcher = Fetcher::new(config.transfer.clone(), Arc::clone(clock))
        .map_err(|error| failed(Causes(&error).to_string(), Fault::Executor))?
        .with_progress(progress);
    let file = KnownFile {
        url: &source.url,
        sha256: source.sha256,
        length: source.length,
    };
    let limit = config.images.max_mib.saturating_mul(1 << 20);
    fetcher
        .fetch_known(file, &archive, limit, &context.called_off)
        .await
        .map_err(|error| transfer_failed(&error))?;
    load_user_image(engine, &config.images, id, &archive, clock)
        .await
        .map_err(|error| image_failed(&error))
}

fn transfer_failed(error: &HttpError) -> AttemptFailure {
    let message = format!("the job's image archive: {}", Causes(error));
    let failure = failed(message, error.fault());
    match error.fault() {
        Fault::User => failure.with_code(ErrorCode::ImageMissing),
        Fault::Nobody
        | Fault::Executor
        | Fault::Miner
        | Fault::Validator
        | Fault::Facilitator
        | Fault::Network => failure,
    }
}

fn failed(message: String, fault: Fault) -> AttemptFailure {
    AttemptFailure::horde(
        HordeFailureReason::GenericError,
        JobStage::ExecutorStartup,
        message,
    )
    .blame(fault)
}
