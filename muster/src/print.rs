//! The one place that writes to the terminal. A reader that goes away (`muster … | head`) is no error.

use std::fmt::Arguments;
use std::io::Write as _;

/// A line of what was asked for.
pub(crate) fn line(text: Arguments<'_>) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Text of what was asked for, as it is.
pub(crate) fn raw(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A line beside what was asked for.
pub(crate) fn problem(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
