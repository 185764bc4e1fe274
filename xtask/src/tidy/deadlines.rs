//! Tests have one patience: a private deadline fails on the first machine that is slower than its author's.

use std::collections::BTreeSet;

use super::{
    Finding, Tree,
    plain_code::words,
    rust_source::{self, TestLine},
};

/// The patience itself, and the waits that keep to it.
const TEST_BED: &str = "tests/testbed/";
const SAYS: &str = "a test has a private deadline: wait with `muster_testbed::{until, wait_for, within}`, whose patience \
    is one for all";
/// Marks on the same line: the time does not pass, or the test is about it.
const PAUSED: &str = "// paused time";
const BOUNDS: &str = "// bounds: ";

/// A constant with one of these words in its name states how long somebody waits.
const WAITING: &[&str] = &[
    "PATIENCE",
    "PATIENT",
    "DEADLINE",
    "DEADLINES",
    "TIMEOUT",
    "TIMEOUTS",
    "SOON",
    "WAIT",
    "WAITS",
    "WAITING",
];

/// The place of the deadline among the arguments of a function that waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeadlinePlace {
    First,
    Second,
    /// Functions of one name have it in different places.
    Any,
    /// First, in a function of the tests themselves, which may also be given other things first.
    FirstOfOwn,
}

fn deadline_place(name: &str) -> Option<DeadlinePlace> {
    match name {
        "timeout" | "timeout_at" | "recv_timeout" | "recv_deadline" | "request_timeout" | "read_timeout"
        | "with_timeout" | "set_read_timeout" | "set_write_timeout" => Some(DeadlinePlace::First),
        "wait_timeout_while" => Some(DeadlinePlace::Second),
        "connect_timeout" | "wait_timeout" => Some(DeadlinePlace::Any),
        "within" | "until" | "wait_for" | "wait_until" | "eventually" => Some(DeadlinePlace::FirstOfOwn),
        _ => None,
    }
}

/// No deadline in test folders, test modules and test crates but the patience of the test bed.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| !path.starts_with(TEST_BED)) {
        let lines = rust_source::test_lines(path, text);
        if let Some(first) = lines.first() {
            let tests = Tests {
                code: tree.code(path),
                first: first.begin,
                lines: &lines,
            };
            let faults = tests.deadlines().into_iter();
            findings.extend(faults.map(|line| Finding::fault(path, line, SAYS)));
        }
    }
    findings
}

/// The tests of a file.
struct Tests<'a> {
    /// The file without comments and texts.
    code: &'a str,
    /// The place in the code where the tests begin.
    first: usize,
    lines: &'a [TestLine<'a>],
}

/// The variables of a file's tests that hold times.
#[derive(Default)]
struct TimeVariables<'a> {
    /// Lengths of time that are written down.
    written: BTreeSet<&'a str>,
    /// Lengths of time that have passed.
    passed: BTreeSet<&'a str>,
}

impl<'a> Tests<'a> {
    /// The lines with a deadline of their own.
    fn deadlines(&self) -> BTreeSet<usize> {
        let variables = self.variables();
        let mut found = BTreeSet::new();
        let mut before = "";
        for (at, word) in self.words() {
            let after = self.code.get(at + word.len()..).unwrap_or_default();
            let deadline = match word {
                "const" | "static" => waiting_constant(after),
                "fn" => waiting_function(after),
                "now" if before == "Instant" => moment(after, &variables),
                "elapsed" => after
                    .strip_prefix("()")
                    .and_then(|after| self.comparison(at, after, &variables)),
                "sleep" | "park_timeout" if self.is_counted(at, after) => Some(0),
                word if after.starts_with('(') && before != "fn" => {
                    deadline_place(word).and_then(|place| wait(place, after, &variables))
                }
                word if variables.passed.contains(word) => self.comparison(at, after, &variables),
                _ => None,
            };
            if let Some(length) = deadline {
                found.extend(self.unexcused(at, at + word.len() + length));
            }
            before = word;
        }
        found
    }

    fn words(&self) -> impl Iterator<Item = (usize, &'a str)> + use<'a> {
        let first = self.first;
        let tests = self.code.get(first..).unwrap_or_default();
        words(tests).map(move |(at, word)| (first + at, word))
    }

    fn variables(&self) -> TimeVariables<'a> {
        let mut found = TimeVariables::default();
        for (at, _) in self.words().filter(|(_, word)| *word == "let") {
            let rest = self.code.get(at + 3..).unwrap_or_default();
            let Some((pattern, value)) = rest
                .get(..until_statement_ends(rest))
                .and_then(|rest| rest.split_once('='))
            else {
                continue;
            };
            let names = pattern.split(':').next().unwrap_or_default();
            let mut names = words(names).map(|(_, name)| name).filter(|name| *name != "mut");
            let (Some(name), None) = (names.next(), names.next()) else {
                continue;
            };
            if value.trim_end().ends_with(".elapsed()") {
                found.passed.insert(name);
            } else if value.trim_start().starts_with("Duration::") || value.contains("time::Duration::") {
                found
                    .written
                    .extend(is_written(value, &TimeVariables::default()).then_some(name));
            }
        }
        found
    }

