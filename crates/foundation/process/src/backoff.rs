//! How long to wait before the next try: doubling, bounded, spread out so that peers do not return in step.

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

    /// The wait after failure number `attempt` (0 is the first).
    ///
    /// `jitter` is any random number: the whole range of `u32` spreads over the upper half of the delay, so that a
    /// thousand clients of one server that died do not come back at the same moment, yet none comes back at once.
    pub fn delay(&self, attempt: u32, jitter: u32) -> Duration {
        let doubled = 2_u32
            .checked_pow(attempt)
            .and_then(|factor| self.base.checked_mul(factor));
        let whole = doubled.unwrap_or(self.max).min(self.max);
        let half = whole / 2;
        let spread = half.as_nanos() * u128::from(jitter) / u128::from(u32::MAX);
        // At most `half`, which fitted into a Duration.
        half + Duration::from_nanos(u64::try_from(spread).unwrap_or(u64::MAX))
    }
}

/// Draws a jitter from the operating system. If that has no randomness to give, nobody is spread out: zero.
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
