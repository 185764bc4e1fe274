//! Provides a job's image: from the engine, from an archive that the operator configured, or from a registry.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::auth::DockerCredentials;
use indexmap::IndexMap;
use muster_process::SharedClock;
use muster_process::config::Problem;
use muster_process::error::{Causes, Coded};
use muster_protocol::job::{Fault, ImageFetchFailure};
use muster_protocol::{Digest, ErrorCode, ImageId};
use serde::Deserialize;
use tokio::task::spawn_blocking;

use crate::credentials::{self, CredentialsError, RegistryLogin};
use crate::engine::{ContainerEngine, EngineError, LocalImage};
use crate::image_archive::{ArchiveError, ArchivedImage, list_images};
use crate::image_leases::{Lease, LeaseError};
use crate::image_pull::{PullBounds, PullError, PullProgress, pull};
use crate::image_reference::{ImageName, ImageReference, Pin, ReferenceError};
use crate::user_archive::UserArchiveError;

/// Upper bound on the number of fetches of an image that is removed between its arrival and its lease.
const MAX_FETCHES: usize = 3;

/// Sources of images and how long images are kept; set by the operator.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageSettings {
    /// Paths of archives to load from if an image is missing.
    pub preload: Vec<PathBuf>,
    /// Names of images that a persistent executor fetches before any job asks, and keeps.
    pub prefetch: Vec<String>,
    /// Whether missing images may be pulled from registries.
    pub pull: bool,
    /// Seconds without progress after which a pull ends, at least 1.
    pub stall_s: u64,
    /// The most MiB, compressed, that an image may have to be pulled.
    pub max_mib: u64,
    /// The executor's logins, by the registry's host.
    pub registries: IndexMap<String, RegistryLogin>,
    /// Path of a file written by `docker login`, for all other registries; empty for none.
    pub docker_config: PathBuf,
    /// Folder in which the executors of this machine record the images that they use.
    pub cache_dir: PathBuf,
    /// Images unused for longer than this many days are removed.
    pub keep_days: u64,
    /// Upper bound on the total size of used images, in MiB.
    pub keep_mib: u64,
}

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

