//! Decides when a transfer is retried after a temporary failure, and waits until then.

use std::time::Duration;

use muster_process::Backoff;
use reqwest::StatusCode;
use tokio::time::sleep;

use crate::error::HttpError;
use crate::job_url::Target;

/// Upper bound on the number of tries, against a server that sends a little in each.
const MOST_TRIES: u32 = 64;
/// Number of new bytes in one try that restarts the schedule of pauses.
pub(crate) const PROGRESS: u64 = 1 << 20;

/// The timeouts and pauses of a transfer. Jobs get the defaults; tests use shorter ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The pause before the first retry; each later pause is twice as long.
    pub first_pause: Duration,
    /// Timeout from a request to the head of its answer.
    pub head: Duration,
    /// Span in which a download must receive at least 32 KiB and an upload must send something.
    pub stall: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_secs(1),
            head: Duration::from_secs(30),
            stall: Duration::from_secs(30),
        }
    }
}

/// The failure of one try.
#[derive(Debug)]
pub(crate) enum TryFailure {
    /// A retry may help.
    Retryable {
        what: String,
        /// The least pause that the server wants.
        asked: Option<Duration>,
    },
    /// A retry will not help.
    Final(HttpError),
}

impl From<HttpError> for TryFailure {
    fn from(error: HttpError) -> Self {
        Self::Final(error)
    }
}

/// A failure that a retry may help. `what` completes "the server: ".
pub(crate) fn retryable(what: impl Into<String>) -> TryFailure {
    TryFailure::Retryable {
        what: what.into(),
        asked: None,
    }
}

/// The schedule of retries of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retries {
    backoff: Backoff,
    step: u32,
    tries: u32,
}

impl Retries {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            backoff: Backoff {
                base: pace.first_pause,
                max: pace.first_pause.saturating_mul(16),
            },
            step: 0,
            tries: 0,
        }
    }

    /// Waits until the next try of the request to `target`, which has failed.
    ///
    /// # Errors
    /// A retry will not help, or that was the last try.
    pub(crate) async fn wait(&mut self, target: &Target, failure: TryFailure) -> Result<(), HttpError> {
        let (what, asked) = match failure {
            TryFailure::Retryable { what, asked } => (what, asked),
            TryFailure::Final(error) => return Err(error),
        };
        let Some(pause) = self.pause(asked) else {
            return Err(HttpError::Unreachable {
                shown: target.shown(),
                what,
                tries: self.tries.saturating_add(1),
            });
        };
        tracing::info!(what, ?pause, "a transfer failed; retrying");
        sleep(pause).await;
        Ok(())
    }

    /// The pause before the next try, at least as long as the server asked for; `None` after the last try.
    fn pause(&mut self, asked: Option<Duration>) -> Option<Duration> {
        if self.step >= Backoff::OUTAGE_RETRIES {
            return None;
        }
        let pause = self.backoff.full_delay(self.step);
        self.step += 1;
        self.tries += 1;
        (self.tries < MOST_TRIES).then(|| asked.map_or(pause, |asked| pause.max(asked)))
    }

    /// Restarts the schedule, because the last try made progress.
    pub(crate) fn restart(&mut self) {
        self.step = 0;
    }
}

/// Whether a status means a temporary failure.
pub(crate) fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_pauses_that_double_and_then_no_more() {
        let mut retries = Retries::new(Pace::default());
        let pauses: Vec<_> = std::iter::from_fn(|| retries.pause(None))
            .map(|pause| pause.as_secs())
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16]);
        assert_eq!(retries.tries, 5);
    }

    #[test]
    fn a_server_may_ask_for_more_time_but_not_less() {
        let mut retries = Retries::new(Pace::default());
        assert_eq!(
            retries.pause(Some(Duration::from_secs(9))),
            Some(Duration::from_secs(9))
        );
        assert_eq!(
            retries.pause(Some(Duration::from_secs(1))),
            Some(Duration::from_secs(2))
        );
    }

    #[test]
    fn progress_begins_anew_but_not_for_ever() {
        let mut retries = Retries::new(Pace::default());
        let mut tries = 0;
        while retries.pause(None).is_some() {
            retries.restart();
            tries += 1;
        }
        assert_eq!(tries, MOST_TRIES - 1);
    }

    #[test]
    fn some_answers_pass() {
        let retryable = |code| is_retryable(StatusCode::from_u16(code).unwrap());
        assert!([408, 425, 429, 500, 502, 503, 504].into_iter().all(retryable));
        assert!(
            ![400, 401, 403, 404, 410, 411, 413, 416, 501, 505, 507]
                .into_iter()
                .any(retryable)
        );
    }
}
