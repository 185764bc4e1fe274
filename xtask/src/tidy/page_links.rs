//! Links to files and pages: whatever a page or a comment points to is there, and so is the heading.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Tree, markdown};

/// Every link of a page to a file of the repository, and every page that a comment names.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut checked = LinkedPages::of(tree);
    let mut findings = Vec::new();
    for (path, text) in tree.files() {
        let named: Vec<(usize, &str)> = if path.ends_with(".md") {
            let links = markdown::links(text).into_iter();
            links.filter_map(|link| Some((link.line, link.target?))).collect()
        } else if COMMENTED.iter().any(|ending| path.ends_with(ending)) {
            pages_in_comments(path, text)
        } else {
            continue;
        };
        for (line, target) in named {
            findings.extend(
                checked
                    .fault(path, target)
                    .map(|says| Finding::fault(path, line, says)),
            );
        }
    }
    findings
}

/// Kinds of files whose comments name pages.
const COMMENTED: &[&str] = &[".rs", ".toml", ".sh", ".py", ".yml", ".yaml"];

/// Names that stand for many pages.
const PATTERNS: &[&str] = &["NNNN", "XXXX"];

/// The pages that comments name, by links or by their paths from the root.
fn pages_in_comments<'a>(path: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let mark = if path.ends_with(".rs") { "//" } else { "#" };
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let comment = line.trim_start().strip_prefix(mark);
        let Some(comment) = comment.filter(|comment| comment.contains(".md")) else {
            continue;
        };
        let parts = comment.split(|letter: char| letter.is_whitespace() || "()[]`<>\"',;".contains(letter));
        let pages = parts.map(|part| part.trim_end_matches(['.', ':']));
        let pages = pages.filter(|part| part.contains(".md") && part.contains('/') && !part.contains("://"));
        found.extend(pages.map(|page| (number, page)));
    }
    found
}

/// The pages that links have led to so far, with their anchors.
struct LinkedPages<'a> {
    tree: &'a Tree,
    anchors: BTreeMap<String, BTreeSet<String>>,
}

impl<'a> LinkedPages<'a> {
    fn of(tree: &'a Tree) -> Self {
        Self {
            tree,
            anchors: BTreeMap::new(),
        }
    }

    /// The fault of a link from a file, if it has one. A comment may also name a page by its path from the root.
    fn fault(&mut self, from: &str, target: &str) -> Option<String> {
        let target = target.trim_matches(['<', '>']);
        // Another place than this repository, or a pattern of names.
        if target.contains(':')
            || target.starts_with('/')
            || PATTERNS.iter().any(|name| target.contains(name))
        {
            return None;
        }
        let (file, anchor) = target
            .split_once('#')
            .map_or((target, None), |(file, anchor)| (file, Some(anchor)));
        let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
        let beside = if file.is_empty() {
            Some(from.to_owned())
        } else {
            resolve(folder, file)
        };
        let from_root = (!from.ends_with(".md")).then(|| resolve("", file)).flatten();
        let page = beside
            .into_iter()
            .chain(from_root)
            .find(|page| page.is_empty() || self.tree.holds(page));
        let Some(page) = page else {
            return Some(format!("a link leads nowhere: there is no {file}"));
        };
        let anchor = anchor.filter(|_| page.ends_with(".md"))?;
        let tree = self.tree;
        let anchors = self
            .anchors
            .entry(page)
            .or_insert_with_key(|page| tree.get(page).map(markdown::anchors).unwrap_or_default());
        (!anchors.contains(anchor))
            .then(|| format!("a link leads nowhere: {target} has no heading #{anchor}"))
    }
}

/// A path from the root of the repository; nothing above it.
fn resolve(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn says(files: &[(&str, &str)], expected: &[&str]) {
        let found: Vec<String> = check(&Tree::of(files)).iter().map(Finding::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_link_of_a_page_to_what_is_not_there_is_found() {
        let page = "[a](b.md) [c](../README.md) [d](errors/) [e](https://f.example/g.md)\n\n![h](i.png)\n";
        let others = [("README.md", ""), ("docs/b.md", ""), ("docs/errors/E0001.md", "")];
        says(
            &[&[("docs/a.md", page)][..], &others].concat(),
            &["docs/a.md:3: a link leads nowhere: there is no i.png"],
        );
        says(
            &[("docs/a.md", "x\n[b](../../c.md)\n[d]: e.md\n")],
            &[
                "docs/a.md:2: a link leads nowhere: there is no ../../c.md",
                "docs/a.md:3: a link leads nowhere: there is no e.md",
            ],
        );
    }

    #[test]
    fn a_link_to_a_heading_that_is_not_there_is_found() {
        let target = ("docs/b.md", "# The way\n## On time\n");
        let page = "[a](b.md#on-time) [b](b.md#in-time) [c](#here)\n\n# Here\n";
        says(
            &[("docs/a.md", page), target],
            &["docs/a.md:1: a link leads nowhere: b.md#in-time has no heading #in-time"],
        );
    }

    #[test]
    fn a_page_that_a_comment_names_and_nobody_wrote_is_found() {
        let code =
            "//! See `docs/b.md#one` and docs/c.md.\n/// [d](../e.md)\nlet a = \"docs/f.md\"; // docs/g\n";
        says(
            &[("a/src/lib.rs", code), ("docs/b.md", "# One\n"), ("a/e.md", "")],
            &["a/src/lib.rs:1: a link leads nowhere: there is no docs/c.md"],
        );
        says(
            &[("a.toml", "# docs/adr/0001-ids.md has the reason\n")],
            &["a.toml:1: a link leads nowhere: there is no docs/adr/0001-ids.md"],
        );
    }
}
