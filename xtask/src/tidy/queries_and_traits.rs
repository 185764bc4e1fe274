//! The rooms that code lies in: a crate of one other crate is its module, a query is a store's, and a trait with one
//! implementation is a type.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Tree, rust_source};

/// Public traits with one implementation, each with its reason.
#[rustfmt::skip]
const SINGLE_IMPLEMENTATIONS: &[(&str, &str)] = &[
    ("Io", "it names several traits of tokio at once, for one boxed connection"),
    ("IoStream", "it names several traits of tokio at once, for one boxed connection"),
    ("During", "it adds a word to the results of another crate"),
];

/// A crate with one dependent that imports it under a module's name.
pub(super) fn renamed_crates(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, _) in tree.rust().filter(|(path, _)| rust_source::is_code(path)) {
        for (number, line) in (1..).zip(tree.code(path).lines()) {
            let Some((package, module)) = renamed_import(line) else {
                continue;
            };
            if dependents(tree, &package) == 1 {
                let says = format!(
                    "{package} has no other dependent and is imported as `{module}`: make it that module"
                );
                found.push(Finding::fault(path, number, says));
            }
        }
    }
    found
}

/// The package and the new name in a line like `pub use muster_names as words;`.
fn renamed_import(line: &str) -> Option<(String, &str)> {
    let (_, import) = line.trim().split_once("use muster_")?;
    let (package, module) = import.strip_suffix(';')?.split_once(" as ")?;
    let is_name = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_');
    (is_name(package) && is_name(module) && module != "_")
        .then(|| (format!("muster-{}", package.replace('_', "-")), module))
}

/// The crates whose manifests name this one among their dependencies.
fn dependents(tree: &Tree, package: &str) -> usize {
    let names = |text: &str| {
        text.lines()
            .filter_map(|line| line.strip_prefix(package))
            .any(|rest| rest.starts_with(['.', ' ', '=']))
    };
    tree.files()
        .filter(|(path, text)| path.ends_with("/Cargo.toml") && names(text))
        .count()
}

/// Queries outside a module of a store: a table has one home.
pub(super) fn queries(tree: &Tree) -> Vec<Finding> {
    let is_of_store = |path: &str| {
        path.split('/').any(|part| {
            part.trim_end_matches(".rs")
                .split(['-', '_'])
                .any(|word| word == "store")
        })
    };
    let mut found = Vec::new();
    for (path, _) in tree.rust() {
        if !rust_source::is_code(path) || is_of_store(path) || path.starts_with("bench/") {
            continue;
        }
        for (number, line) in rust_source::code_lines(tree.code(path)) {
            if line.contains("sqlx::query") {
                let says =
                    "a query outside a store: a function of the store whose table it reads is its place";
                found.push(Finding::fault(path, number, says));
            }
        }
    }
    found
}

/// Public traits with one implementation and no test double, but for the listed ones.
pub(super) fn single_implementations(tree: &Tree) -> Vec<Finding> {
    let mut traits = BTreeMap::new();
    let mut implemented: BTreeMap<String, usize> = BTreeMap::new();
    for (path, _) in tree.rust() {
        for (number, line) in (1..).zip(tree.code(path).lines()) {
            let line = line.trim_start();
            if let Some(name) =
                public_trait(line).filter(|_| rust_source::is_code(path) && !path.starts_with("devchain/"))
            {
                traits.insert(name.to_owned(), (path, number));
            }
            if let Some(name) = implemented_trait(line) {
                *implemented.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
    let listed: BTreeSet<&str> = SINGLE_IMPLEMENTATIONS.iter().map(|(name, _)| *name).collect();
    traits
        .into_iter()
        .filter(|(name, _)| implemented.get(name) == Some(&1) && !listed.contains(name.as_str()))
        .map(|(name, (path, number))| {
            let says = format!(
                "`{name}` has one implementation and no test double: make it a type, or list it with its reason"
            );
            Finding::fault(path, number, says)
        })
        .collect()
}

fn public_trait(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("pub trait ")
        .or_else(|| line.strip_prefix("pub(crate) trait "))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// The trait's own name in a line like `impl<T> words::Reader<T> for File {`.
fn implemented_trait(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let (left, _) = rest.split_once(" for ")?;
    let path = if left.starts_with('<') {
        left.rsplit_once("> ").map_or(left, |(_, path)| path)
    } else {
        left
    };
    let path = path.split('<').next()?.trim();
    path.rsplit("::").next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_one_other_uses_under_a_modules_name_fails() {
        let uses = "//! x\npub use muster_words as words;\n";
        let alone = [
            ("a/Cargo.toml", "[dependencies]\nmuster-words.workspace = true\n"),
            ("a/src/lib.rs", uses),
        ];
        let found = renamed_crates(&Tree::of(&alone));
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "a/src/lib.rs:2: muster-words has no other dependent and is imported as `words`: make it that module"
        );
        let shared = [
            alone[0],
            alone[1],
            ("b/Cargo.toml", "muster-words = { path = \"../words\" }\n"),
        ];
        assert!(renamed_crates(&Tree::of(&shared)).is_empty());
        assert_eq!(renamed_import("use muster_words::Word as Other;"), None);
    }

    #[test]
    fn a_query_outside_a_store_fails() {
        let text = "//! x\nfn f() { sqlx::query(\"\"); }\n";
        let tree = Tree::of(&[
            ("a/src/refunds.rs", text),
            ("a/src/notice_store.rs", text),
            ("a/src/store/rows.rs", text),
            ("validator-store/src/rows.rs", text),
        ]);
        let found: Vec<_> = queries(&tree).iter().map(Finding::to_string).collect();
        assert_eq!(
            found,
            [
                "a/src/refunds.rs:2: a query outside a store: a function of the store whose table it reads is its place"
            ]
        );
    }

    #[test]
    fn a_public_trait_with_one_implementation_fails() {
        let tree = Tree::of(&[(
            "a/src/lib.rs",
            "//! x\npub trait One {}\npub trait Two {}\nimpl One for A {}\nimpl<T> b::Two<T> for A {}\nimpl Two<u8> for B {}\n",
        )]);
        let found: Vec<_> = single_implementations(&tree)
            .iter()
            .map(Finding::to_string)
            .collect();
        assert_eq!(
            found,
            [
                "a/src/lib.rs:2: `One` has one implementation and no test double: make it a type, or list it with its reason"
            ]
        );
    }
}
