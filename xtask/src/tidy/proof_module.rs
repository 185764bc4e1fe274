//! The module that pages run belongs to its sources: who changes them and forgets to compile it ships the old one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::{Finding, Tree};
use crate::wasm::{MODULE, PACKAGE, SOURCES_DIGEST};

/// The file beside the module has the digest of the sources.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let folders = source_folders(tree);
    let expected = digest(tree, &folders);
    match tree.get(SOURCES_DIGEST) {
        Some(found) if found.trim() == expected => Vec::new(),
        None if folders.is_empty() => Vec::new(),
        Some(_) | None => vec![Finding::fault(
            MODULE,
            None,
            "made of other sources than those of the repository: run `cargo xtask wasm`",
        )],
    }
}

/// The digest of the sources in a checkout.
///
/// # Errors
/// The files cannot be read.
pub(crate) fn read_digest(root: &Path) -> anyhow::Result<String> {
    let tree = Tree::read(root)?;
    Ok(digest(&tree, &source_folders(&tree)))
}

/// The folders whose sources decide what the module finds: those of its crate, and of every crate of this repository
/// that it links, however far away.
fn source_folders(tree: &Tree) -> BTreeSet<String> {
    let manifests: BTreeMap<&str, (&str, &str)> = tree
        .below("crates/")
        .filter_map(|(path, manifest)| {
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = \""))?;
            Some((
                name.strip_suffix('"')?,
                (path.strip_suffix("Cargo.toml")?, manifest),
            ))
        })
        .collect();
    let (mut folders, mut open) = (BTreeSet::new(), vec![PACKAGE]);
    while let Some((folder, manifest)) = open.pop().and_then(|name| manifests.get(name)) {
        if folders.insert(format!("crates/{folder}src/")) {
            open.extend(dependencies(manifest).filter(|name| manifests.contains_key(name)));
        }
    }
    folders
}

/// The names in the section `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let (_, section) = manifest.split_once("\n[dependencies]\n").unwrap_or_default();
    section
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
}

/// SHA-256 over the paths and texts of the sources.
fn digest(tree: &Tree, folders: &BTreeSet<String>) -> String {
    let mut hash = Sha256::new();
    for folder in folders {
        for (name, text) in tree.below(folder).filter(|(name, _)| name.ends_with(".rs")) {
            hash.update(format!("{folder}{name} {}\n", text.len()));
            hash.update(text);
        }
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFESTS: [(&str, &str); 4] = [
        (
            "crates/streaming/proof-module/Cargo.toml",
            "[package]\nname = \"muster-proof-module\"\n\n[dependencies]\nmuster-check.workspace = true\nserde = \"1\"\n",
        ),
        (
            "crates/streaming/check/Cargo.toml",
            "[package]\nname = \"muster-check\"\n\n[dependencies]\nmuster-words = { workspace = true }\n\n\
             [dev-dependencies]\nmuster-tests.workspace = true\n",
        ),
        (
            "crates/foundation/words/Cargo.toml",
            "[package]\nname = \"muster-words\"\n\n[dependencies]\n",
        ),
        (
            "crates/foundation/tests/Cargo.toml",
            "[package]\nname = \"muster-tests\"\n\n[dependencies]\n",
        ),
    ];

    fn tree(files: &[(&str, &str)]) -> Tree {
        Tree::of(&[&MANIFESTS, files].concat())
    }

    #[test]
    fn the_sources_are_those_of_every_crate_that_is_linked() {
        let folders = source_folders(&tree(&[]));
        let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
        assert_eq!(
            folders,
            [
                "crates/foundation/words/src/",
                "crates/streaming/check/src/",
                "crates/streaming/proof-module/src/",
            ]
        );
    }

    #[test]
    fn a_module_of_other_sources_is_found() {
        for source in [
            "crates/streaming/proof-module/src/lib.rs",
            "crates/foundation/words/src/lib.rs",
        ] {
            let one = tree(&[(source, "one")]);
            let right = digest(&one, &source_folders(&one));
            let found = |text: &str| check(&tree(&[(source, text), (SOURCES_DIGEST, &right)])).len();
            assert_eq!((found("one"), found("two")), (0, 1), "{source}");
            assert_eq!(check(&one).len(), 1);
        }
        assert!(check(&Tree::of(&[])).is_empty());
    }
}
