//! Tests do not sleep: a pause is either too short on a busy machine or too long on every other.

use super::{Finding, Tree, rust_source};

const CALL: &str = concat!("sle", "ep(");
/// Marks on the same line that show that the call is no pause.
const EXCUSES: &[&str] = &["// paused time", "// polls until"];

/// No call to sleep in test folders and test modules, unless time is paused or injected.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        for line in rust_source::test_lines(path, text) {
            if !line.paused && sleeps(line.text) {
                let says = "a test sleeps: pause tokio's time (`start_paused = true`, or say `// paused time`), \
                    move an injected clock, or wait for a condition with a deadline (`// polls until …`)";
                findings.push(Finding::fault(path, line.number, says));
            }
        }
    }
    findings
}

/// A call of tokio's or the thread's sleep; that of a clock is injected, and longer names are something else.
fn sleeps(line: &str) -> bool {
    let code = line.split_once("//").map_or(line, |(code, _)| code);
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    let called = code.match_indices(CALL).any(|(at, _)| {
        let before = code.get(..at).unwrap_or_default();
        !before.ends_with(joins) && !before.ends_with("clock.")
    });
    called && !EXCUSES.iter().any(|excuse| line.contains(excuse))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let text = text.replace("pause(", CALL);
        check(&Tree::of(&[(path, &text)]))
            .into_iter()
            .filter_map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn a_sleeping_test_fails_in_every_place_where_tests_live() {
        let call = "//! x\n    tokio::time::pause(SECOND).await;\n";
        assert_eq!(lines("crates/a/tests/it.rs", call), [2]);
        assert_eq!(lines("tests/src/lib.rs", call), [2]);
        assert_eq!(lines("crates/a/src/tests.rs", call), [2]);
        assert_eq!(
            lines("crates/a/src/lib.rs", call),
            [0; 0],
            "code may sleep; clippy guards the thread's own"
        );
    }

    #[test]
    fn a_test_module_begins_at_its_attribute() {
        let module = "fn run() { pause(1) }\n#[cfg(test)]\n#[path = \"x\"]\nmod tests {\n    pause(1);\n}\n";
        assert_eq!(lines("a.rs", module), [5]);
        let function =
            "#[cfg(test)]\nfn helper() {}\nfn run() { pause(1) }\n#[cfg(test)]\nmod tests {\n  pause(2)\n}\n";
        assert_eq!(lines("a.rs", function), [6]);
    }

    #[test]
    fn paused_time_polling_comments_and_other_names_are_no_sleep() {
        let text =
            "pause(1); // paused time\npause(1); // polls until the port answers\n// pause(1)\npg_pause(1)\n";
        assert_eq!(lines("tests/a.rs", text), [0; 0]);
        assert_eq!(
            lines("tests/a.rs", "self.clock.pause(1).await;\nclockwork.pause(1);\n"),
            [2]
        );
    }

    #[test]
    fn a_test_that_starts_paused_may_wait_until_its_end() {
        let text =
            "#[tokio::test(start_paused = true)]\nfn a() { pause(1) }\n#[tokio::test]\nfn b() { pause(1) }\n";
        assert_eq!(lines("tests/a.rs", text), [4]);
        let helper =
            "#[tokio::test(start_paused = true)]\nfn a() {\n    pause(1)\n}\n\nfn b() {\n    pause(1)\n}\n";
        assert_eq!(lines("tests/a.rs", helper), [7]);
    }
}
