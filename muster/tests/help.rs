//! The help texts of the binary: every command explains itself, in lines that fit, with an example where one is needed.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::process::Command;

/// Every command of users, and those of operators.
const COMMANDS: &[&[&str]] = &[
    &[],
    &["up"],
    &["facilitator"],
    &["validator"],
    &["validator", "collateral"],
    &["validator", "slash"],
    &["miner"],
    &["executor"],
    &["job"],
    &["job", "run"],
    &["job", "ls"],
    &["job", "show"],
    &["job", "logs"],
    &["job", "cancel"],
    &["job", "get"],
    &["subnet"],
    &["files"],
    &["files", "put"],
    &["files", "ls"],
    &["files", "show"],
    &["files", "get"],
    &["files", "rm"],
    &["login"],
    &["keys"],
    &["keys", "new"],
    &["keys", "ls"],
    &["keys", "rm"],
    &["account"],
    &["account", "show"],
    &["account", "delete"],
    &["grade"],
    &["grade", "self"],
    &["grade", "run"],
    &["grade", "ls"],
    &["grade", "explain"],
    &["grade", "replay"],
    &["doctor"],
    &["top"],
    &["backup"],
    &["restore"],
    &["completions"],
    &["wallet"],
    &["explain"],
];

fn help(command: &[&str]) -> String {
    let called = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(command)
        .arg("--help")
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    assert!(called.status.success(), "{command:?}");
    String::from_utf8(called.stdout).unwrap()
}

#[test]
fn every_command_explains_itself() {
    for command in COMMANDS {
        let text = help(command);
        let first = text.lines().next().unwrap();
        assert!(
            first.split(' ').count() > 2 && !first.starts_with("Usage"),
            "{command:?} has no words: {first}"
        );
        // Every option and argument has words beside it or below it.
        let lines: Vec<&str> = text.lines().collect();
        for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
            // `- value: words` is one of an option's values.
            let line_start = line.trim_start();
            let option = line_start.starts_with('-') && !line_start.starts_with("- ");
            let described =
                line.trim().contains("  ") || (next.starts_with("          ") && !next.trim().is_empty());
            assert!(!option || described, "{command:?}: {line:?} has no words");
        }
        let long = text.lines().find(|line| line.chars().count() > 160);
        assert_eq!(long, None, "{command:?}");
    }
}

#[test]
fn what_a_program_reads_is_offered_by_every_command_that_says_something() {
    let speaking = COMMANDS
        .iter()
        .filter(|command| matches!(command, ["job" | "files" | "keys", _] | ["login" | "doctor"]));
    for command in speaking {
        assert!(help(command).contains("--json"), "{command:?}");
    }
}

#[test]
fn secrets_of_the_environment_are_not_shown() {
    let called = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["job", "run", "--help"])
        .env("MUSTER_API_KEY", "msk_verysecret")
        .output()
        .unwrap();
    assert!(!String::from_utf8(called.stdout).unwrap().contains("verysecret"));
}

/// The file with all help texts. A change of a text shows in a review as a change of this file.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/help.txt");

#[test]
fn help_texts_are_the_reviewed_ones() {
    let text: String = COMMANDS
        .iter()
        .map(|command| {
            format!(
                "$ muster {} --help\n{}\n",
                command.join(" "),
                help(command).trim_end()
            )
        })
        .collect();
    if std::env::var_os("MUSTER_WRITE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &text).unwrap();
    }
    let reviewed = std::fs::read_to_string(GOLDEN).unwrap();
    for (made, kept) in text.lines().zip(reviewed.lines()) {
        assert_eq!(
            made, kept,
            "MUSTER_WRITE_GOLDEN=1 writes the file anew; review its change"
        );
    }
    assert_eq!(text.lines().count(), reviewed.lines().count());
}
