//! Pulls an image through the engine: progress, the meaning of failures, and retries.

use std::collections::HashMap;
use std::sync::Arc;

use bollard::auth::DockerCredentials;
use bollard::errors::Error as ApiError;
use bollard::models::{CreateImageInfo, PushImageInfo};
use bollard::query_parameters::{CreateImageOptions, PushImageOptions, TagImageOptions};
use futures_util::{Stream, StreamExt};
use muster_process::SharedClock;
use muster_process::backoff::Backoff;
use muster_protocol::Timestamp;
use muster_protocol::wire::executor::LayerCount;
use tokio::sync::Mutex;

use crate::docker_engine::{ContainerEngine, EngineError, operation_failed};
use crate::engine_disk::watch_engine_disk;
use crate::image_settings::PullBounds;
use crate::pull_error::{PullError, make_safe};
use muster_protocol::image_reference::{ImageReference, Pin};

/// How far a pull has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullState {
    /// Bytes that have arrived, over all layers.
    pub done: u64,
    /// Bytes in all, as far as they are known; the number grows while layers begin.
    pub total: Option<u64>,
    /// The layers of the image.
    pub layers: LayerCount,
}

/// Called whenever a pull has come further.
pub type PullProgress = Arc<dyn Fn(PullState) + Send + Sync>;

/// The progress of a pull that nobody follows.
pub fn unwatched() -> PullProgress {
    Arc::new(|_| {})
}

/// Bytes that count as progress. A registry that drips single bytes makes none.
const PROGRESS_BYTES: u64 = 64 * 1024;

/// Pulls `reference`, with retries after failures that may be temporary. Dropping the future ends the pull; complete
/// layers stay with the engine for the next one. The bound on the time without progress spans the retries.
///
/// # Errors
/// The last failure.
pub async fn pull(
    engine: &ContainerEngine,
    reference: &ImageReference,
    credentials: Option<DockerCredentials>,
    bounds: PullBounds,
    progress: &PullProgress,
    clock: &SharedClock,
) -> Result<(), PullError> {
    let watch = Mutex::new(StallWatch::new(clock.now()));
    let filling = watch_engine_disk(engine, bounds, clock).await;
    let attempt = || async {
        let answers = engine.start_pull(reference, credentials.clone());
        let mut watch = watch.lock().await;
        drain(answers, reference, bounds, &mut watch, progress, clock).await
    };
    // Dropping a pull ends it: the engine removes the layers that were not complete.
    tokio::select! {
        biased;
        filled = filling => Err(filled.error(reference.to_string(), bounds)),
        outcome = Backoff::OUTAGE.retry(clock, "pull an image", attempt) => outcome,
    }
}

impl ContainerEngine {
    fn start_pull(
        &self,
        reference: &ImageReference,
        credentials: Option<DockerCredentials>,
    ) -> impl Stream<Item = Result<CreateImageInfo, ApiError>> + use<> {
        let options = CreateImageOptions {
            from_image: Some(reference.repository_name()),
            tag: Some(reference.pin.to_string()),
            ..CreateImageOptions::default()
        };
        self.docker().create_image(Some(options), None, credentials)
    }

    /// Gives an image another name: the repository of `target` with `tag`.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) async fn tag(
        &self,
        image: &str,
        target: &ImageReference,
        tag: &str,
    ) -> Result<(), EngineError> {
        let named = TagImageOptions {
            repo: Some(target.repository_name()),
            tag: Some(tag.to_owned()),
        };
        self.docker()
            .tag_image(image, Some(named))
            .await
            .map_err(operation_failed("name an image"))
    }

    /// Gives an image another name and pushes it to that name's registry.
    ///
    /// # Errors
    /// The engine or the registry failed.
    pub async fn push(
        &self,
        image: &str,
        target: &ImageReference,
        credentials: Option<DockerCredentials>,
    ) -> Result<(), EngineError> {
        let Pin::Tag(tag) = &target.pin else {
            return Err(EngineError::Incomplete("a tag to push to"));
        };
        let place = target.repository_name();
        self.tag(image, target, tag).await?;
        let options = PushImageOptions {
            tag: Some(tag.clone()),
            ..PushImageOptions::default()
        };
        let mut answers = Box::pin(self.docker().push_image(&place, Some(options), credentials));
        while let Some(answer) = answers.next().await {
            let PushImageInfo { error_detail, .. } = answer.map_err(operation_failed("push an image"))?;
            if let Some(detail) = error_detail {
                let error = detail.message.unwrap_or_default();
                return Err(operation_failed("push an image")(ApiError::DockerStreamError {
                    error,
                }));
            }
        }
        Ok(())
    }
}

