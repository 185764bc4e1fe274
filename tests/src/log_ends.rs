//! The ends of logs, which a failing test shows: its subnet goes with it.

use std::path::{Path, PathBuf};

/// The lines of each log that are shown.
const LINES: usize = 60;

/// The last lines of a log; nothing if it is not there.
pub(crate) fn end_of(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines
        .get(lines.len().saturating_sub(LINES)..)
        .unwrap_or_default()
        .join("\n")
}

/// Shows the ends of these logs if the test fails at this moment.
#[expect(clippy::print_stderr, reason = "the logs belong to the output of the test")]
pub(crate) fn show_if_panicking(logs: &[PathBuf]) {
    if std::thread::panicking() {
        for log in logs {
            eprintln!("== the end of {}\n{}", log.display(), end_of(log));
        }
    }
}
