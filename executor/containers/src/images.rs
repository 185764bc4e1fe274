//! Provides a job's image: from the engine, from an archive that the operator configured, or from a registry.

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_job_data::manifest_request::RegistryImage;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{Digest, ErrorCode, ImageId};
use tokio::task::spawn_blocking;

use crate::docker_engine::{ContainerEngine, EngineError, LocalImage};
use crate::image_archive::{ArchiveError, ArchivedImage, list_images};
pub use crate::image_error::ImageError;
use crate::image_leases::{self, Lease};
use crate::image_pull::{PullProgress, pull, unwatched};
use crate::image_settings::ImageSettings;
use crate::pull_error::PullError;
use crate::registry_check;
use muster_protocol::image_reference::{ImageName, ImageReference, Pin};

/// Upper bound on the number of fetches of an image that is removed between its arrival and its lease.
const MAX_FETCHES: usize = 3;

/// Pauses before the looks for an image whose pull was ended.
const LATE_ARRIVAL: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
];

/// An image that the engine has and that is not removed while this value lives.
#[derive(Debug)]
pub struct LeasedImage {
    /// The image's properties.
    pub image: LocalImage,
    /// The digest of its manifest in the registry that the name leads to; `None` if the image never came from there.
    pub manifest: Option<Digest>,
    /// The lease, which keeps the image from being removed.
    pub lease: Lease,
}

/// An image as a job finds it before anything is fetched.
#[derive(Debug)]
pub enum FoundImage {
    /// The engine has it, or an archive had it.
    Here(Box<LeasedImage>),
    /// It must be fetched from this registry.
    AtRegistry(String),
}

/// Looks for an image on this machine, and leases it.
///
/// # Errors
/// The text names no image that could be had, or the engine failed.
pub async fn find(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    name: &str,
    clock: &SharedClock,
) -> Result<FoundImage, ImageError> {
    let wanted: ImageName = name.parse()?;
    if let Some(image) = find_here(engine, settings, &wanted).await?
        && let Some(leased) = lease_found(engine, settings, image, &wanted, clock).await?
    {
        return Ok(FoundImage::Here(Box::new(leased)));
    }
    match wanted {
        ImageName::Registry(reference) if settings.pull => {
            registry_check::check_address(settings, &reference).await?;
            Ok(FoundImage::AtRegistry(reference.registry))
        }
        ImageName::Registry(_) | ImageName::Id(_) => Err(missing(engine, &wanted).await?),
    }
}

/// The failure of an image that this machine does not have.
async fn missing(engine: &ContainerEngine, wanted: &ImageName) -> Result<ImageError, ImageError> {
    match wanted {
        ImageName::Id(id) if engine.names_images_by_manifest().await? => Ok(ImageError::ManifestStore(*id)),
        ImageName::Id(_) | ImageName::Registry(_) => Ok(ImageError::Missing(wanted.to_string())),
    }
}

/// Makes an image available and leases it. A pull has no time limit of its own: the caller limits it by dropping this
/// future, and the layers that have arrived by then stay with the engine.
///
/// # Errors
/// The image is not available; [`ImageError::fault`] returns the party at fault.
pub async fn ensure(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    name: &str,
    progress: &PullProgress,
    clock: &SharedClock,
) -> Result<LeasedImage, ImageError> {
    let wanted: ImageName = name.parse()?;
    for _ in 0..MAX_FETCHES {
        let image = obtain(engine, settings, &wanted, progress, clock).await?;
        if let Some(leased) = lease_found(engine, settings, image, &wanted, clock).await? {
            return Ok(leased);
        }
    }
    Err(ImageError::Missing(wanted.to_string()))
}

