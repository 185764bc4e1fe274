//! `cargo xtask arrows`: a crate uses what its folder may use, as [`table`] says.
//!
//! The dependencies are read from `cargo metadata --no-deps`, normal, build and dev-dependencies alike. Architecture
//! that is not checked is a wish.

mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::ExitCode,
};

use cargo_metadata::{DependencyKind, Metadata};

use table::{ALONE, ARROWS, Arrow, Group, Owner, PROGRAMS, TEST_ARROWS, never_of};

use crate::workspace::Workspace;

/// Workspaces of their own: their crates are not in the root's metadata.
const DEVCHAIN: &str = "devchain/Cargo.toml";
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

impl Crate {
    fn folder(&self) -> &str {
        self.manifest.parent().and_then(Path::to_str).unwrap_or_default()
    }

    fn group(&self) -> Option<Group> {
        Group::of(self.folder())
    }
}

#[derive(Debug)]
struct Dependency {
    name: String,
    kind: DependencyKind,
    /// The folder of a dependency that is not from a registry, relative to the root.
    folder: Option<PathBuf>,
}

/// Prints every forbidden arrow; fails if there is one.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let mut crates = read(workspace, "Cargo.toml")?;
    for manifest in [DEVCHAIN, LLM, CUDA] {
        if workspace.root().join(manifest).exists() {
            crates.extend(read(workspace, manifest)?);
        }
    }
    let mut faults = check(&crates);
    faults.extend(unused(&crates));
    faults.extend(alone(&crates));
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

/// Every forbidden arrow and every crate in no known folder, one line each.
fn check(crates: &[Crate]) -> Vec<String> {
    let by_name: BTreeMap<&str, &Crate> = crates.iter().map(|one| (one.name.as_str(), one)).collect();
    let mut faults = Vec::new();
    for member in crates {
        faults.extend(misplaced(member));
        for dependency in &member.dependencies {
            if let Some(why) = refused(member, dependency, &by_name) {
                faults.push(arrow(member, dependency, &why));
            }
        }
    }
    faults
}

/// Why a crate does not belong in its folder, if it does not.
fn misplaced(member: &Crate) -> Option<String> {
    let (name, folder) = (&member.name, member.folder());
    if folder.starts_with("devchain") {
        return None;
    }
    let manifest = member.manifest.display();
    let Some(group) = member.group() else {
        return Some(format!(
            "{manifest}: {name} lies in no known folder; crates go to crates/<group>/<name>, the groups are in \
             xtask/src/arrows/table.rs"
        ));
    };
    let last = folder.rsplit('/').next().unwrap_or(folder);
    let is_named = *name == format!("muster-{last}")
        || group
            .owner()
            .is_some_and(|owner| *name == format!("{}-{last}", owner.crate_name()));
    (group.is_library() && !is_named)
        .then(|| format!("{manifest}: {name} lies in a folder of another name; call the crate muster-{last}"))
}

/// Crates below `crates/` that lie under no role's roof although one role alone reaches them, one line each.
fn alone(crates: &[Crate]) -> Vec<String> {
    let by_name: BTreeMap<&str, &Crate> = crates.iter().map(|one| (one.name.as_str(), one)).collect();
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for root in crates {
        let owner = match root.group() {
            Some(Group::Role(owner) | Group::Part(owner)) => owner.crate_name(),
            Some(Group::BinaryPart) => "muster",
            Some(Group::Binary) if root.name == "muster" => "muster",
            // A program of its own is a second place that needs the crate, as a role is.
            Some(Group::Program) if root.name != "muster-fuzz" => &root.name,
            _ => continue,
        };
        let mut open = vec![root];
        let mut seen = BTreeSet::new();
        while let Some(one) = open.pop() {
            for dependency in &one.dependencies {
                let Some(below) = by_name.get(dependency.name.as_str()) else {
                    continue;
                };
                // Another role is no way to a shared crate: it reaches its own.
                let is_shared = below.group().is_some_and(Group::is_shared);
                let counts = is_shared && dependency.kind != DependencyKind::Development;
                if counts && seen.insert(below.name.as_str()) {
                    reached.entry(&below.name).or_default().insert(owner);
                    open.push(below);
                }
            }
        }
    }
    let mut faults = Vec::new();
    for one in crates.iter().filter(|one| one.manifest.starts_with("crates")) {
        let owners = reached.get(one.name.as_str()).cloned().unwrap_or_default();
        let listed = ALONE.iter().find(|(name, _)| *name == one.name);
        let manifest = one.manifest.display();
        match (owners.len(), listed) {
            (2.., None) | (0 | 1, Some(_)) => {}
            (2.., Some((name, because))) => faults.push(format!(
                "xtask/src/arrows/table.rs: {name} is listed as one role's ({because}) and several reach it; remove it"
            )),
            (_, None) => {
                let owners = owners.into_iter().collect::<Vec<_>>().join("");
                let whose = if owners.is_empty() { "nobody".to_owned() } else { format!("only {owners}") };
                faults.push(format!(
                    "{manifest}: {whose} reaches {}; it belongs below the folder of the role that needs it",
                    one.name
                ));
            }
        }
    }
    faults
}

