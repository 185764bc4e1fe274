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

/// A line of a test, or of what stands beside tests.
pub(super) struct TestLine<'a> {
    pub(super) number: usize,
    /// The place of the line in its file, in bytes.
    pub(super) begin: usize,
    pub(super) text: &'a str,
    /// Whether the line belongs to a test that starts with its time paused.
    pub(super) paused: bool,
}

/// The lines of a file's tests: all of a file in a folder of tests, else the module of tests at the foot.
pub(super) fn test_lines<'a>(path: &str, text: &'a str) -> Vec<TestLine<'a>> {
    let is_test_file = path.split('/').any(|part| part == "tests" || part == "tests.rs");
    let Some(first) = is_test_file.then_some(1).or_else(|| test_module(text)) else {
        return Vec::new();
    };
    let mut paused: Option<usize> = None;
    let mut begin = 0;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let start = line.trim_start();
        let indent = line.len() - start.len();
        if start.starts_with("#[test]") || start.starts_with("#[tokio::test") {
            paused = line.contains("start_paused = true").then_some(indent);
        }
        if number >= first {
            found.push(TestLine {
                number,
                begin,
                text: line.trim_end(),
                paused: paused.is_some(),
            });
        }
        // rustfmt puts the closing brace under the attribute.
        if start.starts_with('}') && paused == Some(indent) {
            paused = None;
        }
        begin += line.len();
    }
    found
}

/// The line where the test module begins: tests are at the foot, so everything below belongs to it.
/// `#[cfg(test)]` may also mark a single function or a module in a file of its own, and other attributes may stand
/// between it and its module.
fn test_module(text: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let opens = |number: usize| {
        let item = lines.iter().skip(number).find(|line| !line.starts_with("#["));
        let is_module = |item: &&&str| item.starts_with("mod ") || item.starts_with("pub(crate) mod ");
        item.filter(is_module).is_some_and(|item| !item.ends_with(';'))
    };
    (1..)
        .zip(&lines)
        .find(|(number, line)| **line == "#[cfg(test)]" && opens(*number))
        .map(|(number, _)| number)
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
