//! Limits the rate of requests by a token bucket for each caller, and the rate of wrong credentials. Pure: the time is
//! an argument, which is why this is not the `governor` library, whose limiters read a clock of their own.
//!
//! Each process counts alone: several replicas behind one address allow a multiple of the rate.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use muster_protocol::Timestamp;

/// The number of buckets at which full ones are removed. A caller without a bucket starts with a full one.
const SWEEP_AT: usize = 4096;

/// The buckets of the callers that have made requests recently.
#[derive(Debug)]
pub struct RateLimiter<K> {
    /// Requests a minute of each caller; 0 for no limit.
    per_minute: u32,
    buckets: HashMap<K, Bucket>,
    sweep_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// The fill level, in millionths of a request.
    level: u64,
    at: Timestamp,
}

const ONE: u64 = 1_000_000;

/// The time for which a credential that was right is asked for whatever its caller's failures are.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// The most credentials that are remembered.
const MAX_REMEMBERED: usize = 65_536;

/// Limits how often a caller may show wrong credentials that cost a look-up.
///
/// A caller without failures left may only show credentials that were right recently. So a stranger who guesses cannot
/// lock out those who share its address.
#[derive(Debug)]
pub struct CredentialPace<A, K> {
    failures: RateLimiter<A>,
    /// When each credential was last right.
    right: HashMap<K, Timestamp>,
}

// === impl RateLimiter ===

impl<K: Eq + Hash> RateLimiter<K> {
    /// A limiter with buckets of `per_minute` requests, which may come at once; 0 for no limit.
    pub fn new(per_minute: u32) -> Self {
        Self {
            per_minute,
            buckets: HashMap::new(),
            sweep_at: SWEEP_AT,
        }
    }

    /// Counts one request of `caller`.
    ///
    /// # Errors
    /// The time until the next request is allowed; never zero. The request is not counted then.
    pub fn take(&mut self, caller: K, now: Timestamp) -> Result<(), Duration> {
        if self.per_minute == 0 {
            return Ok(());
        }
        if self.buckets.len() >= self.sweep_at {
            self.sweep(now);
        }
        let full = self.full();
        let rate = u64::from(self.per_minute);
        let bucket = self
            .buckets
            .entry(caller)
            .or_insert(Bucket { level: full, at: now });
        bucket.level = refilled(*bucket, rate, full, now);
        bucket.at = bucket.at.max(now);
        if let Some(left) = bucket.level.checked_sub(ONE) {
            bucket.level = left;
            return Ok(());
        }
        let missing = ONE.saturating_sub(bucket.level);
        // As in `check`.
        Err(Duration::from_micros(
            missing.saturating_mul(60).div_ceil(rate).max(1),
        ))
    }

    /// The time until `caller`'s next request is allowed; nothing is counted.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn check(&self, caller: &K, now: Timestamp) -> Result<(), Duration> {
        let Some(bucket) = self.buckets.get(caller).filter(|_| self.per_minute != 0) else {
            return Ok(());
        };
        let rate = u64::from(self.per_minute);
        let missing = ONE.saturating_sub(refilled(*bucket, rate, self.full(), now));
        if missing == 0 {
            return Ok(());
        }
        // A bucket gains `rate` millionths of a request in 60 microseconds.
        Err(Duration::from_micros(
            missing.saturating_mul(60).div_ceil(rate).max(1),
        ))
    }

    fn full(&self) -> u64 {
        u64::from(self.per_minute).saturating_mul(ONE)
    }

    fn sweep(&mut self, now: Timestamp) {
        let (rate, full) = (u64::from(self.per_minute), self.full());
        self.buckets
            .retain(|_, bucket| refilled(*bucket, rate, full, now) < full);
        self.sweep_at = self.buckets.len().saturating_mul(2).max(SWEEP_AT);
    }
}

// === impl CredentialPace ===

impl<A: Eq + Hash, K: Eq + Hash> CredentialPace<A, K> {
    /// Allows `per_minute` wrong credentials a minute of one caller; 0 for no limit.
    pub fn new(per_minute: u32) -> Self {
        Self {
            failures: RateLimiter::new(per_minute),
            right: HashMap::new(),
        }
    }

    /// Decides whether a credential may be looked up.
    ///
    /// # Errors
    /// The time until it may; never zero.
    pub fn admit(&self, caller: &A, credential: &K, now: Timestamp) -> Result<(), Duration> {
        let was_right = self.right.get(credential);
        if was_right.is_some_and(|at| now.since(*at) <= REMEMBERED) {
            return Ok(());
        }
        self.failures.check(caller, now)
    }

    /// Notes that a credential was right.
    pub fn note_right(&mut self, credential: K, now: Timestamp) {
        if self.right.len() >= MAX_REMEMBERED {
            self.right.retain(|_, at| now.since(*at) <= REMEMBERED);
        }
        if self.right.len() < MAX_REMEMBERED {
            self.right.insert(credential, now);
        }
    }