/// The reason for which an image is not available.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The text is not the name of an image.
    #[error(transparent)]
    Name(#[from] ReferenceError),
    /// The image is missing and may not be pulled, or was named by id, which no registry can resolve.
    #[error("the image {0} is neither on this executor nor in an archive it may load")]
    Missing(String),
    /// The pull failed.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The operator's credentials cannot be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The record of used images failed.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The archive that the job brought does not give its image.
    #[error(transparent)]
    UserArchive(#[from] UserArchiveError),
    /// The process is shutting down.
    #[error("getting the image was interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
}

// === impl ImageSettings ===

impl Default for ImageSettings {
    fn default() -> Self {
        Self {
            preload: Vec::new(),
            prefetch: Vec::new(),
            pull: true,
            stall_s: 120,
            max_mib: 51_200,
            registries: IndexMap::new(),
            docker_config: PathBuf::new(),
            cache_dir: PathBuf::from("/var/tmp/muster-executor-images"),
            keep_days: 30,
            keep_mib: 204_800,
        }
    }
}

impl ImageSettings {
    /// The defaults with their comments, for the table `[images]` of an operator's configuration file.
    pub const COMMENTED: &'static str = r#"# Archives (as `docker save` writes them) to load where a job's image is missing. Their tags are not taken over.
preload = []
# Names of images that a persistent executor pulls before any job asks for them, and keeps.
prefetch = []
# Whether missing images are pulled from the registry that their name leads to.
pull = true
# A pull that has made no progress for so many seconds ends, and an image of more MiB (compressed) is not pulled.
stall_s = 120
max_mib = 51200
# A file that `docker login` has written, for registries not named below. Its credential helpers are not started.
docker_config = ""
# Where all executors of this machine record which images they use. Absolute.
cache_dir = "/var/tmp/muster-executor-images"
# Images that no executor has used for so many days are removed,
keep_days = 30
# and the longest unused of the rest once they take more MiB together.
keep_mib = 204800

# The credentials of this executor at a registry.
# [images.registries."ghcr.io"]
# username = "somebody"
# password = "a token that may read packages"
"#;

    /// All mistakes in the settings. `table` is the name of the table in the configuration.
    pub fn problems(&self, table: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !self.cache_dir.is_absolute() {
            problems.push(Problem::at(
                format!("{table}.cache_dir"),
                "must be an absolute path, the same for all executors of this machine",
            ));
        }
        for (key, value) in [("stall_s", self.stall_s), ("max_mib", self.max_mib)] {
            if value == 0 {
                problems.push(Problem::at(format!("{table}.{key}"), "must be at least 1"));
            }
        }
        for name in &self.prefetch {
            if let Err(error) = name.parse::<ImageName>() {
                problems.push(Problem::at(format!("{table}.prefetch"), error.to_string()));
            }
        }
        problems
    }

    pub(crate) const fn max_age(&self) -> Duration {
        Duration::from_secs(self.keep_days.saturating_mul(86_400))
    }

    pub(crate) const fn max_bytes(&self) -> u64 {
        self.keep_mib.saturating_mul(1 << 20)
    }

    pub(crate) const fn pull_bounds(&self) -> PullBounds {
        PullBounds {
            stall: Duration::from_secs(self.stall_s),
            max_bytes: self.max_mib.saturating_mul(1 << 20),
        }
    }

    /// The login at a registry; `None` for anonymous access.
    fn credentials(&self, registry: &str) -> Result<Option<DockerCredentials>, CredentialsError> {
        match self.registries.get(registry) {
            Some(login) => Ok(Some(login.to_docker(registry))),
            None if self.docker_config.as_os_str().is_empty() => Ok(None),
            None => credentials::find_in_file(&self.docker_config, registry),
        }
    }
}

// === impl ImageError ===

impl ImageError {
    /// Whether a retry may help. A failed pull has been retried already.
    pub fn is_recoverable(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_recoverable(),
            Self::Name(_)
            | Self::Missing(_)
            | Self::Pull(_)
            | Self::Credentials(_)
            | Self::Lease(_)
            | Self::UserArchive(_)
            | Self::Interrupted(_) => false,
        }
    }

    /// The party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Name(_) | Self::Missing(_) | Self::UserArchive(_) => Fault::User,
            // The fault may be the operator's or the user's; the user can choose a public image.
            Self::Pull(
                PullError::NotFound { .. }
                | PullError::Unauthorised { .. }
                | PullError::WrongPlatform { .. }
                | PullError::TooLarge { .. },
            ) => Fault::User,
            Self::Pull(PullError::Interrupted { .. } | PullError::Stalled { .. }) => Fault::Nobody,
            Self::Pull(PullError::BadDigest { .. }) => Fault::Network,
            Self::Pull(PullError::DiskFull { .. })
            | Self::Credentials(_)
            | Self::Engine(_)
            | Self::Lease(_)
            | Self::Interrupted(_) => Fault::Executor,
        }
    }
}

impl ImageError {
    /// The failure of the image or its registry; `None` where this machine failed.
    pub fn fetch_failure(&self) -> Option<ImageFetchFailure> {
        match self {
            Self::Missing(_) | Self::Pull(PullError::NotFound { .. }) => Some(ImageFetchFailure::NoSuchImage),
            Self::Pull(PullError::Unauthorised { .. }) => Some(ImageFetchFailure::NoRight),
            Self::Pull(PullError::WrongPlatform { .. }) => Some(ImageFetchFailure::WrongPlatform),
            Self::Pull(PullError::TooLarge { .. }) => Some(ImageFetchFailure::TooLarge),
            Self::Pull(PullError::Stalled { .. }) => Some(ImageFetchFailure::Stalled),
            Self::Pull(PullError::Interrupted { .. }) => Some(ImageFetchFailure::Unreachable),
            Self::Name(_)
            | Self::UserArchive(_)
            | Self::Pull(PullError::BadDigest { .. } | PullError::DiskFull { .. })
            | Self::Credentials(_)
            | Self::Engine(_)
            | Self::Lease(_)
            | Self::Interrupted(_) => None,
        }
    }
}

