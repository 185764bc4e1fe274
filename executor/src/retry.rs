//! Repeats a request that may succeed later, after 1, 2, 4, 8 and 16 seconds.

use muster_containers::EngineError;
use muster_containers::images::ImageError;
use muster_process::error::Causes;
use muster_process::{Backoff, SharedClock};

/// An error that says whether it may pass by itself.
pub(crate) trait Retryable: std::error::Error + 'static {
    /// Whether the same request may succeed after a pause.
    fn is_retryable(&self) -> bool;
}

impl Retryable for EngineError {
    fn is_retryable(&self) -> bool {
        self.is_recoverable()
    }
}

impl Retryable for ImageError {
    fn is_retryable(&self) -> bool {
        self.is_recoverable()
    }
}

/// Runs `attempt`, and again after each pause for as long as its error is retryable. `doing` completes "cannot …" in
/// the log.
///
/// # Errors
/// The first error that is not retryable, or the last error.
pub(crate) async fn retry<T, E, F>(
    clock: &SharedClock,
    doing: &'static str,
    mut attempt: impl FnMut() -> F,
) -> Result<T, E>
where
    E: Retryable,
    F: Future<Output = Result<T, E>>,
{
    for pause in Backoff::OUTAGE.pauses(Backoff::OUTAGE_RETRIES) {
        match attempt().await {
            Err(error) if error.is_retryable() => {
                tracing::warn!(error = %Causes(&error), ?pause, "cannot {doing}; trying again");
                clock.sleep(pause).await;
            }
            result => return result,
        }
    }
    attempt().await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use bollard::errors::Error as ApiError;
    use muster_process::TestClock;
    use muster_process::clock::TokioClock;
    use muster_protocol::Timestamp;

    use super::*;

    fn refused(status_code: u16, message: &str) -> EngineError {
        EngineError::Failed {
            operation: "do it",
            source: ApiError::DockerResponseServerError {
                status_code,
                message: message.to_owned(),
            },
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_pauses_are_1_2_4_8_16_seconds() {
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::from_secs(0)));
        let (start, tries) = (clock.now(), AtomicUsize::new(0));
        let failed = retry(&clock, "do it", || {
            tries.fetch_add(1, Ordering::Relaxed);
            async { Err::<(), _>(refused(503, "busy")) }
        });
        assert!(failed.await.is_err());
        assert_eq!(tries.load(Ordering::Relaxed), 6);
        assert_eq!(clock.now().since(start), Duration::from_secs(31));
    }

    #[tokio::test]
    async fn a_refusal_is_not_repeated() {
        let shared: SharedClock = Arc::new(TestClock::default());
        let failed = retry(&shared, "do it", || async { Err::<(), _>(refused(400, "no")) });
        assert!(failed.await.is_err());
    }
}
