//! Cargo's plan of a build (`cargo build --unit-graph`): the calls of the compiler before any of them is made.
//!
//! The plan is not stable, and nothing is compiled with it. `cargo tree` does not show it: it lists a crate that
//! programs and macros both use once, with the features of one of them.

use std::{
    collections::{BTreeSet, HashMap, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    process::Command,
};

use anyhow::{Context, ensure};
use serde::Deserialize;

/// A unit for each call of the compiler and for each run of a build script.
#[derive(Deserialize)]
pub(crate) struct UnitGraph {
    pub(crate) units: Vec<Unit>,
}

#[derive(Deserialize)]
pub(crate) struct Unit {
    pub(crate) pkg_id: String,
    pub(crate) target: UnitTarget,
    /// `build`, `test` or `run-custom-build`.
    pub(crate) mode: String,
    pub(crate) features: BTreeSet<String>,
    pub(crate) profile: UnitProfile,
    /// The named target; nothing for this machine.
    pub(crate) platform: Option<String>,
    pub(crate) dependencies: Vec<UnitDependency>,
}

#[derive(Deserialize)]
pub(crate) struct UnitDependency {
    /// The place of the unit in the graph.
    pub(crate) index: usize,
}

#[derive(Deserialize)]
pub(crate) struct UnitTarget {
    pub(crate) kind: Vec<String>,
    #[serde(default)]
    pub(crate) name: String,
}

#[derive(Deserialize)]
pub(crate) struct UnitProfile {
    pub(crate) opt_level: String,
}

impl Unit {
    /// Whether it is a run of a build script, which compiles nothing.
    pub(crate) fn is_script_run(&self) -> bool {
        self.mode == "run-custom-build"
    }

    /// Whether a program is linked of it; build scripts and macros are left out.
    pub(crate) fn is_program(&self) -> bool {
        let is = |kinds: &[&str]| self.target.kind.iter().any(|kind| kinds.contains(&kind.as_str()));
        self.mode == "test" || (self.mode == "build" && is(&["bin", "example", "test", "bench"]))
    }
}

/// Cargo's plan of the build of a selection. `cargo` is in the workspace's folder.
///
/// # Errors
/// Cargo cannot plan it.
pub(crate) fn read_graph(
    cargo: &mut Command,
    manifest: &str,
    selection: &[&str],
) -> anyhow::Result<UnitGraph> {
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
        .env("RUSTC_BOOTSTRAP", "1");
    let output = cargo.output().context("ask cargo for its plan")?;
    ensure!(
        output.status.success(),
        "cargo build --unit-graph: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("read cargo's plan")
}

/// `tokio@1.54.1`, if the package comes from a registry.
pub(crate) fn registry_crate(package: &str) -> Option<&str> {
    let (_, name) = package.strip_prefix("registry+")?.rsplit_once('#')?;
    Some(name)
}

/// An identity for each unit: equal in two builds of one target folder if the unit, and all that it depends on, are.
pub(crate) fn identities(graph: &UnitGraph) -> Vec<u64> {
    let mut known = HashMap::new();
    (0..graph.units.len())
        .map(|index| identity(graph, index, &mut known))
        .collect()
}

fn identity(graph: &UnitGraph, index: usize, known: &mut HashMap<usize, u64>) -> u64 {
    if let Some(found) = known.get(&index) {
        return *found;
    }
    let Some(unit) = graph.units.get(index) else {
        return 0;
    };
    let below: BTreeSet<u64> = unit
        .dependencies
        .iter()
        .map(|below| identity(graph, below.index, known))
        .collect();
    let mut hash = DefaultHasher::new();
    (&unit.pkg_id, &unit.target.kind, &unit.target.name, &unit.mode).hash(&mut hash);
    (&unit.features, &unit.profile.opt_level, &unit.platform, below).hash(&mut hash);
    let found = hash.finish();
    known.insert(index, found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(features: [&str; 2]) -> UnitGraph {
        let unit = |name: &str, kind: &str, feature: &str, below: &[usize]| {
            let below: Vec<_> = below
                .iter()
                .map(|index| serde_json::json!({ "index": index }))
                .collect();
            serde_json::json!({
                "pkg_id": format!("registry+index#{name}@1.0.0"), "target": { "kind": [kind], "name": name },
                "mode": "build", "features": [feature], "profile": { "opt_level": "0" }, "platform": null,
                "dependencies": below,
            })
        };
        let [below, above] = features;
        let units = [
            unit("below", "lib", below, &[]),
            unit("above", "bin", above, &[0]),
        ];
        serde_json::from_value(serde_json::json!({ "version": 1, "units": units })).unwrap()
    }

    #[test]
    fn a_unit_differs_if_anything_below_it_does() {
        let same = identities(&graph(["a", "b"]));
        assert_eq!(same, identities(&graph(["a", "b"])));
        let other = identities(&graph(["c", "b"]));
        assert!(same.iter().zip(&other).all(|(one, two)| one != two));
        let above = identities(&graph(["a", "c"]));
        assert_eq!(same.iter().zip(&above).filter(|(one, two)| one == two).count(), 1);
    }

    #[test]
    fn programs_are_what_is_linked() {
        let graph = graph(["a", "b"]);
        let programs: Vec<bool> = graph.units.iter().map(Unit::is_program).collect();
        assert_eq!(programs, [false, true]);
    }
}
