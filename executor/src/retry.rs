//! What is tried again when the engine fails, and when: after 1, 2, 4, 8 and 16 seconds.

use std::time::Duration;

use muster_containers::EngineError;
use muster_containers::images::ImageError;
use muster_process::SharedClock;
use muster_process::error::Causes;

/// The pauses: long enough for an engine to be restarted, short enough for a job to wait.
pub(crate) const PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];

/// A failure that may be told from one that would only come again.
pub(crate) trait MayPass: std::error::Error + 'static {
    /// Whether the same request may well succeed in a while.
    fn may_pass(&self) -> bool;
}

impl MayPass for EngineError {
    fn may_pass(&self) -> bool {
        self.is_recoverable()
    }
}

impl MayPass for ImageError {
    fn may_pass(&self) -> bool {
        self.is_recoverable()
    }
}

/// Does something, again if it may help.
///
/// # Errors
/// One that waiting does not help, or the last.
pub(crate) async fn through<T, E, F>(
    clock: &SharedClock,
    doing: &'static str,
    mut attempt: impl FnMut() -> F,
) -> Result<T, E>
where
    E: MayPass,
    F: Future<Output = Result<T, E>>,
{
    for pause in PAUSES {
        match attempt().await {
            Err(error) if error.may_pass() => {
                tracing::warn!(error = %Causes(&error), ?pause, "cannot {doing}; trying again");
                clock.sleep(pause).await;
            }
            done => return done,
        }
    }
    attempt().await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
        let failed = through(&clock, "do it", || {
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
        let failed = through(&shared, "do it", || async { Err::<(), _>(refused(400, "no")) });
        assert!(failed.await.is_err());
    }
}
