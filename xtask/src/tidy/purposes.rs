//! The purpose of each crate: one sentence in its Cargo.toml, repeated in the table of docs/architecture.md.

use super::{Finding, Tree};

const PAGE: &str = "docs/architecture.md";
const BEGIN: &str = "<!-- crates: begin -->";
const END: &str = "<!-- crates: end -->";
/// The binary and the roles in the order of the table, each before its parts; the crates below `crates/` follow.
const ROOTS: &[&str] = &["muster", "facilitator", "validator", "miner", "executor"];

/// Every crate has a purpose, and the page's table repeats it.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (rows, mut findings) = rows(tree);
    match written(tree) {
        None => findings.push(Finding::fault(
            PAGE,
            None,
            format!("the lines `{BEGIN}` and `{END}` are missing"),
        )),
        Some(found) if found.trim() == table(&rows).trim() => {}
        Some(_) => {
            let says = "the table of crates differs from their Cargo.toml: run `cargo xtask tidy --fix`";
            findings.push(Finding::fault(PAGE, None, says));
        }
    }
    findings
}

/// The page with the right table in it, if it has a wrong one.
pub(super) fn fix(tree: &Tree) -> Option<(&'static str, String)> {
    let page = tree.get(PAGE)?;
    let found = written(tree)?;
    let right = format!("\n{}", table(&rows(tree).0));
    (found != right).then(|| {
        let from = format!("{BEGIN}{found}{END}");
        (PAGE, page.replace(&from, &format!("{BEGIN}{right}{END}")))
    })
}

/// The text between the two marks.
fn written(tree: &Tree) -> Option<&str> {
    let (_, rest) = tree.get(PAGE)?.split_once(BEGIN)?;
    rest.split_once(END).map(|(found, _)| found)
}

/// Folder and purpose of each crate, and a finding for each crate without a purpose.
fn rows(tree: &Tree) -> (Vec<(&str, &str)>, Vec<Finding>) {
    let mut rows = Vec::new();
    let mut findings = Vec::new();
    let below = |root: &'static str| {
        let is_below = move |path: &str| path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'));
        tree.files().filter(move |(path, _)| {
            is_below(path) && path.ends_with("/Cargo.toml") && !path.contains("/fuzz/")
        })
    };
    for (path, manifest) in ROOTS.iter().copied().chain(["crates"]).flat_map(below) {
        let description = manifest
            .lines()
            .find_map(|line| line.strip_prefix("description = \"")?.strip_suffix('"'));
        match description {
            Some(description) => rows.push((path.trim_end_matches("/Cargo.toml"), description)),
            None => findings.push(Finding::fault(
                path,
                None,
                "a crate says its purpose: `description = \"…\"`",
            )),
        }
    }
    (rows, findings)
}

fn table(rows: &[(&str, &str)]) -> String {
    let mut text = "\n| folder | purpose |\n|---|---|\n".to_owned();
    for (folder, purpose) in rows {
        text.push_str(&format!("| `{folder}` | {purpose} |\n"));
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "# A\n\n<!-- crates: begin -->\n<!-- crates: end -->\n\nB\n";

    fn tree(page: &str, description: &str) -> Tree {
        let manifest = format!("[package]\nname = \"muster-a\"\n{description}\n");
        Tree::of(&[
            (PAGE, page),
            ("miner/Cargo.toml", "[package]\ndescription = \"Mines.\"\n"),
            ("miner/part/Cargo.toml", "[package]\ndescription = \"Digs.\"\n"),
            ("crates/jobs/a/Cargo.toml", &manifest),
            ("crates/jobs/a/fuzz/Cargo.toml", "[package]\n"),
        ])
    }

    #[test]
    fn a_crate_without_a_purpose_fails() {
        let findings = check(&tree(EMPTY, ""));
        assert!(
            findings[0]
                .to_string()
                .starts_with("crates/jobs/a/Cargo.toml: a crate says"),
            "{findings:?}"
        );
    }

    #[test]
    fn fix_writes_the_table_and_a_changed_purpose_fails() {
        let said = "description = \"Does a.\"";
        assert_eq!(check(&tree(EMPTY, said)).len(), 1);
        let (path, page) = fix(&tree(EMPTY, said)).unwrap();
        assert_eq!(path, PAGE);
        assert!(
            page.contains("| `miner` | Mines. |\n| `miner/part` | Digs. |\n| `crates/jobs/a` | Does a. |\n"),
            "{page}"
        );
        assert!(page.ends_with("<!-- crates: end -->\n\nB\n"), "{page}");
        assert!(check(&tree(&page, said)).is_empty());
        assert!(fix(&tree(&page, said)).is_none());
        assert_eq!(check(&tree(&page, "description = \"Does b.\"")).len(), 1);
    }

    #[test]
    fn a_page_without_the_marks_fails() {
        let findings = check(&tree("# A\n", "description = \"Does a.\""));
        assert!(findings[0].says.contains("are missing"), "{findings:?}");
    }
}
