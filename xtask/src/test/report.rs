//! The outcome of each step, as a table for people and one plain line for programs.

use std::{fmt, time::Duration};

use super::console::Console;

/// Ceilings on two cores. Printed, never enforced: machines differ. A large piece of work may add half a minute to the
/// warm one.
const COLD: Duration = Duration::from_secs(25 * 60);
const WARM: Duration = Duration::from_secs(8 * 60);

/// How many checks went how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) skipped: usize,
}

impl Counts {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// The outcome of a step.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A check that held; counts as one.
    Passed,
    /// A check that did not hold, and why in a few words.
    Failed(String),
    /// Not tried, and why.
    Skipped(String),
    /// A step that runs tests counts them; `error` is set where it failed in another way than by a test.
    Tests { counts: Counts, error: Option<String> },
}

impl Outcome {
    fn counts(&self) -> Counts {
        match self {
            Self::Passed => Counts {
                passed: 1,
                ..Counts::default()
            },
            Self::Failed(_) => Counts {
                failed: 1,
                ..Counts::default()
            },
            Self::Skipped(_) => Counts {
                skipped: 1,
                ..Counts::default()
            },
            Self::Tests { counts, error } => counts.plus(Counts {
                failed: usize::from(error.is_some()),
                ..Counts::default()
            }),
        }
    }
}

impl Outcome {
    /// Failed if anything is missing.
    pub(super) fn unless_missing(missing: &[impl AsRef<str>]) -> Self {
        if missing.is_empty() {
            return Self::Passed;
        }
        let missing: Vec<&str> = missing.iter().map(AsRef::as_ref).collect();
        Self::Failed(format!("not to be had: {}", missing.join(", ")))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(why) => write!(f, "FAILED: {why}"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
            Self::Tests { counts, error: None } => write!(f, "{counts}"),
            Self::Tests {
                counts,
                error: Some(why),
            } => write!(f, "{counts}; FAILED: {why}"),
        }
    }
}

/// The steps that ran, and the time that all of them took together: two run at a time.
#[derive(Default)]
pub(super) struct Report {
    steps: Vec<(&'static str, Duration, Outcome)>,
    wall: Duration,
}

impl Report {
    /// Takes a step's outcome and says it.
    pub(super) fn add(&mut self, console: &Console, step: &'static str, took: Duration, outcome: Outcome) {
        console.say(format_args!("--- {step}: {outcome} ({})", Wall(took)));
        self.steps.push((step, took, outcome));
    }

    /// Puts the steps into this order and takes the time of the whole run.
    pub(super) fn finish(&mut self, order: &[&str], wall: Duration) {
        self.steps
            .sort_by_key(|(step, ..)| order.iter().position(|name| name == step).unwrap_or(usize::MAX));
        self.wall = wall;
    }

    fn totals(&self) -> Counts {
        self.steps
            .iter()
            .map(|(_, _, outcome)| outcome.counts())
            .fold(Counts::default(), Counts::plus)
    }

    /// Whether nothing failed, and something was tried.
    pub(super) fn passed(&self) -> bool {
        let totals = self.totals();
        totals.failed == 0 && totals.passed > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        for (step, took, outcome) in &self.steps {
            writeln!(f, "{step:<15} {:>9}  {outcome}", Wall(*took).to_string())?;
        }
        let (total, cold, warm) = (Wall(self.wall), Wall(COLD), Wall(WARM));
        writeln!(
            f,
            "{:<15} {:>9}  (ceilings on two cores: {cold} cold, {warm} warm)",
            "in all",
            total.to_string()
        )?;
        let totals = self.totals();
        if totals.skipped > 0 {
            writeln!(
                f,
                "{} skipped, for the reasons printed with their steps",
                totals.skipped
            )?;
        }
        // The plain line that everybody else reads: nothing else stands on it.
        writeln!(f, "{totals}")
    }
}

/// A duration as a person says it: `4.2 s`, `12 min 03 s`.
struct Wall(Duration);

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match (seconds / 60, seconds % 60) {
            (0, _) => write!(f, "{:.1} s", self.0.as_secs_f64()),
            (minutes, 0) => write!(f, "{minutes} min"),
            (minutes, seconds) => write!(f, "{minutes} min {seconds:02} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: Vec<Outcome>) -> Report {
        let took = Duration::from_millis(4_230);
        Report {
            steps: outcomes
                .into_iter()
                .map(|outcome| ("step", took, outcome))
                .collect(),
            wall: took,
        }
    }

    fn last_line(report: &Report) -> String {
        report.to_string().lines().last().unwrap().to_owned()
    }

    fn tests(passed: usize, failed: usize, skipped: usize, error: Option<&str>) -> Outcome {
        Outcome::Tests {
            counts: Counts {
                passed,
                failed,
                skipped,
            },
            error: error.map(str::to_owned),
        }
    }

    #[test]
    fn the_last_line_sums_checks_and_tests() {
        let report = report(vec![Outcome::Passed, tests(40, 0, 0, None)]);
        assert_eq!(last_line(&report), "41 passed, 0 failed, 0 skipped");
        assert!(report.passed());
    }

    #[test]
    fn skips_are_counted_in_the_last_line() {
        let report = report(vec![
            Outcome::Skipped("a need is missing".into()),
            tests(3, 0, 1, None),
        ]);
        assert_eq!(last_line(&report), "3 passed, 0 failed, 2 skipped");
        assert!(report.to_string().contains("2 skipped, for the reasons"));
        assert!(report.passed());
        assert!(report.to_string().contains("skipped: a need is missing"));
    }

    #[test]
    fn a_failed_check_a_failed_test_and_a_broken_run_fail() {
        assert!(!report(vec![Outcome::Passed, Outcome::Failed("exit status 1".into())]).passed());
        assert!(!report(vec![tests(9, 1, 0, None)]).passed());
        let broken = report(vec![tests(9, 0, 0, Some("it does not compile"))]);
        assert_eq!(last_line(&broken), "9 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_run_in_which_nothing_passed_is_no_success() {
        assert!(!report(vec![]).passed());
        assert!(!report(vec![Outcome::Skipped("no engine".into())]).passed());
    }

    #[test]
    fn times_are_written_for_people() {
        let wall = |milliseconds| Wall(Duration::from_millis(milliseconds)).to_string();
        assert_eq!(wall(4_230), "4.2 s");
        assert_eq!(wall(723_900), "12 min 03 s");
        assert_eq!(wall(600_000), "10 min");
    }
}
