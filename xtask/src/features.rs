//! Third-party crates have the same features in every build, so that cargo compiles each of them once.
//!
//! The builds are those of `cargo run` (the package `muster`), of `cargo xtask`, of the whole workspace with its tests,
//! and of devchain, which is a workspace of its own in the same target folder. The features that one of them would lack
//! stand in the `feature-set` of its workspace. The programs of images are compiled for a named target with other
//! flags, so they have a group of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
};

use crate::{
    build_plan::{Unit, UnitGraph, read_graph, registry_crate},
    workspace::Workspace,
};

/// Builds that share a target folder, so that a crate with the same features is compiled once for all of them.
struct BuildGroup {
    builds: &'static [Build],
    /// A crate that some builds must have another way. It and all that depend on it are compared only within a
    /// workspace.
    differs: Option<&'static str>,
}

/// A call of cargo.
struct Build {
    name: &'static str,
    /// The manifest of the workspace, relative to the root.
    manifest: &'static str,
    /// The file in which missing features are added.
    feature_set: &'static str,
    /// The arguments that select what is built.
    selection: &'static [&'static str],
}

const ROOT: &str = "Cargo.toml";
const ROOT_SET: &str = "crates/foundation/feature-set/Cargo.toml";
const DEVCHAIN: &str = "devchain/Cargo.toml";
const DEVCHAIN_SET: &str = "devchain/feature-set/Cargo.toml";
const IMAGES_SET: &str = "images/grader/Cargo.toml";

const fn build(
    name: &'static str,
    manifest: &'static str,
    feature_set: &'static str,
    selection: &'static [&'static str],
) -> Build {
    Build {
        name,
        manifest,
        feature_set,
        selection,
    }
}

#[rustfmt::skip]
const GROUPS: &[BuildGroup] = &[
    BuildGroup {
        // FRAME switches on its `arbitrary_precision`, which must never reach our JSON.
        differs: Some("serde_json"),
        builds: &[
            build("the workspace", ROOT, ROOT_SET, &["--workspace", "--all-targets"]),
            build("muster", ROOT, ROOT_SET, &["--package", "muster", "--bin", "muster"]),
            build("xtask", ROOT, ROOT_SET, &["--package", "xtask"]),
            build("devchain", DEVCHAIN, DEVCHAIN_SET, &["--workspace", "--all-targets"]),
            build("muster-devchain", DEVCHAIN, DEVCHAIN_SET, &["--bin", "muster-devchain"]),
        ],
    },
    // The programs of images, which `muster up` and the tests build.
    BuildGroup {
        differs: None,
        builds: &[
            build("muster up", ROOT, IMAGES_SET, &[
                "--bins", "--examples", "--package", "muster-image-hello", "--package", "muster-image-grader",
            ]),
            build("the tests", ROOT, IMAGES_SET, &[
                "--bins", "--examples", "--package", "muster-image-hello", "--package", "muster-image-grader",
                "--package", "muster-hold", "--package", "muster-image-probe",
            ]),
        ],
    },
];

/// How one build compiles a crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CrateBuild {
    build: &'static str,
    manifest: &'static str,
    feature_set: &'static str,
    /// It depends on the crate that its group must have in several ways.
    is_apart: bool,
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
        for build in group.builds {
            let graph = read_graph(&mut workspace.cargo(), build.manifest, build.selection)?;
            add_units(&mut crates, build, group.differs, graph);
        }
        count += crates.len();
        faults.extend(find_faults(&crates));
    }
    for fault in &faults {
        println!("{fault}");
    }
    println!("features: {count} crates, {} faults", faults.len());
    Ok(crate::exit_code(faults.is_empty()))
}

/// Adds the third-party libraries of a build. Build scripts are left out: they are compiled for each set of features
/// of their crate, which is then a fault itself.
fn add_units(crates: &mut CrateBuilds, build: &Build, differs: Option<&str>, graph: UnitGraph) {
    let apart = differs.map(|name| units_above(&graph, name)).unwrap_or_default();
    for (index, unit) in graph.units.into_iter().enumerate() {
        let is_script = unit.target.kind.iter().any(|kind| kind == "custom-build");
        if let Some(name) = registry_crate(&unit.pkg_id).filter(|_| unit.mode == "build" && !is_script) {
            crates.entry(name.to_owned()).or_default().insert(CrateBuild {
                build: build.name,
                manifest: build.manifest,
                feature_set: build.feature_set,
                is_apart: apart.contains(&index),
                features: unit.features,
                opt_level: unit.profile.opt_level,
            });
        }
    }
}

/// The units of a third-party crate, and every unit that depends on them.
fn units_above(graph: &UnitGraph, name: &str) -> BTreeSet<usize> {
    let is_it = |unit: &Unit| {
        let found = registry_crate(&unit.pkg_id).and_then(|found| found.split_once('@'));
        found.is_some_and(|(found, _)| found == name)
    };
    let mut above: BTreeSet<usize> = (0..)
        .zip(&graph.units)
        .filter(|(_, unit)| is_it(unit))
        .map(|(i, _)| i)
        .collect();
    loop {
        let more: Vec<usize> = (0..)
            .zip(&graph.units)
            .filter(|(index, unit)| {
                !above.contains(index) && unit.dependencies.iter().any(|below| above.contains(&below.index))
            })
            .map(|(index, _)| index)
            .collect();
        if more.is_empty() {
            return above;
        }
        above.extend(more);
    }
}

