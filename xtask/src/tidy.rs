//! `cargo xtask tidy`: the habits of this repository that a machine can check.
//!
//! The files are read once into a [`Tree`]; every rule is a function of it, so a test is a few lines of text.

mod deadlines;
mod doc_links;
mod docker_differences;
mod error_pages;
mod error_texts;
mod markdown;
mod marks;
mod names;
mod page_links;
mod plain_code;
pub(crate) mod proof_module;
mod prose;
mod ptx;
mod purposes;
mod queries_and_traits;
mod rust_source;
mod shape;
mod sleeping;
mod wire_hash;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    process::{Command, ExitCode},
    sync::OnceLock,
};

use anyhow::{Context, ensure};

use crate::workspace::Workspace;

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: &[Rule] = &[
    shape::sizes,
    shape::crates,
    shape::headers,
    shape::modules,
    shape::functions,
    purposes::check,
    docker_differences::check,
    queries_and_traits::renamed_crates,
    queries_and_traits::queries,
    queries_and_traits::single_implementations,
    names::bare,
    names::homonyms,
    error_texts::nouns,
    prose::riddles,
    prose::fillers,
    prose::columns,
    wire_hash::check,
    error_pages::errors,
    error_pages::decisions,
    error_pages::named_tests,
    error_pages::endings,
    ptx::check,
    proof_module::check,
    marks::unfinished,
    marks::words,
    marks::ignored,
    sleeping::check,
    deadlines::check,
    doc_links::check,
    page_links::check,
];

/// The files of the checkout by path, relative to the root and with `/`. Ignored files are absent.
#[derive(Default)]
struct Tree {
    /// The text of each text file.
    texts: BTreeMap<String, String>,
    /// Everything else that a link may name: pictures, archives, links to other files.
    others: BTreeSet<String>,
    /// The Rust files without comments and texts, made when a rule first asks for one.
    code: OnceLock<BTreeMap<String, String>>,
}

impl Tree {
    /// Tracked files, and new ones that git does not ignore: a check that sees only commits comes too late.
    fn read(root: &Path) -> anyhow::Result<Self> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("run git ls-files")?;
        ensure!(
            listed.status.success(),
            "git ls-files failed: {}",
            String::from_utf8_lossy(&listed.stderr).trim()
        );
        let names = String::from_utf8(listed.stdout).context("a file's name is not UTF-8")?;
        let mut tree = Self::default();
        for name in names.split('\0').filter(|name| !name.is_empty()) {
            let path = root.join(name);
            let Ok(found) = path.symlink_metadata() else {
                continue; // deleted and not yet committed
            };
            // A link is checked where it points.
            let bytes = if found.is_file() {
                std::fs::read(&path).with_context(|| format!("read {name}"))?
            } else {
                tree.others.insert(name.to_owned());
                continue;
            };
            match String::from_utf8(bytes) {
                Ok(text) => drop(tree.texts.insert(name.to_owned(), text)),
                Err(_) => drop(tree.others.insert(name.to_owned())),
            }
        }
        Ok(tree)
    }

    fn get(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Whether a path is a file, or a folder that holds one.
    fn holds(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        let begins = |found: Option<&String>| found.is_some_and(|found| found.starts_with(&folder));
        self.texts.contains_key(path)
            || self.others.contains(path)
            || begins(self.texts.range(folder.clone()..).next().map(|(path, _)| path))
            || begins(self.others.range(folder.clone()..).next())
    }

    /// A Rust file with blanks in place of comments and texts; empty for any other file.
    fn code(&self, path: &str) -> &str {
        let code = self.code.get_or_init(|| {
            let blank = |(path, text): (&str, &str)| (path.to_owned(), plain_code::without_texts(text));
            self.rust().map(blank).collect()
        });
        code.get(path).map(String::as_str).unwrap_or_default()
    }

    fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// Files below a folder (`docs/errors/`), with the rest of their path.
    fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files()
            .filter_map(move |(path, text)| Some((path.strip_prefix(folder)?, text)))
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let texts = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Self {
            texts: texts.collect(),
            ..Self::default()
        }
    }
}

