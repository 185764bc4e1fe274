//! Loads a user's own image from an archive that a job brings.

use std::path::{Path, PathBuf};

use bollard::errors::Error as ApiError;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::ImageId;
use tokio::task::spawn_blocking;

use crate::docker_engine::{ContainerEngine, EngineError};
use crate::engine_disk::watch_engine_disk;
use crate::image_archive::{ArchivedImage, list_images};
use crate::image_error::{ImageError, UserArchiveError};
use crate::image_settings::ImageSettings;
use crate::images::{LeasedImage, lease_image};
use crate::pull_error::PullError;

/// The characters of the engine's text that are repeated to the user.
const MAX_WORDS: usize = 300;

/// Loads the image `id` from a user's archive, without the names in it, and leases it. The image then lives and is
/// removed as every other: by its lease and its last use.
///
/// # Errors
/// The archive does not hold exactly this image (the user's fault), or the engine failed.
pub async fn load_user_image(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    id: ImageId,
    archive: &Path,
    clock: &SharedClock,
) -> Result<LeasedImage, ImageError> {
    let path: PathBuf = archive.to_owned();
    let images = spawn_blocking(move || list_images(&path))
        .await?
        .map_err(UserArchiveError::Unreadable)?;
    match images.as_slice() {
        [image] if image.id == id => check_platform(image, engine.platform())?,
        [image] => {
            return Err(UserArchiveError::OtherImage {
                wanted: id,
                found: image.id,
            }
            .into());
        }
        several => return Err(UserArchiveError::SeveralImages(several.len()).into()),
    }
    // The lease comes first: no other executor removes the image between its arrival and its lease.
    let lease = lease_image(settings, id, id.to_string(), clock).await?;
    tracing::info!(image = %id, "loading a user's image archive");
    let bounds = settings.pull_bounds();
    let filling = watch_engine_disk(engine, bounds, clock).await;
    tokio::select! {
        biased;
        filled = filling => return Err(filled.error(id.to_string(), bounds).into()),
        loaded = engine.load_untagged(archive) => loaded.map_err(blame)?,
    }
    let image = engine.find_image(&id.to_string()).await?.ok_or_else(|| {
        let words = "it knows no image of this id after the archive was loaded";
        UserArchiveError::NotLoaded(words.to_owned())
    })?;
    if image.size > bounds.max_unpacked {
        engine.remove_tag(&id.to_string()).await?;
        let max_bytes = bounds.max_unpacked;
        let image = id.to_string();
        return Err(PullError::TooLarge { image, max_bytes }.into());
    }
    Ok(LeasedImage {
        image,
        manifest: None,
        lease,
    })
}

/// Checks that the engine can run an image. An engine that emulates other platforms cannot be told from others, so an
/// image for one of them is refused.
fn check_platform(image: &ArchivedImage, engine: Option<&str>) -> Result<(), UserArchiveError> {
    match (&image.platform, engine) {
        (Some(found), Some(engine)) if found != engine => Err(UserArchiveError::OtherPlatform {
            found: found.clone(),
            engine: engine.to_owned(),
        }),
        (Some(_) | None, Some(_) | None) => Ok(()),
    }
}

/// The failure of loading: the user's where the engine answers that it does not take the content.
fn blame(error: EngineError) -> ImageError {
    match error {
        EngineError::Archive { source, .. } => UserArchiveError::Unreadable(source).into(),
        EngineError::Failed {
            source:
                ref source @ (ApiError::DockerStreamError { .. } | ApiError::DockerResponseServerError { .. }),
            ..
        } => {
            let words = Causes(source).to_string();
            if words.contains("no space left on device") || words.contains("disk quota exceeded") {
                return error.into();
            }
            let words = words
                .chars()
                .filter(|c| !c.is_control())
                .take(MAX_WORDS)
                .collect();
            UserArchiveError::NotLoaded(words).into()
        }
        other @ (EngineError::Unreachable { .. }
        | EngineError::Failed { .. }
        | EngineError::HungUp(_)
        | EngineError::Unlimited(_)
        | EngineError::Incomplete(_)) => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Digest;

    use super::*;

    #[test]
    fn an_image_for_another_platform_is_refused_by_name() {
        let image = |platform: Option<&str>| ArchivedImage {
            id: ImageId(Digest::of(b"x")),
            tags: Vec::new(),
            platform: platform.map(str::to_owned),
        };
        let refused = check_platform(&image(Some("linux/arm64")), Some("linux/amd64")).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("linux/arm64") && text.contains("build it for linux/amd64"),
            "{text}"
        );
        for (found, engine) in [
            (Some("linux/amd64"), Some("linux/amd64")),
            (None, Some("linux/amd64")),
            (Some("linux/arm64"), None),
        ] {
            check_platform(&image(found), engine).unwrap();
        }
    }
}
