//! `cargo xtask sbom`: a bill of materials (CycloneDX 1.5, JSON) for each program that is shipped, made by
//! cargo-cyclonedx and held against the lockfile.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::Context;
use serde_json::Value;

use crate::{
    exit_code,
    tool::{check_out, install, quietly},
    workspace::Workspace,
};

const TOOL: &str = "cargo-cyclonedx";
const VERSION: &str = "0.5.9";

/// The programs that are shipped, and the two engines that operators build: the folder of the crate, the folder of its
/// lockfile, and the name.
const PROGRAMS: [(&str, &str, &str); 7] = [
    ("muster", "", "muster"),
    ("devchain/node", "devchain", "muster-devchain"),
    ("images/hello", "", "hello"),
    ("images/hold", "", "muster-hold"),
    ("images/grader", "", "muster-grader"),
    ("images/llm", "images/llm", "muster-llm"),
    ("images/grader-cuda", "images/grader-cuda", "muster-grader-cuda"),
];

/// The name of the files that the tool writes beside manifests.
const WRITTEN: &str = "muster-sbom";

/// Makes every bill below the target folder. The command fails if a bill disagrees with its lockfile.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let tool = install(workspace, TOOL, VERSION, |line| println!("{line}"))?;
    let target = workspace.target().join("sbom");
    fs::create_dir_all(&target).with_context(|| format!("make {}", target.display()))?;
    // The tool writes beside every manifest of a workspace, so it gets a copy of what is committed.
    let copy = tempfile::tempdir().context("make a folder for the copy of the checkout")?;
    check_out(workspace.root(), "HEAD", copy.path())?;
    let mut faults = 0;
    for (folder, lock, name) in PROGRAMS {
        let bill = make(&tool, workspace, copy.path(), folder)?;
        let lock = copy.path().join(lock).join("Cargo.lock");
        let locked =
            read_lock(&fs::read_to_string(&lock).with_context(|| format!("read {}", lock.display()))?);
        let document: Value =
            serde_json::from_str(&bill).with_context(|| format!("read the bill of {name}"))?;
        let found = compare(&document, &locked);
        for fault in &found {
            println!("{name}: {fault}");
        }
        faults += found.len();
        let file = target.join(format!("{name}.cdx.json"));
        fs::write(&file, bill).with_context(|| format!("write {}", file.display()))?;
        println!("{}: {} components", file.display(), components(&document).len());
    }
    println!("sbom: {} programs, {faults} faults", PROGRAMS.len());
    Ok(exit_code(faults == 0))
}

/// The bill of the program whose manifest is in `folder` of the copy.
fn make(tool: &Path, workspace: &Workspace, copy: &Path, folder: &str) -> anyhow::Result<String> {
    let mut command = Command::new(tool);
    // The tool asks cargo, and must find the one that runs this.
    let cargo = workspace.cargo();
    command
        .current_dir(copy)
        .env("CARGO", cargo.get_program())
        .args(["cyclonedx", "--format", "json", "--spec-version", "1.5"])
        .args([
            "--target",
            "x86_64-unknown-linux-gnu",
            "--override-filename",
            WRITTEN,
        ])
        .arg("--manifest-path")
        .arg(copy.join(folder).join("Cargo.toml"));
    quietly(&mut command)?;
    let written = copy.join(folder).join(format!("{WRITTEN}.json"));
    fs::read_to_string(&written).with_context(|| format!("{TOOL} wrote no bill of {folder}"))
}

/// The registry's crates of a lockfile: their checksums by name and version.
fn read_lock(text: &str) -> BTreeMap<(String, String), String> {
    let mut locked = BTreeMap::new();
    for package in text.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let prefix = format!("{name} = \"");
            package
                .lines()
                .find_map(|line| line.strip_prefix(&prefix)?.strip_suffix('"'))
                .map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (field("name"), field("version"), field("checksum"))
        {
            locked.insert((name, version), checksum);
        }
    }
    locked
}

fn components(document: &Value) -> &[Value] {
    let list = document.get("components").and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

/// The faults of a bill: a crate of the registry that the lockfile does not have, without its checksum or without a
/// licence; or no crate at all.
fn compare(document: &Value, locked: &BTreeMap<(String, String), String>) -> Vec<String> {
    let mut faults = Vec::new();
    let text = |component: &Value, field: &str| {
        let value = component.get(field).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let mut crates = 0;
    for component in components(document) {
        if !text(component, "purl").starts_with("pkg:cargo/") {
            continue;
        }
        let (name, version) = (text(component, "name"), text(component, "version"));
        let hashes = component.get("hashes").and_then(Value::as_array);
        let hash = hashes.and_then(|hashes| hashes.first());
        let Some(hash) = hash.map(|hash| text(hash, "content")) else {
            // Ours come from no registry.
            continue;
        };
        crates += 1;
        match locked.get(&(name.clone(), version.clone())) {
            None => faults.push(format!("{name} {version} is not in the lockfile")),
            Some(checksum) if *checksum != hash => {
                faults.push(format!("{name} {version} has another checksum than the lockfile"));
            }
            Some(_) => {}
        }
        if component.get("licenses").is_none() {
            faults.push(format!("{name} {version} has no licence"));
        }
    }
    if crates == 0 {
        faults.push("the bill names no crate of the registry".to_owned());
    }
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\n\
        checksum = \"aa\"\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n";

    fn bill(name: &str, hash: &str, licences: &Value) -> Value {
        let mut component = json!({
            "name": name, "version": "1.0.0", "purl": format!("pkg:cargo/{name}@1.0.0"),
            "hashes": [{"alg": "SHA-256", "content": hash}],
        });
        if !licences.is_null() {
            component["licenses"] = licences.clone();
        }
        json!({"components": [component]})
    }

    #[test]
    fn a_bill_that_agrees_with_its_lockfile_has_no_faults() {
        let locked = read_lock(LOCK);
        assert_eq!(locked.len(), 1, "only crates of a registry have checksums");
        assert_eq!(compare(&bill("a", "aa", &json!([])), &locked), [""; 0]);
    }

    #[test]
    fn every_disagreement_is_told() {
        let locked = read_lock(LOCK);
        for (document, told) in [
            (bill("b", "aa", &json!([])), "not in the lockfile"),
            (bill("a", "bb", &json!([])), "another checksum"),
            (bill("a", "aa", &Value::Null), "no licence"),
            (json!({}), "names no crate"),
        ] {
            let faults = compare(&document, &locked);
            assert!(faults.iter().any(|fault| fault.contains(told)), "{faults:?}");
        }
    }

    #[test]
    fn every_program_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (folder, lock, _) in PROGRAMS {
            assert!(root.join(folder).join("Cargo.toml").exists(), "{folder}");
            assert!(root.join(lock).join("Cargo.lock").exists(), "{lock}");
        }
    }
}