/// Leases an image that the engine has. `None` if another executor removed it before it was leased.
async fn lease_found(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    image: LocalImage,
    wanted: &ImageName,
    clock: &SharedClock,
) -> Result<Option<LeasedImage>, ImageError> {
    let lease = lease_image(settings, image.id, wanted.to_string(), clock).await?;
    let found = engine.find_image(&image.id.to_string()).await?;
    Ok(found.map(|image| LeasedImage {
        manifest: find_manifest(&image, wanted),
        image,
        lease,
    }))
}

/// Makes every image of the operator's archives and `prefetch` list available, so that no job waits for one, and
/// leases them all. Logs and skips an archive that cannot be read and an image that is not available.
///
/// # Errors
/// The engine or the record of used images failed.
pub async fn preload(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    clock: &SharedClock,
) -> Result<Vec<Lease>, ImageError> {
    let mut held = Vec::new();
    let by_manifest = !settings.preload.is_empty() && engine.names_images_by_manifest().await?;
    if by_manifest {
        let code = ErrorCode::EngineImageStore;
        tracing::error!(%code, "no archive of `preload` is loaded, and no job gets an image by its id");
    }
    let archives = settings.preload.iter().filter(|_| !by_manifest);
    for archive in archives {
        for image in list_archive(archive).await {
            let id = image.id;
            if engine.find_image(&id.to_string()).await?.is_none() {
                tracing::info!(archive = %archive.display(), image = %id, "loading an image archive");
                engine.load_untagged(archive).await?;
            }
            held.push(lease_image(settings, id, id.to_string(), clock).await?);
        }
    }
    for name in &settings.prefetch {
        match ensure(engine, &settings.for_operator(), name, &unwatched(), clock).await {
            Ok(resolved) => held.push(resolved.lease),
            Err(error) => {
                tracing::warn!(image = name, error = %Causes(&error), "an image of `prefetch` is not available");
            }
        }
    }
    Ok(held)
}

pub(crate) async fn lease_image(
    settings: &ImageSettings,
    id: ImageId,
    label: String,
    clock: &SharedClock,
) -> Result<Lease, ImageError> {
    let (folder, clock) = (settings.cache_dir.clone(), clock.clone());
    Ok(spawn_blocking(move || Lease::take(&folder, id, &label, &clock)).await??)
}

/// Finds an image that jobs may run: one that executors fetched under this name or id, one that the operator lists, or
/// one of the operator's archives.
async fn find_here(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    wanted: &ImageName,
) -> Result<Option<LocalImage>, ImageError> {
    let name = wanted.to_string();
    if let Some(image) = engine.find_image(&name).await?
        && is_known(settings, wanted, image.id).await?
    {
        return Ok(Some(image));
    }
    Ok(load_from(engine, &name, &settings.preload).await?)
}

/// Whether jobs may run an image of the engine. Its other images belong to the machine's operator: a name of theirs is
/// no permission.
async fn is_known(settings: &ImageSettings, wanted: &ImageName, id: ImageId) -> Result<bool, ImageError> {
    if settings.lists_local(wanted, id) {
        return Ok(true);
    }
    let folder = settings.cache_dir.clone();
    let names = spawn_blocking(move || image_leases::names_of(&folder, id)).await??;
    Ok(names.is_some_and(|names| match wanted {
        // The id is a key to the content of an image that some executor got.
        ImageName::Id(_) => true,
        ImageName::Registry(reference) => names.contains(&reference.to_string()),
    }))
}

/// Loads the first of `archives` that holds an image of this name or id, without the archive's tags. `None` if none
/// does.
///
/// # Errors
/// The engine failed. An archive that cannot be read is logged and skipped.
pub async fn load_from(
    engine: &ContainerEngine,
    name: &str,
    archives: &[PathBuf],
) -> Result<Option<LocalImage>, EngineError> {
    for archive in archives {
        let images = list_archive(archive).await;
        let Some(meant) = images.iter().find(|image| has_name(image, name)) else {
            continue;
        };
        // The archive's tag is not loaded: the image is addressed by its id.
        let id = meant.id.to_string();
        if let Some(image) = engine.find_image(&id).await? {
            return Ok(Some(image));
        }
        tracing::info!(archive = %archive.display(), image = name, "loading an image archive");
        engine.load_untagged(archive).await?;
        if let Some(image) = engine.find_image(&id).await? {
            return Ok(Some(image));
        }
    }
    Ok(None)
}

