//! The shape of the source: files and functions that fit a head, crates with one purpose, a purpose in each file.

use std::collections::BTreeMap;

use super::{Finding, Tree, rust_source};

/// Longer files are read less often than they are scrolled through.
const SOFT_LINES: usize = 400;
const HARD_LINES: usize = 800;
/// Lines of code without tests; beyond this a crate is two crates.
const NOTED_LINES_PER_CRATE: usize = 8_000;
/// From the line with `fn` to its closing brace, tests excepted.
const LINES_PER_FUNCTION: usize = 80;

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

/// Lines of code per crate, without tests: shown and never refused, for a bar makes two crates of one purpose.
pub(super) fn crates(tree: &Tree) -> Vec<Finding> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, text) in tree.rust().filter(|(path, _)| rust_source::is_code(path)) {
        if let Some(folder) = rust_source::crate_of(tree, path) {
            *counts.entry(folder).or_default() += rust_source::code_lines(text).count();
        }
    }
    let judge = |(folder, count): (&str, usize)| {
        let manifest = format!("{folder}/Cargo.toml");
        let says = || format!("{count} lines of code");
        (count > NOTED_LINES_PER_CRATE).then(|| Finding::note(manifest.trim_start_matches('/'), says()))
    };
    counts.into_iter().filter_map(judge).collect()
}

/// Lines per function that is not a test.
pub(super) fn functions(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|(path, _)| rust_source::is_code(path))
        .flat_map(|(path, text)| {
            long_functions(text).map(move |(line, name, lines)| {
                let says = format!("`{name}` has {lines} lines, at most {LINES_PER_FUNCTION}: split it");
                Finding::fault(path, line, says)
            })
        })
        .collect()
}

/// Line, name and length of every function that is too long. rustfmt puts the closing brace under the `fn`.
fn long_functions(text: &str) -> impl Iterator<Item = (usize, &str, usize)> {
    let lines: Vec<(usize, &str)> = rust_source::code_lines(text).collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (index, (number, line)) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let ends = |(_, other): &(usize, &str)| {
            indent(other) == indent(line) && (other.trim_start() == "}" || other.ends_with([';', '}']))
        };
        let length = lines.iter().skip(index).position(ends).map_or(0, |last| last + 1);
        if length > LINES_PER_FUNCTION {
            found.push((*number, name, length));
        }
    }
    found.into_iter()
}

/// The name of the function whose definition begins on this line.
fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(scope) => scope.split_once(") ")?.1,
            None => after.trim_start(),
        };
    }
    while let Some(after) = ["const ", "async ", "unsafe "]
        .iter()
        .find_map(|word| rest.strip_prefix(word))
    {
        rest = after;
    }
    let rest = rest.strip_prefix("fn ")?;
    let end = rest
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    rest.get(..end)
}

/// A module with files below it is `x.rs` beside its folder `x/`, so that the list of files names it. A folder of
/// integration tests without a `main.rs` keeps `x/mod.rs`: cargo takes each file right in it for a program.
pub(super) fn modules(tree: &Tree) -> Vec<Finding> {
    let judge = |(path, _): (&str, &str)| {
        let folder = path.strip_suffix("/mod.rs")?;
        let (parent, _) = folder.rsplit_once('/')?;
        let is_program_else = parent.ends_with("/tests") && !parent.contains("/src/");
        let is_shared = is_program_else && tree.below(&format!("{parent}/main.rs")).next().is_none();
        let fault = || Finding::fault(path, None, format!("move it to {folder}.rs"));
        (!is_shared).then(fault)
    };
    tree.rust().filter_map(judge).collect()
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
    fn a_crate_of_more_than_eight_thousand_lines_of_code_is_noted() {
        let mut tree = Tree::of(&[
            ("Cargo.toml", ""),
            ("crates/a/Cargo.toml", ""),
            ("crates/a/tests/it.rs", &lines(700)),
        ]);
        for number in 1..=10 {
            let text = lines(800) + "#[cfg(test)]\nmod tests {\n}\n";
            tree.texts.insert(format!("crates/a/src/deep/f{number}.rs"), text);
        }
        assert!(crates(&tree).is_empty(), "8,000 lines and tests");
        tree.texts.insert("crates/a/src/lib.rs".into(), lines(1));
        let findings = crates(&tree);
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].to_string(),
            "crates/a/Cargo.toml: note: 8001 lines of code"
        );
    }

    #[test]
    fn a_function_of_more_than_eighty_lines_fails() {
        let function =
            |head: &str, body: usize| format!("//! x\n{head} {{\n{}}}\n", "    x();\n".repeat(body));
        let judge = |text: &str| functions(&Tree::of(&[("Cargo.toml", ""), ("src/lib.rs", text)]));
        assert!(judge(&function("pub(crate) async fn short()", 78)).is_empty());
        let found = judge(&function("pub(crate) async fn long()", 79));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            found[0].to_string(),
            "src/lib.rs:2: `long` has 81 lines, at most 80: split it"
        );
        let declared = format!(
            "//! x\ntrait A {{\n    fn declared();\n{}}}\n",
            "    // x\n".repeat(90)
        );
        assert!(judge(&declared).is_empty(), "a declaration has no body");
        let tested = format!(
            "//! x\n#[cfg(test)]\nmod tests {{\n{}}}\n",
            function("fn long()", 90)
        );
        assert!(judge(&tested).is_empty(), "tests may be long");
    }

    #[test]
    fn a_module_that_is_named_mod_fails() {
        let tree = Tree::of(&[
            ("a/src/lib.rs", ""),
            ("a/src/one.rs", ""),
            ("a/src/one/child.rs", ""),
            ("a/src/two/mod.rs", ""),
            ("a/src/two/child.rs", ""),
            ("a/tests/support/mod.rs", ""),
            ("b/tests/main.rs", ""),
            ("b/tests/support/mod.rs", ""),
        ]);
        let findings: Vec<String> = modules(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(
            findings,
            [
                "a/src/two/mod.rs: move it to a/src/two.rs",
                "b/tests/support/mod.rs: move it to b/tests/support.rs"
            ]
        );
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
