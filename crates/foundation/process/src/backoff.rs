//! The wait before the next try: doubling, bounded, and spread out where many peers would otherwise return in step.

use std::error::Error;
use std::time::Duration;

use crate::SharedClock;
use crate::error::Causes;

/// A doubling delay. The caller counts the attempts and draws the jitter, or lets [`Self::retry`] wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure, before jitter.
    pub base: Duration,
    /// No delay is longer.
    pub max: Duration,
}

/// An error after which the same operation may succeed later.
pub trait Retryable: Error + 'static {
    /// How often the operation is tried again, with the tries after earlier errors; 0 if it would fail again.
    fn retries(&self) -> u32;
}

impl Backoff {
    /// For connections to peers: half a second, at most half a minute.
    pub const PEERS: Self = Self {
        base: Duration::from_millis(500),
        max: Duration::from_secs(30),
    };

    /// For a service that is restarted or briefly overloaded: 1, 2, 4, 8 and 16 seconds, see [`Self::OUTAGE_RETRIES`].
    pub const OUTAGE: Self = Self {
        base: Duration::from_secs(1),
        max: Duration::from_secs(16),
    };

    /// How often a single operation is retried with [`Self::OUTAGE`]: long enough for a restart, short enough for a
    /// job.
    pub const OUTAGE_RETRIES: u32 = 5;

    /// The wait after failure number `attempt` (0 is the first) without jitter, for a client that is alone.
    pub fn full_delay(&self, attempt: u32) -> Duration {
        let doubled = 2_u32
            .checked_pow(attempt)
            .and_then(|factor| self.base.checked_mul(factor));
        doubled.unwrap_or(self.max).min(self.max)
    }

    /// The first `retries` waits without jitter.
    pub fn pauses(self, retries: u32) -> impl Iterator<Item = Duration> {
        (0..retries).map(move |attempt| self.full_delay(attempt))
    }

    /// Runs `attempt`, and again after each wait without jitter for as long as its error allows another retry. `doing`
    /// completes "cannot …" in the log.
    ///
    /// # Errors
    /// The first error that allows no more retries.
    pub async fn retry<T, E, F>(
        self,
        clock: &SharedClock,
        doing: &'static str,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, E>
    where
        E: Retryable,
        F: Future<Output = Result<T, E>>,
    {
        let mut retries = 0;
        loop {
            let error = match attempt().await {
                Err(error) if retries < error.retries() => error,
                result => return result,
            };
            let pause = self.full_delay(retries);
            tracing::warn!(error = %Causes(&error), ?pause, "cannot {doing}; trying again");
            clock.sleep(pause).await;
            retries += 1;
        }
    }

    /// The wait after failure number `attempt` (0 is the first).
    ///
    /// `jitter` is any random number: the whole range of `u32` spreads over the upper half of the delay, so that a
    /// thousand clients of one server that died do not come back at the same moment, yet none comes back at once.
    pub fn delay(&self, attempt: u32, jitter: u32) -> Duration {
        let half = self.full_delay(attempt) / 2;
        let spread = half.as_nanos() * u128::from(jitter) / u128::from(u32::MAX);
        // At most `half`, which fitted into a Duration.
        half + Duration::from_nanos(u64::try_from(spread).unwrap_or(u64::MAX))
    }
}

/// A jitter from the operating system; zero if it has no randomness to give.
pub fn random_jitter() -> u32 {
    getrandom::u32().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::Arc;

    use muster_protocol::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::clock::TokioClock;

    const BACKOFF: Backoff = Backoff {
        base: Duration::from_millis(100),
        max: Duration::from_secs(5),
    };

    #[test]
    fn doubles_up_to_its_bound() {
        let longest = |attempt| BACKOFF.delay(attempt, u32::MAX).as_millis();
        assert_eq!(
            [0, 1, 2, 5, 6, 7, 32, u32::MAX].map(longest),
            [100, 200, 400, 3200, 5000, 5000, 5000, 5000]
        );
    }

    #[derive(Debug, thiserror::Error)]
    #[error("retried {0} times at most")]
    struct Outage(u32);

    impl Retryable for Outage {
        fn retries(&self) -> u32 {
            self.0
        }
    }

    /// Fails with these errors in turn and then succeeds; returns the seconds of the tries, and the result.
    async fn retried(outages: &[u32]) -> (Vec<u64>, Result<(), Outage>) {
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::from_secs(0)));
        let (start, mut tries) = (clock.now(), Vec::new());
        let attempt = || {
            let outage = outages.get(tries.len());
            tries.push(clock.now().since(start).as_secs());
            ready(outage.map_or(Ok(()), |most| Err(Outage(*most))))
        };
        let result = Backoff::OUTAGE.retry(&clock, "do it", attempt).await;
        (tries, result)
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_retried_after_1_2_4_8_and_16_seconds() {
        let (tries, result) = retried(&[Backoff::OUTAGE_RETRIES; 9]).await;
        assert_eq!(tries, [0, 1, 3, 7, 15, 31]);
        result.unwrap_err();
        let (tries, result) = retried(&[Backoff::OUTAGE_RETRIES; 2]).await;
        assert_eq!(tries, [0, 1, 3]);
        result.unwrap();
        assert_eq!(Backoff::OUTAGE.full_delay(9), Duration::from_secs(16));
    }

    #[tokio::test(start_paused = true)]
    async fn each_error_bounds_all_retries_together() {
        assert_eq!(retried(&[0]).await.0, [0], "it would fail again");
        assert_eq!(retried(&[5, 5, 2]).await.0, [0, 1, 3]);
        assert_eq!(retried(&[2, 2, 5]).await.0, [0, 1, 3, 7]);
    }

    proptest! {
        #[test]
        fn stays_between_half_and_whole(attempt: u32, jitter: u32) {
            let whole = BACKOFF.delay(attempt, u32::MAX);
            let delay = BACKOFF.delay(attempt, jitter);
            prop_assert!(whole / 2 <= delay && delay <= whole && whole <= BACKOFF.max);
        }

        #[test]
        fn never_shrinks(attempt in 0_u32..40, jitter: u32) {
            prop_assert!(BACKOFF.delay(attempt, jitter) <= BACKOFF.delay(attempt + 1, jitter));
        }

        #[test]
        fn extreme_settings_do_not_overflow(base: u64, max: u64, attempt: u32, jitter: u32) {
            let backoff = Backoff { base: Duration::from_secs(base), max: Duration::from_secs(max) };
            prop_assert!(backoff.delay(attempt, jitter) <= Duration::from_secs(max));
        }
    }
}
