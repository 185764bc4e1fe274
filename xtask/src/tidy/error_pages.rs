//! Pages that must keep pace with the code: one per error code, and decisions numbered without gaps.

use std::collections::BTreeSet;

use super::{Finding, Tree};

const CODES: &str = "crates/foundation/protocol/src/error_code.rs";
const ERRORS: &str = "docs/errors/";
const DECISIONS: &str = "docs/adr/";
const INDEX: &str = "docs/adr/README.md";
/// The page whose table names a test for each defence.
const SECURITY: &str = "docs/security.md";

/// A page for each error code, and no page without a code: an operator looks up what they read.
pub(super) fn errors(tree: &Tree) -> Vec<Finding> {
    let codes = tree.get(CODES).map(codes_in).unwrap_or_default();
    if codes.is_empty() {
        return vec![Finding::fault(
            CODES,
            None,
            "no error codes found; they are written E0001",
        )];
    }
    let pages: BTreeSet<&str> = tree
        .below(ERRORS)
        .filter_map(|(name, _)| name.strip_suffix(".md").filter(|name| is_code(name)))
        .collect();
    let page = |code: &&str| format!("{ERRORS}{code}.md");
    let missing = codes.difference(&pages).map(|code| {
        Finding::fault(
            &page(code),
            None,
            format!("the page of error code {code} is missing ({CODES} names it)"),
        )
    });
    let orphaned = pages.difference(&codes).map(|code| {
        Finding::fault(
            &page(code),
            None,
            format!("{CODES} has no such code; codes are never reused"),
        )
    });
    missing.chain(orphaned).collect()
}

/// Words like E0001 outside comments.
fn codes_in(source: &str) -> BTreeSet<&str> {
    source
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .filter(|word| is_code(word))
        .collect()
}