    /// The time that has passed must be short: the length of the comparison with a bound of the test's own. An
    /// assertion that it is long holds on every machine.
    fn comparison(&self, at: usize, after: &str, variables: &TimeVariables<'_>) -> Option<usize> {
        let bound = after.trim_start();
        let (short, bound) = match bound.strip_prefix('<') {
            Some(bound) => (true, bound),
            None => (false, bound.strip_prefix('>')?),
        };
        let bound = bound.get(..until_expression_ends(bound))?;
        let statement = self.code.get(..at)?.rsplit([';', '{', '}']).next()?;
        let private = is_written(bound, variables) && (short || !statement.contains("assert"));
        private.then(|| after.find(bound).unwrap_or_default() + bound.len())
    }

    /// Whether a pause is one of a counted number of them: `for _ in 0..100`.
    fn is_counted(&self, at: usize, after: &str) -> bool {
        let called =
            after.starts_with('(') && !self.code.get(..at).is_some_and(|code| code.ends_with("clock."));
        let line = self.line_of(at);
        let mut indent = usize::MAX;
        let above = self.lines.get(..=line).unwrap_or_default().iter().rev();
        for line in above.filter(|_| called) {
            let code = self
                .code
                .get(line.begin..line.begin + line.text.len())
                .unwrap_or_default();
            let start = code.trim_start();
            if start.is_empty() || code.len() - start.len() >= indent {
                continue;
            }
            indent = code.len() - start.len();
            if start.starts_with("for ") {
                return start.contains("..") && !start.contains(".. ");
            }
            let ends = ["while ", "loop ", "fn ", "#["]
                .iter()
                .any(|begin| start.starts_with(begin));
            if ends || start.contains(" loop {") || start.contains(" fn ") {
                return false;
            }
        }
        false
    }

    /// The index of the line that holds a place of the code.
    fn line_of(&self, at: usize) -> usize {
        self.lines
            .partition_point(|line| line.begin <= at)
            .saturating_sub(1)
    }

    /// The number of the first line of a deadline, unless time is paused there or a mark says why it is one.
    fn unexcused(&self, begin: usize, end: usize) -> Option<usize> {
        let lines = self.lines.get(self.line_of(begin)..=self.line_of(end))?;
        let first = lines.first()?;
        let marked = |line: &TestLine<'_>| {
            let reason = line
                .text
                .split_once(BOUNDS)
                .is_some_and(|(_, reason)| !reason.trim().is_empty());
            reason || line.text.contains(PAUSED)
        };
        (!first.paused && !lines.iter().any(marked)).then_some(first.number)
    }
}

/// `NAME: Duration = …`, or a number, with a name that says waiting.
fn waiting_constant(after: &str) -> Option<usize> {
    let end = until_statement_ends(after);
    let (name, rest) = after.get(..end)?.split_once(':')?;
    let (kind, _) = rest.split_once(" =")?;
    let kind = kind.rsplit("::").next()?.trim();
    let of_time = [
        "Duration", "u8", "u16", "u32", "u64", "u128", "usize", "i32", "i64", "f32", "f64",
    ];
    (says_waiting(name.trim()) && of_time.contains(&kind)).then_some(end)
}

/// `patience() -> Duration { Duration::from_secs(5) }`, with a name that says waiting.
fn waiting_function(after: &str) -> Option<usize> {
    let (head, _) = after.split_once(['{', ';'])?;
    let name = head.split_once('(')?.0.trim();
    let waits = says_waiting(&name.to_uppercase());
    let body = after.get(head.len()..)?;
    let body = body.get(..body.find('}').unwrap_or(body.len()))?;
    let gives_time = head
        .split_once("->")
        .is_some_and(|(_, given)| given.contains("Duration"));
    // The one patience comes from the environment in workspaces that do not have the test bed.
    let private = !body.contains("env::var(") && is_written(body, &TimeVariables::default());
    (waits && gives_time && private).then(|| head.len() + body.len())
}

/// `() + Duration::from_secs(5)`, after `Instant::now`.
fn moment(after: &str, variables: &TimeVariables<'_>) -> Option<usize> {
    let added = after.strip_prefix("()")?.trim_start().strip_prefix('+')?;
    let added = added.get(..until_expression_ends(added))?;
    is_written(added, variables).then(|| after.find(added).unwrap_or_default() + added.len())
}

