//! `cargo xtask bench NAME`: runs a program of `bench/` in the release profile and publishes what it found.

use std::{
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, ensure};

use crate::workspace::Workspace;

const PACKAGE: &str = "muster-bench";
const PROGRAMS: &str = "bench/src/bin";

pub(crate) fn run(workspace: &Workspace, names: &[String]) -> anyhow::Result<ExitCode> {
    let known = programs(&workspace.root().join(PROGRAMS))?;
    if names.is_empty() {
        for name in known {
            println!("cargo xtask bench {name}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    for name in chosen(names, &known)? {
        measure(workspace, name)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The names that were asked for, each of which exists.
fn chosen<'a>(names: &'a [String], known: &'a [String]) -> anyhow::Result<&'a [String]> {
    if names == ["all"] {
        return Ok(known);
    }
    for name in names {
        ensure!(
            known.contains(name),
            "there is no bench {name:?}; there are: {}",
            known.join(", ")
        );
    }
    Ok(names)
}

/// The programs, by the names of their files.
fn programs(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(stem) = path.file_stem()
        {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn measure(workspace: &Workspace, name: &str) -> anyhow::Result<()> {
    let found = cargo(workspace, &["--bin", name])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("run the bench {name}"))?;
    ensure!(
        found.status.success(),
        "the bench {name} failed: {}",
        found.status
    );
    let samples = tempfile::NamedTempFile::new()?;
    std::fs::write(samples.path(), &found.stdout)?;
    let published = cargo(workspace, &["--bin", PACKAGE, "--", name])
        .stdin(samples.reopen()?)
        .status()
        .with_context(|| format!("publish the bench {name}"))?;
    ensure!(published.success(), "publishing {name} failed: {published}");
    Ok(())
}

fn cargo(workspace: &Workspace, rest: &[&str]) -> Command {
    let mut cargo = workspace.cargo();
    cargo
        .args(["run", "--quiet", "--release", "--package", PACKAGE])
        .args(rest);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn all_means_all() {
        let known = names(&["a", "b"]);
        assert_eq!(chosen(&names(&["all"]), &known).unwrap(), known);
        assert_eq!(chosen(&names(&["b"]), &known).unwrap(), names(&["b"]));
    }

    #[test]
    fn an_unknown_bench_is_refused_with_those_there_are() {
        let error = chosen(&names(&["c"]), &names(&["a", "b"]))
            .unwrap_err()
            .to_string();
        assert_eq!(error, "there is no bench \"c\"; there are: a, b");
    }

    #[test]
    fn the_page_names_every_bench() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = std::fs::read_to_string(root.join("docs/performance.md")).unwrap();
        for name in programs(&root.join(PROGRAMS)).unwrap() {
            let is_named =
                page.contains(&format!("results/{name}.md")) || page.contains(&format!("bench {name}`"));
            assert!(is_named, "the page does not name {name}");
        }
    }
}
