//! The wait before the next try: doubling, bounded, and spread out where many peers would otherwise return in step.

use std::time::Duration;

/// A doubling delay. Pure: the caller counts the attempts and draws the jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure, before jitter.
    pub base: Duration,
    /// No delay is longer.
    pub max: Duration,
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
    use proptest::prelude::*;

    use super::*;

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

    #[test]
    fn an_outage_is_retried_after_1_2_4_8_and_16_seconds() {
        let pauses = Backoff::OUTAGE.pauses(Backoff::OUTAGE_RETRIES);
        assert_eq!(
            pauses.map(|pause| pause.as_secs()).collect::<Vec<_>>(),
            [1, 2, 4, 8, 16]
        );
        assert_eq!(Backoff::OUTAGE.full_delay(9), Duration::from_secs(16));
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