/// A rule's remark about a file.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// Counted from 1; absent where the whole file is meant.
    line: Option<usize>,
    says: String,
    /// A note is printed and fails nothing.
    note: bool,
}

impl Finding {
    fn fault(path: &str, line: impl Into<Option<usize>>, says: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line: line.into(),
            says: says.into(),
            note: false,
        }
    }

    fn note(path: &str, says: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line: None,
            says: says.into(),
            note: true,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}{}", if self.note { "note: " } else { "" }, self.says)
    }
}

/// Prints every finding; fails if one of them is a fault.
pub(crate) fn run(workspace: &Workspace, fix: bool) -> anyhow::Result<ExitCode> {
    let mut tree = Tree::read(workspace.root())?;
    if fix {
        let made = [
            ("the wire hash", wire_hash::fix(&tree)?),
            ("the table of crates", purposes::fix(&tree)),
            ("the differences from docker", docker_differences::fix(&tree)),
        ];
        for (what, made) in made {
            if let Some((path, text)) = made {
                std::fs::write(workspace.root().join(path), &text)
                    .with_context(|| format!("write {path}"))?;
                println!("tidy: wrote {what} into {path}");
                tree.texts.insert(path.to_owned(), text);
            }
        }
    }
    let findings = findings(&tree);
    for finding in &findings {
        eprintln!("{finding}");
    }
    let faults = findings.iter().filter(|finding| !finding.note).count();
    println!(
        "tidy: {} files, {faults} faults, {} notes",
        tree.texts.len(),
        findings.len() - faults
    );
    Ok(crate::exit_code(faults == 0))
}

/// The findings of all rules in their order. The rules run beside one another, since each only reads.
fn findings(tree: &Tree) -> Vec<Finding> {
    std::thread::scope(|threads| {
        let begun: Vec<_> = RULES.iter().map(|rule| threads.spawn(|| rule(tree))).collect();
        let ended = begun.into_iter().map(|rule| rule.join());
        ended
            .flat_map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Tests put aside, as `path:line: reason`.
pub(crate) fn ignored_tests(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    Ok(marks::reasons(&Tree::read(workspace.root())?))
}

/// The names of the tests that are too long for every run.
pub(crate) fn soak_tests(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    Ok(marks::soak_tests(&Tree::read(workspace.root())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(root: &Path, arguments: &[&str]) {
        let status = Command::new("git")
            .args(arguments)
            .current_dir(root)
            .status()
            .unwrap();
        assert!(status.success(), "git {arguments:?}");
    }

    #[test]
    fn the_tree_holds_tracked_and_new_files_but_neither_ignored_nor_deleted_ones() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "--quiet"]);
        for (name, text) in [
            ("kept.rs", "kept"),
            ("gone.rs", "gone"),
            (".gitignore", "/target\n"),
        ] {
            std::fs::write(root.join(name), text).unwrap();
        }
        git(root, &["add", "."]);
        std::fs::remove_file(root.join("gone.rs")).unwrap();
        std::fs::write(root.join("new.md"), "new").unwrap();
        std::fs::write(root.join("picture.png"), [0xff, 0xfe, 0x00]).unwrap();
        std::fs::create_dir(root.join("target")).unwrap();
        std::fs::write(root.join("target/built.rs"), "built").unwrap();

        let tree = Tree::read(root).unwrap();
        let names: Vec<&str> = tree.files().map(|(path, _)| path).collect();
        assert_eq!(names, [".gitignore", "kept.rs", "new.md"]);
        assert_eq!(tree.get("new.md"), Some("new"));
        assert!(tree.holds("kept.rs") && tree.holds("picture.png"));
        assert!(!tree.holds("gone.rs") && !tree.holds("target"));
    }

    #[test]
    fn a_finding_names_its_place() {
        assert_eq!(Finding::fault("a.rs", 3, "bad").to_string(), "a.rs:3: bad");
        assert_eq!(Finding::note("a.rs", "long").to_string(), "a.rs: note: long");
    }
}
