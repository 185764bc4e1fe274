//! The step that fetches the job's image.

use muster_containers::docker_engine::ContainerEngine;
use muster_containers::private_pull::pull_private;
use muster_protocol::wire::muster::OfferExtension;

use super::job::PreparedImage;
use crate::attempt_state::AttemptFailure;
use crate::context::AttemptContext;
use crate::{images, user_archives};

/// Fetches an image that is not on this machine, or that its registry must allow anew: from its user's archive, with
/// its user's login, or as anyone may.
pub(crate) async fn fetch_image(
    context: AttemptContext,
    engine: &ContainerEngine,
    name: String,
    private: Option<OfferExtension>,
) -> Result<Box<PreparedImage>, AttemptFailure> {
    let (progress, clock) = (context.live.image_progress_sink(), context.clock());
    let settings = &context.config().images;
    let OfferExtension {
        image_archive,
        credentials,
        ..
    } = private.unwrap_or_default();
    let resolved = match (image_archive, credentials) {
        (Some(source), _) => user_archives::prepare(&context, engine, &name, &source).await?,
        (None, Some(login)) => pull_private(engine, settings, &name, &login, &progress, clock)
            .await
            .map_err(|error| images::image_failed(&error))?,
        (None, None) => images::prepare(engine, settings, &name, &progress, clock).await?,
    };
    Ok(Box::new(PreparedImage { name, resolved }))
}
