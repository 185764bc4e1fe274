//! Third-party crates have the same features in every build, so that cargo compiles each of them once.
//!
//! The builds are those of `cargo run` (the package `muster`), of `cargo xtask`, and of the whole workspace with its
//! tests. The features that one of them would lack stand in `crates/foundation/feature-set/Cargo.toml`. Devchain and
//! the programs of images, which are compiled apart, have groups of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
};

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::workspace::Workspace;

/// Builds that share a target folder, so that a crate with the same features is compiled once for all of them.
struct BuildGroup {
    /// The manifest of the workspace, relative to the root.
    manifest: &'static str,
    /// The file in which missing features are added.
    feature_set: &'static str,
    /// The builds: a name, and the arguments that select it.
    builds: &'static [(&'static str, &'static [&'static str])],
}

const GROUPS: &[BuildGroup] = &[
    BuildGroup {
        manifest: "Cargo.toml",
        feature_set: "crates/foundation/feature-set/Cargo.toml",
        builds: &[
            ("the workspace", &["--workspace", "--all-targets"]),
            ("muster", &["--package", "muster", "--bin", "muster"]),
            ("xtask", &["--package", "xtask"]),
        ],
    },
    BuildGroup {
        manifest: "devchain/Cargo.toml",
        feature_set: "devchain/feature-set/Cargo.toml",
        builds: &[
            ("the workspace", &["--workspace", "--all-targets"]),
            ("muster-devchain", &["--bin", "muster-devchain"]),
        ],
    },
    // The programs of images, which `muster up` and the tests build.
    BuildGroup {
        manifest: "Cargo.toml",
        feature_set: "images/grader/Cargo.toml",
        builds: &[
            (
                "muster up",
                &[
                    "--bins",
                    "--examples",
                    "--package",
                    "muster-image-hello",
                    "--package",
                    "muster-image-grader",
                ],
            ),
            (
                "the tests",
                &[
                    "--bins",
                    "--examples",
                    "--package",
                    "muster-image-hello",
                    "--package",
                    "muster-image-grader",
                    "--package",
                    "muster-hold",
                    "--package",
                    "muster-image-probe",
                ],
            ),
        ],
    },
];

/// Cargo's plan of a build (`cargo build --unit-graph`): a unit for each call of the compiler.
#[derive(Deserialize)]
struct UnitGraph {
    units: Vec<Unit>,
}

#[derive(Deserialize)]
struct Unit {
    pkg_id: String,
    target: UnitTarget,
    mode: String,
    features: BTreeSet<String>,
    profile: UnitProfile,
}

#[derive(Deserialize)]
struct UnitTarget {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct UnitProfile {
    opt_level: String,
}

/// How one build compiles a crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CrateBuild {
    build: &'static str,
    features: BTreeSet<String>,
    opt_level: String,
}

/// All ways in which third-party crates are compiled, by `name@version`.
type CrateBuilds = BTreeMap<String, BTreeSet<CrateBuild>>;

/// Compares the builds of each group and prints each crate that is compiled more than once.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let (mut count, mut faults) = (0, Vec::new());
    for group in GROUPS {
        let mut crates = CrateBuilds::new();
        for (build, selection) in group.builds {
            add_units(
                &mut crates,
                build,
                read_graph(workspace, group.manifest, selection)?,
            );
        }
        count += crates.len();
        faults.extend(find_faults(group.feature_set, &crates));
    }
    for fault in &faults {
        println!("{fault}");
    }
    println!("features: {count} crates, {} faults", faults.len());
    Ok(crate::exit_code(faults.is_empty()))
}