impl Coded for ImageError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Name(_)
            | Self::Missing(_)
            | Self::UserArchive(_)
            | Self::Pull(
                PullError::NotFound { .. }
                | PullError::Unauthorised { .. }
                | PullError::WrongPlatform { .. }
                | PullError::TooLarge { .. }
                | PullError::Stalled { .. }
                | PullError::Interrupted { .. },
            ) => Some(ErrorCode::ImageMissing),
            Self::Engine(error) => error.code(),
            Self::Pull(PullError::BadDigest { .. } | PullError::DiskFull { .. })
            | Self::Credentials(_)
            | Self::Lease(_)
            | Self::Interrupted(_) => None,
        }
    }
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
    if let Some(image) = find_or_load(engine, &wanted.to_string(), &settings.preload).await?
        && let Some(leased) = lease_found(engine, settings, image, &wanted, clock).await?
    {
        return Ok(FoundImage::Here(Box::new(leased)));
    }
    match wanted {
        ImageName::Registry(reference) if settings.pull => Ok(FoundImage::AtRegistry(reference.registry)),
        ImageName::Registry(_) | ImageName::Id(_) => Err(ImageError::Missing(wanted.to_string())),
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
    for archive in &settings.preload {
        for image in list_archive(archive).await {
            let id = image.id;
            if engine.find_image(&id.to_string()).await?.is_none() {
                tracing::info!(archive = %archive.display(), image = %id, "loading an image archive");
                engine.load_untagged(archive).await?;
            }
            held.push(lease_image(settings, id, id.to_string(), clock).await?);
        }
    }
    let unwatched: PullProgress = Arc::new(|_| {});
    for name in &settings.prefetch {
        match ensure(engine, settings, name, &unwatched, clock).await {
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

/// Finds an image by name or id. If the engine does not have it, loads the first of `archives` that holds it, without
/// the archive's tags. `None` if neither has it.
///
/// # Errors
/// The engine failed. An archive that cannot be read is logged and skipped.
pub async fn find_or_load(
    engine: &ContainerEngine,
    name: &str,
    archives: &[PathBuf],
) -> Result<Option<LocalImage>, EngineError> {
    if let Some(image) = engine.find_image(name).await? {
        return Ok(Some(image));
    }
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
    let label = wanted.to_string();
    if let Some(image) = find_or_load(engine, &label, &settings.preload).await? {
        return Ok(image);
    }
    let reference = match wanted {
        ImageName::Registry(reference) if settings.pull => reference,
        ImageName::Registry(_) | ImageName::Id(_) => return Err(ImageError::Missing(label)),
    };
    let (owned, registry) = (settings.clone(), reference.registry.clone());
    let credentials = spawn_blocking(move || owned.credentials(&registry)).await??;
    tracing::info!(image = label, "pulling an image");
    let bounds = settings.pull_bounds();
    pull(engine, reference, credentials, bounds, progress, clock).await?;
    let pulled = engine.find_image(&label).await?;
    // Removed again by a program that does not respect leases.
    let words = "the image was removed right after it had arrived".to_owned();
    pulled.ok_or(ImageError::Pull(PullError::Interrupted { image: label, words }))
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

    #[test]
    fn the_commented_settings_are_the_defaults() {
        let read: ImageSettings = toml::from_str(ImageSettings::COMMENTED).unwrap();
        assert_eq!(read, ImageSettings::default());
        let with = "[registries.\"ghcr.io\"]\nusername = \"u\"\npassword = \"p\"\n";
        let settings: ImageSettings = toml::from_str(with).unwrap();
        let known = settings.credentials("ghcr.io").unwrap().unwrap();
        assert_eq!(known.password.as_deref(), Some("p"));
        assert_eq!(settings.credentials("docker.io").unwrap(), None);
    }
}
