//! Images of this machine: fetching those that jobs and sessions need, and removing unused ones.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_containers::docker_engine::{ContainerEngine, EngineError};
use muster_containers::engine_answer::AnswerFault;
use muster_containers::image_cache::collect_if_due;
use muster_containers::image_error::ImageError;
use muster_containers::image_leases::Lease;
use muster_containers::image_pull::{PullProgress, unwatched};
use muster_containers::image_settings::ImageSettings;
use muster_containers::images::{FoundImage, LeasedImage, ensure, find};
use muster_containers::pull_error::PullError;
use muster_process::backoff::{Backoff, random_jitter};
use muster_process::error::Causes;
use muster_process::{Coded, SharedClock};
use muster_protocol::job::{ArchiveSource, Fault};
use muster_protocol::wire::muster::ListedImage;
use muster_protocol::{HordeFailureReason, ImageId, JobStage};

use crate::attempt_state::AttemptFailure;
use crate::config::Config;
use crate::engine_cache::EngineCache;

/// How often the executors of a machine look for images to remove.
pub(crate) const COLLECT_EVERY: Duration = Duration::from_secs(600);

/// Gets an image ready: from the engine, an archive or its registry.
///
/// # Errors
/// The image cannot be had. The failure names the party at fault and the mend.
pub(crate) async fn prepare(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    name: &str,
    progress: &PullProgress,
    clock: &SharedClock,
) -> Result<LeasedImage, AttemptFailure> {
    let attempt = || ensure(engine, settings, name, progress, clock);
    let resolved = Backoff::OUTAGE.retry(clock, "get an image", attempt).await;
    resolved.map_err(|error| image_failed(&error))
}

/// Looks for an image on this machine. `archive` is the user's own that holds it, if one does.
///
/// # Errors
/// The text names no image that could be had, or the engine failed.
pub(crate) async fn look(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    name: &str,
    archive: Option<&ArchiveSource>,
    clock: &SharedClock,
) -> Result<FoundImage, AttemptFailure> {
    let attempt = || find(engine, settings, name, clock);
    match (
        Backoff::OUTAGE.retry(clock, "look for an image", attempt).await,
        archive,
    ) {
        (Ok(found), _) => Ok(found),
        // Fetches from one host share its bound, whether it is a registry or a store of files.
        (Err(ImageError::Missing(_)), Some(archive)) => Ok(FoundImage::AtRegistry(host_of(&archive.url))),
        (Err(error), _) => Err(image_failed(&error)),
    }
}

/// The failure of a job whose image is gone although its container was made of it.
pub(crate) fn image_gone(id: &str) -> AttemptFailure {
    let message = format!("the image {id} of the running job is gone");
    AttemptFailure::horde(HordeFailureReason::GenericError, JobStage::Execution, message)
}

/// The host of a URL; empty for a text that is none, which the fetch refuses later.
fn host_of(url: &str) -> String {
    let parsed = url.parse::<http::Uri>().ok();
    parsed
        .as_ref()
        .and_then(http::Uri::host)
        .unwrap_or_default()
        .to_owned()
}

/// The failure of an attempt whose image cannot be had.
pub(crate) fn image_failed(error: &ImageError) -> AttemptFailure {
    if let ImageError::Engine(error) = error {
        return engine_failed(error);
    }
    let message = Causes(error).to_string();
    if let Some(failure) = error.fetch_failure() {
        return AttemptFailure::image(failure, message);
    }
    let reason = match error.fault() {
        Fault::User => HordeFailureReason::GenericError,
        Fault::Nobody
        | Fault::Executor
        | Fault::Miner
        | Fault::Validator
        | Fault::Facilitator
        | Fault::Network => HordeFailureReason::ExecutorSpinupFailed,
    };
    let failure = AttemptFailure::horde(reason, JobStage::ExecutorStartup, message).blame(error.fault());
    AttemptFailure {
        code: error.code(),
        ..failure
    }
}

/// An image that is kept because a validator lists it.
#[derive(Debug)]
pub(crate) struct KeptImage {
    _lease: Lease,
    /// The number of its validator.
    share: Option<u32>,
    /// The bytes that the image takes unpacked.
    size: u64,
}

