//! Licences, sources and advisories of the crates in every lockfile, with cargo-deny.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use super::{
    Run,
    child_process::{last_lines, quietly},
    console::Console,
    python,
    report::{Counts, Outcome},
};
use crate::tool::{CARGO_DENY, git_files};

/// The words with which cargo-deny reports that it has no advisory database.
const NO_DATABASE: [&str; 2] = [
    "failed to fetch advisory database",
    "failed to load advisory database",
];

/// Checks every lockfile: one check of its licences, sources and bans, and one of its advisories, which is skipped
/// where no database can be had.
pub(super) fn run(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let program = python::prebuilt(&CARGO_DENY)?;
    let mut counts = Counts::default();
    for lockfile in lockfiles(run.workspace.root())? {
        let (manifest, rules) = (lockfile.manifest.display().to_string(), &lockfile.rules);
        let check = |what: &[&str]| {
            let mut deny = Command::new(&program);
            deny.current_dir(run.workspace.root());
            deny.args(["--log-level", "error", "--manifest-path", &manifest, "--config"])
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
            &manifest,
            "licences, bans and sources",
            check(&["licenses", "bans", "sources"]),
        );
        add(
            &run.console,
            &mut counts,
            &manifest,
            "advisories",
            check(&["advisories"]),
        );
    }
    Ok(Outcome::Tests { counts, error: None })
}

/// A lockfile of the repository, by the manifest beside it.
#[derive(Debug, PartialEq, Eq)]
struct Lockfile {
    manifest: PathBuf,
    rules: PathBuf,
}

/// Every lockfile that git knows, with the nearest `deny.toml` in its folder or above.
fn lockfiles(root: &Path) -> anyhow::Result<Vec<Lockfile>> {
    let files = git_files(root, &["*Cargo.lock"])?;
    ensure!(
        !files.is_empty(),
        "git knows no lockfile below {}",
        root.display()
    );
    let rules = |folder: &Path| {
        let mut nearest = folder.ancestors().map(|above| above.join("deny.toml"));
        nearest.find(|rules| root.join(rules).exists())
    };
    files
        .into_iter()
        .map(|file| {
            let folder = file.parent().unwrap_or(Path::new(""));
            let rules = rules(folder).with_context(|| format!("{} has no deny.toml", file.display()))?;
            Ok(Lockfile {
                manifest: folder.join("Cargo.toml"),
                rules,
            })
        })
        .collect()
}

/// Counts one check and prints it unless it passed.
fn add(console: &Console, counts: &mut Counts, manifest: &str, what: &str, result: Result<(), String>) {
    match result {
        Ok(()) => counts.passed += 1,
        Err(said) if NO_DATABASE.iter().any(|words| said.contains(words)) => {
            console.print(format_args!(
                "skipped: {what} of {manifest}: no advisory database can be had here"
            ));
            counts.skipped += 1;
        }
        Err(said) => {
            console.print(format_args!("{what} of {manifest}:\n{}", last_lines(&said, 60)));
            counts.failed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lockfile_has_rules() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let found = lockfiles(&root).unwrap();
        let of = |manifest: &str| {
            let known = found.iter().find(|file| file.manifest == Path::new(manifest));
            known.map(|file| file.rules.display().to_string())
        };
        assert_eq!(of("Cargo.toml").as_deref(), Some("deny.toml"));
        assert_eq!(of("devchain/Cargo.toml").as_deref(), Some("devchain/deny.toml"));
        assert_eq!(of("images/llm/Cargo.toml").as_deref(), Some("deny.toml"));
        for file in found {
            assert!(root.join(&file.manifest).exists(), "{file:?}");
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
