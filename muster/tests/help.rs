//! The texts that the binary prints: every command explains itself, in lines that fit, with an example where one is
//! needed; and standard output that cannot be written is an error where it is full, a quiet end where its reader left.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::process::{Command, Output, Stdio};

/// The words behind `muster` that name a command.
type Words = Vec<String>;

/// Every command of clap's own tree, hidden ones among them, with the program itself first. The completion script for
/// bash names each command once behind its parent, in pairs of lines: `muster,job)` and `cmd="muster__job"`.
fn commands() -> BTreeSet<Words> {
    let printed = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["completions", "bash", "--static"])
        .output()
        .unwrap();
    assert!(printed.status.success());
    let script = String::from_utf8(printed.stdout).unwrap();
    let mut parents = BTreeMap::new();
    for (case, below) in script.lines().zip(script.lines().skip(1)) {
        let pair = case
            .trim()
            .strip_suffix(')')
            .and_then(|pair| pair.split_once(','));
        let key = below
            .trim()
            .strip_prefix("cmd=\"")
            .and_then(|key| key.strip_suffix('"'));
        // The program itself has no parent.
        if let (Some((parent, name)), Some(key)) = (pair, key.filter(|key| *key != "muster")) {
            parents.insert(key, (parent, name));
        }
    }
    let mut all = BTreeSet::from([Words::new()]);
    for key in parents.keys() {
        let (mut words, mut at) = (Words::new(), *key);
        while let Some((parent, name)) = parents.get(at) {
            words.insert(0, (*name).to_owned());
            at = *parent;
        }
        // `help` and the commands below it are clap's.
        if !words.iter().any(|word| word == "help") {
            all.insert(words);
        }
    }
    assert!(
        all.contains(&["job".to_owned(), "run".to_owned()][..]),
        "{script}"
    );
    all
}

fn help(command: &[String]) -> String {
    let called = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(command)
        .arg("--help")
        .env("COLUMNS", "100")
        .env("MUSTER_API_KEY", SECRET)
        .env("EXECUTOR_TOKEN", SECRET)
        .output()
        .unwrap();
    assert!(called.status.success(), "{command:?}");
    String::from_utf8(called.stdout).unwrap()
}

#[test]
fn every_command_explains_itself() {
    for command in commands() {
        let text = help(&command);
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
fn every_command_with_output_offers_json() {
    for command in commands() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        // A report prints one sentence; `job check` is where a program reads what came of it.
        let is_report = words == ["job", "report"];
        if matches!(words[..], ["job" | "files" | "keys", _] | ["login" | "doctor"]) && !is_report {
            assert!(help(&command).contains("--json"), "{command:?}");
        }
    }
}

/// The value of each variable that is secret, where help texts are asked for.
const SECRET: &str = "msk_verysecret";

#[test]
fn secrets_of_the_environment_are_not_shown() {
    for command in commands() {
        assert!(!help(&command).contains(SECRET), "{command:?}");
    }
}

const ANEW: &str = "MUSTER_WRITE_GOLDEN=1 writes the file anew; review its change";
/// The file with all help texts. A change of a text shows in a review as a change of this file.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/help.txt");

/// The line above the help text of a command.
fn heading(command: &[String]) -> String {
    let words: Vec<&str> = ["muster"]
        .into_iter()
        .chain(command.iter().map(String::as_str))
        .collect();
    format!("$ {} --help", words.join(" "))
}

#[test]
fn help_texts_are_the_reviewed_ones() {
    let commands = commands();
    let text: String = commands
        .iter()
        .map(|command| format!("{}\n{}\n\n", heading(command), help(command).trim_end()))
        .collect();
    if std::env::var_os("MUSTER_WRITE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &text).unwrap();
    }
    let reviewed = std::fs::read_to_string(GOLDEN).unwrap();
    let headings: BTreeSet<String> = commands.iter().map(|command| heading(command)).collect();
    let kept = reviewed.lines().filter(|line| line.starts_with("$ "));
    let kept: BTreeSet<String> = kept.map(str::to_owned).collect();
    assert_eq!(
        headings, kept,
        "commands with and without a reviewed text: {ANEW}"
    );
    for (made, kept) in text.lines().zip(reviewed.lines()) {
        assert_eq!(made, kept, "{ANEW}");
    }
    assert_eq!(text.lines().count(), reviewed.lines().count());
}

#[test]
fn short_help_of_a_job_has_every_day_first_and_fits_a_screen() {
    let called = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["job", "run", "-h"])
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    let text = String::from_utf8(called.stdout).unwrap();
    let rows: usize = text
        .lines()
        .map(|line| line.chars().count().div_ceil(100).max(1))
        .sum();
    assert!(rows <= 45, "{rows} rows of 100 columns:\n{text}");
    let headings: Vec<_> = text
        .lines()
        .filter(|line| line.ends_with(':') && !line.starts_with(' '))
        .collect();
    let expected = [
        "Arguments:",
        "Options:",
        "Limits:",
        "Images:",
        "Checkpoints:",
        "Routing:",
        "Facilitator and identity:",
    ];
    assert_eq!(headings, expected, "{text}");
    let whole = help(&["job".to_owned(), "run".to_owned()]);
    for option in ["--via", "--fatal-exit", "--webhook", "  124  "] {
        assert!(whole.contains(option) && !text.contains(option), "{option}");
    }
}