/// The bytes that one validator's images may still take.
fn room_left(kept: &BTreeMap<ImageId, KeptImage>, share: Option<u32>, limit: u64) -> u64 {
    let own = kept.values().filter(|image| image.share == share);
    let taken = own.fold(0_u64, |sum, image| sum.saturating_add(image.size));
    limit.saturating_sub(taken)
}

/// Fetches the images that validators may want sessions of, keeps their leases in `held`, and drops the leases of
/// images that are no longer listed. Each validator's images have a bound of their own. An image that cannot be fetched
/// is logged and tried again in the next round; a session of it tries again too. Returns whether a round after a short
/// pause may succeed: the engine, the registry or the network failed.
pub(crate) async fn fetch_listed(
    config: &Config,
    cache: &EngineCache,
    clock: &SharedClock,
    wanted: Vec<ListedImage>,
    held: &mut BTreeMap<ImageId, KeptImage>,
) -> bool {
    let mut retry_soon = false;
    held.retain(|image, kept| {
        let listed = wanted.iter().find(|listed| listed.image == *image);
        if let Some(listed) = listed {
            // The miner numbers validators anew when one of them goes.
            kept.share = listed.share;
        }
        listed.is_some()
    });
    let limit = config.images.listed_mib.saturating_mul(1 << 20);
    for listed in wanted {
        if held.contains_key(&listed.image) {
            continue;
        }
        let engine = match cache.engine(&config.engine, clock).await {
            Ok(engine) => engine,
            Err(error) => {
                tracing::warn!(error = %Causes(&error), "whitelisted images were not fetched");
                return true;
            }
        };
        let room = room_left(held, listed.share, limit);
        match fetch(&engine, &config.images.within(room), &listed, clock).await {
            Ok(found) if found.image.size > room => {
                let (image, model) = (listed.image, &listed.model);
                tracing::warn!(%image, model, "a whitelisted image is not kept: its validator's images take too much");
            }
            Ok(found) => {
                tracing::info!(image = %listed.image, model = listed.model, "fetched a whitelisted image");
                let kept = KeptImage {
                    share: listed.share,
                    size: found.image.size,
                    _lease: found.lease,
                };
                held.insert(listed.image, kept);
            }
            Err(FetchError { why, temporary }) => {
                tracing::warn!(image = %listed.image, model = listed.model, why, "a whitelisted image was not fetched");
                retry_soon |= temporary;
            }
        }
    }
    measure_kept(held);
    retry_soon
}

/// The pauses after rounds in which an image was not fetched for a reason that passes.
const AFTER_FAILURE: Backoff = Backoff {
    base: Duration::from_secs(10),
    max: COLLECT_EVERY,
};

/// The pause before the next round. `failed_rounds` counts the rounds in a row that may succeed after a short pause.
pub(crate) fn pause_between_rounds(retry_soon: bool, failed_rounds: &mut u32) -> Duration {
    if !retry_soon {
        *failed_rounds = 0;
        return COLLECT_EVERY;
    }
    let pause = AFTER_FAILURE.delay(*failed_rounds, random_jitter());
    *failed_rounds = failed_rounds.saturating_add(1);
    pause
}

/// The reason for which a listed image was not fetched.
#[derive(Debug)]
struct FetchError {
    why: String,
    /// Whether the same request may succeed soon.
    temporary: bool,
}

impl FetchError {
    fn new(error: &ImageError) -> Self {
        let temporary = match error {
            ImageError::Engine(error) => error.is_recoverable(),
            ImageError::Pull(PullError::Stalled { .. }) => true,
            ImageError::Pull(error) => error.is_recoverable(),
            ImageError::Name(_)
            | ImageError::Missing(_)
            | ImageError::ManifestStore(_)
            | ImageError::Credentials(_)
            | ImageError::Lease(_)
            | ImageError::UserArchive(_)
            | ImageError::Interrupted(_) => false,
        };
        let why = Causes(error).to_string();
        Self { why, temporary }
    }
}

/// Sets the metrics of the images that are kept for validators.
#[expect(clippy::cast_precision_loss, reason = "a metric is a float")]
fn measure_kept(held: &BTreeMap<ImageId, KeptImage>) {
    let bytes = held
        .values()
        .fold(0_u64, |sum, image| sum.saturating_add(image.size));
    metrics::gauge!("muster_executor_images_kept").set(held.len() as f64);
    metrics::gauge!("muster_executor_images_kept_bytes").set(bytes as f64);
}