async fn obtain(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    wanted: &ImageName,
    progress: &PullProgress,
    clock: &SharedClock,
) -> Result<LocalImage, ImageError> {
    if let Some(image) = find_here(engine, settings, wanted).await? {
        return Ok(image);
    }
    let label = wanted.to_string();
    let reference = match wanted {
        ImageName::Registry(reference) if settings.pull => reference,
        ImageName::Registry(_) | ImageName::Id(_) => return Err(missing(engine, wanted).await?),
    };
    let (owned, named) = (settings.clone(), reference.clone());
    let credentials = spawn_blocking(move || owned.credentials(&named)).await??;
    let bounds = settings.pull_bounds();
    let resolved = registry_check::resolve(settings, reference, credentials.as_ref(), bounds, clock).await?;
    check_compression(engine, resolved.as_ref(), &label)?;
    if let Some(own) = engine.find_image(&label).await?
        && matches!(reference.pin, Pin::Tag(_))
    {
        // A pull would take the name away from the operator's image.
        return match &resolved {
            Some(registry) if registry.images.contains(&own.id) => Ok(own),
            Some(_) | None => Err(PullError::OtherImage { image: label }.into()),
        };
    }
    tracing::info!(image = label, "pulling an image");
    // The engine gets the manifest that was added up, whatever the tag means by then.
    let ids = resolved.as_ref().map(|registry| registry.images.clone());
    let pinned = resolved.map(|registry| reference.with_pin(Pin::Digest(registry.digest)));
    let asked = pinned.as_ref().unwrap_or(reference);
    // The engine names an image in the step after it has made it.
    let names: Vec<_> = ids
        .into_iter()
        .flatten()
        .map(|id| id.to_string())
        .chain([asked.to_string()])
        .collect();
    let was_there = find_first(engine, &names).await?.is_some();
    let outcome = pull(engine, asked, credentials, bounds, progress, clock).await;
    if let (Err(PullError::TooLarge { .. } | PullError::DiskFull { .. }), false) = (&outcome, was_there) {
        // The failure of the pull is returned, whether or not its remains go: it names the party at fault.
        if let Err(error) = remove_late_arrival(engine, &names, clock).await {
            tracing::warn!(image = label, error = %Causes(&error), "an image that is too large may be left behind");
        }
    }
    outcome?;
    if let (Some(pinned), Pin::Tag(tag)) = (&pinned, &reference.pin) {
        engine.tag(&pinned.to_string(), reference, tag).await?;
    }
    let pulled = engine.find_image(&label).await?;
    if let Some(image) = pulled.as_ref().filter(|image| image.size > bounds.max_unpacked) {
        let removed = match was_there {
            true => label.clone(),
            false => image.id.to_string(),
        };
        engine.remove_tag(&removed).await?;
        tracing::warn!(
            image = label,
            bytes = image.size,
            "removed an image that is too large unpacked"
        );
        let max_bytes = bounds.max_unpacked;
        return Err(PullError::TooLarge {
            image: label,
            max_bytes,
        }
        .into());
    }
    // Removed again by a program that does not respect leases.
    let words = "the image was removed right after it had arrived".to_owned();
    pulled.ok_or(ImageError::Pull(PullError::Interrupted { image: label, words }))
}

/// Checks that the engine can unpack the image's layers.
pub(crate) fn check_compression(
    engine: &ContainerEngine,
    resolved: Option<&RegistryImage>,
    label: &str,
) -> Result<(), PullError> {
    let is_unreadable = resolved.is_some_and(|image| image.zstd) && !engine.reads_zstd();
    if !is_unreadable {
        return Ok(());
    }
    Err(PullError::Unreadable {
        image: label.to_owned(),
        words: format!("Docker {} does not read zstd", engine.version()),
    })
}

