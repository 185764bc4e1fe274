//! Links of doc comments to items: what they name is in the code. rustdoc finds the rest, in `cargo xtask soak`.

use std::collections::{BTreeMap, HashSet};

use super::{
    Finding, Tree,
    markdown::{self, MarkdownLink},
    plain_code::words,
    rust_source,
};

/// Roots of paths that lead to the standard library.
const STANDARD: &[&str] = &["std", "core", "alloc"];
/// Names that stand in every scope.
#[rustfmt::skip]
const EVERYWHERE: &[&str] = &[
    "bool", "char", "str", "slice", "array", "tuple", "unit", "fn", "never", "pointer", "reference",
    "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64", "u128", "usize", "f32", "f64",
    "Option", "Some", "None", "Result", "Ok", "Err", "Vec", "String", "Box", "ToString", "ToOwned",
    "Clone", "Copy", "Send", "Sync", "Sized", "Unpin", "Drop", "Fn", "FnMut", "FnOnce", "Future", "IntoFuture",
    "Default", "PartialEq", "Eq", "PartialOrd", "Ord", "Hash", "Debug", "From", "Into", "TryFrom", "TryInto",
    "AsRef", "AsMut", "Iterator", "IntoIterator", "DoubleEndedIterator", "ExactSizeIterator", "Extend", "FromIterator",
    "assert", "assert_eq", "debug_assert", "format", "matches", "panic", "print", "println", "eprintln", "todo",
    "unreachable", "vec", "write", "writeln",
];

/// Every link of a doc comment to an item leads to names that the code has.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let code = CodeNames::of(tree);
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        for link in item_links(text) {
            let Some(name) = code.missing(path, &link.path) else {
                continue;
            };
            let whole = link.path.join("::");
            let says = format!("a link leads nowhere: of `{whole}` the code does not have `{name}` here");
            findings.push(Finding::fault(path, link.line, says));
        }
    }
    findings
}

/// A link of a doc comment to an item.
struct ItemLink {
    line: usize,
    /// The names between the joints `::`.
    path: Vec<String>,
}

/// The links to items in the doc comments of a file.
fn item_links(text: &str) -> Vec<ItemLink> {
    let mut found = Vec::new();
    for (first, block) in doc_blocks(text) {
        let links = markdown::links(&block).into_iter();
        found.extend(links.filter_map(|link| {
            Some(ItemLink {
                line: first + link.line - 1,
                path: item_path(&link)?.into_iter().map(str::to_owned).collect(),
            })
        }));
    }
    found
}

/// The doc comments with a bracket, each with the number of its first line.
fn doc_blocks(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open: Option<&str> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let start = line.trim_start();
        let mark = ["///", "//!"].into_iter().find(|mark| start.starts_with(mark));
        let (Some(mark), Some(words)) = (mark, start.get(3..)) else {
            open = None;
            continue;
        };
        if open != Some(mark) {
            found.push((number, String::new()));
            open = Some(mark);
        }
        if let Some((_, block)) = found.last_mut() {
            block.push_str(words);
            block.push('\n');
        }
    }
    found.retain(|(_, block)| block.contains('['));
    found
}

/// The names of the item that a link leads to; none if it leads to a page.
fn item_path<'a>(link: &MarkdownLink<'a>) -> Option<Vec<&'a str>> {
    let item = link.target.unwrap_or(link.label);
    let item = item
        .strip_prefix('`')
        .and_then(|item| item.strip_suffix('`'))
        .unwrap_or(item);
    let item = item.split('#').next()?;
    // `mod@name` and `name()` distinguish items of one name.
    let item = item.split_once('@').map_or(item, |(_, item)| item);
    let item = item.trim_end_matches("()").trim_end_matches('!');
    let item = item.split('<').next()?;
    let names: Vec<&str> = item.split("::").collect();
    let is_name = |name: &&str| {
        name.starts_with(|first: char| first.is_alphabetic() || first == '_')
            && name
                .chars()
                .all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    names.iter().all(is_name).then_some(names)
}

/// The words of the code of every crate.
struct CodeNames<'a> {
    tree: &'a Tree,
    files: BTreeMap<&'a str, FileNames<'a>>,
    /// The folders of our crates by the names that code gives them.
    crates: BTreeMap<String, &'a str>,
}

/// The words of a file's code.
struct FileNames<'a> {
    /// The folder of the file's crate.
    folder: &'a str,
    names: HashSet<&'a str>,
    /// Whether `use …::*` brings names that the file does not have.
    imports_all: bool,
}

