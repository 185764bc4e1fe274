//! Removes unused images when they take too much disk: the longest unused first, never one in use or of another owner.

use std::time::Duration;

use bollard::errors::Error as ApiError;
use bollard::query_parameters::RemoveImageOptions;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{ImageId, Timestamp};
use tokio::task::spawn_blocking;

use crate::docker_engine::{ContainerEngine, EngineError, operation_failed};
use crate::image_leases::{self, LeaseError, RemovalRight};
use crate::image_settings::ImageSettings;

/// An image that executors have used and the engine still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedImage {
    /// The image's id.
    pub image: ImageId,
    /// Size in bytes; layers shared between images count for each of them.
    pub size: u64,
    /// The last time an executor used the image.
    pub last: Timestamp,
}

/// The result of one collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageCollectionCounts {
    /// Number of images removed.
    pub removed: usize,
    /// Number of overdue images that were not removed: they are in use, or have a name that no executor gave them.
    pub kept: usize,
}

/// The reason for which no collection took place.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The engine failed.
    #[error("unused images cannot be removed")]
    Engine(#[from] EngineError),
    /// The record of used images cannot be read.
    #[error("unused images cannot be found")]
    Leases(#[from] LeaseError),
    /// The process is shutting down.
    #[error("removing unused images was interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// Chooses the images to remove, the longest unused first: those unused for longer than `age`, then as many more as it
/// takes to bring the rest under `bytes`. An image without content counts as one byte, because its name and its
/// configuration take room too.
pub fn overdue(held: &[CachedImage], age: Duration, bytes: u64, now: Timestamp) -> Vec<ImageId> {
    let mut oldest_first = held.to_vec();
    oldest_first.sort_by_key(|held| (held.last, held.image));
    let room = |held: &CachedImage| held.size.max(1);
    let mut left = held
        .iter()
        .fold(0_u64, |sum, held| sum.saturating_add(room(held)));
    let mut going = Vec::new();
    for held in oldest_first {
        if now.since(held.last) > age || left > bytes {
            left = left.saturating_sub(room(&held));
            going.push(held.image);
        }
    }
    going
}

/// Removes images that the executors of this machine have not used for long, or that exceed the configured total size.
/// Safe at any time and beside other executors: an image that is leased or that a container uses stays.
///
/// # Errors
/// The engine or the record of uses cannot be used at all.
pub async fn collect(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    clock: &SharedClock,
) -> Result<ImageCollectionCounts, CacheError> {
    let folder = settings.cache_dir.clone();
    let used = spawn_blocking(move || image_leases::list_uses(&folder)).await??;
    let mut held = Vec::new();
    for used in used {
        match engine.find_image(&used.image.to_string()).await? {
            Some(image) => held.push(CachedImage {
                image: used.image,
                size: image.size,
                last: used.last,
            }),
            None => {
                // The image was removed by other means.
                if let Some(removal) = right_to_remove(settings, used.image).await? {
                    removal.finish();
                }
            }
        }
    }
    let mut collected = ImageCollectionCounts::default();
    for image in overdue(&held, settings.max_age(), settings.max_bytes(), clock.now()) {
        let gone = match right_to_remove(settings, image).await? {
            Some(removal) => remove(engine, image, removal).await?,
            None => false,
        };
        if gone {
            collected.removed += 1;
        } else {
            collected.kept += 1;
        }
    }
    if collected != ImageCollectionCounts::default() {
        tracing::info!(
            removed = collected.removed,
            kept = collected.kept,
            "removed unused images"
        );
    }
    Ok(collected)
}

/// Collects unless an executor of this machine began a collection less than `every` ago. `None` if none is due.
///
/// # Errors
/// Same as [`collect`].
pub async fn collect_if_due(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    every: Duration,
    clock: &SharedClock,
) -> Result<Option<ImageCollectionCounts>, CacheError> {
    let (folder, now) = (settings.cache_dir.clone(), clock.now());
    if spawn_blocking(move || image_leases::begin_collection(&folder, every, now)).await?? {
        collect(engine, settings, clock).await.map(Some)
    } else {
        Ok(None)
    }
}

async fn right_to_remove(
    settings: &ImageSettings,
    image: ImageId,
) -> Result<Option<RemovalRight>, CacheError> {
    let folder = settings.cache_dir.clone();
    Ok(spawn_blocking(move || RemovalRight::take(&folder, image)).await??)
}

/// Removes an image; returns whether it is gone. An image stays if it has a name that no executor gave it, or if a
/// container uses it.
async fn remove(
    engine: &ContainerEngine,
    image: ImageId,
    removal: RemovalRight,
) -> Result<bool, EngineError> {
    let names = engine.list_tags(image).await?;
    let foreign = names.iter().find(|name| {
        name.parse()
            .map_or(true, |name: muster_protocol::image_reference::ImageReference| {
                !removal.names().contains(&name.to_string())
            })
    });
    if let Some(name) = foreign {
        tracing::debug!(%image, name, "an unused image stays because an executor did not give it all of its names");
        return Ok(false);
    }
    // Removing the last name removes the image; an image without names is removed by its id.
    for name in names.iter().cloned().chain([image.to_string()]) {
        match engine.remove_tag(&name).await {
            Ok(()) => {}
            Err(error) if error.refusal().is_some() => {
                tracing::debug!(%image, error = %Causes(&error), "an unused image stays");
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    removal.finish();
    Ok(true)
}

impl ContainerEngine {
    /// The tags of an image; none if the engine does not have the image.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn list_tags(&self, image: ImageId) -> Result<Vec<String>, EngineError> {
        match self.docker().inspect_image(&image.to_string()).await {
            Ok(found) => Ok(found.repo_tags.unwrap_or_default()),
            Err(ApiError::DockerResponseServerError { status_code: 404, .. }) => Ok(vec![]),
            Err(error) => Err(operation_failed("look at an image")(error)),
        }
    }

    /// Removes a name from an image; removing the last name removes the image, unless a container uses it. A missing
    /// image is no error.
    ///
    /// # Errors
    /// The engine failed; [`EngineError::refusal`] is set if the image is in use.
    pub async fn remove_tag(&self, name: &str) -> Result<(), EngineError> {
        let options = RemoveImageOptions::default();
        match self.docker().remove_image(name, Some(options), None).await {
            Ok(_) | Err(ApiError::DockerResponseServerError { status_code: 404, .. }) => Ok(()),
            Err(error) => Err(operation_failed("remove an image")(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Digest;

    use super::*;

    fn held(name: &str, size: u64, last: i64) -> CachedImage {
        CachedImage {
            image: ImageId(Digest::of(name.as_bytes())),
            size,
            last: Timestamp::from_secs(last),
        }
    }

    #[test]
    fn overdue_images_are_the_old_and_the_oldest_beyond_the_size() {
        let (a, b, c) = (held("a", 10, 100), held("b", 20, 900), held("c", 30, 1_000));
        let now = Timestamp::from_secs(1_000);
        let hour = Duration::from_secs(3_600);
        let going = |age, bytes| overdue(&[c, a, b], age, bytes, now);
        assert_eq!(going(hour, 60), []);
        assert_eq!(going(Duration::from_secs(899), 60), [a.image]);
        assert_eq!(going(hour, 59), [a.image]);
        assert_eq!(going(hour, 49), [a.image, b.image]);
        assert_eq!(going(hour, 0), [a.image, b.image, c.image]);
        assert_eq!(overdue(&[], hour, 0, now), []);
        let empty = held("empty", 0, 1_000);
        assert_eq!(
            overdue(&[empty], hour, 0, now),
            [empty.image],
            "it takes room too"
        );
        assert_eq!(overdue(&[empty], hour, 1, now), []);
        // A clock that was set back makes no image overdue.
        assert_eq!(overdue(&[c], Duration::ZERO, 60, Timestamp::from_secs(10)), []);
    }

    proptest::proptest! {
        #[test]
        fn remaining_images_are_young_and_fit(
            sizes in proptest::collection::vec((0_u64..1_000, 0_i64..1_000), 0..20),
            age in 0_u64..1_000, bytes in 0_u64..5_000,
        ) {
            let all: Vec<CachedImage> = sizes.iter().enumerate()
                .map(|(number, (size, last))| held(&number.to_string(), *size, *last)).collect();
            let now = Timestamp::from_secs(1_000);
            let age = Duration::from_secs(age);
            let going = overdue(&all, age, bytes, now);
            let stays: Vec<_> = all.iter().filter(|held| !going.contains(&held.image)).collect();
            proptest::prop_assert!(stays.iter().all(|held| now.since(held.last) <= age));
            proptest::prop_assert!(stays.iter().map(|held| held.size).sum::<u64>() <= bytes);
        }
    }
}