#[test]
fn every_option_of_the_identity_has_a_variable() {
    let text = help(&["account".to_owned(), "show".to_owned()]);
    let (_, options) = text.split_once("Facilitator and identity:\n").unwrap();
    let options: Vec<_> = options.lines().take_while(|line| line.starts_with(' ')).collect();
    assert_eq!(options.len(), 7, "{text}");
    for line in options {
        assert!(line.contains("[env: MUSTER_"), "{line}");
    }
}

#[test]
fn program_without_a_separator_is_told_where_it_belongs() {
    for words in [["alpine", "ls", "-la"], ["alpine", "-la", "x"]] {
        let refused = Command::new(env!("CARGO_BIN_EXE_muster"))
            .args(["job", "run"])
            .args(words)
            .output()
            .unwrap();
        let told = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{told}");
        let hint =
            "put `--` before the program and its own options: muster job run IMAGE -- PROGRAM ARGUMENTS";
        assert!(told.contains(hint), "{told}");
    }
}

#[test]
fn a_command_line_that_cannot_be_read_is_told_as_json_where_json_is_asked_for() {
    let refused = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["job", "run", "--json", "--rm", "alpine"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let told: serde_json::Value = serde_json::from_slice(&refused.stderr).unwrap();
    assert_eq!(told["error"]["exit_code"], 2, "{told}");
    let message = told["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("unexpected argument '--rm'") && message.contains("leave it out"),
        "{told}"
    );
}

#[test]
fn no_color_goes_before_every_wish_for_colours() {
    let called = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
        command.args(["job", "show"]).env_remove("NO_COLOR");
        command.envs(variables.iter().copied()).output().unwrap().stderr
    };
    let coloured = |text: &[u8]| text.contains(&0x1b);
    assert!(coloured(&called(&[("CLICOLOR_FORCE", "1")])));
    assert!(!coloured(&called(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")])));
}

/// Commands that print much, and one whose text is written by the library that reads the command line.
const PRINTING: [&[&str]; 3] = [&["completions", "bash"], &["explain", "E0001"], &["--help"]];

fn run_into(command: &[&str], stdout: impl Into<Stdio>) -> Output {
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
    for command in PRINTING {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = run_into(command, full);
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
    for command in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = run_into(command, writer);
        assert_eq!(ended.status.code(), Some(141), "{command:?}");
        assert_eq!(String::from_utf8(ended.stderr).unwrap(), "", "{command:?}");
    }
}