/// The call of a function that waits, with a deadline that is written down: its length up to the end of the deadline.
fn wait(place: DeadlinePlace, after: &str, variables: &TimeVariables<'_>) -> Option<usize> {
    let mut rest = after.strip_prefix('(')?;
    for number in 0.. {
        let argument = rest.get(..until_expression_ends(rest))?;
        let end = after.len() - rest.len() + argument.len();
        let is_private = match place {
            DeadlinePlace::First => number == 0 && is_written(argument, variables),
            DeadlinePlace::Second => number == 1 && is_written(argument, variables),
            DeadlinePlace::Any => is_written(argument, variables),
            DeadlinePlace::FirstOfOwn => number == 0 && is_own_time(argument, variables),
        };
        if is_private {
            return Some(end);
        }
        rest = after.get(end..)?.strip_prefix(',')?;
    }
    None
}

/// Whether an argument that may be anything is a length of time that is written down.
fn is_own_time(argument: &str, variables: &TimeVariables<'_>) -> bool {
    let mut names = words(argument).map(|(_, name)| name);
    let begins = [
        "Duration::",
        "time::Duration::",
        "std::time::Duration::",
        "tokio::time::Duration::",
    ];
    begins
        .iter()
        .any(|begin| argument.trim_start().starts_with(begin))
        || names.any(|name| variables.written.contains(name) || says_waiting(name))
}

/// Whether a constant's name says waiting.
fn says_waiting(name: &str) -> bool {
    name.split('_').any(|word| WAITING.contains(&word))
}

/// Whether a length of time is written down here: in numbers, by a constant, or by a variable of these.
fn is_written(expression: &str, variables: &TimeVariables<'_>) -> bool {
    if expression.contains("patience()") && !expression.contains(".min(") {
        return false;
    }
    words(expression).any(|(at, word)| {
        let before = expression.get(..at).unwrap_or_default();
        let called = expression
            .get(at + word.len()..)
            .is_some_and(|after| after.starts_with('('));
        let of_numbers =
            called && before.ends_with("Duration::") && (word == "new" || word.starts_with("from_"));
        let constant = word.len() > 1
            && word.bytes().any(|byte| byte.is_ascii_uppercase())
            && !word.bytes().any(|byte| byte.is_ascii_lowercase())
            && !before.ends_with("Duration::");
        let variable = variables.written.contains(word) && !before.ends_with('.');
        of_numbers || constant || variable
    })
}

/// The length up to the comma, the brace, the semicolon or the closing bracket that ends an expression.
fn until_expression_ends(code: &str) -> usize {
    ends_at(code, &[',', ';', '{', '|', '&'])
}

/// The length up to the semicolon that ends a statement.
fn until_statement_ends(code: &str) -> usize {
    ends_at(code, &[';'])
}

