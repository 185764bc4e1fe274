//! `cargo xtask arrows`: crates depend downwards only, as [`table`] says.
//!
//! Read from `cargo metadata --no-deps`, normal, build and dev-dependencies alike. Architecture that is not checked is
//! a wish.

mod table;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use cargo_metadata::{DependencyKind, Metadata};

use crate::workspace::Workspace;
use table::{
    Room::{Apart, Layer},
    Row, find,
};

/// Workspaces of their own: their crates are not in the root's metadata.
const DEVCHAIN: &str = "devchain/Cargo.toml";
const FUZZ: &str = "crates/foundation/protocol/fuzz/Cargo.toml";
const LLM: &str = "images/llm/Cargo.toml";
const CUDA: &str = "images/grader-cuda/Cargo.toml";

/// A crate as far as arrows are concerned.
#[derive(Debug)]
struct Crate {
    name: String,
    /// Relative to the root.
    manifest: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Debug)]
struct Dependency {
    name: String,
    kind: DependencyKind,
    /// Where it lies, if it is not from a registry; relative to the root.
    folder: Option<PathBuf>,
}

/// Prints every forbidden arrow; fails if there is one.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let mut crates = read(workspace, "Cargo.toml")?;
    for manifest in [DEVCHAIN, FUZZ, LLM, CUDA] {
        if workspace.root().join(manifest).exists() {
            crates.extend(read(workspace, manifest)?);
        }
    }
    let faults = check(&crates);
    for fault in &faults {
        eprintln!("{fault}");
    }
    println!(
        "arrows: {} crates, {} forbidden arrows",
        crates.len(),
        faults.len()
    );
    Ok(crate::exit_code(faults.is_empty()))
}

fn read(workspace: &Workspace, manifest: &str) -> anyhow::Result<Vec<Crate>> {
    Ok(crates_of(workspace.metadata(manifest)?, workspace.root()))
}

fn crates_of(metadata: Metadata, root: &Path) -> Vec<Crate> {
    let relative = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_path_buf();
    let dependency = |found: cargo_metadata::Dependency| Dependency {
        name: found.name,
        kind: found.kind,
        folder: found.path.map(|path| relative(path.as_std_path())),
    };
    metadata
        .packages
        .into_iter()
        .map(|package| Crate {
            name: package.name.to_string(),
            manifest: relative(package.manifest_path.as_std_path()),
            dependencies: package.dependencies.into_iter().map(dependency).collect(),
        })
        .collect()
}

/// Every forbidden arrow and every crate the table does not know, one line each.
fn check(crates: &[Crate]) -> Vec<String> {
    let mut faults = Vec::new();
    for member in crates {
        let manifest = member.manifest.display();
        if member.manifest.starts_with("devchain") {
            for dependency in &member.dependencies {
                if let Some(why) = refused_for_devchain(dependency) {
                    faults.push(arrow(member, dependency, &why));
                }
            }
            continue;
        }
        let Some(row) = find(&member.name) else {
            let name = &member.name;
            faults.push(format!(
                "{manifest}: {name} is in no layer; add it to TABLE in xtask/src/arrows/table.rs"
            ));
            continue;
        };
        for dependency in &member.dependencies {
            if let Some(why) = refused(row, dependency) {
                faults.push(arrow(member, dependency, &why));
            }
        }
    }
    faults
}

fn arrow(from: &Crate, to: &Dependency, why: &str) -> String {
    let Crate { name, manifest, .. } = from;
    let kind = match to.kind {
        DependencyKind::Development => " (dev-dependency)",
        DependencyKind::Build => " (build-dependency)",
        DependencyKind::Normal | DependencyKind::Unknown => "",
    };
    format!(
        "{}: {name} -> {}{kind} is not allowed: {why}",
        manifest.display(),
        to.name
    )
}

