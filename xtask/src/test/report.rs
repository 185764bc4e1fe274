//! The outcome of each step, as a table for people and one plain line for programs.

use std::{fmt, time::Duration};

use super::{build::Compiled, console::Console};

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
    /// How many checks of the step went how.
    pub(super) fn counts(&self) -> Counts {
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

/// The cost of a step, or of all of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    pub(super) wall: Duration,
    /// With all that it started, containers and databases too; nothing where this user may not make control groups.
    pub(super) processor: Option<Duration>,
    pub(super) compiled: Compiled,
    /// Subnets that tests and demonstrations started.
    pub(super) subnets: usize,
    /// Containers that the engine of the tests started.
    pub(super) containers: usize,
}

/// The steps that ran, and the cost of all of them together: two run at a time.
#[derive(Default)]
pub(super) struct Report {
    steps: Vec<(&'static str, Cost, Outcome)>,
    all: Cost,
}

impl Report {
    /// Takes a step's outcome and prints it.
    pub(super) fn add(&mut self, console: &Console, step: &'static str, cost: Cost, outcome: Outcome) {
        console.print(format_args!("--- {step}: {outcome} ({})", Time(cost.wall)));
        self.steps.push((step, cost, outcome));
    }

    /// Puts the steps into this order and takes the cost of the whole run.
    pub(super) fn finish(&mut self, order: &[&str], all: Cost) {
        self.steps
            .sort_by_key(|(step, ..)| order.iter().position(|name| name == step).unwrap_or(usize::MAX));
        self.all = all;
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
        writeln!(
            f,
            "{:<15} {:>12} {:>12} {:>6} {:>8}  outcome",
            "step", "wall", "processor", "units", "programs"
        )?;
        for (step, cost, outcome) in &self.steps {
            writeln!(f, "{step:<15} {cost}  {outcome}")?;
        }
        let Cost {
            subnets, containers, ..
        } = self.all;
        writeln!(
            f,
            "{:<15} {}  {subnets} subnets and {containers} containers started",
            "in all", self.all
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

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processor = self
            .processor
            .map_or_else(|| "not measured".to_owned(), |used| Time(used).to_string());
        let Compiled { units, programs } = self.compiled;
        write!(
            f,
            "{:>12} {processor:>12} {units:>6} {programs:>8}",
            Time(self.wall).to_string()
        )
    }
}

/// A duration as a person writes it: `4.2 s`, `12 min 03 s`.
pub(crate) struct Time(pub(crate) Duration);

impl fmt::Display for Time {
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
        let cost = Cost {
            wall: Duration::from_millis(4_230),
            ..Cost::default()
        };
        Report {
            steps: outcomes
                .into_iter()
                .map(|outcome| ("step", cost, outcome))
                .collect(),
            all: cost,
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
        let time = |milliseconds| Time(Duration::from_millis(milliseconds)).to_string();
        assert_eq!(time(4_230), "4.2 s");
        assert_eq!(time(723_900), "12 min 03 s");
        assert_eq!(time(600_000), "10 min");
    }

    #[test]
    fn a_cost_that_was_not_measured_says_so() {
        let text = report(vec![Outcome::Passed]).to_string();
        assert!(
            text.contains("not measured") && text.contains("0 subnets"),
            "{text}"
        );
    }
}
