//! A clock that a test moves by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_protocol::Timestamp;
use tokio::sync::watch;

use super::{Clock, Sleep};

/// A clock that stands still until it is moved; then every sleeper whose deadline has come wakes. Clones are one clock.
#[derive(Debug, Clone)]
pub struct TestClock {
    now: Arc<watch::Sender<Timestamp>>,
    sleepers: Arc<watch::Sender<Sleepers>>,
}

/// The number of futures that wait for each time.
type Sleepers = BTreeMap<Timestamp, usize>;

impl TestClock {
    /// Starts at `now`.
    pub fn new(now: Timestamp) -> Self {
        Self {
            now: Arc::new(watch::Sender::new(now)),
            sleepers: Arc::new(watch::Sender::new(Sleepers::new())),
        }
    }

    /// Moves forward by `span`.
    pub fn advance(&self, span: Duration) {
        self.now.send_modify(|now| *now = now.plus(span));
    }

    /// Moves to `time`; a time already past is ignored, since no clock runs backwards.
    pub fn advance_to(&self, time: Timestamp) {
        self.now.send_modify(|now| *now = time.max(*now));
    }

    /// The number of futures that wait on this clock.
    pub fn sleepers(&self) -> usize {
        self.sleepers.borrow().values().sum()
    }

    /// Waits until at least `count` futures wait on this clock, so that advancing it wakes them.
    pub async fn wait_for_sleepers(&self, count: usize) {
        self.wait_until(|sleepers| sleepers.values().sum::<usize>() >= count)
            .await;
    }

    /// Waits until at least `count` futures wait for exactly `deadline`, whatever else waits on this clock.
    pub async fn wait_for_sleepers_until(&self, deadline: Timestamp, count: usize) {
        self.wait_until(|sleepers| sleepers.get(&deadline).is_some_and(|waiting| *waiting >= count))
            .await;
    }

    async fn wait_until(&self, condition: impl Fn(&Sleepers) -> bool) {
        // The sender lives in `self`, so the channel cannot close.
        let _ = self.sleepers.subscribe().wait_for(condition).await;
    }
}

impl Default for TestClock {
    /// 2026-01-01T00:00:00Z: a year that receipts allow.
    fn default() -> Self {
        Self::new(Timestamp::from_secs(1_767_225_600))
    }
}

/// Counts a sleeper for as long as its future lives past its first poll.
struct Asleep {
    sleepers: Arc<watch::Sender<Sleepers>>,
    deadline: Timestamp,
}

impl Asleep {
    fn new(sleepers: Arc<watch::Sender<Sleepers>>, deadline: Timestamp) -> Self {
        sleepers.send_modify(|sleepers| *sleepers.entry(deadline).or_default() += 1);
        Self { sleepers, deadline }
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        self.sleepers.send_modify(|sleepers| {
            if let Some(waiting) = sleepers.get_mut(&self.deadline) {
                *waiting -= 1;
            }
            sleepers.retain(|_, waiting| *waiting > 0);
        });
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    fn sleep_until(&self, deadline: Timestamp) -> Sleep {
        let clock = self.clone();
        Box::pin(async move {
            let mut now = clock.now.subscribe();
            let _asleep = Asleep::new(Arc::clone(&clock.sleepers), deadline);
            // The sender lives in `clock`, so the channel cannot close.
            let _ = now.wait_for(|now| *now >= deadline).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn sleepers_wake_in_the_order_of_their_deadlines() {
        let clock = TestClock::default();
        let start = clock.now();
        let mut short = clock.sleep(Duration::from_secs(1));
        let mut long = clock.sleep(Duration::from_secs(10));
        assert!((&mut short).now_or_never().is_none());
        assert!((&mut long).now_or_never().is_none());
        assert_eq!(clock.sleepers(), 2);
        clock
            .wait_for_sleepers_until(start.plus(Duration::from_secs(10)), 1)
            .await;

        clock.advance(Duration::from_secs(1));
        short.await;
        assert!((&mut long).now_or_never().is_none());

        clock.advance_to(start.plus(Duration::from_secs(10)));
        long.await;
        assert_eq!(clock.sleepers(), 0);
    }

    #[tokio::test]
    async fn a_dropped_sleeper_is_not_counted_and_time_never_returns() {
        let clock = TestClock::default();
        let start = clock.now();
        let mut sleep = clock.sleep(Duration::from_secs(1));
        assert!((&mut sleep).now_or_never().is_none());
        clock.wait_for_sleepers(1).await;
        drop(sleep);
        assert_eq!(clock.sleepers(), 0);
        clock.advance_to(Timestamp::from_secs(0));
        assert_eq!(clock.now(), start);
    }
}