/// Why `from` may not have this dependency, if it may not.
fn refused(from: &Row, to: &Dependency) -> Option<String> {
    if from.forbids(&to.name) {
        return Some(from.because.to_owned());
    }
    let library = matches!(from.room, Layer(1..=4));
    if library && to.name == "anyhow" && to.kind != DependencyKind::Development {
        return Some("a library's errors have types; anyhow is for binaries, xtask and tests".to_owned());
    }
    if to
        .folder
        .as_ref()
        .is_some_and(|folder| folder.starts_with("devchain"))
    {
        return Some("devchain is reached by its RPC, never imported".to_owned());
    }
    let Some(target) = find(&to.name) else {
        let ours = to.folder.is_some();
        return ours.then(|| "it is in no layer; add it to TABLE in xtask/src/arrows/table.rs".to_owned());
    };
    match (&from.room, &target.room) {
        (Apart(may), _) if may.contains(&target.name) => None,
        (_, Apart(_)) => Some("it is a program of its own that nobody imports".to_owned()),
        (Layer(above), Layer(below)) if below < above => None,
        (Layer(one), Layer(other)) if one == other => Some(format!(
            "both are in layer {one}, and crates of one layer never import one another"
        )),
        (Layer(below), Layer(above)) => {
            Some(format!("arrows point down, from layer {below} not up to {above}"))
        }
        (Apart([]), Layer(_)) => Some("it is a program of its own that uses none of our crates".to_owned()),
        (Apart(may), Layer(_)) => Some(format!("it may use only {}", may.join(", "))),
    }
}

