//! Runs cargo for a program that `up` needs, and shows how far the build is: crates built, of how many.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use muster_process::SharedClock;
use muster_terminal::print;
use tokio::io::AsyncReadExt as _;
use tokio::process::{ChildStderr, Command};

/// A build that ends sooner had nothing to do, and nothing is printed about it.
const SILENCE: Duration = Duration::from_secs(2);
/// Between two lines of progress where stderr is a file or a pipe.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// The most bytes of one line of cargo's that are read, and of all its messages that are kept.
const MAX_LINE: usize = 64 * 1024;
const MAX_MESSAGES: usize = 1024 * 1024;
const BAR: &str = "{msg} {wide_bar} {pos} of {len} crates, {elapsed}";

/// The output of cargo on stderr: the newest progress, and the messages that are shown if the build fails.
#[derive(Debug, Default)]
struct CargoOutput {
    /// The line that has not ended yet.
    open: Vec<u8>,
    messages: String,
    progress: Option<BuildProgress>,
    /// Cargo waits for another build in the same target folder.
    waits: bool,
}

/// Crates that are built, build scripts among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BuildProgress {
    built: u64,
    all: u64,
}

/// The display of a build: a bar on a terminal, else a line every ten seconds.
struct BuildDisplay {
    name: String,
    bar: Option<ProgressBar>,
}

/// A build into `target`, independent of the cargo that may have started this process.
pub(crate) fn cargo(checkout: &Path, target: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["build", "--target-dir"])
        .arg(target)
        .current_dir(checkout);
    // The variables of the cargo that runs us must not leak into another build: it would begin from nothing.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_another_build(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    // Our stdout is for the result, which may be JSON.
    command
        .stdout(Stdio::null())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .env("CARGO_TERM_COLOR", "never")
        .env("CARGO_TERM_QUIET", "false")
        .env("CARGO_TERM_PROGRESS_WHEN", "always")
        .env("CARGO_TERM_PROGRESS_WIDTH", "100");
    command
}

/// Waits for the build of `name` and shows its progress.
///
/// # Errors
/// Cargo cannot be started, or the build fails; cargo's messages are printed then.
pub(crate) async fn finish(mut command: Command, name: &str, clock: &SharedClock) -> anyhow::Result<()> {
    const MISSING: &str = "cannot run cargo; install Rust from the distribution or with rustup";
    let mut build = command.spawn().context(MISSING)?;
    let mut stderr = build.stderr.take();
    let mut output = CargoOutput::default();
    let mut display = None;
    // A point in time, not a pause: cargo's output must not put the next line off.
    let mut next_line = clock.now().plus(SILENCE);
    loop {
        tokio::select! {
            more = read(stderr.as_mut(), &mut output) => match more? {
                true => {}
                false => break,
            },
            () = clock.sleep(next_line.since(clock.now())) => {
                next_line = clock.now().plus(LINE_INTERVAL);
                display.get_or_insert_with(|| BuildDisplay::new(name)).line(&output);
            }
        }
        if let Some(display) = &mut display {
            display.draw(&output);
        }
    }
    let status = build.wait().await?;
    drop(display);
    if !status.success() {
        print::problem(format_args!("{}", output.messages.trim_end()));
        bail!("cargo could not build {name} ({status})");
    }
    Ok(())
}

/// Reads the next piece of cargo's output; `false` at its end.
async fn read(stderr: Option<&mut ChildStderr>, output: &mut CargoOutput) -> anyhow::Result<bool> {
    let Some(stderr) = stderr else {
        return Ok(false);
    };
    let mut piece = [0; 4096];
    let count = stderr
        .read(&mut piece)
        .await
        .context("cannot read what cargo says")?;
    output.update(piece.get(..count).unwrap_or_default());
    Ok(count > 0)
}

// === impl CargoOutput ===

