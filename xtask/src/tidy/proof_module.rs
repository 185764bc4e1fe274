//! The module that pages run belongs to its sources: who changes them and forgets to compile it ships the old one.

mod source_names;
mod tokens;
mod used_files;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use sha2::{Digest, Sha256};

use self::used_files::CrateFiles;
use super::{Finding, Tree};
use crate::wasm::{MODULE, PACKAGE, SOURCES_DIGEST};

/// The file beside the module names every source that the module uses, with its digest.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let folders = source_folders(tree);
    if folders.is_empty() {
        return Vec::new();
    }
    let made_of = tree.get(SOURCES_DIGEST).unwrap_or_default();
    let found = match list_sources(tree, &folders) {
        Ok(found) => found,
        Err(unclear) => return unclear,
    };
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<String>>();
    let (made_of, found) = (lines(made_of), lines(&found));
    let changed: BTreeSet<&str> = made_of
        .symmetric_difference(&found)
        .filter_map(|line| Some(line.split_once("  ")?.1))
        .collect();
    if changed.is_empty() && made_of == found {
        return Vec::new();
    }
    let changed = changed.into_iter().collect::<Vec<_>>().join(", ");
    let says =
        format!("made of other sources than those of the repository: run `cargo xtask wasm` ({changed})");
    vec![Finding::fault(MODULE, None, says)]
}

/// The list of the sources in a checkout.
///
/// # Errors
/// The files cannot be read, or one of them brings code into reach in a way that cannot be followed.
pub(crate) fn read_sources(root: &Path) -> anyhow::Result<String> {
    let tree = Tree::read(root)?;
    list_sources(&tree, &source_folders(&tree)).map_err(|unclear| {
        let says: Vec<_> = unclear.iter().map(Finding::to_string).collect();
        anyhow::anyhow!(says.join("\n"))
    })
}

/// The folders whose sources the module may use: those of its crate, and of every crate of this repository that it
/// links, however far away; each with the name of its crate as code writes it.
fn source_folders(tree: &Tree) -> BTreeMap<String, String> {
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
    let (mut folders, mut open) = (BTreeMap::new(), vec![PACKAGE]);
    while let Some((name, (folder, manifest))) = open.pop().and_then(|name| manifests.get_key_value(name)) {
        let is_new = folders.insert(format!("crates/{folder}src/"), name.replace('-', "_"));
        if is_new.is_none() {
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

/// The sources that the module uses, a line each: SHA-256 and the path, as `sha256sum` prints them. The texts are those
/// without tests. A file that only passes names on has a line for these names.
fn list_sources(tree: &Tree, folders: &BTreeMap<String, String>) -> Result<String, Vec<Finding>> {
    let files = folders.iter().flat_map(|(folder, package)| {
        tree.files().filter_map(move |(path, text)| {
            let below = path.strip_prefix(folder).filter(|below| below.ends_with(".rs"))?;
            Some((package.clone(), below, path, code_of(text)))
        })
    });
    let used = CrateFiles::read(files).used_by(&PACKAGE.replace('-', "_"));
    if !used.unclear.is_empty() {
        let unclear = used.unclear.into_iter().map(|(path, word)| {
            let says =
                format!("`{word}` brings code into the page's module in a way that its digest cannot follow");
            Finding::fault(&path, None, says)
        });
        return Err(unclear.collect());
    }
    let texts = used.files.into_iter().map(|path| {
        let text = code_of(tree.get(&path).unwrap_or_default());
        format!("{}  {path}\n", hex::encode(Sha256::digest(text)))
    });
    let names = used.passed.into_iter().map(|(path, names)| {
        let names: Vec<_> = names.into_iter().collect();
        let digest = hex::encode(Sha256::digest(names.join("\n")));
        format!("{digest}  {path} (names)\n")
    });
    Ok(texts.chain(names).collect())
}

/// The text of a file up to its unit tests.
fn code_of(text: &str) -> &str {
    text.split_once("\n#[cfg(test)]\nmod ")
        .map_or(text, |(code, _)| code)
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
    fn the_folders_are_those_of_every_crate_that_is_linked() {
        let folders: Vec<_> = source_folders(&tree(&[])).into_iter().collect();
        let expected = [
            ("crates/foundation/words/src/", "muster_words"),
            ("crates/streaming/check/src/", "muster_check"),
            ("crates/streaming/proof-module/src/", "muster_proof_module"),
        ];
        assert_eq!(
            folders,
            expected.map(|(folder, name)| (folder.to_owned(), name.to_owned()))
        );
    }

    const MODULE_SOURCE: &str = "crates/streaming/proof-module/src/lib.rs";
    const USED: &str = "crates/foundation/words/src/used.rs";
    const UNUSED: &str = "crates/foundation/words/src/unused.rs";
    const SOURCES: [(&str, &str); 4] = [
        (MODULE_SOURCE, "use muster_words::Used;\n"),
        (
            "crates/foundation/words/src/lib.rs",
            "mod used;\nmod unused;\npub use used::Used;\npub use unused::Unused;\n",
        ),
        (USED, "pub struct Used;\n\n#[cfg(test)]\nmod tests {}\n"),
        (UNUSED, "pub struct Unused;\n"),
    ];

    /// The sources with another text of one of them, beside the list of the sources as they were.
    fn changed(path: &str, text: &str) -> Tree {
        let before = tree(&SOURCES);
        let list = list_sources(&before, &source_folders(&before)).unwrap();
        let mut sources = SOURCES;
        for source in &mut sources {
            if source.0 == path {
                source.1 = text;
            }
        }
        tree(&[&sources[..], &[(SOURCES_DIGEST, &list)]].concat())
    }

    #[test]
    fn a_module_of_other_sources_is_found_with_their_names() {
        for (path, text) in [
            (MODULE_SOURCE, "use muster_words::Used;\nfn other() {}\n"),
            (USED, "pub struct Used(u8);\n"),
        ] {
            let found = check(&changed(path, text));
            assert_eq!(found.len(), 1, "{path}");
            assert!(found[0].says.contains(&format!("({path})")), "{}", found[0]);
        }
        let passed = "mod used;\nmod unused;\npub use unused::Unused as Used;\n";
        let found = check(&changed("crates/foundation/words/src/lib.rs", passed));
        assert!(found[0].says.contains("words/src/lib.rs (names)"), "{}", found[0]);
        assert_eq!(check(&tree(&SOURCES)).len(), 1, "without a list");
        assert!(check(&Tree::of(&[])).is_empty());
    }

    #[test]
    fn a_source_that_the_module_does_not_use_may_change_and_so_may_tests() {
        for (path, text) in [
            (UNUSED, "pub struct Unused(u8);\n"),
            (
                USED,
                "pub struct Used;\n\n#[cfg(test)]\nmod tests { fn other() {} }\n",
            ),
            (
                "crates/foundation/words/src/lib.rs",
                "mod used;\nmod unused;\npub use used::Used;\npub use unused::Other;\n",
            ),
            (MODULE_SOURCE, SOURCES[0].1),
        ] {
            let found = check(&changed(path, text));
            assert!(found.is_empty(), "{path}: {found:?}");
        }
    }

    #[test]
    fn a_source_that_cannot_be_followed_is_a_fault() {
        let found = check(&changed(
            USED,
            "pub struct Used;\nconst TEXT: &str = include_str!(\"text\");\n",
        ));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, USED);
    }
}
