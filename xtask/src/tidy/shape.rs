//! The shape of the source: files that fit a head, crates that fit an afternoon, a purpose at the head of each file.

use std::collections::BTreeMap;

use super::{Finding, Tree};

/// Longer files are read less often than they are scrolled through.
const SOFT_LINES: usize = 400;
const HARD_LINES: usize = 800;
/// Beyond this a crate is two crates.
const FILES_PER_CRATE: usize = 25;

/// Lines per file.
pub(super) fn sizes(tree: &Tree) -> Vec<Finding> {
    let judge = |(path, text): (&str, &str)| {
        let lines = text.lines().count();
        if lines > HARD_LINES {
            return Some(Finding::fault(
                path,
                None,
                format!("{lines} lines, at most {HARD_LINES}: split it"),
            ));
        }
        (lines > SOFT_LINES)
            .then(|| Finding::note(path, format!("{lines} lines, better at most {SOFT_LINES}")))
    };
    tree.rust().filter_map(judge).collect()
}

/// Source files per crate: what lies below `src/` of the nearest Cargo.toml.
pub(super) fn crates(tree: &Tree) -> Vec<Finding> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, _) in tree.rust() {
        if let Some(folder) = crate_of(tree, path)
            && path
                .strip_prefix(folder)
                .is_some_and(|rest| rest.trim_start_matches('/').starts_with("src/"))
        {
            *counts.entry(folder).or_default() += 1;
        }
    }
    let judge = |(folder, count): (&str, usize)| {
        let manifest = format!("{folder}/Cargo.toml");
        let says = || format!("{count} source files, at most {FILES_PER_CRATE}: it is two crates");
        (count > FILES_PER_CRATE).then(|| Finding::fault(manifest.trim_start_matches('/'), None, says()))
    };
    counts.into_iter().filter_map(judge).collect()
}

/// The folder of the nearest Cargo.toml above a file; empty for the root.
fn crate_of<'a>(tree: &Tree, path: &'a str) -> Option<&'a str> {
    let mut folder = path;
    while let Some((above, _)) = folder.rsplit_once('/') {
        folder = above;
        if tree.get(&format!("{folder}/Cargo.toml")).is_some() {
            return Some(folder);
        }
    }
    tree.get("Cargo.toml").map(|_| "")
}

/// Every file says at its head what it is for.
pub(super) fn headers(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(path, _)| Finding::fault(path, 1, "a file begins with its purpose: `//! …`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> String {
        "//! x\n".repeat(count)
    }

    #[test]
    fn a_long_file_is_noted_and_a_longer_one_fails() {
        let (soft, hard) = (lines(401), lines(801));
        let tree = Tree::of(&[
            ("a.rs", &lines(400)),
            ("b.rs", &soft),
            ("c.rs", &hard),
            ("d.md", &hard),
        ]);
        let findings = sizes(&tree);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert_eq!(
            findings[0].to_string(),
            "b.rs: note: 401 lines, better at most 400"
        );
        assert_eq!(findings[1].to_string(), "c.rs: 801 lines, at most 800: split it");
    }

    #[test]
    fn the_twenty_sixth_source_file_of_a_crate_fails() {
        let mut tree = Tree::of(&[
            ("Cargo.toml", ""),
            ("crates/a/Cargo.toml", ""),
            ("crates/a/tests/it.rs", ""),
        ]);
        for number in 1..=25 {
            tree.0
                .insert(format!("crates/a/src/deep/f{number}.rs"), String::new());
        }
        assert!(crates(&tree).is_empty(), "25 files and a test");
        tree.0.insert("crates/a/src/lib.rs".into(), String::new());
        let findings = crates(&tree);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].path, "crates/a/Cargo.toml");
    }

    #[test]
    fn files_belong_to_the_nearest_crate() {
        let tree = Tree::of(&[
            ("Cargo.toml", ""),
            ("a/Cargo.toml", ""),
            ("a/fuzz/Cargo.toml", ""),
        ]);
        assert_eq!(crate_of(&tree, "a/fuzz/src/one.rs"), Some("a/fuzz"));
        assert_eq!(crate_of(&tree, "a/src/lib.rs"), Some("a"));
        assert_eq!(crate_of(&tree, "src/lib.rs"), Some(""));
    }

    #[test]
    fn a_file_without_a_header_fails() {
        let tree = Tree::of(&[
            ("a.rs", "//! Purpose.\n"),
            ("b.rs", "use std::fmt;\n"),
            ("c.rs", ""),
            ("d.sh", ""),
        ]);
        let paths: Vec<String> = headers(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(paths, ["b.rs", "c.rs"]);
    }
}
