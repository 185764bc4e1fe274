//! Licences, sources and advisories of the crates in every lockfile, with cargo-deny.

use std::process::Command;

use super::{
    Run,
    console::Console,
    process::{last_lines, quietly},
    report::{Counts, Outcome},
};
use crate::tool::install;

/// cargo-deny, compiled once without optimisation: a minute, and a check takes seconds.
const VERSION: &str = "0.20.2";

/// The manifests whose lockfiles are checked, each with its rules.
const LOCKFILES: [(&str, &str); 4] = [
    ("Cargo.toml", "deny.toml"),
    ("devchain/Cargo.toml", "devchain/deny.toml"),
    ("images/llm/Cargo.toml", "deny.toml"),
    ("images/grader-cuda/Cargo.toml", "deny.toml"),
];

/// The words with which cargo-deny reports that it has no advisory database.
const NO_DATABASE: [&str; 2] = [
    "failed to fetch advisory database",
    "failed to load advisory database",
];

/// Checks every lockfile: one check of its licences, sources and bans, and one of its advisories, which is skipped
/// where no database can be had.
pub(super) fn run(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let program = install(run.workspace, "cargo-deny", VERSION, |line| {
        run.console.say(format_args!("{line}"));
    })?;
    let mut counts = Counts::default();
    for (manifest, rules) in LOCKFILES {
        let check = |what: &[&str]| {
            let mut deny = Command::new(&program);
            deny.current_dir(run.workspace.root());
            deny.args(["--log-level", "error", "--manifest-path", manifest, "--config"])
                .arg(run.workspace.root().join(rules))
                .args([
                    "--locked",
                    "check",
                    "--allow",
                    "duplicate",
                    "--allow",
                    "license-not-encountered",
                ])
                .args(what);
            quietly(&mut deny).map(drop).map_err(|error| format!("{error:#}"))
        };
        add(
            &run.console,
            &mut counts,
            manifest,
            "licences, bans and sources",
            check(&["licenses", "bans", "sources"]),
        );
        add(
            &run.console,
            &mut counts,
            manifest,
            "advisories",
            check(&["advisories"]),
        );
    }
    Ok(Outcome::Tests { counts, error: None })
}

/// Counts one check and prints it unless it passed.
fn add(console: &Console, counts: &mut Counts, manifest: &str, what: &str, result: Result<(), String>) {
    match result {
        Ok(()) => counts.passed += 1,
        Err(said) if NO_DATABASE.iter().any(|words| said.contains(words)) => {
            console.say(format_args!(
                "skipped: {what} of {manifest}: no advisory database can be had here"
            ));
            counts.skipped += 1;
        }
        Err(said) => {
            console.say(format_args!("{what} of {manifest}:\n{}", last_lines(&said, 60)));
            counts.failed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_lockfile_has_rules() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (manifest, rules) in LOCKFILES {
            assert!(root.join(manifest).with_extension("lock").exists(), "{manifest}");
            assert!(root.join(rules).exists(), "{rules}");
        }
    }

    #[test]
    fn a_missing_database_is_a_skip_and_anything_else_fails() {
        let mut counts = Counts::default();
        add(&Console::Screen, &mut counts, "m", "advisories", Ok(()));
        add(
            &Console::Screen,
            &mut counts,
            "m",
            "advisories",
            Err("failed to fetch advisory database x".to_owned()),
        );
        add(
            &Console::Screen,
            &mut counts,
            "m",
            "advisories",
            Err("error[vulnerability]: y".to_owned()),
        );
        assert_eq!((counts.passed, counts.failed, counts.skipped), (1, 1, 1));
    }
}
