//! Confidence intervals for rates, in integers: Wilson's with z = 2.

use serde::Serialize;

/// One, in billionths.
pub const BILLION: u64 = 1_000_000_000;

/// A rate that was measured, with the bounds of its interval, in billionths.
///
/// The interval is a statement about the method: in 95 of 100 measurements it holds the rate, if the events are
/// independent of one another. Each bound alone is kept in 97.7 of 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RateInterval {
    /// The number of events.
    pub events: u64,
    /// The number of trials.
    pub trials: u64,
    /// The lower bound, rounded down.
    pub low: u64,
    /// The upper bound, rounded up.
    pub high: u64,
}

impl RateInterval {
    /// The interval of `events` out of `trials`. Nothing is known without trials.
    pub fn of(events: u64, trials: u64) -> Self {
        let events = events.min(trials);
        if trials == 0 {
            return Self {
                events,
                trials,
                low: 0,
                high: BILLION,
            };
        }
        // (k + 2 ± 2·√(k(n−k)/n + 1)) / (n + 4), the root in billionths and rounded up.
        let (k, n, one) = (u128::from(events), u128::from(trials), u128::from(BILLION));
        let square = (k * (n - k) * one * one).div_ceil(n) + one * one;
        let root = square.isqrt() + u128::from(square.isqrt().pow(2) < square);
        let (middle, half) = ((k + 2) * one, 2 * root);
        let narrow = |rate: u128| u64::try_from(rate).unwrap_or(BILLION).min(BILLION);
        Self {
            events,
            trials,
            low: narrow(middle.saturating_sub(half) / (n + 4)),
            high: narrow((middle + half).div_ceil(n + 4)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_intervals() {
        assert_eq!(RateInterval::of(0, 0).high, BILLION);
        let none = RateInterval::of(0, 96);
        assert_eq!((none.low, none.high), (0, 40_000_000), "4 / (n + 4)");
        let all = RateInterval::of(96, 96);
        assert_eq!((all.low, all.high), (960_000_000, BILLION));
        let half = RateInterval::of(50, 100);
        assert_eq!(
            (half.low, half.high),
            (401_941_932, 598_058_068),
            "by bc to 20 digits"
        );
    }

    proptest! {
        #[test]
        fn an_interval_holds_its_rate_and_narrows(trials in 1_u64..1_000_000, share in 0_u64..=1_000) {
            let events = trials * share / 1_000;
            let once = RateInterval::of(events, trials);
            let rate = u64::try_from(u128::from(events) * u128::from(BILLION) / u128::from(trials)).unwrap();
            prop_assert!(once.low <= rate && rate <= once.high);
            let more = RateInterval::of(events * 4, trials * 4);
            prop_assert!(more.high - more.low <= once.high - once.low);
            let worse = RateInterval::of((events + 1).min(trials), trials);
            prop_assert!(worse.high >= once.high && worse.low >= once.low);
        }
    }
}