async fn drain(
    answers: impl Stream<Item = Result<CreateImageInfo, ApiError>>,
    reference: &ImageReference,
    bounds: PullBounds,
    watch: &mut StallWatch,
    progress: &PullProgress,
    clock: &SharedClock,
) -> Result<(), PullError> {
    let mut answers = Box::pin(answers);
    let mut layers = LayerProgress::default();
    loop {
        let answer = tokio::select! {
            biased;
            answer = answers.next() => answer,
            () = clock.sleep_until(watch.grown_at.plus(bounds.stall)) => {
                let (image, stall) = (reference.to_string(), bounds.stall);
                return Err(PullError::Stalled { image, stall });
            }
        };
        match answer {
            None => return Ok(()),
            Some(Ok(info)) => {
                if let Some(detail) = &info.error_detail {
                    let words = detail.message.as_deref().unwrap_or("the engine gives no reason");
                    return Err(classify_failure(reference, None, words));
                }
                if layers.record(&info) {
                    let state = layers.state();
                    if state.total.is_some_and(|total| total > bounds.max_bytes) {
                        let (image, max_bytes) = (reference.to_string(), bounds.max_bytes);
                        return Err(PullError::TooLarge { image, max_bytes });
                    }
                    watch.record(layers.moved(), clock.now());
                    progress(state);
                }
            }
            Some(Err(ApiError::DockerResponseServerError { status_code, message })) => {
                return Err(classify_failure(reference, Some(status_code), &message));
            }
            Some(Err(error)) => return Err(classify_failure(reference, None, &error.to_string())),
        }
    }
}

/// Classifies a message. Registries and engines answer in prose; these phrases are the error codes of the distribution
/// protocol and of the kernel, which do not change between versions.
fn classify_failure(reference: &ImageReference, status: Option<u16>, words: &str) -> PullError {
    let image = reference.to_string();
    let lower = words.to_ascii_lowercase();
    let any = |phrases: &[&str]| phrases.iter().any(|phrase| lower.contains(phrase));
    let words = make_safe(words);
    if any(&["no space left on device", "disk quota exceeded"]) {
        PullError::DiskFull { image, words }
    } else if any(&[
        "verification failed",
        "digest mismatch",
        "does not match digest",
        "unexpected digest",
        "invalid checksum",
    ]) {
        PullError::BadDigest { image, words }
    } else if any(&[
        "no matching manifest",
        "does not match the specified platform",
        "cannot be used on this platform",
    ]) {
        PullError::WrongPlatform { image, words }
    } else if any(&[
        // moby distribution: a chart or another artifact.
        "unsupported media type",
        "encountered remote",
        "unsupported manifest format",
        // Docker before 23 at a layer of zstd.
        "invalid tar header",
        "unsupported compression",
    ]) {
        PullError::Unreadable { image, words }
    } else if any(&[
        "unauthorized",
        "access denied",
        "denied:",
        "authentication required",
        "no basic auth",
    ]) || matches!(status, Some(401 | 403))
    {
        PullError::Unauthorised { image, words }
    } else if any(&["manifest unknown", "name unknown", "repository does not exist"]) || status == Some(404) {
        PullError::NotFound { image, words }
    } else {
        PullError::Interrupted { image, words }
    }
}

/// The time of the last progress of a pull.
#[derive(Clone, Copy, Debug)]
struct StallWatch {
    moved: u64,
    grown_at: Timestamp,
}

impl StallWatch {
    fn new(now: Timestamp) -> Self {
        Self {
            moved: 0,
            grown_at: now,
        }
    }

    /// Notes how many bytes have been received and unpacked. A further try of a pull begins at 0 again, and counts once
    /// it has come further than the one before.
    fn record(&mut self, moved: u64, now: Timestamp) {
        if moved >= self.moved.saturating_add(PROGRESS_BYTES) {
            *self = Self { moved, grown_at: now };
        }
    }
}

/// The layers of an image that is being pulled.
#[derive(Default)]
struct LayerProgress(HashMap<String, Layer>);

/// One layer, in bytes.
#[derive(Clone, Copy, Default)]
struct Layer {
    received: u64,
    total: Option<u64>,
    unpacked: u64,
    done: bool,
}

impl LayerProgress {
    /// Upper bound on the number of layers that are counted; an image has at most 127.
    const MAX_LAYERS: usize = 1_024;

