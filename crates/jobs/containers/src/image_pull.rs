//! Pulls an image through the engine: progress, the meaning of failures, and retries.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bollard::auth::DockerCredentials;
use bollard::errors::Error as ApiError;
use bollard::models::{CreateImageInfo, PushImageInfo};
use bollard::query_parameters::{CreateImageOptions, PushImageOptions, TagImageOptions};
use futures_util::{Stream, StreamExt};
use muster_process::SharedClock;
use muster_process::backoff::Backoff;

use crate::engine::{ContainerEngine, EngineError, operation_failed};
use crate::image_reference::{ImageReference, Pin};

/// Called whenever bytes arrive, with the bytes received and the total as far as it is known.
pub type PullProgress = Arc<dyn Fn(u64, Option<u64>) + Send + Sync>;

/// A pull without any message for this long counts as dead. The engine itself waits up to half a minute between two
/// attempts at a layer.
const SILENCE: Duration = Duration::from_secs(180);

/// The reason for which a pull failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The registry refuses this executor.
    #[error(
        "the registry refuses to give {image} to this executor ({words}); its operator must add or correct the registry's credentials, or the user must choose a public image"
    )]
    Unauthorised {
        /// The image's name as the job gave it.
        image: String,
        /// The registry's message, cut to a bounded length.
        words: String,
    },
    /// The registry has no such image.
    #[error(
        "the registry has no {image} for this machine ({words}); the user must check name, tag and platform"
    )]
    NotFound {
        /// The image's name as the job gave it.
        image: String,
        /// The registry's message, cut to a bounded length.
        words: String,
    },
    /// The content does not match its digest.
    #[error("the registry sent content for {image} that does not match its digest ({words})")]
    BadDigest {
        /// The image's name as the job gave it.
        image: String,
        /// The engine's message, cut to a bounded length.
        words: String,
    },
    /// The engine's disk is full.
    #[error("the engine's disk has no room for {image} ({words}); its operator must free some")]
    DiskFull {
        /// The image's name as the job gave it.
        image: String,
        /// The engine's message, cut to a bounded length.
        words: String,
    },
    /// A failure that may be temporary: the network, the registry or the engine.
    #[error("{image} could not be pulled ({words})")]
    Interrupted {
        /// The image's name as the job gave it.
        image: String,
        /// The message of the registry or the engine, cut to a bounded length.
        words: String,
    },
}

impl PullError {
    /// Whether a retry may help.
    pub const fn is_recoverable(&self) -> bool {
        match self {
            Self::Interrupted { .. } => true,
            Self::Unauthorised { .. }
            | Self::NotFound { .. }
            | Self::BadDigest { .. }
            | Self::DiskFull { .. } => false,
        }
    }
}

/// Pulls `reference`, with retries after failures that may be temporary. Dropping the future ends the pull; complete
/// layers stay with the engine for the next one.
///
/// # Errors
/// The last failure.
pub async fn pull(
    engine: &ContainerEngine,
    reference: &ImageReference,
    credentials: Option<DockerCredentials>,
    progress: &PullProgress,
    clock: &SharedClock,
) -> Result<(), PullError> {
    let mut pauses = Backoff::OUTAGE.pauses(Backoff::OUTAGE_RETRIES);
    loop {
        let answers = engine.start_pull(reference, credentials.clone());
        let error = match drain(answers, reference, progress, clock).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let Some(pause) = pauses.next().filter(|_| error.is_recoverable()) else {
            return Err(error);
        };
        tracing::warn!(%error, ?pause, "cannot pull an image; retrying");
        clock.sleep(pause).await;
    }
}

