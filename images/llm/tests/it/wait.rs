//! The patience of these tests, which is that of all tests of Muster (tests/testbed/src/wait.rs): this workspace
//! depends on no crate of the other one.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// The variable with the patience in whole seconds.
const PATIENCE_VARIABLE: &str = "MUSTER_TEST_PATIENCE";
/// Seconds of patience where the variable is not set.
const DEFAULT_SECONDS: u64 = 240;
/// The time between two words about what is waited for.
const REPORT_EVERY: Duration = Duration::from_secs(30);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// The longest time that a test waits for one condition.
pub(crate) fn patience() -> anyhow::Result<Duration> {
    let seconds = match std::env::var(PATIENCE_VARIABLE) {
        Ok(seconds) => seconds
            .parse()
            .with_context(|| format!("{PATIENCE_VARIABLE}={seconds} is no number of seconds"))?,
        Err(_) => DEFAULT_SECONDS,
    };
    Ok(Duration::from_secs(seconds))
}

/// Looks for something until it is there. Fails where looking fails, and after the patience.
#[expect(
    clippy::disallowed_methods,
    reason = "the engine is a process of its own and lives in real time"
)]
pub(crate) fn wait_for<T>(
    what: &str,
    mut look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let (patience, begun) = (patience()?, Instant::now());
    let mut report = REPORT_EVERY;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        let waited = begun.elapsed();
        if waited >= patience {
            bail!("{what}: not within {} s", patience.as_secs());
        }
        if waited >= report {
            report += REPORT_EVERY;
            println!("after {} s still waiting: {what}", waited.as_secs());
        }
        thread::park_timeout(PAUSE); // polls until the look finds it
    }
}
