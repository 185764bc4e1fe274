//! Images that a job gets with its user's own login at a registry: asked for at the registry each time, and kept
//! without the name that other users' jobs could use.

use bollard::query_parameters::TagImageOptions;
use muster_process::SharedClock;
use muster_protocol::ImageId;
use muster_protocol::job::RegistryCredentials;
use uuid::Uuid;

use crate::credentials::RegistryLogin;
use crate::docker_engine::{ContainerEngine, EngineError, operation_failed};
use crate::image_error::ImageError;
use crate::image_pull::{PullProgress, pull};
use crate::image_settings::ImageSettings;
use crate::images::{LeasedImage, check_compression, find_manifest, lease_image};
use crate::pull_error::PullError;
use crate::registry_check;
use muster_protocol::image_reference::{ImageName, ImageReference, Pin};

/// The beginning of the names that keep private images with the engine. The rest is random, so no job can name one.
const KEPT: &str = "muster.invalid/private/";

/// How often an image is pulled whose name another executor takes away before it is leased.
const MAX_PULLS: usize = 5;

/// Pulls the image `name` with a user's credentials, whether or not the engine has it: the registry decides each time
/// whether they suffice. Layers that the engine has are not transferred again. Afterwards the engine knows the image by
/// its id and by a random name only.
///
/// # Errors
/// The image cannot be had; [`ImageError::fault`] returns the party at fault.
pub async fn pull_private(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    name: &str,
    credentials: &RegistryCredentials,
    progress: &PullProgress,
    clock: &SharedClock,
) -> Result<LeasedImage, ImageError> {
    let wanted: ImageName = name.parse()?;
    let label = wanted.to_string();
    let reference = match &wanted {
        ImageName::Registry(reference) if settings.pull => reference,
        ImageName::Registry(_) | ImageName::Id(_) => return Err(ImageError::Missing(label)),
    };
    let login = RegistryLogin {
        username: credentials.username.clone(),
        password: credentials.password.clone(),
    };
    tracing::info!(image = label, "pulling an image with its user's login");
    for _ in 0..MAX_PULLS {
        let login = login.to_docker(&reference.registry);
        let bounds = settings.pull_bounds();
        let resolved = registry_check::resolve(settings, reference, Some(&login), bounds, clock).await?;
        check_compression(engine, resolved.as_ref(), &label)?;
        // By digest: a tag would take the name away from an image of the operator's.
        let pinned = resolved.map(|registry| reference.with_pin(Pin::Digest(registry.digest)));
        let reference = pinned.as_ref().unwrap_or(reference);
        pull(engine, reference, Some(login), bounds, progress, clock).await?;
        let Some(image) = engine.find_image(&reference.to_string()).await? else {
            continue;
        };
        if image.size > bounds.max_unpacked {
            engine.remove_tag(&reference.to_string()).await?;
            let max_bytes = bounds.max_unpacked;
            return Err(PullError::TooLarge {
                image: label,
                max_bytes,
            }
            .into());
        }
        let manifest = find_manifest(&image, &ImageName::Registry(reference.clone()));
        let kept = keep(engine, image.id).await?;
        let lease = lease_image(settings, image.id, kept, clock).await?;
        forget_names(engine, image.id, reference).await?;
        if let Some(image) = engine.find_image(&image.id.to_string()).await? {
            return Ok(LeasedImage {
                image,
                manifest,
                lease,
            });
        }
    }
    let words = "other executors removed the image as soon as it had arrived".to_owned();
    Err(ImageError::Pull(PullError::Interrupted { image: label, words }))
}

/// Removes the names of an image under the repository of `reference`: the digest, and the tag if it was pulled by that.
async fn forget_names(
    engine: &ContainerEngine,
    image: ImageId,
    reference: &ImageReference,
) -> Result<(), EngineError> {
    let known = engine.find_image(&image.to_string()).await?;
    let digests = known.map(|image| image.manifests).unwrap_or_default();
    let names = engine.list_tags(image).await?.into_iter().chain(digests);
    let repository = reference.repository_name();
    for name in names {
        let parsed = name.parse::<ImageReference>();
        let ours = parsed.is_ok_and(|name| match name.pin {
            Pin::Digest(_) => name.repository_name() == repository,
            Pin::Tag(_) => name == *reference,
        });
        if ours {
            engine.remove_tag(&name).await?;
        }
    }
    Ok(())
}

/// Gives an image a random name, unless it has one: an engine removes an image with its last name.
async fn keep(engine: &ContainerEngine, image: ImageId) -> Result<String, EngineError> {
    let tags = engine.list_tags(image).await?;
    if let Some(kept) = tags.into_iter().find(|tag| tag.starts_with(KEPT)) {
        return Ok(kept);
    }
    let repository = format!("{KEPT}{}", Uuid::new_v4().simple());
    let named = TagImageOptions {
        repo: Some(repository.clone()),
        tag: Some("1".to_owned()),
    };
    engine
        .docker()
        .tag_image(&image.to_string(), Some(named))
        .await
        .map_err(operation_failed("name an image"))?;
    Ok(format!("{repository}:1"))
}
