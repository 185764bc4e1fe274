//! A clock that follows tokio's time, for tests that pause it.

use muster_protocol::Timestamp;
use tokio::time::Instant;

use super::{Clock, Sleep};

/// Follows tokio's clock. After `tokio::time::pause` that clock stands still and jumps to the next timer when all tasks
/// wait.
///
/// Use it where tokio's own timers (time-outs of sockets, heartbeats) run beside this clock; [`super::TestClock`] where
/// the test wants to choose each moment.
#[derive(Debug, Clone)]
pub struct TokioClock {
    start: Timestamp,
    since: Instant,
}

impl TokioClock {
    /// Starts at `start` now. Must be called inside a tokio runtime.
    pub fn new(start: Timestamp) -> Self {
        Self {
            start,
            since: Instant::now(),
        }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        self.start.plus(self.since.elapsed())
    }

    fn sleep_until(&self, deadline: Timestamp) -> Sleep {
        Box::pin(tokio::time::sleep_until(self.since + deadline.since(self.start)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_hour_passes_at_once() {
        let clock = TokioClock::new(Timestamp::from_secs(1_767_225_600));
        let start = clock.now();
        clock.sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now().since(start).as_secs(), 3600);
        clock.sleep_until(start).await;
        assert_eq!(clock.now().since(start).as_secs(), 3600);
    }
}
