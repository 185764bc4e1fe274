//! Builds of cargo whose units are counted and whose warnings fail the step.

use std::process::Command;

use serde::Deserialize;

use super::{Run, child_process::on_path, report::Outcome};

/// The units that a build compiled; those that it found ready are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Compiled {
    pub(super) units: usize,
    /// Units that are programs, tests among them: each was linked.
    pub(super) programs: usize,
}

impl Compiled {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            units: self.units + other.units,
            programs: self.programs + other.programs,
        }
    }
}

/// One line of `cargo build --message-format=json`.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum CargoMessage {
    CompilerArtifact {
        fresh: bool,
        executable: Option<String>,
    },
    CompilerMessage {
        message: Diagnostic,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
}

/// The messages of a build, added up.
#[derive(Default)]
struct BuildOutput {
    compiled: Compiled,
    /// The warnings and errors as the compiler prints them, each once.
    diagnostics: Vec<String>,
    warnings: usize,
}

impl BuildOutput {
    fn add(&mut self, line: &str) {
        match serde_json::from_str(line) {
            Ok(CargoMessage::CompilerArtifact {
                fresh: false,
                executable,
            }) => {
                self.compiled.units += 1;
                self.compiled.programs += usize::from(executable.is_some());
            }
            Ok(CargoMessage::CompilerMessage { message }) => {
                let text = message.rendered.unwrap_or_default();
                // A crate is linted once for its library and once for its tests.
                if !self.diagnostics.contains(&text) {
                    self.warnings += usize::from(message.level == "warning");
                    self.diagnostics.push(text);
                }
            }
            // A line that is no message of cargo's comes from a build script.
            Ok(CargoMessage::CompilerArtifact { .. } | CargoMessage::Other) | Err(_) => {}
        }
    }
}

/// Runs builds one after the other, each with `cargo build` and its selection. A warning fails: lints are warnings, for
/// a build that turns them into errors has other flags and compiles everything again.
pub(super) fn run(run: &Run<'_>, builds: Vec<Command>) -> anyhow::Result<Outcome> {
    if !on_path("clippy-driver") {
        return Ok(Outcome::Failed(
            "clippy is not installed, and a build without it has no lints: rustup component add clippy"
                .to_owned(),
        ));
    }
    let mut outcome = Outcome::Passed;
    for mut build in builds {
        build.arg("--message-format=json");
        let mut output = BuildOutput::default();
        let status = run.read_stdout(&mut build, |line| output.add(line))?;
        for text in &output.diagnostics {
            run.console.print(format_args!("{text}"));
        }
        run.add_compiled(output.compiled);
        if !status.success() {
            outcome = Outcome::Failed(format!("cargo build ended with {status}"));
        } else if output.warnings > 0 {
            outcome = Outcome::Failed(format!("{} warnings", output.warnings));
        }
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> BuildOutput {
        let mut output = BuildOutput::default();
        lines.iter().for_each(|line| output.add(line));
        output
    }

    const LIBRARY: &str =
        r#"{"reason":"compiler-artifact","package_id":"a","fresh":false,"executable":null}"#;
    const PROGRAM: &str =
        r#"{"reason":"compiler-artifact","package_id":"b","fresh":false,"executable":"/t/b"}"#;
    const READY: &str = r#"{"reason":"compiler-artifact","package_id":"c","fresh":true,"executable":"/t/c"}"#;
    const WARNING: &str = r#"{"reason":"compiler-message","message":{"level":"warning","rendered":"warning: used `unwrap()`"}}"#;

    #[test]
    fn only_compiled_units_count() {
        let output = read(&[
            LIBRARY,
            PROGRAM,
            READY,
            r#"{"reason":"build-finished","success":true}"#,
        ]);
        assert_eq!(
            output.compiled,
            Compiled {
                units: 2,
                programs: 1
            }
        );
        assert_eq!(output.warnings, 0);
    }

    #[test]
    fn a_warning_counts_once_for_a_library_and_its_tests() {
        let output = read(&[WARNING, WARNING, "a line of a build script"]);
        assert_eq!((output.warnings, output.diagnostics.len()), (1, 1));
    }

    #[test]
    fn an_error_is_shown_and_is_no_warning() {
        let output =
            read(&[r#"{"reason":"compiler-message","message":{"level":"error","rendered":"error: x"}}"#]);
        assert_eq!(
            (output.warnings, output.diagnostics.as_slice()),
            (0, &["error: x".to_owned()][..])
        );
    }
}