impl<'a> CodeNames<'a> {
    fn of(tree: &'a Tree) -> Self {
        let files = tree.rust().filter_map(|(path, _)| {
            let code = tree.code(path);
            let names = FileNames {
                folder: rust_source::crate_of(tree, path)?,
                names: words(code).map(|(_, word)| word).collect(),
                imports_all: code.contains("::*"),
            };
            Some((path, names))
        });
        let crates = tree.files().filter_map(|(path, manifest)| {
            let folder = path.strip_suffix("/Cargo.toml")?;
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = \""))?;
            Some((name.trim_end_matches('"').replace('-', "_"), folder))
        });
        Self {
            tree,
            files: files.collect(),
            crates: crates.collect(),
        }
    }

    /// The first name of a path in a file that cannot be found.
    fn missing<'b>(&self, file: &str, path: &'b [String]) -> Option<&'b str> {
        let (root, items) = path.split_first()?;
        let here = self.files.get(file)?;
        let is_bound = ["crate", "self", "super", "Self"].contains(&root.as_str());
        if STANDARD.contains(&root.as_str()) {
            return None;
        }
        if let Some(folder) = self.crates.get(root).filter(|_| self.depends(here.folder, root)) {
            return items
                .iter()
                .find(|name| !self.has(folder, name))
                .map(String::as_str);
        }
        let in_scope = is_bound
            || here.names.contains(root.as_str())
            || EVERYWHERE.contains(&root.as_str())
            || self.depends(here.folder, root)
            || (here.imports_all && self.has(here.folder, root));
        if !in_scope {
            return Some(root);
        }
        items
            .iter()
            .find(|name| !self.has(here.folder, name))
            .map(String::as_str)
    }

    /// Whether the code of a crate has a name.
    fn has(&self, folder: &str, name: &str) -> bool {
        let files = self.files.values().filter(|file| file.folder == folder);
        EVERYWHERE.contains(&name) || files.into_iter().any(|file| file.names.contains(name))
    }

    /// Whether the manifest of a crate names another one.
    fn depends(&self, folder: &str, name: &str) -> bool {
        let manifest = self
            .tree
            .get(format!("{folder}/Cargo.toml").trim_start_matches('/'));
        let package = name.replace('_', "-");
        let names = |line: &str| {
            let rest = line
                .strip_prefix(name)
                .or_else(|| line.strip_prefix(package.as_str()));
            rest.is_some_and(|rest| rest.starts_with([' ', '.', '=']))
        };
        manifest.is_some_and(|manifest| manifest.lines().any(names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: (&str, &str) = (
        "a/Cargo.toml",
        "[package]\nname = \"muster-a\"\n[dependencies]\nmuster-b.workspace = true\ntokio = \"1\"\n",
    );
    const OTHERS: &[(&str, &str)] = &[
        MANIFEST,
        (
            "a/src/other.rs",
            "pub struct Elsewhere;\nimpl Elsewhere { fn go() {} }\n",
        ),
        ("b/Cargo.toml", "[package]\nname = \"muster-b\"\n"),
        ("b/src/lib.rs", "pub struct OfB;\n"),
    ];

    #[track_caller]
    fn says(source: &str, expected: &[&str]) {
        let files = [OTHERS, &[("a/src/lib.rs", source)]].concat();
        let found: Vec<String> = check(&Tree::of(&files)).iter().map(Finding::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{source}: {found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.ends_with(expected), "{found} does not end with {expected}");
        }
    }

    #[test]
    fn a_link_to_a_name_that_no_code_has_is_found() {
        says(
            "/// See [`Gone`].\npub struct Here;\n",
            &["of `Gone` the code does not have `Gone` here"],
        );
        says(
            "/// See [Gone], [it](Gone), [`x`](mod@gone) and\n/// [`gone!`].\nfn a() {}\n",
            &[
                "of `Gone` the code does not have `Gone` here",
                "of `Gone` the code does not have `Gone` here",
                "of `gone` the code does not have `gone` here",
                "of `gone` the code does not have `gone` here",
            ],
        );
        says(
            "/// See [`Here::gone()`].\npub struct Here;\n",
            &["of `Here::gone` the code does not have `gone` here"],
        );
        says(
            "//! [`crate::gone::Elsewhere`]\n",
            &["of `crate::gone::Elsewhere` the code does not have `gone` here"],
        );
        says(
            "//! [`muster_b::Gone`]\n",
            &["of `muster_b::Gone` the code does not have `Gone` here"],
        );
        says(
            "//! [`muster_c::OfB`]\n",
            &["of `muster_c::OfB` the code does not have `muster_c` here"],
        );
        says(
            "//! [it]\n//!\n//! [it]: Gone\n",
            &["a/src/lib.rs:3: a link leads nowhere: of `Gone` the code does not have `Gone` here"],
        );
    }

    #[test]
    fn a_name_in_a_comment_or_a_text_is_no_code() {
        says(
            "/// [`Gone`]\n// Gone\nconst A: &str = \"Gone\";\n",
            &["of `Gone` the code does not have `Gone` here"],
        );
    }

    #[test]
    fn a_name_of_another_file_is_in_scope_by_its_path_or_by_an_import_of_all() {
        says(
            "/// [`Elsewhere`]\nfn a() {}\n",
            &["of `Elsewhere` the code does not have `Elsewhere` here"],
        );
        says("/// [`Elsewhere`]\nuse other::*;\n", &[]);
        says(
            "/// [`crate::other::Elsewhere::go`] [`Here`](super::Elsewhere)\nmod other;\n",
            &[],
        );
    }

    #[test]
    fn names_of_the_language_of_dependencies_and_pages_are_left_alone() {
        says(
            "//! [`Vec`] [`std::sync::OnceLock`] [`muster_b::OfB`] [`u64::MAX`] [a](docs/a.md) [b](https://c.example) \
             \\[gone] `[gone]` [two words] [0] [a](#anchor)\nconst MAX: u64 = 1;\n",
            &[],
        );
        says(
            "use tokio::time::pause;\n/// [`tokio::time::pause`]\nfn a() {}\n",
            &[],
        );
        says(
            "/// [`tokio::time::gone`]\nfn time() {}\n",
            &["of `tokio::time::gone` the code does not have `gone` here"],
        );
    }
}