impl ContainerEngine {
    fn start_pull(
        &self,
        reference: &ImageReference,
        credentials: Option<DockerCredentials>,
    ) -> impl Stream<Item = Result<CreateImageInfo, ApiError>> + use<> {
        let tag = match &reference.pin {
            Pin::Tag(tag) => tag.clone(),
            Pin::Digest(digest) => digest.to_string(),
        };
        let options = CreateImageOptions {
            from_image: Some(reference.repository_name()),
            tag: Some(tag),
            ..CreateImageOptions::default()
        };
        self.docker().create_image(Some(options), None, credentials)
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
        let named = TagImageOptions {
            repo: Some(place.clone()),
            tag: Some(tag.clone()),
        };
        self.docker()
            .tag_image(image, Some(named))
            .await
            .map_err(operation_failed("name an image"))?;
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
    progress: &PullProgress,
    clock: &SharedClock,
) -> Result<(), PullError> {
    let mut answers = Box::pin(answers);
    let mut layers = LayerProgress::default();
    loop {
        let answer = tokio::select! {
            biased;
            answer = answers.next() => answer,
            () = clock.sleep(SILENCE) => {
                return Err(classify_failure(reference, None, "the engine reported no progress for three minutes"));
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
                    let (done, total) = layers.sum();
                    progress(done, total);
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
    let said = words.to_ascii_lowercase();
    let any = |phrases: &[&str]| phrases.iter().any(|phrase| said.contains(phrase));
    let words: String = words.trim().chars().take(500).collect();
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
        "unauthorized",
        "access denied",
        "denied:",
        "authentication required",
        "no basic auth",
    ]) || matches!(status, Some(401 | 403))
    {
        PullError::Unauthorised { image, words }
    } else if any(&[
        "manifest unknown",
        "name unknown",
        "no matching manifest",
        "repository does not exist",
    ]) || status == Some(404)
    {
        PullError::NotFound { image, words }
    } else {
        PullError::Interrupted { image, words }
    }
}

/// Bytes received and total of each layer in transit.
#[derive(Default)]
struct LayerProgress(HashMap<String, (u64, Option<u64>)>);

impl LayerProgress {
    /// Upper bound on the number of layers that are counted; an image has at most 127.
    const MAX_LAYERS: usize = 1_024;

    /// Records a message of the engine; returns whether it was about bytes.
    fn record(&mut self, info: &CreateImageInfo) -> bool {
        let (Some(layer), Some(status)) = (&info.id, &info.status) else {
            return false;
        };
        let detail = info.progress_detail.as_ref();
        let number = |given: Option<i64>| given.and_then(|given| u64::try_from(given).ok());
        match status.as_str() {
            "Downloading" if self.0.len() < Self::MAX_LAYERS || self.0.contains_key(layer) => {
                let current = number(detail.and_then(|detail| detail.current)).unwrap_or_default();
                let total = number(detail.and_then(|detail| detail.total));
                self.0.insert(layer.clone(), (current, total));
                true
            }
            "Download complete" | "Pull complete" => match self.0.get_mut(layer) {
                Some((current, Some(total))) => {
                    *current = *total;
                    true
                }
                Some((_, None)) | None => false,
            },
            _ => false,
        }
    }

    /// The sums over all layers. The total grows while layers begin.
    fn sum(&self) -> (u64, Option<u64>) {
        let done = self
            .0
            .values()
            .fold(0_u64, |sum, (done, _)| sum.saturating_add(*done));
        let total = self.0.values().try_fold(0_u64, |sum, (_, total)| {
            total.map(|total| sum.saturating_add(total))
        });
        (done, total)
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    #[test]
    fn words_of_registries_and_kernels_are_understood() {
        let reference = "ghcr.io/a/b:1".parse().unwrap();
        let kind = |status, words: &str| match classify_failure(&reference, status, words) {
            PullError::Unauthorised { .. } => "unauthorised",
            PullError::NotFound { .. } => "not found",
            PullError::BadDigest { .. } => "bad digest",
            PullError::DiskFull { .. } => "disk full",
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
                "not found",
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
    }

    #[test]
    fn bytes_of_all_layers_are_added_up() {
        let info = |id: &str, status: &str, current, total| CreateImageInfo {
            id: Some(id.into()),
            status: Some(status.into()),
            progress_detail: Some(ProgressDetail { current, total }),
            error_detail: None,
        };
        let mut layers = LayerProgress::default();
        assert!(!layers.record(&info("a", "Pulling fs layer", None, None)));
        assert!(layers.record(&info("a", "Downloading", Some(3), Some(10))));
        assert_eq!(layers.sum(), (3, Some(10)));
        assert!(layers.record(&info("b", "Downloading", Some(5), None)));
        assert_eq!(layers.sum(), (8, None));
        assert!(layers.record(&info("a", "Download complete", None, None)));
        assert!(
            !layers.record(&info("c", "Pull complete", None, None)),
            "a layer that was present already"
        );
        assert_eq!(layers.sum(), (15, None));
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
}
