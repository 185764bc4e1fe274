//! Text that must not be committed: marks of unfinished work, traces of one person's machine, tests put aside in
//! silence.

use super::{Finding, Tree};

/// Written in two halves, or this file would find itself.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const UNFINISHED_MACRO: &str = concat!("todo", "!(");
const SOURCES: &[&str] = &[
    ".rs",
    ".toml",
    ".sql",
    ".sh",
    ".py",
    ".html",
    ".css",
    ".js",
    "Dockerfile",
    ".ci/run",
];

/// A text that may stand nowhere in the repository.
struct ForbiddenText {
    text: &'static str,
    why: &'static str,
    /// Folders where it means something else.
    except: &'static [&'static str],
}

#[rustfmt::skip]
const WORDS: &[ForbiddenText] = &[
    // In the sandbox and in images it is the home of a container's user.
    ForbiddenText { text: concat!("/ro", "ot/"), why: "a path of one machine", except: &["executor/", "images/"] },
    ForbiddenText { text: concat!("/Use", "rs/"), why: "a path of one machine", except: &[] },
    ForbiddenText { text: concat!("C:\\", "Users"), why: "a path of one machine", except: &[] },
    ForbiddenText { text: concat!("<<<<", "<<< "), why: "a merge that was not finished", except: &[] },
    ForbiddenText { text: concat!(">>>>", ">>> "), why: "a merge that was not finished", except: &[] },
    ForbiddenText { text: concat!("-----BEGIN OPENSSH ", "PRIVATE KEY"), why: "a secret", except: &[] },
    ForbiddenText { text: concat!("-----BEGIN RSA ", "PRIVATE KEY"), why: "a secret", except: &[] },
];

/// Work is done or absent; what is missing is an issue, not a remark.
pub(super) fn unfinished(tree: &Tree) -> Vec<Finding> {
    let sources = tree
        .files()
        .filter(|(path, _)| SOURCES.iter().any(|ending| path.ends_with(ending)));
    each_line(sources, |line| {
        let mark = UNFINISHED.iter().find(|mark| holds_word(line, mark)).copied();
        let mark = mark.or_else(|| line.contains(UNFINISHED_MACRO).then_some(UNFINISHED_MACRO))?;
        Some(format!("`{mark}`: do it, or leave it out and open an issue"))
    })
}

/// The words of the table, anywhere but in their exceptions.
pub(super) fn words(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files() {
        let is_excepted = |word: &&ForbiddenText| word.except.iter().any(|folder| path.starts_with(folder));
        let words = WORDS
            .iter()
            .filter(|word| !is_excepted(word) && text.contains(word.text));
        let words: Vec<&ForbiddenText> = words.collect();
        if words.is_empty() {
            continue;
        }
        let found = each_line([(path, text)].into_iter(), |line| {
            let ForbiddenText { text, why, .. } = words.iter().find(|word| line.contains(word.text))?;
            Some(format!("`{text}`: {why}"))
        });
        findings.extend(found);
    }
    findings
}

/// A test that does not run says why, since its name is printed among the skipped.
pub(super) fn ignored(tree: &Tree) -> Vec<Finding> {
    each_line(tree.rust(), |line| {
        let bare = line.trim_start().starts_with(concat!("#[ig", "nore]"));
        bare.then(|| concat!("a reason is missing: #[ig", "nore = \"…\"]").to_owned())
    })
}

/// The tests that do not run, each with its reason.
pub(super) fn reasons(tree: &Tree) -> Vec<String> {
    let explained = each_line(tree.rust(), |line| {
        let reason = line.trim_start().strip_prefix(concat!("#[ig", "nore = \""))?;
        Some(reason.trim_end_matches("\"]").to_owned())
    });
    explained.iter().map(Finding::to_string).collect()
}

/// The beginning of the reason of a test that is too long for every run.
const SOAK: &str = concat!("#[ig", "nore = \"soak:");

/// The names of the tests that only `cargo xtask soak` runs.
pub(super) fn soak_tests(tree: &Tree) -> Vec<String> {
    let mut names = Vec::new();
    for (_, text) in tree.rust() {
        let mut lines = text.lines();
        while lines.any(|line| line.trim_start().starts_with(SOAK)) {
            names.extend(lines.by_ref().find_map(function_name).map(str::to_owned));
        }
    }
    names
}

/// The name of the function that this line declares.
fn function_name(line: &str) -> Option<&str> {
    let (_, declared) = line.trim_start().split_once("fn ")?;
    declared.split_once('(').map(|(name, _)| name)
}

fn each_line<'a>(
    files: impl Iterator<Item = (&'a str, &'a str)>,
    judge: impl Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        for (line, number) in text.lines().zip(1..) {
            findings.extend(judge(line).map(|says| Finding::fault(path, number, says)));
        }
    }
    findings
}

/// Whether a line holds a word that is not part of a longer one.
fn holds_word(line: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + word.len()..).and_then(|text| text.chars().next());
        !before.is_some_and(joins) && !after.is_some_and(joins)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_of_unfinished_work_fails_in_sources_only() {
        for mark in UNFINISHED {
            let line = format!("// fine\n// {mark}: later\n");
            let findings = unfinished(&Tree::of(&[("a.rs", &line), ("notes.md", &line)]));
            assert_eq!(findings.len(), 1, "{mark}: {findings:?}");
            assert_eq!((findings[0].path.as_str(), findings[0].line), ("a.rs", Some(2)));
        }
        assert_eq!(
            unfinished(&Tree::of(&[("a.rs", &format!("{UNFINISHED_MACRO})"))])).len(),
            1
        );
    }

    #[test]
    fn a_mark_inside_a_longer_word_is_none() {
        assert!(unfinished(&Tree::of(&[("a.rs", concat!("EXX", "XX _XX", "X MASTO", "DON"))])).is_empty());
    }

    #[test]
    fn every_word_of_the_table_fails_everywhere_but_in_its_exceptions() {
        for ForbiddenText { text, except, .. } in WORDS {
            let line = format!("see {text}x");
            assert_eq!(words(&Tree::of(&[("README.md", &line)])).len(), 1, "{text}");
            for folder in *except {
                assert!(
                    words(&Tree::of(&[(&format!("{folder}a.rs"), &line)])).is_empty(),
                    "{text} in {folder}"
                );
            }
        }
        assert!(words(&Tree::of(&[("README.md", "the root folder, /srv/muster")])).is_empty());
    }

    #[test]
    fn the_tests_of_the_soak_are_found_by_their_reason() {
        let soak = concat!(
            "#[test]\n#[ig",
            "nore = \"soak: an hour\"]\nfn long_one() {}\n\n#[tokio::test]\n#[ig",
            "nore = \"soak: two\"]\nasync fn another() {}\n#[ig",
            "nore = \"needs a GPU\"]\nfn apart() {}\n"
        );
        assert_eq!(soak_tests(&Tree::of(&[("a.rs", soak)])), ["long_one", "another"]);
    }

    #[test]
    fn a_test_put_aside_without_a_reason_fails() {
        let bare = concat!("    #[ig", "nore]\n    fn a() {}\n");
        assert_eq!(ignored(&Tree::of(&[("a.rs", bare)]))[0].line, Some(1));
        let explained = concat!("#[ig", "nore = \"needs a GPU\"]\n");
        let tree = Tree::of(&[("a.rs", explained)]);
        assert!(ignored(&tree).is_empty());
        assert_eq!(reasons(&tree), ["a.rs:1: needs a GPU"]);
    }
}
