//! Getting a job's image: it is there already, or in an archive that the operator named.

use std::path::{Path, PathBuf};

use muster_protocol::job::Fault;
use muster_protocol::{ErrorCode, HordeFailureReason, ImageId, JobStage};

use crate::archive::{ArchivedImage, images_in};
use crate::engine::{Engine, EngineError, LocalImage};
use crate::stages::Failure;
use muster_kit::Coded;
use muster_kit::error::Causes;

/// Finds an image by name or id; loads the first of `archives` that holds it if the engine does not have it.
///
/// # Errors
/// [`ErrorCode::ImageMissing`], or the engine's failure, in the form the miner is told.
pub(crate) async fn prepare(
    engine: &Engine,
    name: &str,
    archives: &[PathBuf],
) -> Result<LocalImage, Failure> {
    if let Some(image) = engine.image(name).await.map_err(|error| engine_failed(&error))? {
        return Ok(image);
    }
    for archive in archives {
        if !holds(archive, name).await {
            continue;
        }
        tracing::info!(archive = %archive.display(), image = name, "loading an image archive");
        engine
            .load_file(archive)
            .await
            .map_err(|error| engine_failed(&error))?;
        if let Some(image) = engine.image(name).await.map_err(|error| engine_failed(&error))? {
            return Ok(image);
        }
    }
    let shown: String = name.chars().take(200).collect();
    let message = format!("the image {shown:?} is neither on this executor nor in an archive it may load");
    Err(Failure::horde(
        HordeFailureReason::GenericError,
        JobStage::ExecutorStartup,
        message,
    )
    .coded(ErrorCode::ImageMissing)
    .blame(Fault::User))
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

async fn holds(archive: &Path, name: &str) -> bool {
    let path = archive.to_owned();
    let read = tokio::task::spawn_blocking(move || images_in(&path)).await;
    match read {
        Ok(Ok(images)) => images.iter().any(|image| is_meant(image, name)),
        Ok(Err(error)) => {
            tracing::warn!(archive = %archive.display(), error = %Causes(&error), "a preload archive is passed over");
            false
        }
        Err(error) => {
            tracing::error!(%error, "reading a preload archive was interrupted");
            false
        }
    }
}

fn is_meant(image: &ArchivedImage, name: &str) -> bool {
    match name.parse::<ImageId>() {
        Ok(id) => id == image.id,
        Err(_) => image.tags.iter().any(|tag| full_name(tag) == full_name(name)),
    }
}

/// The name with what the engine would add: registry and folder are Docker's own, the tag is `latest`.
fn full_name(name: &str) -> String {
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    let name = name.strip_prefix("library/").unwrap_or(name);
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains([':', '@']) {
        name.to_owned()
    } else {
        format!("{name}:latest")
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Digest;

    use super::*;

    #[test]
    fn an_archived_image_is_known_by_id_and_by_every_form_of_its_name() {
        let id = ImageId(Digest::of(b"x"));
        let image = ArchivedImage {
            id,
            tags: vec!["alpine:latest".into(), "host:5000/a/b:1".into()],
        };
        let id = id.to_string();
        for name in [
            &id,
            "alpine",
            "alpine:latest",
            "docker.io/library/alpine",
            "library/alpine",
            "host:5000/a/b:1",
        ] {
            assert!(is_meant(&image, name), "{name}");
        }
        let other = ImageId(Digest::of(b"y")).to_string();
        for name in [&other, "alpine:3", "b:1", "host:5000/a/b", ""] {
            assert!(!is_meant(&image, name), "{name}");
        }
    }
}