/// Fetches an image by its content, or by its name if that leads to the same content.
async fn fetch(
    engine: &ContainerEngine,
    settings: &ImageSettings,
    listed: &ListedImage,
    clock: &SharedClock,
) -> Result<LeasedImage, FetchError> {
    let unwatched = unwatched();
    let by_content = ensure(engine, settings, &listed.image.to_string(), &unwatched, clock).await;
    let mut failure = match by_content {
        Ok(found) => return Ok(found),
        Err(error) => FetchError::new(&error),
    };
    if let Some(name) = &listed.reference {
        failure = match ensure(engine, settings, name, &unwatched, clock).await {
            Ok(found) if found.image.id == listed.image => return Ok(found),
            Ok(found) => FetchError {
                why: format!("{name} now names the image {}", found.image.id),
                temporary: false,
            },
            Err(error) => FetchError::new(&error),
        };
    }
    Err(failure)
}

/// Removes images that no executor of this machine has used for long, if [`COLLECT_EVERY`] has passed.
pub(crate) async fn collect(config: &Config, cache: &EngineCache, clock: &SharedClock) {
    let Some(engine) = cache.last_engine() else {
        return;
    };
    if let Err(error) = collect_if_due(&engine, &config.images, COLLECT_EVERY, clock).await {
        tracing::warn!(error = %Causes(&error), "unused images were not removed");
    }
}

/// The failure of an engine that fails before a job runs. Its answer to the creation or the start of a container may
/// show that the job's image is at fault.
pub(crate) fn engine_failed(error: &EngineError) -> AttemptFailure {
    let machine = |message: String| {
        AttemptFailure::horde(
            HordeFailureReason::ExecutorSpinupFailed,
            JobStage::ExecutorStartup,
            message,
        )
    };
    let Some(answer) = error.answer() else {
        return AttemptFailure {
            code: error.code(),
            ..machine(Causes(error).to_string())
        };
    };
    tracing::warn!(error = %Causes(error), fault = ?answer.fault, "the engine made no container of a job");
    match answer.fault {
        AnswerFault::Image | AnswerFault::User => AttemptFailure::broken_image(&answer.message),
        AnswerFault::Machine | AnswerFault::Unknown => machine(format!("{error}: {}", answer.message)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_process::SystemClock;
    use muster_protocol::Digest;

    use super::*;

    #[test]
    fn an_image_that_a_passing_failure_withheld_is_fetched_within_seconds() {
        let unreachable = || PullError::Interrupted {
            image: "x:1".to_owned(),
            words: "connection refused".to_owned(),
        };
        assert!(FetchError::new(&unreachable().into()).temporary);
        let too_large = PullError::TooLarge {
            image: "x:1".to_owned(),
            max_bytes: 1,
        };
        assert!(!FetchError::new(&too_large.into()).temporary);
        let mut failed = 0;
        let pauses: Vec<_> = (0..9).map(|_| pause_between_rounds(true, &mut failed)).collect();
        assert!(pauses[0] <= Duration::from_secs(10), "{pauses:?}");
        assert!(pauses[8] >= COLLECT_EVERY / 2, "{pauses:?}");
        assert_eq!(pause_between_rounds(false, &mut failed), COLLECT_EVERY);
        assert!(pause_between_rounds(true, &mut failed) <= Duration::from_secs(10));
    }

    #[test]
    fn each_validators_images_have_room_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let clock: SharedClock = Arc::new(SystemClock::new());
        let kept = [
            (1, Some(0), 60),
            (2, Some(0), 30),
            (3, Some(1), 10),
            (4, None, 100),
        ];
        let kept: BTreeMap<_, _> = kept
            .into_iter()
            .map(|(number, share, size)| {
                let id = ImageId(Digest::of(&[number]));
                let _lease = Lease::take(folder.path(), id, "x", &clock).unwrap();
                (id, KeptImage { _lease, share, size })
            })
            .collect();
        let left = |share| room_left(&kept, share, 100);
        assert_eq!(
            [left(Some(0)), left(Some(1)), left(Some(2)), left(None)],
            [10, 90, 100, 0]
        );
    }
}
