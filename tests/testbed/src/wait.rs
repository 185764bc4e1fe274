//! The one patience of the tests. A condition that holds ends a wait at once, so a long patience costs nothing where a
//! test passes, and a short one fails tests on a slow machine. A wait that goes on reports its condition every 30 s.

use std::{
    pin::pin,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// The variable with the patience in whole seconds.
pub const PATIENCE_VARIABLE: &str = "MUSTER_TEST_PATIENCE";
/// The patience where the variable is not set. A test may wait twice, and nextest stops it after 600 s.
const DEFAULT: Duration = Duration::from_secs(240);
/// The time between two messages about what is waited for.
const REPORT_EVERY: Duration = Duration::from_secs(30);
/// The first and the longest pause between two looks. A look may start a program or ask a role, so looks that find
/// nothing come less and less often. The pauses bound the looks; they decide nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// The longest time that a test waits for one condition: `MUSTER_TEST_PATIENCE` in seconds, 240 s without it.
#[must_use]
pub fn patience() -> Duration {
    static PATIENCE: OnceLock<Duration> = OnceLock::new();
    *PATIENCE.get_or_init(|| {
        let chosen = std::env::var(PATIENCE_VARIABLE).ok();
        chosen.map_or(DEFAULT, |seconds| match seconds.parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(error) => panic_with(&format!(
                "{PATIENCE_VARIABLE}={seconds} is no number of seconds: {error}"
            )),
        })
    })
}

/// Looks for something on this thread until it is there.
///
/// # Errors
/// `look` failed; its error is returned as it is.
///
/// # Panics
/// It is not there within the patience.
pub fn wait_for<T, E>(what: &str, mut look: impl FnMut() -> Result<Option<T>, E>) -> Result<T, E> {
    let mut wait = Wait::new(what);
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        thread::park_timeout(wait.next_pause());
    }
}

/// Looks for something until it is there.
///
/// # Panics
/// It is not there within the patience.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let mut wait = Wait::new(what);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(wait.next_pause()).await; // polls until the look finds it
    }
}

/// Waits for the end of a future. The patience is measured in tokio's time, which a test may have paused.
///
/// # Panics
/// It has not ended within the patience.
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut wait = Wait::new(what);
    loop {
        match tokio::time::timeout(REPORT_EVERY.min(patience()), future.as_mut()).await {
            Ok(output) => return output,
            Err(_) => wait.add(REPORT_EVERY.min(patience())),
        }
    }
}

/// A wait for one condition.
struct Wait<'what> {
    what: &'what str,
    begun: Instant,
    /// The sum of the pauses. Both it and the real time bound the wait: looks that take long count too, and a test
    /// whose time is paused has no real time.
    paused: Duration,
    pause: Duration,
    reported: Duration,
}

impl<'what> Wait<'what> {
    #[expect(
        clippy::disallowed_methods,
        reason = "tests of every crate wait with it, and it depends on none of them"
    )]
    fn new(what: &'what str) -> Self {
        Self {
            what,
            begun: Instant::now(),
            paused: Duration::ZERO,
            pause: FIRST_PAUSE,
            reported: Duration::ZERO,
        }
    }

    /// The pause before the next look; fails the test once the patience has ended.
    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause + pause / 8).min(LONGEST_PAUSE);
        self.add(pause);
        pause
    }

    fn add(&mut self, pause: Duration) {
        self.paused += pause;
        let waited = self.paused.max(self.begun.elapsed());
        if waited >= patience() {
            panic_with(&format!("{}: not within {} s", self.what, patience().as_secs()));
        }
        if waited >= self.reported + REPORT_EVERY {
            self.reported = waited;
            report(&format!(
                "after {} s still waiting: {}",
                waited.as_secs(),
                self.what
            ));
        }
    }
}

#[expect(clippy::print_stderr, reason = "the words belong to the output of the test")]
fn report(line: &str) {
    eprintln!("{line}");
}

#[expect(clippy::panic, reason = "a condition that does not come true fails the test")]
fn panic_with(why: &str) -> ! {
    panic!("{why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_finds_something_ends_the_wait() {
        let mut looks = 0;
        let found = wait_for::<_, ()>("the third look", || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(found, Ok(3));
    }

    #[test]
    fn a_look_that_fails_ends_the_wait_with_its_error() {
        assert_eq!(wait_for::<(), _>("nothing", || Err("broken")), Err("broken"));
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "a thing that never comes: not within")]
    async fn a_condition_that_never_holds_fails_the_test_after_the_patience() {
        until::<()>("a thing that never comes", async || None).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "a future that never ends: not within")]
    async fn a_future_that_never_ends_fails_the_test_after_the_patience() {
        within("a future that never ends", std::future::pending::<()>()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_condition_is_waited_for() {
        let late = tokio::time::sleep(patience() - Duration::from_secs(1));
        within("the last second", late).await;
    }
}