fn is_code(word: &str) -> bool {
    word.strip_prefix('E')
        .is_some_and(|digits| digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// `docs/adr/NNNN-title.md` from 0000 on, each number once, each in the index.
pub(super) fn decisions(tree: &Tree) -> Vec<Finding> {
    let index = tree.get(INDEX).unwrap_or_default();
    let mut findings = Vec::new();
    let mut expected = 0;
    for (name, _) in tree
        .below(DECISIONS)
        .filter(|(name, _)| name.ends_with(".md") && *name != "README.md")
    {
        let path = format!("{DECISIONS}{name}");
        let Some(number) = number_of(name) else {
            findings.push(Finding::fault(&path, None, "decisions are named NNNN-title.md"));
            continue;
        };
        if number != expected {
            findings.push(Finding::fault(
                &path,
                None,
                format!("the next number is {expected:04}, not {number:04}"),
            ));
        }
        expected = number + 1;
        if !index.contains(name) {
            findings.push(Finding::fault(
                INDEX,
                None,
                format!("the index does not name {name}"),
            ));
        }
    }
    findings
}

fn number_of(name: &str) -> Option<u32> {
    let (number, title) = name.strip_suffix(".md")?.split_once('-')?;
    let well_formed = number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit()) && !title.is_empty();
    well_formed.then(|| number.parse().ok())?
}

/// Every test that the table of defences names is there: a renamed one leaves a row without a proof.
pub(super) fn named_tests(tree: &Tree) -> Vec<Finding> {
    let functions: BTreeSet<&str> = tree
        .rust()
        .flat_map(|(_, text)| text.split("fn ").skip(1))
        .filter_map(|rest| rest.split_once('(').map(|(name, _)| name))
        .collect();
    let rows = tree.get(SECURITY).unwrap_or_default().lines().zip(1..);
    rows.filter(|(line, _)| line.starts_with('|'))
        .flat_map(|(line, number)| line.split('`').skip(1).step_by(2).map(move |name| (name, number)))
        .filter(|(name, _)| is_test_name(name) && !functions.contains(name))
        .map(|(name, number)| Finding::fault(SECURITY, number, format!("no test has the name {name}")))
        .collect()
}

/// A sentence in small letters and underscores, as tests are named.
fn is_test_name(name: &str) -> bool {
    let is_plain = |b: u8| b == b'_' || b.is_ascii_lowercase() || b.is_ascii_digit();
    name.bytes().all(is_plain) && name.split('_').count() > 4
}

/// Every page ends with a line feed, or a page that is joined to it begins within its last line.
pub(super) fn endings(tree: &Tree) -> Vec<Finding> {
    tree.files()
        .filter(|(path, text)| path.ends_with(".md") && !text.is_empty() && !text.ends_with('\n'))
        .map(|(path, _)| Finding::fault(path, None, "the last line has no line feed"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn says(findings: &[Finding], expected: &[&str]) {
        assert_eq!(findings.len(), expected.len(), "{findings:?}");
        for (finding, expected) in findings.iter().zip(expected) {
            assert!(
                finding.to_string().contains(expected),
                "{finding} does not say {expected}"
            );
        }
    }

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        let source =
            "//! Codes like E9999.\n/// Like E0008.\nE0001 => \"no engine\", // once E0007\nE0002,\n";
        let both = [
            (CODES, source),
            ("docs/errors/E0001.md", ""),
            ("docs/errors/E0002.md", ""),
        ];
        says(&errors(&Tree::of(&both)), &[]);
        says(
            &errors(&Tree::of(&both[..2])),
            &["docs/errors/E0002.md: the page of error code E0002 is missing"],
        );
        let orphan = [
            &both[..],
            &[("docs/errors/E0003.md", ""), ("docs/errors/README.md", "")],
        ]
        .concat();
        says(
            &errors(&Tree::of(&orphan)),
            &["docs/errors/E0003.md: crates/foundation/protocol/src/error_code.rs has no such code"],
        );
    }

    #[test]
    fn no_codes_at_all_is_a_broken_rule() {
        says(&errors(&Tree::of(&[])), &["no error codes found"]);
        says(
            &errors(&Tree::of(&[(CODES, "//! E0001 in a comment\n")])),
            &["no error codes found"],
        );
    }

    #[test]
    fn decisions_are_numbered_without_gaps_and_listed() {
        let index = (
            INDEX,
            "[0](0000-template.md) [1](0001-ids.md) [3](0003-stores.md) [1](0001-other.md)",
        );
        let (zero, one, three) = (
            ("docs/adr/0000-template.md", ""),
            ("docs/adr/0001-ids.md", ""),
            ("docs/adr/0003-stores.md", ""),
        );
        says(&decisions(&Tree::of(&[index, zero, one])), &[]);
        says(
            &decisions(&Tree::of(&[index, zero, one, three])),
            &["0003-stores.md: the next number is 0002, not 0003"],
        );
        let twice = ("docs/adr/0001-other.md", "");
        says(
            &decisions(&Tree::of(&[index, zero, one, twice])),
            &["0001-other.md: the next number is 0002, not 0001"],
        );
        says(
            &decisions(&Tree::of(&[index, zero, ("docs/adr/notes.md", "")])),
            &["named NNNN-title.md"],
        );
        says(
            &decisions(&Tree::of(&[zero])),
            &["the index does not name 0000-template.md"],
        );
    }

    #[test]
    fn a_test_that_the_table_of_defences_names_and_nobody_wrote_is_found() {
        let table = (
            SECURITY,
            "| 1 | a | `every_door_of_the_house_is_closed`, `max_tokens` |\nprose: `a_name_that_is_in_no_table`\n",
        );
        let test = ("a.rs", "#[test]\nfn every_door_of_the_house_is_closed() {}\n");
        says(&named_tests(&Tree::of(&[table, test])), &[]);
        says(
            &named_tests(&Tree::of(&[table])),
            &["docs/security.md:1: no test has the name every_door_of_the_house_is_closed"],
        );
    }

    #[test]
    fn a_page_without_its_last_line_feed_is_found() {
        let pages = [("a.md", "one\n"), ("b.md", "two"), ("c.md", ""), ("d.json", "{}")];
        says(
            &endings(&Tree::of(&pages)),
            &["b.md: the last line has no line feed"],
        );
    }
}