    /// Records a message of the engine; returns whether it was about a layer.
    fn record(&mut self, info: &CreateImageInfo) -> bool {
        let (Some(id), Some(status)) = (&info.id, &info.status) else {
            return false;
        };
        let about_layer = [
            "Pulling fs layer",
            "Waiting",
            "Downloading",
            "Verifying Checksum",
            "Download complete",
            "Extracting",
            "Pull complete",
            "Already exists",
        ];
        if !about_layer.contains(&status.as_str())
            || (self.0.len() >= Self::MAX_LAYERS && !self.0.contains_key(id))
        {
            return false;
        }
        let detail = info.progress_detail.as_ref();
        let number = |given: Option<i64>| given.and_then(|given| u64::try_from(given).ok());
        let current = number(detail.and_then(|detail| detail.current)).unwrap_or_default();
        let total = number(detail.and_then(|detail| detail.total)).filter(|total| *total > 0);
        let layer = self.0.entry(id.clone()).or_default();
        match status.as_str() {
            "Downloading" => {
                layer.received = current;
                layer.total = total.or(layer.total);
            }
            "Verifying Checksum" | "Download complete" => {
                layer.received = layer.total.unwrap_or(layer.received);
            }
            "Extracting" => layer.unpacked = current,
            "Pull complete" | "Already exists" => {
                layer.received = layer.total.unwrap_or(layer.received);
                layer.unpacked = layer.total.unwrap_or(layer.unpacked);
                layer.done = true;
            }
            _ => {}
        }
        true
    }

    /// The sums over all layers. The total is known once that of every layer that is not done is.
    fn state(&self) -> PullState {
        let layers = || self.0.values();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        PullState {
            done: layers().fold(0, |sum, layer| sum.saturating_add(layer.received)),
            total: layers().try_fold(0_u64, |sum, layer| {
                let total = layer.total.or(layer.done.then_some(0));
                total.map(|total| sum.saturating_add(total))
            }),
            layers: LayerCount {
                done: count(layers().filter(|layer| layer.done).count()),
                total: count(self.0.len()),
            },
        }
    }