/// The listed arrows that no Cargo.toml uses, one line each.
fn unused(crates: &[Crate]) -> Vec<String> {
    let used = |arrow: &&Arrow, development: bool| {
        crates.iter().any(|member| {
            member.name == arrow.from
                && member.dependencies.iter().any(|found| {
                    found.name == arrow.to && (found.kind == DependencyKind::Development) == development
                })
        })
    };
    let normal = ARROWS.iter().filter(|arrow| !used(arrow, false));
    let tests = TEST_ARROWS.iter().filter(|arrow| !used(arrow, true));
    normal
        .chain(tests)
        .map(|arrow| {
            format!(
                "xtask/src/arrows/table.rs: the arrow {} -> {} is listed ({}) and not used; remove it",
                arrow.from, arrow.to, arrow.because
            )
        })
        .collect()
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
fn refused(from: &Crate, to: &Dependency, by_name: &BTreeMap<&str, &Crate>) -> Option<String> {
    let lies_in_devchain = |folder: &Option<PathBuf>| {
        folder
            .as_ref()
            .is_some_and(|folder| folder.starts_with("devchain"))
    };
    let target = by_name.get(to.name.as_str());
    let ours = target.is_some() || to.folder.is_some();
    if from.manifest.starts_with("devchain") {
        let outside = ours && !lies_in_devchain(&to.folder);
        return outside
            .then(|| "devchain imports nobody of ours: it stands for a chain we did not write".to_owned());
    }
    let of_role = from.group().and_then(Group::owner).map(Owner::crate_name);
    let mut prohibitions = never_of(&from.name).chain(of_role.into_iter().flat_map(never_of));
    if let Some(never) = prohibitions.find(|never| never.forbids(&to.name)) {
        return Some(never.because.to_owned());
    }
    let group = from.group()?;
    let development = to.kind == DependencyKind::Development;
    // Errors of a part of the binary go to a person as they are.
    let has_typed_errors = group.is_library() && group != Group::BinaryPart;
    if has_typed_errors && to.name == "anyhow" && !development {
        return Some(
            "a library's errors have types; anyhow is for roles, binaries, xtask and tests".to_owned(),
        );
    }
    if lies_in_devchain(&to.folder) {
        return Some("devchain is reached by its RPC, never imported".to_owned());
    }
    if !ours {
        return None;
    }
    let Some(below) = target.and_then(|target| target.group()) else {
        return Some("it lies in no known folder".to_owned());
    };
    if below == Group::TestBed && development {
        return None;
    }
    if group == Group::Program {
        return refused_for_program(&from.name, &to.name);
    }
    let listed = |list: &[Arrow]| {
        list.iter()
            .any(|arrow| arrow.from == from.name && arrow.to == to.name)
    };
    if group.may_use(below) || listed(ARROWS) || (development && listed(TEST_ARROWS)) {
        return None;
    }
    Some(if matches!(below, Group::Program | Group::Binary) {
        "it is a program that nobody imports".to_owned()
    } else if matches!((group, below), (Group::Role(_), Group::Role(_))) {
        "roles never import one another; they talk over sockets".to_owned()
    } else if below != group {
        format!("{} must not use {}", group.name(), below.name())
    } else {
        format!(
            "an arrow inside {} is listed with its reason in xtask/src/arrows/table.rs",
            group.name()
        )
    })
}

/// Why a program of its own may not use one of our crates, if it may not.
fn refused_for_program(from: &str, to: &str) -> Option<String> {
    let may = PROGRAMS
        .iter()
        .find(|(name, _)| *name == from)
        .map_or(&[][..], |(_, may)| *may);
    match may {
        [] => Some("it is a program of its own that uses none of our crates".to_owned()),
        _ => (!may.contains(&to)).then(|| format!("it may use only {}", may.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the crates of these tests lie.
    const PLACES: &[(&str, &str)] = &[
        ("muster-protocol", "crates/foundation/protocol"),
        ("muster-identity", "crates/foundation/identity"),
        ("muster-process", "crates/foundation/process"),
        ("muster-websocket", "crates/foundation/websocket"),
        ("muster-chain", "crates/foundation/chain"),
        ("muster-routing", "crates/jobs/routing"),
        ("muster-receipts", "crates/jobs/receipts"),
        ("muster-containers", "executor/containers"),
        ("muster-provisioning", "miner/provisioning"),
        ("muster-slurm-engine", "miner/slurm-engine"),
        ("muster-validator-store", "validator/store"),
        ("muster-terminal", "muster/terminal"),
        ("muster-session-pool", "crates/streaming/session-pool"),
        ("muster-hardware-proof", "crates/grading/hardware-proof"),
        ("muster-grading", "crates/grading/grading"),
        ("muster-client", "crates/users/client"),
        ("muster-validator", "validator"),
        ("muster-miner", "miner"),
        ("muster-executor", "executor"),
        ("muster", "muster"),
        ("muster-tests", "tests"),
        ("muster-testbed", "tests/testbed"),
        ("xtask", "xtask"),
        ("muster-image-hello", "images/hello"),
        ("muster-image-grader", "images/grader"),
        ("muster-image-grader-cuda", "images/grader-cuda"),
        ("muster-image-llm", "images/llm"),
        ("muster-devchain-runtime", "devchain/runtime"),
    ];

    fn place(name: &str) -> Option<&'static str> {
        PLACES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, folder)| *folder)
    }

    fn member(name: &str, folder: &str, dependencies: &[(&str, DependencyKind)]) -> Crate {
        let dependencies = dependencies
            .iter()
            .map(|(name, kind)| Dependency {
                name: (*name).to_owned(),
                kind: *kind,
                folder: place(name).map(PathBuf::from),
            })
            .collect();
        Crate {
            name: name.to_owned(),
            manifest: Path::new(folder).join("Cargo.toml"),
            dependencies,
        }
    }

    /// The faults of one crate among all the others.
    fn faults_of(one: Crate) -> Vec<String> {
        let mut crates: Vec<Crate> = PLACES
            .iter()
            .filter(|(name, _)| *name != one.name)
            .map(|(name, folder)| member(name, folder, &[]))
            .collect();
        crates.push(one);
        check(&crates)
    }

    /// The faults of one crate with one normal dependency.
    fn faults(name: &str, dependency: &str) -> Vec<String> {
        let folder = place(name).unwrap();
        faults_of(member(name, folder, &[(dependency, DependencyKind::Normal)]))
    }

    #[track_caller]
    fn refuses(name: &str, dependency: &str, why: &str) {
        let faults = faults(name, dependency);
        assert_eq!(faults.len(), 1, "{name} -> {dependency}: {faults:?}");
        let start = format!("{}/Cargo.toml: {name} -> {dependency}", place(name).unwrap());
        assert!(faults[0].starts_with(&start), "{faults:?}");
        assert!(faults[0].contains(why), "{faults:?}");
    }

    #[test]
    fn arrows_of_the_folders_and_listed_ones_are_allowed() {
        for (name, dependency) in [
            ("muster-identity", "muster-protocol"),
            ("muster-routing", "muster-protocol"),
            ("muster-grading", "muster-session-pool"),
            ("muster-grading", "muster-routing"),
            ("muster-validator", "muster-chain"),
            ("muster", "muster-validator"),
            ("muster-tests", "muster-executor"),
            ("muster-tests", "muster-testbed"),
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
    fn every_test_may_use_the_test_bed_which_uses_nothing_of_ours() {
        for name in ["muster-protocol", "muster-miner", "muster-image-grader"] {
            let tests = member(
                name,
                place(name).unwrap(),
                &[("muster-testbed", DependencyKind::Development)],
            );
            assert_eq!(faults_of(tests), Vec::<String>::new(), "{name}");
        }
        refuses(
            "muster-miner",
            "muster-testbed",
            "the miner must not use the test bed",
        );
        refuses(
            "muster-testbed",
            "muster-protocol",
            "the test bed must not use foundation",
        );
    }

    #[test]
    fn arrows_against_the_folders_are_refused() {
        refuses("muster-process", "muster-routing", "foundation must not use jobs");
        refuses(
            "muster-routing",
            "muster-session-pool",
            "jobs must not use streaming",
        );
        refuses(
            "muster-session-pool",
            "muster-grading",
            "streaming must not use grading",
        );
        refuses("muster-client", "muster-routing", "users must not use jobs");
        refuses(
            "muster-grading",
            "muster-validator",
            "grading must not use the validator",
        );
        refuses(
            "muster-validator",
            "muster-miner",
            "roles never import one another",
        );
        refuses("muster-tests", "muster", "a program that nobody imports");
    }

    #[test]
    fn a_role_and_its_parts_use_one_another_and_nobody_else_does() {
        for (name, dependency) in [
            ("muster-executor", "muster-containers"),
            ("muster-slurm-engine", "muster-provisioning"),
            ("muster-validator-store", "muster-routing"),
            ("muster-terminal", "muster-validator-store"),
            ("muster-terminal", "anyhow"),
            ("muster-tests", "muster-containers"),
        ] {
            assert_eq!(
                faults(name, dependency),
                Vec::<String>::new(),
                "{name} -> {dependency}"
            );
        }
        refuses(
            "muster-routing",
            "muster-validator-store",
            "jobs must not use the validator's parts",
        );
        refuses(
            "muster-miner",
            "muster-containers",
            "the miner must not use the executor's parts",
        );
        refuses(
            "muster-validator-store",
            "muster-containers",
            "the validator's parts must not use the executor's parts",
        );
        refuses(
            "muster-containers",
            "muster-terminal",
            "the executor's parts must not use the binary's parts",
        );
    }

    #[test]
    fn a_shared_crate_of_one_role_belongs_under_its_roof() {
        let uses =
            |name: &str, folder: &str, below: &str| member(name, folder, &[(below, DependencyKind::Normal)]);
        let routing = || member("muster-routing", "crates/jobs/routing", &[]);
        let validator = || uses("muster-validator", "validator", "muster-routing");
        let found = alone(&[routing(), validator()]);
        assert_eq!(
            found,
            [
                "crates/jobs/routing/Cargo.toml: only muster-validator reaches muster-routing; it belongs below the \
              folder of the role that needs it"
            ]
        );
        let part = uses("muster-containers", "executor/containers", "muster-routing");
        assert!(alone(&[routing(), validator(), part]).is_empty());
        let client = member("muster-client", "crates/users/client", &[]);
        assert!(alone(&[client]).is_empty());
        let shared = [
            member("muster-client", "crates/users/client", &[]),
            uses("muster-validator", "validator", "muster-client"),
            uses("muster-miner", "miner", "muster-client"),
        ];
        assert!(alone(&shared)[0].contains("muster-client is listed as one role's"));
    }

    #[test]
    fn an_arrow_inside_a_folder_must_be_listed() {
        refuses(
            "muster-routing",
            "muster-receipts",
            "an arrow inside jobs is listed",
        );
        refuses(
            "muster-protocol",
            "muster-identity",
            "an arrow inside foundation is listed",
        );
    }

    #[test]
    fn a_listed_arrow_that_nobody_uses_is_a_fault() {
        let all = unused(&[]);
        assert_eq!(all.len(), ARROWS.len() + TEST_ARROWS.len());
        let used = member(
            "muster-identity",
            "crates/foundation/identity",
            &[("muster-protocol", DependencyKind::Normal)],
        );
        assert_eq!(unused(&[used]).len(), all.len() - 1);
        let only_tests = member(
            "muster-identity",
            "crates/foundation/identity",
            &[("muster-protocol", DependencyKind::Development)],
        );
        assert_eq!(unused(&[only_tests]).len(), all.len());
    }

    #[test]
    fn the_executor_does_not_reach_the_chain() {
        refuses("muster-executor", "muster-chain", "stands next to untrusted code");
        refuses("muster-executor", "subxt-rpcs", "stands next to untrusted code");
        refuses(
            "muster-containers",
            "muster-chain",
            "stands next to untrusted code",
        );
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
        let development = |name: &str, dependency: &str| {
            let dependency = [(dependency, DependencyKind::Development)];
            faults_of(member(name, place(name).unwrap(), &dependency))
        };
        assert!(development("muster-protocol", "tokio")[0].contains("tokio (dev-dependency)"));
        assert!(development("muster-websocket", "anyhow").is_empty());
        assert!(development("muster-protocol", "muster-routing")[0].contains("(dev-dependency)"));
    }

    #[test]
    fn programs_of_their_own_are_neither_imported_nor_free_to_import() {
        refuses("muster", "muster-image-hello", "nobody imports");
        refuses("muster-tests", "xtask", "nobody imports");
        refuses("muster-tests", "muster-image-grader", "nobody imports");
        refuses("xtask", "muster-protocol", "it may use only muster-feature-set");
        refuses(
            "muster-image-grader",
            "muster-websocket",
            "it may use only muster-hardware-proof",
        );
    }

    #[test]
    fn devchain_imports_nobody_and_is_imported_by_nobody() {
        let node = |dependency: &str| {
            faults_of(member(
                "muster-devchain",
                "devchain/node",
                &[(dependency, DependencyKind::Normal)],
            ))
        };
        assert!(node("muster-protocol")[0].contains("devchain imports nobody"));
        assert!(node("muster-devchain-runtime").is_empty());
        refuses("muster-tests", "muster-devchain-runtime", "reached by its RPC");
    }

    #[test]
    fn a_crate_lies_in_a_known_folder_of_its_own_name() {
        let lost = faults_of(member("muster-novelty", "crates/novelty", &[]));
        assert!(
            lost[0].contains("crates/novelty/Cargo.toml: muster-novelty lies in no known folder"),
            "{lost:?}"
        );
        for named in ["muster-validator-novelty", "muster-novelty"] {
            let part = faults_of(member(named, "validator/novelty", &[]));
            assert_eq!(part, Vec::<String>::new());
        }
        let misnamed = faults_of(member("muster-novelty", "crates/jobs/novelties", &[]));
        assert!(
            misnamed[0].contains("call the crate muster-novelties"),
            "{misnamed:?}"
        );
    }

    #[test]
    fn cargo_metadata_is_read_with_all_kinds_of_dependencies() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("crates/foundation/protocol");
        std::fs::create_dir_all(home.join("src")).unwrap();
        std::fs::write(home.join("src/lib.rs"), "").unwrap();
        let manifest = "[package]\nname = \"muster-protocol\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n\
            [dependencies]\nserde = \"1\"\n[dev-dependencies]\ntokio = \"1\"\n[build-dependencies]\naxum = \"0.8\"\n";
        std::fs::write(home.join("Cargo.toml"), manifest).unwrap();
        let metadata = cargo_metadata::MetadataCommand::new()
            .manifest_path(home.join("Cargo.toml"))
            .no_deps()
            .exec()
            .unwrap();
        let crates = crates_of(metadata, folder.path());
        assert_eq!(
            crates[0].manifest,
            Path::new("crates/foundation/protocol/Cargo.toml")
        );
        let faults = check(&crates);
        assert_eq!(faults.len(), 2, "{faults:?}");
        for kind in ["tokio (dev-dependency)", "axum (build-dependency)"] {
            assert!(faults.iter().any(|fault| fault.contains(kind)), "{faults:?}");
        }
    }
}
