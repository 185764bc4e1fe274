//! Type names: one name stands for one thing, and no name is a bare word that could mean anything.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Tree, rust_source};

/// A name may be defined in this many crates; in one more it is a homonym.
const CRATES_PER_NAME: usize = 2;

/// Names that every module may have for itself: they are always read with the module's name.
const PER_MODULE: &[&str] = &[
    "Error", "Config", "Settings", "Store", "Limits", "Event", "Effect",
];

/// Words that say nothing about what they name. A type has a noun with its subject instead.
const BARE: &[&str] = &[
    "Answer", "Asked", "Book", "Desk", "Door", "Engine", "Facts", "Heard", "Held", "Kept", "Known", "Line",
    "Place", "Plan", "Refusal", "Refused", "Roll", "Said", "Seat", "Seen", "Shared", "Standing", "State",
    "Thing", "Ticket", "Told", "Tried", "Turn", "Way", "Wish", "Word",
];

/// Type names that are bare words.
pub(super) fn bare(tree: &Tree) -> Vec<Finding> {
    types(tree)
        .filter(|found| BARE.contains(&found.name))
        .map(|found| {
            let says = format!(
                "`{}` says nothing about what it names: use a noun with its subject, such as `LeaseTable`",
                found.name
            );
            Finding::fault(found.path, found.line, says)
        })
        .collect()
}

/// Type names that are visible beyond their file and stand for different things in more than two crates.
pub(super) fn homonyms(tree: &Tree) -> Vec<Finding> {
    let mut by_name: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for found in types(tree).filter(|found| found.visible && !PER_MODULE.contains(&found.name)) {
        if let Some(folder) = rust_source::crate_of(tree, found.path) {
            let place = format!("{}:{}", found.path, found.line);
            by_name
                .entry(found.name)
                .or_default()
                .entry(folder)
                .or_insert(place);
        }
    }
    by_name
        .into_iter()
        .filter(|(_, places)| places.len() > CRATES_PER_NAME)
        .filter_map(|(name, places)| {
            let folders: BTreeSet<&str> = places.keys().copied().collect();
            let says = format!(
                "`{name}` stands for different things in {} crates ({}): qualify each by its subject",
                folders.len(),
                places.values().map(String::as_str).collect::<Vec<_>>().join(", ")
            );
            let path = places.values().next()?.split(':').next()?.to_owned();
            Some(Finding::fault(&path, None, says))
        })
        .collect()
}

/// A type's definition in code that is not a test.
struct TypeName<'a> {
    path: &'a str,
    line: usize,
    name: &'a str,
    /// Whether the type has a `pub` of some kind.
    visible: bool,
}

/// Every definition of a type in our own workspace. devchain and the language model are programs of their own.
fn types(tree: &Tree) -> impl Iterator<Item = TypeName<'_>> {
    tree.rust()
        .filter(|(path, _)| !path.starts_with("devchain/") && !path.starts_with("images/llm/"))
        .filter(|(path, _)| rust_source::is_code(path))
        .flat_map(|(path, text)| {
            rust_source::code_lines(text).filter_map(move |(line, text)| {
                let (name, visible) = definition(text)?;
                Some(TypeName {
                    path,
                    line,
                    name,
                    visible,
                })
            })
        })
}

/// The name of the type that a line defines, and whether it is visible beyond its file. Associated types are indented.
fn definition(line: &str) -> Option<(&str, bool)> {
    let (rest, visible) = match line.trim_start().strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => (rest.split_once(") ")?.1, true),
        Some(rest) => (rest.strip_prefix(' ')?, true),
        None => (line.trim_start(), false),
    };
    let rest = ["struct ", "enum ", "trait ", "union "]
        .iter()
        .find_map(|keyword| rest.strip_prefix(keyword))
        .or_else(|| {
            let alias = rest.strip_prefix("type ")?;
            (!line.starts_with(' ')).then_some(alias)
        })?;
    let end = rest
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    rest.get(..end)
        .filter(|name| !name.is_empty())
        .map(|name| (name, visible))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_word_as_a_type_fails_wherever_it_stands() {
        let tree = Tree::of(&[
            ("Cargo.toml", ""),
            (
                "a/src/lib.rs",
                "//! x\nstruct Line;\npub(crate) enum Door {}\nstruct LeaseTable;\n",
            ),
            ("a/tests/it.rs", "//! x\nstruct Line;\n"),
            (
                "b/src/lib.rs",
                "//! x\n#[cfg(test)]\nmod tests {\n    struct Line;\n}\n",
            ),
            ("devchain/a/src/lib.rs", "//! x\nstruct Line;\n"),
        ]);
        let found: Vec<String> = bare(&tree).iter().map(Finding::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("a/src/lib.rs:2: `Line` says nothing"),
            "{found:?}"
        );
        assert!(
            found[1].starts_with("a/src/lib.rs:3: `Door` says nothing"),
            "{found:?}"
        );
    }

    #[test]
    fn a_name_of_three_crates_fails_unless_each_module_may_have_it() {
        let crates = |name: &str, visibility: &str, count: usize| {
            let mut tree = Tree::default();
            for number in 0..count {
                tree.texts.insert(format!("c{number}/Cargo.toml"), String::new());
                tree.texts.insert(
                    format!("c{number}/src/lib.rs"),
                    format!("{visibility}struct {name};\n"),
                );
            }
            tree
        };
        assert!(homonyms(&crates("Report", "pub ", 2)).is_empty());
        assert!(homonyms(&crates("Report", "", 3)).is_empty(), "private to a file");
        assert!(homonyms(&crates("Error", "pub ", 3)).is_empty());
        let found = homonyms(&crates("Report", "pub(crate) ", 3));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0]
                .to_string()
                .contains("c0/src/lib.rs:1, c1/src/lib.rs:1, c2/src/lib.rs:1")
        );
    }

    #[test]
    fn definitions_are_told_from_other_lines() {
        assert_eq!(definition("pub struct A<T> {"), Some(("A", true)));
        assert_eq!(definition("pub(in crate::x) enum B {"), Some(("B", true)));
        assert_eq!(definition("    trait C: D {"), Some(("C", false)));
        assert_eq!(definition("type E = F;"), Some(("E", false)));
        assert_eq!(definition("    type Err = F;"), None);
        assert_eq!(definition("pub use a::Line;"), None);
        assert_eq!(definition("/// struct Line"), None);
    }
}
