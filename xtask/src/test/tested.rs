//! The workspaces beside the root, whose tests and lints run when their sources changed.
//!
//! `xtask/tested.toml` has the digest of the sources with which `cargo xtask soak` last ran them, with date and result.
//! The suite runs them where the digest differs, and else counts them as skipped with that reason. The programs that
//! the demonstration and the root's tests need of them are built in every run.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Run, child_process::quietly, report::Outcome};
use crate::tool::git_files;

const FILE: &str = "xtask/tested.toml";
const HEAD: &str = "# Written by `cargo xtask soak`: the sources with which the tests and lints of each workspace beside the root last\n\
    # passed. `cargo xtask test` runs them again where the sources differ.\n";

/// Every workspace depends on them.
const COMMON: &[&str] = &["rust-toolchain.toml", "clippy.toml", ".cargo"];

/// A workspace beside the root.
pub(super) struct OtherWorkspace {
    pub(super) name: &'static str,
    /// The folder of its manifest, relative to the root.
    pub(super) folder: &'static str,
    /// Files and folders outside its own on which its tests depend.
    pub(super) outside: &'static [&'static str],
}

pub(super) const DEVCHAIN: OtherWorkspace = OtherWorkspace {
    name: "devchain",
    folder: "devchain",
    outside: &["tests/vectors/finney-spec365.scale"],
};
pub(super) const LLM: OtherWorkspace = OtherWorkspace {
    name: "llm",
    folder: "images/llm",
    outside: &[],
};
pub(super) const CUDA: OtherWorkspace = OtherWorkspace {
    name: "cuda",
    folder: "images/grader-cuda",
    outside: &[
        "images/grader",
        "crates/grading/hardware-proof",
        "crates/foundation/protocol",
        "tests/vectors/proofs.json",
    ],
};

/// The last run of a workspace that passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LastRun {
    /// The SHA-256 of the sources, as hex.
    sources: String,
    /// The day, as 2026-11-28.
    date: String,
    /// `131 passed, 0 failed, 2 skipped`.
    result: String,
}

type LastRuns = BTreeMap<String, LastRun>;

/// Runs `tests` unless they passed with the sources of this checkout.
pub(super) fn run_if_changed(
    run: &Run<'_>,
    workspace: &OtherWorkspace,
    tests: impl FnOnce(&Run<'_>) -> anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    let root = run.workspace.root();
    let digest = digest(root, workspace)?;
    match read(root)?.get(workspace.name) {
        Some(last) if last.sources == digest => Ok(Outcome::Skipped(format!(
            "the tests and lints of {} passed with these sources on {} ({}), as {FILE} says",
            workspace.folder, last.date, last.result
        ))),
        Some(_) | None => tests(run),
    }
}

/// Runs `tests` and writes down that they passed.
pub(super) fn run_and_record(
    run: &Run<'_>,
    workspace: &OtherWorkspace,
    tests: impl FnOnce(&Run<'_>) -> anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    let root = run.workspace.root();
    let digest = digest(root, workspace)?;
    let outcome = tests(run)?;
    if outcome.counts().failed == 0 {
        let date = quietly(Command::new("date").args(["--utc", "+%F"]))?
            .trim()
            .to_owned();
        let result = outcome.counts().to_string();
        let mut runs = read(root)?;
        runs.insert(
            workspace.name.to_owned(),
            LastRun {
                sources: digest,
                date,
                result,
            },
        );
        let text = toml::to_string(&runs).context("write down the tested workspaces")?;
        fs::write(root.join(FILE), format!("{HEAD}\n{text}")).with_context(|| format!("write {FILE}"))?;
    }
    Ok(outcome)
}

fn read(root: &Path) -> anyhow::Result<LastRuns> {
    let path = root.join(FILE);
    if !path.exists() {
        return Ok(LastRuns::new());
    }
    let text = fs::read_to_string(&path).with_context(|| format!("read {FILE}"))?;
    toml::from_str(&text).with_context(|| format!("{FILE} is not what `cargo xtask soak` writes"))
}

/// The digest of the names and contents of all files on which a workspace's tests depend.
fn digest(root: &Path, workspace: &OtherWorkspace) -> anyhow::Result<String> {
    let mut patterns = vec![workspace.folder];
    patterns.extend(workspace.outside.iter().chain(COMMON));
    let files = git_files(root, &patterns)?;
    ensure!(!files.is_empty(), "git knows no file of {}", workspace.folder);
    let mut hash = Sha256::new();
    for file in files {
        let bytes = fs::read(root.join(&file)).with_context(|| format!("read {}", file.display()))?;
        hash.update(format!("{} {}\n", file.display(), bytes.len()));
        hash.update(bytes);
    }
    Ok(hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use cargo_metadata::MetadataCommand;

    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .canonicalize()
            .unwrap()
    }

    #[test]
    fn every_path_that_a_workspace_depends_on_is_in_its_digest() {
        let root = root();
        for workspace in [DEVCHAIN, LLM, CUDA] {
            let metadata = MetadataCommand::new()
                .manifest_path(root.join(workspace.folder).join("Cargo.toml"))
                .other_options(["--offline".to_owned()])
                .exec()
                .unwrap();
            for package in metadata
                .packages
                .iter()
                .filter(|package| package.source.is_none())
            {
                let folder = package.manifest_path.parent().unwrap();
                let folder = folder.as_std_path().strip_prefix(&root).unwrap();
                let mut known = workspace.outside.iter().chain([&workspace.folder]);
                assert!(
                    known.any(|known| folder.starts_with(known)),
                    "{} depends on {}, which its digest leaves out",
                    workspace.name,
                    folder.display()
                );
            }
            for outside in workspace.outside {
                assert!(root.join(outside).exists(), "{outside}");
            }
        }
    }

    #[test]
    fn a_changed_file_and_a_changed_name_change_the_digest() {
        let checkout = tempfile::tempdir().unwrap();
        quietly(
            Command::new("git")
                .args(["init", "--quiet"])
                .current_dir(checkout.path()),
        )
        .unwrap();
        let at = |name: &str| checkout.path().join(name);
        fs::create_dir_all(at("images/llm/src")).unwrap();
        fs::write(at("images/llm/src/lib.rs"), "a").unwrap();
        let first = digest(checkout.path(), &LLM).unwrap();
        fs::write(at("images/llm/src/lib.rs"), "b").unwrap();
        let changed = digest(checkout.path(), &LLM).unwrap();
        fs::rename(at("images/llm/src/lib.rs"), at("images/llm/src/main.rs")).unwrap();
        let renamed = digest(checkout.path(), &LLM).unwrap();
        assert!(first != changed && changed != renamed);
        fs::write(at("README.md"), "elsewhere").unwrap();
        assert_eq!(digest(checkout.path(), &LLM).unwrap(), renamed);
    }

    #[test]
    fn the_file_is_read_as_it_is_written() {
        let last = LastRun {
            sources: "ab".into(),
            date: "2026-11-28".into(),
            result: "3 passed, 0 failed, 0 skipped".into(),
        };
        let runs = LastRuns::from([("devchain".to_owned(), last)]);
        let text = format!("{HEAD}\n{}", toml::to_string(&runs).unwrap());
        assert_eq!(toml::from_str::<LastRuns>(&text).unwrap(), runs);
    }
}