/// Removes an image whose pull was ended because of its size, if the engine had it complete by then. An engine that is
/// asked to stop may still finish the step that it is at.
async fn remove_late_arrival(
    engine: &ContainerEngine,
    names: &[String],
    clock: &SharedClock,
) -> Result<(), EngineError> {
    for pause in LATE_ARRIVAL {
        clock.sleep(pause).await;
        if let Some(image) = find_first(engine, names).await? {
            tracing::warn!(%image.id, "removed an image that is too large, and came all the same");
            return engine.remove_tag(&image.id.to_string()).await;
        }
    }
    Ok(())
}

/// The image that the engine has under the first of these names that it knows.
async fn find_first(engine: &ContainerEngine, names: &[String]) -> Result<Option<LocalImage>, EngineError> {
    for name in names {
        if let Some(image) = engine.find_image(name).await? {
            return Ok(Some(image));
        }
    }
    Ok(None)
}

/// The digest of the image's manifest in the registry of the name.
pub(crate) fn find_manifest(image: &LocalImage, wanted: &ImageName) -> Option<Digest> {
    let ImageName::Registry(wanted) = wanted else {
        return None;
    };
    if let Pin::Digest(digest) = wanted.pin {
        return Some(digest);
    }
    image.manifests.iter().find_map(|text| {
        let known: ImageReference = text.parse().ok()?;
        match known.pin {
            Pin::Digest(digest) if known.repository_name() == wanted.repository_name() => Some(digest),
            Pin::Digest(_) | Pin::Tag(_) => None,
        }
    })
}

async fn list_archive(archive: &Path) -> Vec<ArchivedImage> {
    let path = archive.to_owned();
    match spawn_blocking(move || list_images(&path)).await {
        Ok(Ok(images)) => images,
        Ok(Err(error)) => {
            let error: ArchiveError = error;
            tracing::warn!(archive = %archive.display(), error = %Causes(&error), "a preload archive is skipped");
            vec![]
        }
        Err(error) => {
            tracing::error!(%error, "reading a preload archive was interrupted");
            vec![]
        }
    }
}

fn has_name(image: &ArchivedImage, name: &str) -> bool {
    match name.parse::<ImageName>() {
        Ok(ImageName::Id(id)) => id == image.id,
        Ok(ImageName::Registry(wanted)) => image
            .tags
            .iter()
            .any(|tag| tag.parse::<ImageReference>().is_ok_and(|tag| tag == wanted)),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archived_image_is_known_by_id_and_by_every_form_of_its_name() {
        let id = ImageId(Digest::of(b"x"));
        let image = ArchivedImage {
            id,
            tags: vec!["alpine:latest".into(), "host:5000/a/b:1".into()],
            platform: None,
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
            assert!(has_name(&image, name), "{name}");
        }
        let other = ImageId(Digest::of(b"y")).to_string();
        for name in [&other, "alpine:3", "b:1", "host:5000/a/b", ""] {
            assert!(!has_name(&image, name), "{name}");
        }
    }

    #[test]
    fn the_digest_is_that_of_the_registry_asked() {
        let (ours, theirs) = (Digest::of(b"1"), Digest::of(b"2"));
        let image = LocalImage {
            manifests: vec![format!("other/a@{theirs}"), format!("host:5000/a@{ours}")],
            ..LocalImage::default_for(ImageId(Digest::of(b"x")))
        };
        let of = |name: &str| find_manifest(&image, &name.parse().unwrap());
        assert_eq!(of("host:5000/a:1"), Some(ours));
        assert_eq!(of("docker.io/other/a"), Some(theirs));
        assert_eq!(of("third/a"), None);
        assert_eq!(of(&format!("third/a@{ours}")), Some(ours));
        assert_eq!(of(&image.id.to_string()), None);
    }
}
