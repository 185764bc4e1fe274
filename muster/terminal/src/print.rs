//! The one place that writes to the terminal. The first failure of standard output is kept: by it the command ends.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{LazyLock, OnceLock};

use tokio_util::sync::CancellationToken;

/// The exit code, as shells write it, of a program that the signal `PIPE` ended: its reader went away.
const EXIT_CLOSED_PIPE: u8 = 141;

/// The first failure of standard output in this process.
static STDOUT_FAILURE: LazyLock<OutputFailure> = LazyLock::new(OutputFailure::default);

/// The first failure to write, and what waits for it.
#[derive(Default)]
struct OutputFailure {
    error: OnceLock<io::Error>,
    happened: CancellationToken,
}

impl OutputFailure {
    /// Writes and flushes, unless an earlier write has failed.
    fn write(&self, mut out: impl Write, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        if self.error.get().is_none()
            && let Err(error) = write(&mut out).and_then(|()| out.flush())
        {
            // Another thread's failure may be the first one.
            let _ = self.error.set(error);
            self.happened.cancel();
        }
    }

    /// The exit code of the command after a failure: that of a closed pipe, which needs no words, or 1.
    fn exit_code(&self) -> Option<ExitCode> {
        let error = self.error.get()?;
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Some(ExitCode::from(EXIT_CLOSED_PIPE));
        }
        problem(format_args!(
            "error: standard output cannot be written: {error}; what was printed there is not whole"
        ));
        Some(ExitCode::FAILURE)
    }
}

/// A line of what was asked for.
pub fn line(text: Arguments<'_>) {
    STDOUT_FAILURE.write(io::stdout().lock(), |out| writeln!(out, "{text}"));
}

/// Text of what was asked for, as it is.
pub fn raw(text: &str) {
    bytes(text.as_bytes());
}

/// Bytes of what was asked for, as they are and at once.
pub fn bytes(bytes: &[u8]) {
    STDOUT_FAILURE.write(io::stdout().lock(), |out| out.write_all(bytes));
}

/// Writes to standard output what a library writes by itself, such as the help of the command line.
pub fn by(write: impl FnOnce() -> io::Result<()>) {
    STDOUT_FAILURE.write(io::stdout(), |_| write());
}

/// Waits until standard output cannot be written any more.
pub async fn until_stdout_fails() {
    STDOUT_FAILURE.happened.cancelled().await;
}

/// The exit code of a command whose standard output could not be written, after the reason was printed; `None` if all
/// of it was written. A reader that has gone away (`muster … | head`) is no reason to print anything.
pub fn stdout_failure() -> Option<ExitCode> {
    STDOUT_FAILURE.exit_code()
}

/// A line beside what was asked for.
pub fn problem(text: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Bytes beside what was asked for, as they are and at once.
pub fn bytes_beside(bytes: &[u8]) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// A text of a stranger on one line, without characters that a terminal obeys.
pub fn plain(text: &str) -> String {
    let obeyed = |letter: char| {
        letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .map(|letter| if obeyed(letter) { '·' } else { letter })
        .collect()
}

/// A table of what was asked for, without lines around it.
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(head);
    for row in rows {
        table.add_row(row);
    }
    for text in table.lines() {
        line(format_args!("{}", text.trim_end()));
    }
}

/// A number of bytes as people write it.
pub fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails from the second write on, as a full disk does.
    struct Filled {
        writes: u32,
        kind: io::ErrorKind,
    }

    impl Write for &mut Filled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            match self.writes {
                1 => Ok(bytes.len()),
                _ => Err(self.kind.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn first_failed_write_is_kept_and_nothing_is_written_after_it() {
        for (kind, code) in [
            (io::ErrorKind::StorageFull, ExitCode::FAILURE),
            (io::ErrorKind::BrokenPipe, ExitCode::from(EXIT_CLOSED_PIPE)),
        ] {
            let mut out = Filled { writes: 0, kind };
            let failure = OutputFailure::default();
            failure.write(&mut out, |out| out.write_all(b"one"));
            assert!(failure.exit_code().is_none() && !failure.happened.is_cancelled());
            failure.write(&mut out, |out| out.write_all(b"two"));
            failure.write(&mut out, |out| out.write_all(b"three"));
            assert_eq!(out.writes, 2);
            assert!(failure.happened.is_cancelled());
            let shown = |code: ExitCode| format!("{code:?}");
            assert_eq!(failure.exit_code().map(shown), Some(shown(code)));
        }
    }
}
