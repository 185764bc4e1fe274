//! Provides a job's image: from the engine, from an archive that the operator configured, or from a registry.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::auth::DockerCredentials;
use indexmap::IndexMap;
use muster_process::config::Problem;
use muster_process::error::Causes;
use muster_process::{SharedClock, private_folder};
use muster_protocol::{Digest, ImageId};
use serde::Deserialize;
use tokio::task::spawn_blocking;

use crate::credentials::{self, CredentialsError, RegistryLogin};
use crate::engine::{ContainerEngine, EngineError, LocalImage};
use crate::image_archive::{ArchiveError, ArchivedImage, list_images};
pub use crate::image_error::ImageError;
use crate::image_leases::{self, Lease};
use crate::image_pull::{PullBounds, PullError, PullProgress, pull};
use crate::image_reference::{ImageName, ImageReference, Pin};
use crate::registry_check;

/// Upper bound on the number of fetches of an image that is removed between its arrival and its lease.
const MAX_FETCHES: usize = 3;

/// Pauses before the looks for an image whose pull was ended.
const LATE_ARRIVAL: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
];

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
    /// The most MiB, unpacked, that an image may have.
    pub max_unpacked_mib: u64,
    /// MiB that stay free on the engine's disk: with less, no image is pulled.
    pub reserve_mib: u64,
    /// The most MiB, unpacked, of the images that are fetched early for one validator.
    pub listed_mib: u64,
    /// Hosts, addresses and networks of registries that jobs may name although they are not on the public Internet.
    pub allow: Vec<String>,
    /// Names and ids of the engine's images that jobs may run although no executor fetched them; `*` for all.
    pub local: Vec<String>,
    /// Repositories whose images jobs get with the executor's logins, each as `host/repository` or `host/folder/*`.
    pub login_repositories: Vec<String>,
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

// === impl ImageSettings ===

impl Default for ImageSettings {
    fn default() -> Self {
        Self {
            preload: Vec::new(),
            prefetch: Vec::new(),
            pull: true,
            stall_s: 120,
            max_mib: 51_200,
            max_unpacked_mib: 102_400,
            reserve_mib: 2_048,
            listed_mib: 102_400,
            allow: Vec::new(),
            local: Vec::new(),
            login_repositories: Vec::new(),
            registries: IndexMap::new(),
            docker_config: PathBuf::new(),
            cache_dir: private_folder::usual_place("executor-images"),
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
# No image may have more MiB once it is unpacked, and so many MiB stay free on the engine's disk: a pull ends before.
max_unpacked_mib = 102400
reserve_mib = 2048
# The most MiB, unpacked, of the images that a persistent executor fetches early because one validator lists them.
listed_mib = 102400
# Hosts, addresses (127.0.0.1:5000 for one port only) and networks (CIDR) of registries that jobs may name although they
# are not on the public Internet. A host in this list is not resolved and may speak plain HTTP.
allow = []
# Images of the engine that jobs may run although no executor fetched them: names, ids (sha256:...), or "*" for all. An
# image that executors fetched, or that came from an archive, needs no entry.
local = []
# The repositories whose images every user may have with the logins of this executor: "ghcr.io/us/model" or
# "ghcr.io/us/*". All other images are pulled without a login. The names in `prefetch` need no entry.
login_repositories = []
# A file that `docker login` has written, for registries not named below. Its credential helpers are not started.
docker_config = ""
# Where all executors of this machine record which images they use. Absolute; by default /var/lib/muster/executor-images
# for root and /var/tmp/muster-executor-images for another user.
# cache_dir = "/var/lib/muster/executor-images"
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
        for (key, value) in [
            ("stall_s", self.stall_s),
            ("max_mib", self.max_mib),
            ("max_unpacked_mib", self.max_unpacked_mib),
        ] {
            if value == 0 {
                problems.push(Problem::at(format!("{table}.{key}"), "must be at least 1"));
            }
        }
        for name in &self.prefetch {
            if let Err(error) = name.parse::<ImageName>() {
                problems.push(Problem::at(format!("{table}.prefetch"), error.to_string()));
            }
        }
        problems.extend(self.access_problems(table));
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
            max_unpacked: self.max_unpacked_mib.saturating_mul(1 << 20),
            reserve: self.reserve_mib.saturating_mul(1 << 20),
        }
    }

    /// These settings for an image of at most `bytes`, unpacked.
    #[must_use]
    pub fn within(&self, bytes: u64) -> Self {
        Self {
            max_mib: self.max_mib.min(bytes >> 20),
            max_unpacked_mib: self.max_unpacked_mib.min(bytes >> 20),
            ..self.clone()
        }
    }

    /// The login with which jobs get an image; `None` for anonymous access.
    fn credentials(&self, reference: &ImageReference) -> Result<Option<DockerCredentials>, CredentialsError> {
        if !self.lists_login(reference) {
            return Ok(None);
        }
        let registry = reference.registry.as_str();
        match self.registries.get(registry) {
            Some(login) => Ok(Some(login.to_docker(registry))),
            None if self.docker_config.as_os_str().is_empty() => Ok(None),
            None => credentials::find_in_file(&self.docker_config, registry),
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
        match ensure(engine, &settings.for_operator(), name, &unwatched, clock).await {
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
        ImageName::Registry(_) | ImageName::Id(_) => return Err(ImageError::Missing(label)),
    };
    let (owned, named) = (settings.clone(), reference.clone());
    let credentials = spawn_blocking(move || owned.credentials(&named)).await??;
    let bounds = settings.pull_bounds();
    let resolved = registry_check::resolve(settings, reference, credentials.as_ref(), bounds, clock).await?;
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
        // The failure of the pull is told, whatever becomes of its remains: it says who is at fault.
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

/// Removes an image whose pull was ended because of its size, if the engine had it complete by then. An engine that is
/// told to stop may still finish the step that it is at.
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
        let with = "login_repositories = [\"ghcr.io/us/*\", \"docker.io/us/x\"]\n\
            [registries.\"ghcr.io\"]\nusername = \"u\"\npassword = \"p\"\n";
        let settings: ImageSettings = toml::from_str(with).unwrap();
        let login = |name: &str| settings.credentials(&name.parse().unwrap()).unwrap();
        assert_eq!(login("ghcr.io/us/x").unwrap().password.as_deref(), Some("p"));
        assert_eq!(login("us/x"), None);
        assert_eq!(login("ghcr.io/them/x"), None, "a user's own name gets no login");
    }
}