fn read_graph(workspace: &Workspace, manifest: &str, selection: &[&str]) -> anyhow::Result<UnitGraph> {
    let mut cargo = workspace.cargo();
    cargo
        .args([
            "build",
            "--locked",
            "--unit-graph",
            "-Z",
            "unstable-options",
            "--manifest-path",
            manifest,
        ])
        .args(selection)
        // The plan is not stable, and nothing is compiled with it. `cargo tree` does not show it: it lists a crate that
        // programs and macros both use once, with the features of one of them.
        .env("RUSTC_BOOTSTRAP", "1");
    let output = cargo.output().context("ask cargo for its plan")?;
    ensure!(
        output.status.success(),
        "cargo build --unit-graph: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("read cargo's plan")
}

/// Adds the third-party libraries of a build. Build scripts are left out: they are compiled for each set of features
/// of their crate, which is then a fault itself.
fn add_units(crates: &mut CrateBuilds, build: &'static str, graph: UnitGraph) {
    for unit in graph.units {
        let is_script = unit.target.kind.iter().any(|kind| kind == "custom-build");
        let registry = unit
            .pkg_id
            .strip_prefix("registry+")
            .and_then(|id| id.rsplit_once('#'));
        if let Some((_, name)) = registry.filter(|_| unit.mode == "build" && !is_script) {
            crates.entry(name.to_owned()).or_default().insert(CrateBuild {
                build,
                features: unit.features,
                opt_level: unit.profile.opt_level,
            });
        }
    }
}

fn find_faults(feature_set: &str, crates: &CrateBuilds) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, builds) in crates {
        let all: BTreeSet<&String> = builds.iter().flat_map(|found| &found.features).collect();
        for found in builds {
            let missing: Vec<&str> = all
                .iter()
                .filter(|feature| !found.features.contains(**feature))
                .map(|feature| feature.as_str())
                .collect();
            if !missing.is_empty() {
                let (build, missing) = (found.build, missing.join(", "));
                faults.push(format!("{feature_set}: {name} in {build} lacks {missing}"));
            }
        }
        let levels: BTreeSet<&String> = builds.iter().map(|found| &found.opt_level).collect();
        if levels.len() > 1 {
            faults.push(format!(
                "Cargo.toml: {name} is compiled at several levels: {levels:?}"
            ));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(units: &[(&str, &str, &str, &[&str])]) -> UnitGraph {
        let unit = |&(id, kind, level, features): &(&str, &str, &str, &[&str])| {
            serde_json::json!({
                "pkg_id": id, "target": { "kind": [kind] }, "mode": "build", "features": features,
                "profile": { "opt_level": level },
            })
        };
        let units: Vec<_> = units.iter().map(unit).collect();
        serde_json::from_value(serde_json::json!({ "version": 1, "units": units })).unwrap()
    }

    const TOKIO: &str = "registry+https://github.com/rust-lang/crates.io-index#tokio@1.54.1";

    fn faults(graphs: impl IntoIterator<Item = UnitGraph>) -> Vec<String> {
        let mut crates = CrateBuilds::new();
        for (graph, build) in graphs.into_iter().zip(["whole", "muster"]) {
            add_units(&mut crates, build, graph);
        }
        find_faults("set.toml", &crates)
    }

    #[test]
    fn equal_features_are_no_fault_and_own_crates_and_scripts_do_not_count() {
        let ours = "path+file:///here/muster#0.1.0";
        let whole = graph(&[
            (TOKIO, "lib", "0", &["full"]),
            (TOKIO, "custom-build", "0", &[]),
            (ours, "lib", "0", &["a"]),
        ]);
        let muster = graph(&[(TOKIO, "lib", "0", &["full"]), (ours, "lib", "0", &[])]);
        assert_eq!(faults([whole, muster]), [""; 0]);
    }

    #[test]
    fn a_missing_feature_is_named_with_its_build() {
        let whole = graph(&[(TOKIO, "lib", "0", &["full", "test-util"])]);
        let muster = graph(&[(TOKIO, "lib", "0", &["full"])]);
        assert_eq!(
            faults([whole, muster]),
            ["set.toml: tokio@1.54.1 in muster lacks test-util"]
        );
    }

    #[test]
    fn macros_and_programs_that_differ_are_a_fault() {
        let whole = graph(&[(TOKIO, "lib", "0", &[]), (TOKIO, "lib", "0", &["full"])]);
        assert_eq!(faults([whole]).len(), 1);
        let levels = graph(&[(TOKIO, "lib", "0", &[]), (TOKIO, "lib", "3", &[])]);
        assert_eq!(faults([levels]).len(), 1);
    }
}