fn ends_at(code: &str, ends: &[char]) -> usize {
    let mut depth = 0_usize;
    for (at, letter) in code.char_indices() {
        if depth == 0 && ends.contains(&letter) {
            return at;
        }
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return at,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let findings = check(&Tree::of(&[(path, text)]));
        assert!(
            findings.iter().all(|finding| finding.says == SAYS),
            "{findings:?}"
        );
        findings.into_iter().filter_map(|finding| finding.line).collect()
    }

    #[track_caller]
    fn fails(code: &str) {
        assert_eq!(lines("a/tests/it.rs", &format!("//! x\n{code}\n")), [2], "{code}");
    }

    #[track_caller]
    fn passes(code: &str) {
        assert_eq!(
            lines("a/tests/it.rs", &format!("//! x\n{code}\n")),
            [0; 0],
            "{code}"
        );
    }

    #[test]
    fn a_constant_whose_name_says_waiting_is_a_deadline() {
        fails("const PATIENCE: Duration = Duration::from_secs(20);");
        fails("pub(crate) const TEST_PATIENCE: std::time::Duration = Duration::from_mins(3);");
        fails("static MAX_WAIT: u64 = 30;");
        fails("    const SOON: f64 = 0.5;");
        passes("const HOUR: Duration = Duration::from_secs(3_600);");
        passes("const AWAITED: u64 = 3;");
        passes("const TIMEOUT: &str = \"--timeout\";");
        passes("// const PATIENCE: Duration = Duration::from_secs(20);");
        passes("let planted = \"const PATIENCE: Duration = Duration::from_secs(20);\";");
    }

    #[test]
    fn a_function_of_tests_gives_no_patience_of_its_own() {
        fails("fn patience() -> Duration {\n    Duration::from_secs(5)\n}");
        fails("fn patience() -> Result<Duration, E> {\n    Ok(Duration::from_secs(5))\n}");
        passes("fn patience() -> Duration {\n    env::var(PATIENCE).map_or(DEFAULT, Duration::from_secs)\n}");
        passes("fn timeout_of(job: &Job) -> Duration {\n    job.timeout\n}");
    }

    #[test]
    fn a_wait_with_a_deadline_that_is_written_down_fails() {
        fails("tokio::time::timeout(Duration::from_secs(5), reading).await");
        fails("timeout(\n    2 * BEAT,\n    async { 1 },\n).await");
        fails("timeout(MOST, reading).await");
        fails("lines.recv_timeout(Duration::from_millis(1))?;");
        fails("changed.wait_timeout(guard, Duration::from_secs(1))");
        fails("child.wait_timeout(Duration::from_secs(1))");
        fails("changed.wait_timeout_while(guard, MOST, |ready| !ready)");
        fails("stream.set_read_timeout(Some(Duration::from_secs(1)))?;");
        fails("eventually(Duration::from_secs(9), || true)");
        fails("within(2 * TEST_PATIENCE, reading)");
        fails("timeout(patience().min(Duration::from_secs(1)), reading)");
        assert_eq!(
            lines(
                "tests/a.rs",
                "let quiet = Duration::from_millis(9);\nlet _ = timeout(quiet, more).await;\n"
            ),
            [2]
        );
    }

    #[test]
    fn the_one_patience_and_other_times_pass() {
        passes("timeout(patience(), reading).await");
        passes("timeout(muster_testbed::patience() / 2, reading).await");
        passes("within(\"the answer\", reading).await");
        passes("within(connect(&url, &LIMITS)).await");
        passes("thread::park_timeout(PAUSE);");
        passes("recv_timeout(Duration::ZERO)");
        passes("timeout(limits.idle, reading).await");
        passes("fn timeout(after: Duration) {}");
        passes("let limits = Limits { timeout: Duration::from_secs(1) };");
        passes("limits.idle_timeout = Duration::from_secs(1);");
    }

    #[test]
    fn a_loop_until_a_moment_or_a_count_is_a_deadline() {
        fails("let end = Instant::now() + Duration::from_secs(20);");
        fails("let end = tokio::time::Instant::now() + MOST;");
        fails("while begun.elapsed() < Duration::from_secs(5) {}");
        fails("if begun.elapsed() > MOST { return }");
        fails("assert!(begun.elapsed() < Duration::from_secs(5), \"slow\");");
        passes("assert!(begun.elapsed() >= Duration::from_millis(150));");
        passes("let end = Instant::now() + patience();");
        passes("let end = clock.now() + Duration::from_secs(20);");
        let taken = "let took = begun.elapsed();\nassert!(took < Duration::from_secs(1));\n";
        assert_eq!(lines("tests/a.rs", taken), [2]);
        let counted = "for _ in 0..100 {\n    if ready() {\n        break;\n    }\n    sleep(BEAT); // polls until ready\n}\n";
        assert_eq!(lines("tests/a.rs", counted), [5]);
        let polled = "for _ in 0..3 {\n    loop {\n        sleep(BEAT); // polls until ready\n    }\n}\n";
        assert_eq!(lines("tests/a.rs", polled), [0; 0]);
    }

    #[test]
    fn paused_time_and_a_bound_with_its_reason_are_excused() {
        passes("const PATIENCE: Duration = Duration::from_secs(20); // paused time");
        passes("timeout(SHORT, read).await // bounds: the product's limit of 200 ms passes");
        passes("timeout(\n    SHORT, // bounds: the product's limit passes\n    read,\n).await");
        fails("timeout(SHORT, read).await // bounds:");
        let test = "timeout(SHORT, read).await\n}\n";
        let paused = format!("#[tokio::test(start_paused = true)]\nasync fn a() {{\n    {test}");
        assert_eq!(lines("tests/a.rs", &paused), [0; 0]);
        let real = format!("{paused}\n#[tokio::test]\nasync fn b() {{\n    {test}");
        assert_eq!(lines("tests/a.rs", &real), [8]);
    }

    #[test]
    fn deadlines_are_looked_for_in_every_place_where_tests_live_but_the_test_bed() {
        let code = "timeout(MOST, read)\n";
        for path in ["tests/src/lib.rs", "tests/tests/faults/a.rs", "a/src/tests.rs"] {
            assert_eq!(lines(path, code), [1], "{path}");
        }
        for path in ["a/src/lib.rs", "tests/testbed/src/wait.rs", "tests/notes.md"] {
            assert_eq!(lines(path, code), [0; 0], "{path}");
        }
        let module = "fn run() { timeout(MOST, read) }\n#[cfg(test)]\nmod tests {\n    fn a() { timeout(MOST, read) }\n}\n";
        assert_eq!(lines("a/src/lib.rs", module), [4]);
    }
}
