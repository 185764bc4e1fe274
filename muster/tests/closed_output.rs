//! Standard output that cannot be written: an error where it is full, a quiet end where its reader has gone.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs::File;
use std::process::{Command, Output, Stdio};

/// Commands that print much, and one whose text is written by the library that reads the command line.
const COMMANDS: [&[&str]; 3] = [&["completions", "bash"], &["explain", "E0001"], &["--help"]];

fn run(command: &[&str], stdout: impl Into<Stdio>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(command)
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap()
}

#[test]
fn full_standard_output_is_an_error_that_says_so() {
    for command in COMMANDS {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = run(command, full);
        let told = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{command:?}: {told}");
        assert!(
            told.starts_with("error: standard output cannot be written: No space left on device"),
            "{command:?}: {told}"
        );
    }
}

#[test]
fn closed_standard_output_ends_a_command_quietly_as_a_shell_shows_it() {
    for command in COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = run(command, writer);
        assert_eq!(ended.status.code(), Some(141), "{command:?}");
        assert_eq!(String::from_utf8(ended.stderr).unwrap(), "", "{command:?}");
    }
}
