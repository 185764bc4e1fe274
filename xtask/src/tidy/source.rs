//! Facts about Rust source that the rules share: the lines of code, the tests, and the crate of a file.

use super::Tree;

/// The folder of the nearest Cargo.toml above a file; empty for the root.
pub(super) fn crate_of<'a>(tree: &Tree, path: &'a str) -> Option<&'a str> {
    let mut folder = path;
    while let Some((above, _)) = folder.rsplit_once('/') {
        folder = above;
        if tree.get(&format!("{folder}/Cargo.toml")).is_some() {
            return Some(folder);
        }
    }
    tree.get("Cargo.toml").map(|_| "")
}

/// Whether a file holds shipped code: below `src/`, and neither a module of tests nor the suite's own crate.
pub(super) fn is_code(path: &str) -> bool {
    let in_source = path.starts_with("src/") || path.contains("/src/");
    let test = path.starts_with("tests/") || path.ends_with("/tests.rs") || path.contains("/tests/");
    in_source && !test
}

/// The lines of a file up to its unit tests, numbered from 1.
pub(super) fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let end = text
        .find("\n#[cfg(test)]\nmod ")
        .map_or(text.len(), |end| end + 1);
    (1..).zip(text.get(..end).unwrap_or(text).lines())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn tests_are_no_code() {
        assert!(is_code("a/src/lib.rs"));
        for path in [
            "a/tests/it.rs",
            "a/src/b/tests.rs",
            "tests/src/lib.rs",
            "a/examples/pack.rs",
        ] {
            assert!(!is_code(path), "{path}");
        }
        let text = "a\nb\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(code_lines(text).collect::<Vec<_>>(), [(1, "a"), (2, "b")]);
        let helper = "#[cfg(test)]\nuse a;\nb\n";
        assert_eq!(
            code_lines(helper).count(),
            3,
            "only a module of tests ends the code"
        );
    }
}
