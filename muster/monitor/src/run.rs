//! The program: the status is read and painted again and again, until a key, a signal or the end of the terminal.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_process::{SharedClock, Tasks, shutdown};
use tokio::sync::mpsc;

use crate::sources::StatusSource;
use crate::terminal::{Reading, Screen};

/// Readings that wait to be painted.
const WAITING: usize = 4;

/// Whether this process has a terminal to paint on and to read keys from.
pub fn has_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Paints what `source` reports, read every `every`, until the user or a signal ends it.
///
/// # Errors
/// The terminal cannot be painted on or read.
pub async fn run(source: StatusSource, every: Duration, tasks: &Tasks, clock: SharedClock) -> io::Result<()> {
    let title = source.title();
    let (readings, painted) = mpsc::channel(WAITING);
    let stop = Arc::new(AtomicBool::new(false));
    let reading = read_again_and_again(source, readings, every, SharedClock::clone(&clock));
    tasks.spawn("read the status", reading);
    let stopping = Arc::clone(&stop);
    tasks.spawn("wait for a signal", async move {
        // A terminal that is closed and a `kill` end the program as the key does: with the terminal as it was.
        let _ = shutdown::wait_for_signal().await;
        stopping.store(true, Ordering::Release);
    });
    // The keys are read with calls that block.
    let screen = tokio::task::spawn_blocking(move || Screen::open(title, painted, clock)?.run(&stop));
    let ended = screen.await.map_err(io::Error::other)?;
    tasks.shutdown();
    ended
}

async fn read_again_and_again(
    source: StatusSource,
    readings: mpsc::Sender<Reading>,
    every: Duration,
    clock: SharedClock,
) {
    while readings.send(source.read(&clock).await).await.is_ok() {
        clock.sleep(every).await;
    }
}