impl CargoOutput {
    /// Takes the next bytes. A line ends with a line feed, or with the carriage return after a bar.
    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if matches!(byte, b'\n' | b'\r') {
                let line = std::mem::take(&mut self.open);
                self.read_line(&String::from_utf8_lossy(&line));
            } else if self.open.len() < MAX_LINE {
                self.open.push(*byte);
            }
        }
    }

    fn read_line(&mut self, line: &str) {
        let words = line.trim();
        if let Some(progress) = BuildProgress::parse(words) {
            self.progress = Some(progress);
            self.waits = false;
        } else if words.starts_with("Blocking ") {
            self.waits = true;
        } else if !words.is_empty() && self.messages.len().saturating_add(line.len()) < MAX_MESSAGES {
            self.messages.push_str(line);
            self.messages.push('\n');
        }
    }
}

// === impl BuildProgress ===

impl BuildProgress {
    /// Reads cargo's bar, `Building [==>    ] 12/345: serde, tokio`.
    fn parse(line: &str) -> Option<Self> {
        let (_, count) = line.strip_prefix("Building [")?.split_once("] ")?;
        let (built, rest) = count.split_once('/')?;
        let all = rest.split(':').next()?;
        Some(Self {
            built: built.parse().ok()?,
            all: all.trim().parse().ok()?,
        })
    }
}

// === impl BuildDisplay ===

impl BuildDisplay {
    fn new(name: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0).with_message(format!("building {name}"));
            match ProgressStyle::with_template(BAR) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self {
            name: name.to_owned(),
            bar,
        }
    }

    /// Moves the bar.
    fn draw(&mut self, output: &CargoOutput) {
        if let (Some(bar), Some(progress)) = (&self.bar, output.progress) {
            bar.set_length(progress.all);
            bar.set_position(progress.built);
        }
    }

    /// Prints a line where no bar is drawn.
    fn line(&self, output: &CargoOutput) {
        if self.bar.is_some() {
            return;
        }
        let name = &self.name;
        match output.progress {
            _ if output.waits => print::problem(format_args!("building {name}: waiting for another build")),
            Some(BuildProgress { built, all }) => {
                print::problem(format_args!("building {name}: {built} of {all} crates"));
            }
            None => print::problem(format_args!("building {name}")),
        }
    }
}

impl Drop for BuildDisplay {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn is_of_another_build(variable: &str) -> bool {
    const PREFIXES: [&str; 5] = [
        "CARGO_PKG_",
        "CARGO_MANIFEST",
        "CARGO_PRIMARY",
        "CARGO_CRATE",
        "CARGO_BIN",
    ];
    ["CARGO_TARGET_DIR", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"].contains(&variable)
        || PREFIXES.iter().any(|prefix| variable.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_read_wherever_it_is_cut_and_messages_are_kept() {
        let said = "   Compiling libc v0.2\n    Building [       ] 0/403: libc   \r    Building [=>    ] 12/403: libc, syn \r\
                    error: it does not compile\n";
        for cut in 0..said.len() {
            let mut output = CargoOutput::default();
            let (head, tail) = said.as_bytes().split_at(cut);
            output.update(head);
            output.update(tail);
            assert_eq!(output.progress, Some(BuildProgress { built: 12, all: 403 }));
            assert_eq!(
                output.messages,
                "   Compiling libc v0.2\nerror: it does not compile\n"
            );
        }
    }

    #[test]
    fn a_build_that_waits_for_another_says_so_until_it_goes_on() {
        let mut output = CargoOutput::default();
        output.update(b"    Blocking waiting for file lock on build directory\n");
        assert!(output.waits);
        output.update(b"    Building [   ] 1/2: a\r");
        assert!(!output.waits);
    }

    #[test]
    fn other_lines_are_no_progress() {
        for line in [
            "Building",
            "Building [==>",
            "Building [==> ] x/3: a",
            "Building [=] 3",
            "warning: [x] 1/2: b",
        ] {
            assert_eq!(BuildProgress::parse(line), None, "{line}");
        }
    }
}