fn find_faults(crates: &CrateBuilds) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, builds) in crates {
        for found in builds {
            // A crate that stands apart is compared with the builds of its own workspace.
            let others = || {
                let any_apart = builds.iter().any(|other| other.is_apart);
                builds
                    .iter()
                    .filter(move |other| !any_apart || other.manifest == found.manifest)
            };
            let all: BTreeSet<&String> = others().flat_map(|other| &other.features).collect();
            let missing: Vec<&str> = all
                .into_iter()
                .filter(|feature| !found.features.contains(*feature))
                .map(String::as_str)
                .collect();
            if !missing.is_empty() {
                let (build, missing) = (found.build, missing.join(", "));
                faults.push(format!(
                    "{}: {name} in {build} lacks {missing}",
                    found.feature_set
                ));
            }
            let other = others().find(|other| other.opt_level > found.opt_level);
            if let Some(other) = other {
                faults.push(format!(
                    "{}: {name} is compiled at level {} in {} and {} in {}",
                    found.manifest, found.opt_level, found.build, other.opt_level, other.build
                ));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit: its package, kind, level, features, and the places of what it depends on.
    type Described<'text> = (
        &'text str,
        &'text str,
        &'text str,
        &'text [&'text str],
        &'text [usize],
    );

    fn graph(units: &[Described<'_>]) -> UnitGraph {
        let unit = |&(id, kind, level, features, below): &Described<'_>| {
            let below: Vec<_> = below
                .iter()
                .map(|index| serde_json::json!({ "index": index }))
                .collect();
            serde_json::json!({
                "pkg_id": id, "target": { "kind": [kind] }, "mode": "build", "features": features,
                "profile": { "opt_level": level }, "platform": null, "dependencies": below,
            })
        };
        let units: Vec<_> = units.iter().map(unit).collect();
        serde_json::from_value(serde_json::json!({ "version": 1, "units": units })).unwrap()
    }

    const TOKIO: &str = "registry+https://github.com/rust-lang/crates.io-index#tokio@1.54.1";
    const JSON: &str = "registry+https://github.com/rust-lang/crates.io-index#serde_json@1.0.1";
    const ABOVE: &str = "registry+https://github.com/rust-lang/crates.io-index#jsonrpsee@0.26.1";

    const BUILDS: [Build; 2] = [
        build("whole", ROOT, "set.toml", &[]),
        build("chain", DEVCHAIN, "chain.toml", &[]),
    ];

    fn faults(graphs: impl IntoIterator<Item = UnitGraph>) -> Vec<String> {
        let mut crates = CrateBuilds::new();
        for (graph, build) in graphs.into_iter().zip(&BUILDS) {
            add_units(&mut crates, build, Some("serde_json"), graph);
        }
        find_faults(&crates)
    }

    #[test]
    fn equal_features_are_no_fault_and_own_crates_and_scripts_do_not_count() {
        let ours = "path+file:///here/muster#0.1.0";
        let whole = graph(&[
            (TOKIO, "lib", "0", &["full"], &[]),
            (TOKIO, "custom-build", "0", &[], &[]),
            (ours, "lib", "0", &["a"], &[]),
        ]);
        let chain = graph(&[(TOKIO, "lib", "0", &["full"], &[]), (ours, "lib", "0", &[], &[])]);
        assert_eq!(faults([whole, chain]), [""; 0]);
    }

    #[test]
    fn a_missing_feature_is_named_with_its_build() {
        let whole = graph(&[(TOKIO, "lib", "0", &["full", "test-util"], &[])]);
        let chain = graph(&[(TOKIO, "lib", "0", &["full"], &[])]);
        assert_eq!(
            faults([whole, chain]),
            ["chain.toml: tokio@1.54.1 in chain lacks test-util"]
        );
    }

    #[test]
    fn macros_and_programs_that_differ_are_a_fault() {
        let whole = graph(&[(TOKIO, "lib", "0", &[], &[]), (TOKIO, "lib", "0", &["full"], &[])]);
        assert_eq!(faults([whole]).len(), 1);
        let levels = graph(&[(TOKIO, "lib", "0", &[], &[]), (TOKIO, "lib", "3", &[], &[])]);
        assert_eq!(faults([levels]).len(), 1);
    }

    #[test]
    fn dependents_of_a_crate_that_differs_are_compared_within_their_workspace() {
        let whole = graph(&[
            (JSON, "lib", "0", &[], &[]),
            (ABOVE, "lib", "0", &["client"], &[0]),
        ]);
        let chain = |features| {
            graph(&[
                (JSON, "lib", "0", &["precise"], &[]),
                (ABOVE, "lib", "0", features, &[0]),
            ])
        };
        assert_eq!(faults([whole, chain(&["server"])]), [""; 0]);
        let twice = graph(&[
            (JSON, "lib", "0", &[], &[]),
            (ABOVE, "lib", "0", &["client"], &[0]),
            (ABOVE, "lib", "0", &["client", "server"], &[0]),
        ]);
        assert_eq!(faults([twice]).len(), 1);
    }
}