/// devchain's crates may use one another and no other crate of this repository.
fn refused_for_devchain(to: &Dependency) -> Option<String> {
    let ours = find(&to.name).is_some()
        || to
            .folder
            .as_ref()
            .is_some_and(|folder| !folder.starts_with("devchain"));
    ours.then(|| "devchain imports nobody of ours: it stands for a chain we did not write".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, folder: &str, dependencies: &[(&str, DependencyKind)]) -> Crate {
        let dependencies = dependencies
            .iter()
            .map(|(name, kind)| Dependency {
                name: (*name).to_owned(),
                kind: *kind,
                folder: None,
            })
            .collect();
        Crate {
            name: name.to_owned(),
            manifest: Path::new(folder).join("Cargo.toml"),
            dependencies,
        }
    }

    /// The faults of one crate with one normal dependency.
    fn faults(name: &str, dependency: &str) -> Vec<String> {
        check(&[member(name, "somewhere", &[(dependency, DependencyKind::Normal)])])
    }

    #[track_caller]
    fn refuses(name: &str, dependency: &str, why: &str) {
        let faults = faults(name, dependency);
        assert_eq!(faults.len(), 1, "{name} -> {dependency}: {faults:?}");
        assert!(
            faults[0].starts_with(&format!("somewhere/Cargo.toml: {name} -> {dependency}")),
            "{faults:?}"
        );
        assert!(faults[0].contains(why), "{faults:?}");
    }

    #[test]
    fn downward_arrows_are_allowed() {
        for (name, dependency) in [
            ("muster-identity", "muster-protocol"),
            ("muster-validator", "muster-chain"),
            ("muster", "muster-validator"),
            ("muster-tests", "muster-executor"),
            ("muster-image-grader", "muster-hardware-proof"),
            ("muster-image-grader-cuda", "muster-image-grader"),
            ("muster-process", "tokio"),
            ("muster-miner", "bollard"),
        ] {
            assert_eq!(
                faults(name, dependency),
                Vec::<String>::new(),
                "{name} -> {dependency}"
            );
        }
    }

    #[test]
    fn upward_and_level_arrows_are_refused() {
        refuses(
            "muster-process",
            "muster-websocket",
            "arrows point down, from layer 2 not up to 3",
        );
        refuses("muster-validator", "muster-miner", "both are in layer 6");
        refuses("muster-tests", "muster", "both are in layer 7");
    }

    #[test]
    fn the_executor_does_not_reach_the_chain() {
        refuses("muster-executor", "muster-chain", "stands next to untrusted code");
        refuses("muster-executor", "subxt-rpcs", "stands next to untrusted code");
    }

    #[test]
    fn names_a_crate_must_not_hold_are_refused() {
        refuses("muster-protocol", "tokio-util", "no runtime, no IO");
        refuses("muster-identity", "reqwest", "never touch the network");
        refuses("muster-hardware-proof", "cust", "without CUDA");
        refuses("muster-websocket", "anyhow", "errors have types");
    }

    #[test]
    fn dev_dependencies_count_except_for_anyhow() {
        let tokio = member(
            "muster-protocol",
            "crates/foundation/protocol",
            &[("tokio", DependencyKind::Development)],
        );
        assert!(check(&[tokio])[0].contains("tokio (dev-dependency)"));
        let anyhow = member(
            "muster-websocket",
            "crates/foundation/websocket",
            &[("anyhow", DependencyKind::Development)],
        );
        assert!(check(&[anyhow]).is_empty());
    }

    #[test]
    fn programs_of_their_own_are_neither_imported_nor_free_to_import() {
        refuses("muster", "muster-image-hello", "nobody imports");
        refuses("muster-tests", "xtask", "nobody imports");
        refuses("muster-tests", "muster-image-grader", "nobody imports");
        refuses("xtask", "muster-protocol", "none of our crates");
        refuses(
            "muster-image-llm",
            "muster-websocket",
            "it may use only muster-protocol",
        );
    }

    #[test]
    fn devchain_imports_nobody_and_is_imported_by_nobody() {
        let node = member(
            "muster-devchain",
            "devchain/node",
            &[("muster-protocol", DependencyKind::Normal)],
        );
        assert!(check(&[node])[0].contains("devchain imports nobody"));
        let mut inner = member(
            "muster-devchain",
            "devchain/node",
            &[("muster-devchain-runtime", DependencyKind::Normal)],
        );
        inner.dependencies[0].folder = Some("devchain/runtime".into());
        assert!(check(&[inner]).is_empty());
        let mut tests = member(
            "muster-tests",
            "tests",
            &[("muster-devchain-runtime", DependencyKind::Normal)],
        );
        tests.dependencies[0].folder = Some("devchain/runtime".into());
        assert!(check(&[tests])[0].contains("reached by its RPC"));
    }

    #[test]
    fn a_crate_without_a_layer_must_be_given_one() {
        let unknown = member("muster-novelty", "crates/novelty", &[]);
        assert!(
            check(&[unknown])[0]
                .contains("crates/novelty/Cargo.toml: muster-novelty is in no layer; add it to TABLE")
        );
        let mut user = member(
            "muster-miner",
            "miner",
            &[("muster-novelty", DependencyKind::Normal)],
        );
        user.dependencies[0].folder = Some("crates/novelty".into());
        assert!(check(&[user])[0].contains("it is in no layer"));
    }

    #[test]
    fn cargo_metadata_is_read_with_all_kinds_of_dependencies() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("src")).unwrap();
        std::fs::write(folder.path().join("src/lib.rs"), "").unwrap();
        let manifest = "[package]\nname = \"muster-protocol\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n\
            [dependencies]\nserde = \"1\"\n[dev-dependencies]\ntokio = \"1\"\n[build-dependencies]\naxum = \"0.8\"\n";
        std::fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
        let metadata = cargo_metadata::MetadataCommand::new()
            .manifest_path(folder.path().join("Cargo.toml"))
            .no_deps()
            .exec()
            .unwrap();
        let crates = crates_of(metadata, folder.path());
        assert_eq!(crates[0].manifest, Path::new("Cargo.toml"));
        let faults = check(&crates);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(
            faults
                .iter()
                .any(|fault| fault.contains("tokio (dev-dependency)")),
            "{faults:?}"
        );
        assert!(
            faults
                .iter()
                .any(|fault| fault.contains("axum (build-dependency)")),
            "{faults:?}"
        );
    }
}