    /// Everything that has happened, in bytes: received, unpacked, and an amount for each layer that is done, so that
    /// small layers count too.
    fn moved(&self) -> u64 {
        self.0.values().fold(0, |sum, layer| {
            let finished = if layer.done { PROGRESS_BYTES } else { 0 };
            sum.saturating_add(layer.received)
                .saturating_add(layer.unpacked)
                .saturating_add(finished)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bollard::models::ProgressDetail;

    use super::*;

    #[test]
    fn messages_of_registries_and_kernels_are_classified() {
        let reference = "ghcr.io/a/b:1".parse().unwrap();
        let kind = |status, words: &str| match classify_failure(&reference, status, words) {
            PullError::Unauthorised { .. } => "unauthorised",
            PullError::NotFound { .. } => "not found",
            PullError::BadDigest { .. } => "bad digest",
            PullError::DiskFull { .. } => "disk full",
            PullError::WrongPlatform { .. } => "wrong platform",
            PullError::Unreadable { .. } => "unreadable",
            PullError::TooLarge { .. } => "too large",
            PullError::NotPublic { .. } => "not public",
            PullError::OtherImage { .. } => "other image",
            PullError::Stalled { .. } => "stalled",
            PullError::Interrupted { .. } => "interrupted",
        };
        for (status, words, expected) in [
            (
                Some(500),
                "Get https://x/v2/: unauthorized: authentication required",
                "unauthorised",
            ),
            (
                Some(500),
                "Head \"https://x/v2/\": no basic auth credentials",
                "unauthorised",
            ),
            (
                Some(404),
                "pull access denied for a/b, repository does not exist or may require 'docker login': denied: requested",
                "unauthorised",
            ),
            (
                Some(404),
                "manifest for x:nope not found: manifest unknown: manifest unknown",
                "not found",
            ),
            (
                None,
                "no matching manifest for linux/amd64 in the manifest list entries",
                "wrong platform",
            ),
            (
                Some(400),
                "Encountered remote \"application/vnd.cncf.helm.config.v1+json\"(unknown) when fetching",
                "unreadable",
            ),
            (
                None,
                "filesystem layer verification failed for digest sha256:00",
                "bad digest",
            ),
            (
                None,
                "write /var/lib/docker/tmp/x: no space left on device",
                "disk full",
            ),
            (
                Some(500),
                "Get http://127.0.0.1:1/v2/: dial tcp 127.0.0.1:1: connect: connection refused",
                "interrupted",
            ),
            (None, "unexpected EOF", "interrupted"),
            (
                Some(500),
                "received unexpected HTTP status: 502 Bad Gateway",
                "interrupted",
            ),
            (Some(500), "toomanyrequests: rate exceeded", "interrupted"),
        ] {
            assert_eq!(kind(status, words), expected, "{words}");
        }
        let long = classify_failure(&reference, None, &"x".repeat(10_000));
        assert!(
            long.to_string().len() < 700,
            "the message is cut to a bounded length"
        );
        let hostile =
            classify_failure(&reference, None, "gone\u{1b}[2J\r\nerror: your disk is erased").to_string();
        assert!(!hostile.chars().any(char::is_control), "{hostile:?}");
    }

    fn info(id: &str, status: &str, current: Option<i64>, total: Option<i64>) -> CreateImageInfo {
        CreateImageInfo {
            id: Some(id.into()),
            status: Some(status.into()),
            progress_detail: Some(ProgressDetail { current, total }),
            error_detail: None,
        }
    }

    #[test]
    fn pull_progress_adds_up_bytes_and_layers() {
        let mut layers = LayerProgress::default();
        let state = |layers: &LayerProgress| {
            let PullState { done, total, layers } = layers.state();
            (done, total, layers.done, layers.total)
        };
        assert!(!layers.record(&info("x", "Status: Downloaded newer image", None, None)));
        assert!(layers.record(&info("a", "Pulling fs layer", None, None)));
        assert_eq!(state(&layers), (0, None, 0, 1));
        assert!(layers.record(&info("a", "Downloading", Some(3), Some(10))));
        assert_eq!(state(&layers), (3, Some(10), 0, 1));
        assert!(layers.record(&info("b", "Downloading", Some(5), None)));
        assert_eq!(state(&layers), (8, None, 0, 2));
        assert!(layers.record(&info("a", "Download complete", None, None)));
        assert!(layers.record(&info("a", "Pull complete", None, None)));
        assert!(layers.record(&info("c", "Already exists", None, None)));
        assert_eq!(state(&layers), (15, None, 2, 3));
        assert!(layers.record(&info("b", "Downloading", Some(-1), Some(-1))));
        for number in 0..2_000 {
            layers.record(&info(
                &number.to_string(),
                "Downloading",
                Some(i64::MAX),
                Some(i64::MAX),
            ));
        }
        assert!(layers.0.len() <= LayerProgress::MAX_LAYERS);
    }

    #[test]
    fn unpacking_and_small_layers_are_progress_and_single_bytes_are_none() {
        let at = Timestamp::from_secs;
        let (mut layers, mut watch) = (LayerProgress::default(), StallWatch::new(at(0)));
        let mut step = |info: &CreateImageInfo, now: i64| {
            layers.record(info);
            watch.record(layers.moved(), at(now));
            watch.grown_at == at(now)
        };
        assert!(step(&info("a", "Downloading", Some(1 << 20), Some(2 << 20)), 1));
        assert!(!step(
            &info("a", "Downloading", Some((1 << 20) + 1), Some(2 << 20)),
            2
        ));
        assert!(step(&info("a", "Download complete", None, None), 3));
        assert!(step(&info("a", "Extracting", Some(1 << 20), Some(2 << 20)), 4));
        assert!(!step(&info("b", "Downloading", Some(10), Some(20)), 5));
        assert!(step(&info("b", "Pull complete", None, None), 6));
    }

    /// A registry that stops in the middle of a layer, and one that answers with an image that is too large.
    #[tokio::test(start_paused = true)]
    async fn a_pull_that_stands_still_ends_and_so_does_one_that_is_too_large() {
        let clock: SharedClock = Arc::new(muster_process::clock::TokioClock::new(Timestamp::from_secs(0)));
        let reference: ImageReference = "ghcr.io/a/b:1".parse().unwrap();
        let bounds = PullBounds {
            stall: Duration::from_secs(120),
            max_bytes: 1 << 30,
            max_unpacked: u64::MAX,
            reserve: 0,
        };
        let drained = async |total: i64| {
            let first = info("a", "Downloading", Some(1 << 20), Some(total));
            let answers = futures_util::stream::iter([Ok(first)]).chain(futures_util::stream::pending());
            let mut watch = StallWatch::new(clock.now());
            drain(answers, &reference, bounds, &mut watch, &unwatched(), &clock).await
        };
        let began = clock.now();
        let stalled = drained(2 << 20).await;
        assert!(matches!(stalled, Err(PullError::Stalled { .. })), "{stalled:?}");
        assert_eq!(clock.now().since(began), bounds.stall);
        let large = drained(2 << 30).await;
        assert!(matches!(large, Err(PullError::TooLarge { .. })), "{large:?}");
    }
}
