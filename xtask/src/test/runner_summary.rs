//! Reads how many tests passed from what the test runners print for people.

use super::report::Counts;

/// The last `Summary` line of nextest:
/// `Summary [   0.135s] 4 tests run: 2 passed (1 slow), 1 failed, 1 timed out, 1 skipped`.
pub(super) fn nextest(output: &str) -> Option<Counts> {
    let plain = without_colour(output);
    let line = plain
        .lines()
        .rev()
        .find(|line| line.trim_start().starts_with("Summary ["))?;
    let (begun, parts) = line.split_once(" run: ").or_else(|| line.split_once(" run, "))?;
    let mut counts = Counts {
        failed: never_begun(begun),
        ..Counts::default()
    };
    for part in without_brackets(parts).split(',') {
        let mut words = part.split_whitespace();
        let (Some(number), Some(kind)) = (
            words.next().and_then(|word| word.parse::<usize>().ok()),
            words.next(),
        ) else {
            continue;
        };
        match kind {
            "passed" => counts.passed += number,
            "skipped" => counts.skipped += number,
            // failed, exec failed, timed out, and whatever nextest may add: not passed.
            _ => counts.failed += number,
        }
    }
    Some(counts)
}

/// The tests that were chosen and never begun, of `Summary [   0.135s] 3/4 tests`.
fn never_begun(begun: &str) -> usize {
    let numbers = begun.split_whitespace().find_map(|word| word.split_once('/'));
    let difference = numbers.and_then(|(run, chosen)| {
        let (run, chosen) = (run.parse::<usize>().ok()?, chosen.parse::<usize>().ok()?);
        Some(chosen.saturating_sub(run))
    });
    difference.unwrap_or_default()
}

/// The sum of all lines of libtest and rustdoc:
/// `test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.16s`.
pub(super) fn libtest(output: &str) -> Option<Counts> {
    let plain = without_colour(output);
    let results = plain
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("test result: "));
    results.map(libtest_line).reduce(Counts::plus)
}

fn libtest_line(line: &str) -> Counts {
    let number = |kind: &str| {
        let words: Vec<&str> = line.split([' ', ';']).filter(|word| !word.is_empty()).collect();
        let found = words.windows(2).find(|pair| pair.last() == Some(&kind))?;
        found.first()?.parse().ok()
    };
    Counts {
        passed: number("passed").unwrap_or(0),
        failed: number("failed").unwrap_or(0),
        skipped: number("ignored").unwrap_or(0),
    }
}

/// Without terminal colours: `ESC [ … m`.
fn without_colour(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').map_or(part, |(_, rest)| rest));
    }
    plain
}

/// Without `(…)`: details of a number, whose commas separate nothing.
fn without_brackets(text: &str) -> String {
    let mut depth = 0_u32;
    let outside = |c: &char| match c {
        '(' => {
            depth += 1;
            false
        }
        ')' => {
            depth = depth.saturating_sub(1);
            false
        }
        _ => depth == 0,
    };
    text.chars().filter(outside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: usize, failed: usize, skipped: usize) -> Option<Counts> {
        Some(Counts {
            passed,
            failed,
            skipped,
        })
    }

    #[test]
    fn nextest_counts_every_way_of_not_passing() {
        let line = |rest: &str| {
            nextest(&format!(
                "noise\n     Summary [   0.135s] {rest}\n        FAIL a test\n"
            ))
        };
        assert_eq!(
            line("2 tests run: 1 passed, 1 failed, 1 skipped"),
            counts(1, 1, 1)
        );
        assert_eq!(line("1 test run: 1 passed, 0 skipped"), counts(1, 0, 0));
        assert_eq!(
            line(
                "9 tests run: 5 passed (1 slow, 2 leaky), 1 failed (1 due to being leaky), 2 timed out, 1 exec failed, 3 skipped"
            ),
            counts(5, 4, 3)
        );
        assert_eq!(
            line("3/10 tests run: 2 passed, 1 failed, 0 skipped"),
            counts(2, 8, 0),
            "seven never began"
        );
        assert_eq!(line("0 tests run: 0 passed, 4 skipped"), counts(0, 0, 4));
    }

    #[test]
    fn colours_do_not_hide_the_summary() {
        let line = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.1s] \u{1b}[1m2\u{1b}[0m tests run: \u{1b}[1m2\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m1\u{1b}[0m \u{1b}[33;1mskipped\u{1b}[0m";
        assert_eq!(nextest(line), counts(2, 0, 1));
    }

    #[test]
    fn libtest_sums_its_binaries() {
        let output = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.50s\n\
            test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.16s\n";
        assert_eq!(libtest(output), counts(4, 2, 1));
    }

    #[test]
    fn no_summary_is_no_count() {
        assert_eq!(nextest("error: could not compile `muster`"), None);
        assert_eq!(libtest("error: could not compile `muster`"), None);
        assert_eq!(nextest(""), None);
    }
}
