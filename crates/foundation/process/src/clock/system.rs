//! The machine's own clock, kept from running backwards.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_protocol::Timestamp;
use parking_lot::Mutex;

use super::{Clock, Sleep};

/// The longest single sleep: a wall clock that was set forward is noticed this soon.
const LONGEST_NAP: Duration = Duration::from_secs(30);

/// The wall clock of this machine. Clones share their state, so none is behind another.
///
/// Receipts and deadlines are compared across processes, so it follows the wall clock and not only time since start.
/// If the wall clock is set back, this one runs at half speed until the wall clock has caught up: it neither goes
/// backwards, which would break the order of stored events, nor stands still, which would stop every deadline.
#[derive(Debug, Clone, Default)]
pub struct SystemClock {
    told: Arc<Mutex<Option<(Timestamp, Instant)>>>,
}

impl SystemClock {
    /// A clock of its own.
    pub fn new() -> Self {
        Self::default()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the machine's clocks"
    )]
    fn read() -> (Timestamp, Instant) {
        // A machine whose clock stands before 1970 is taken to be in 1970.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (Timestamp::from_micros(0).plus(since_epoch), Instant::now())
    }
}

/// The time to return at wall time `wall`, when `told` was returned `elapsed` of real time ago.
fn forward(told: Timestamp, elapsed: Duration, wall: Timestamp) -> Timestamp {
    wall.max(told.plus(elapsed / 2))
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let mut told = self.told.lock();
        let (wall, instant) = Self::read();
        let now = match *told {
            None => wall,
            Some((last, at)) => forward(last, instant.saturating_duration_since(at), wall),
        };
        // While it runs slowly, a step of less than a microsecond must not be rounded away call by call.
        if told.is_none_or(|(last, _)| now > last) {
            *told = Some((now, instant));
        }
        now
    }

    fn sleep_until(&self, deadline: Timestamp) -> Sleep {
        let clock = self.clone();
        Box::pin(async move {
            loop {
                let left = deadline.since(clock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(LONGEST_NAP)).await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(i64) -> Timestamp = Timestamp::from_secs;

    #[test]
    fn follows_the_wall_clock_forwards_and_slows_down_behind_it() {
        let second = Duration::from_secs(1);
        assert_eq!(forward(AT(100), second, AT(101)), AT(101));
        assert_eq!(forward(AT(100), second, AT(500)), AT(500));
        // Set back by an hour: half speed, and by the wall clock again once that has caught up.
        assert_eq!(forward(AT(4000), second * 10, AT(410)), AT(4005));
        assert_eq!(forward(AT(4000), second * 7200, AT(7600)), AT(7600));
    }

    #[test]
    fn never_goes_backwards_between_threads() {
        let clock = SystemClock::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = clock.now();
                    for _ in 0..2000 {
                        let now = clock.now();
                        assert!(now >= last);
                        last = now;
                    }
                });
            }
        });
        assert!(clock.now().year() >= 2024);
    }

    #[tokio::test]
    async fn a_deadline_in_the_past_is_over_at_once() {
        let clock = SystemClock::new();
        clock.sleep_until(AT(0)).await;
        clock.sleep(Duration::ZERO).await;
        let before = clock.now();
        clock.sleep(Duration::from_millis(1)).await;
        assert!(clock.now().since(before) >= Duration::from_millis(1));
    }
}
