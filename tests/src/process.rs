//! Running our binary and others.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail};

/// The output of a finished program.
#[derive(Debug)]
pub struct Output {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// The text on standard output.
    pub stdout: String,
    /// The text on standard error.
    pub stderr: String,
}

/// The `muster` binary of this checkout, built if it is not there or old.
///
/// # Errors
/// cargo cannot build it.
pub fn muster() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

fn build() -> Result<PathBuf> {
    // `cargo xtask test` has built it with everything else, and names its path.
    if let Some(built) = std::env::var_os("MUSTER_TEST_BINARY") {
        return Ok(built.into());
    }
    // `target/debug/deps/<test>` lies three folders below the target folder.
    let test = std::env::current_exe()?;
    let profile = test
        .parent()
        .and_then(|deps| deps.parent())
        .context("the test lies outside a target folder")?;
    let target = profile.parent().context("no target folder")?;
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args([
            "build",
            "--quiet",
            "--package",
            "muster",
            "--manifest-path",
            manifest,
            "--target-dir",
        ])
        .arg(target);
    // The variables of the cargo that runs the test would make this build begin from nothing.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_")) {
        if name != "CARGO_HOME" {
            cargo.env_remove(name);
        }
    }
    let status = cargo.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("cargo could not build muster ({status})");
    }
    Ok(profile.join("muster"))
}

/// Runs a program to its end.
///
/// # Errors
/// It cannot be started. A bad exit code is not an error here.
pub fn run(command: &mut Command) -> Result<Output> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    Ok(Output::read(&output))
}

/// Runs a program to its end and repeats each line of its standard error at once. A test that is stopped shows then how
/// far the program was.
///
/// # Errors
/// It cannot be started.
#[expect(clippy::print_stderr, reason = "the words belong to the output of the test")]
pub(crate) fn run_aloud(command: &mut Command) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let stderr = child.stderr.take().context("it has a standard error")?;
    let repeated = std::thread::spawn(move || {
        let mut said = String::new();
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            eprintln!("{line}");
            said.push_str(&line);
            said.push('\n');
        }
        said
    });
    let output = child.wait_with_output()?;
    let stderr = repeated.join().unwrap_or_default();
    Ok(Output {
        stderr,
        ..Output::read(&output)
    })
}

/// Runs a program to its end with this text on its standard input.
///
/// # Errors
/// It cannot be started, or ends before it has read the text. A bad exit code is not an error here.
pub fn run_with_input(command: &mut Command, input: &str) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let mut stdin = child.stdin.take().context("it has a standard input")?;
    stdin
        .write_all(input.as_bytes())
        .context("it does not read its input")?;
    drop(stdin);
    Ok(Output::read(&child.wait_with_output()?))
}

impl Output {
    fn read(output: &std::process::Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Takes away the disks of jobs that executors of `folder` left mounted: a killed one cannot, and its loop device lives
/// as long as the mount.
pub(crate) fn release_mounts(folder: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for point in points.filter(|point| Path::new(point).starts_with(folder)) {
        // Another process may have done it.
        let _ = Command::new("umount").arg("--lazy").arg(point).output();
    }
}
