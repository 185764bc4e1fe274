//! The step that reaches the engine and looks for the job's image on this machine.

use std::time::Duration;

use muster_containers::docker_engine::ContainerEngine;
use muster_containers::images::FoundImage;
use muster_process::error::Causes;
use muster_protocol::image_reference::ImageName;
use muster_protocol::wire::muster::OfferExtension;
use tokio::time::timeout;

use super::job::PreparedImage;
use crate::attempt_state::AttemptFailure;
use crate::context::AttemptContext;
use crate::images;

/// How long a job waits until the containers of dead executors are removed.
const REAP_LIMIT: Duration = Duration::from_secs(30);

/// A job's image before anything is fetched.
#[derive(Debug)]
pub(crate) enum SoughtImage {
    /// The job names none yet.
    None,
    Here(Box<PreparedImage>),
    /// It has to be fetched from this registry.
    AtRegistry(String),
}

/// Connects to the engine and looks for the image, if one is named.
pub(crate) async fn prepare_image(
    context: AttemptContext,
    image: Option<String>,
    private: Option<OfferExtension>,
) -> Result<(ContainerEngine, SoughtImage), AttemptFailure> {
    let (config, clock) = (context.config(), context.clock());
    let engine = context
        .process
        .cache
        .engine(&config.engine, clock)
        .await
        .map_err(|error| images::engine_failed(&error))?;
    // Before the job's own container: a dead one may hold the memory or the GPU that it needs.
    match timeout(
        REAP_LIMIT,
        muster_containers::reap(&engine, &config.work_dir, clock.now()),
    )
    .await
    {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = %Causes(&error), "containers of dead executors were not removed");
        }
        Err(_) => tracing::warn!("removing containers of dead executors takes long; the job does not wait"),
    }
    let Some(name) = image else {
        return Ok((engine, SoughtImage::None));
    };
    let OfferExtension {
        image_archive,
        credentials,
        ..
    } = private.unwrap_or_default();
    if credentials.is_some()
        && let Ok(ImageName::Registry(reference)) = name.parse()
    {
        // The registry decides anew whether the login suffices, although the image may be here.
        return Ok((engine, SoughtImage::AtRegistry(reference.registry)));
    }
    let sought = match images::look(&engine, &config.images, &name, image_archive.as_ref(), clock).await? {
        FoundImage::Here(resolved) => SoughtImage::Here(Box::new(PreparedImage {
            name,
            resolved: *resolved,
        })),
        FoundImage::AtRegistry(registry) => SoughtImage::AtRegistry(registry),
    };
    Ok((engine, sought))
}