    /// Notes that a caller showed a wrong credential.
    ///
    /// # Errors
    /// The caller has no failures left: the time until it has; never zero.
    pub fn note_wrong(&mut self, caller: A, credential: Option<&K>, now: Timestamp) -> Result<(), Duration> {
        if let Some(credential) = credential {
            self.right.remove(credential);
        }
        self.failures.take(caller, now)
    }
}

fn refilled(bucket: Bucket, rate: u64, full: u64, now: Timestamp) -> u64 {
    let micros = u64::try_from(now.since(bucket.at).as_micros()).unwrap_or(u64::MAX);
    let gained = micros.saturating_mul(rate) / 60;
    bucket.level.saturating_add(gained).min(full)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_micros(1_769_000_000_000_000 + millis * 1000)
    }

    #[test]
    fn a_minutes_worth_may_come_at_once_and_then_evenly() {
        let mut buckets = RateLimiter::new(60);
        for _ in 0..60 {
            assert_eq!(buckets.take("a", at(0)), Ok(()));
        }
        assert_eq!(buckets.take("a", at(0)), Err(Duration::from_secs(1)));
        assert_eq!(buckets.take("b", at(0)), Ok(()));
        assert_eq!(buckets.take("a", at(400)), Err(Duration::from_millis(600)));
        assert_eq!(buckets.take("a", at(1000)), Ok(()));
        assert!(buckets.take("a", at(1000)).is_err());
        // A clock that is set back does not change the level.
        assert!(buckets.take("a", at(-5000)).is_err());
        assert_eq!(buckets.take("a", at(2000)), Ok(()));
    }

    #[test]
    fn zero_is_no_limit() {
        let mut buckets = RateLimiter::new(0);
        assert!((0..10_000).all(|_| buckets.take((), at(0)).is_ok()));
    }

    #[test]
    fn full_buckets_are_removed() {
        let mut buckets = RateLimiter::new(60);
        for who in 0..SWEEP_AT {
            assert_eq!(buckets.take(who, at(0)), Ok(()));
        }
        assert_eq!(buckets.take(0, at(60_000)), Ok(()));
        assert_eq!(buckets.buckets.len(), 1);
    }

    #[test]
    fn a_guesser_is_stopped_and_its_neighbours_are_not() {
        let mut pace = CredentialPace::new(3);
        pace.note_right("good", at(0));
        for wrong in ["a", "b", "c"] {
            assert_eq!(pace.admit(&1, &wrong, at(0)), Ok(()));
            assert_eq!(pace.note_wrong(1, Some(&wrong), at(0)), Ok(()));
        }
        assert_eq!(pace.admit(&1, &"d", at(0)), Err(Duration::from_secs(20)));
        assert!(pace.note_wrong(1, None, at(0)).is_err());
        assert_eq!(pace.admit(&1, &"good", at(0)), Ok(()));
        assert_eq!(pace.admit(&2, &"d", at(0)), Ok(()));
        assert_eq!(pace.admit(&1, &"d", at(20_000)), Ok(()));
        // A key that was revoked is no longer right.
        assert!(pace.note_wrong(1, Some(&"good"), at(20_000)).is_ok());
        assert!(pace.admit(&1, &"good", at(20_000)).is_err());
    }

    #[test]
    fn a_credential_is_remembered_for_an_hour() {
        let mut pace = CredentialPace::new(1);
        pace.note_right("good", at(0));
        for minutes in [0, 30, 59] {
            assert_eq!(pace.note_wrong(1, None, at(minutes * 60_000)), Ok(()));
            assert_eq!(pace.admit(&1, &"good", at(minutes * 60_000)), Ok(()));
        }
        assert_eq!(pace.note_wrong(1, None, at(61 * 60_000)), Ok(()));
        assert!(pace.admit(&1, &"good", at(61 * 60_000)).is_err());
    }

    proptest! {
        /// A check returns the answer that a request would get.
        #[test]
        fn a_check_agrees_with_a_request(per_minute in 0_u32..50, pauses in proptest::collection::vec(0_i64..3000, 1..100)) {
            let mut buckets = RateLimiter::new(per_minute);
            let mut millis = 0;
            for pause in pauses {
                millis += pause;
                prop_assert_eq!(buckets.check(&(), at(millis)), buckets.take((), at(millis)));
            }
        }

        /// In any span of time at most the bucket's size plus its gain is allowed.
        #[test]
        fn no_more_than_the_limit(per_minute in 1_u32..500, pauses in proptest::collection::vec(0_i64..3000, 1..300)) {
            let mut buckets = RateLimiter::new(per_minute);
            let (mut millis, mut passed) = (0, 0_u64);
            for pause in pauses {
                millis += pause;
                match buckets.take((), at(millis)) {
                    Ok(()) => passed += 1,
                    Err(wait) => {
                        let later = at(millis).plus(wait);
                        let mut other = RateLimiter { per_minute, buckets: buckets.buckets.clone(), sweep_at: SWEEP_AT };
                        prop_assert!(other.take((), later).is_ok(), "the wait is enough");
                    }
                }
            }
            let most = u64::from(per_minute) + u64::try_from(millis).unwrap() * u64::from(per_minute) / 60_000 + 1;
            prop_assert!(passed <= most, "{} of {}", passed, most);
        }
    }
}
