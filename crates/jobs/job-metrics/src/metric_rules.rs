//! Finds metrics in the lines of a program's standard output, by the rules of the job's user.

use std::ops::Range;
use std::sync::LazyLock;

use muster_protocol::job::{MetricName, MetricRule, MetricValue, NonFiniteValue};
use regex::{Regex, RegexBuilder};

/// The memory that one compiled pattern may take, in bytes.
const MAX_COMPILED_BYTES: usize = 256 * 1024;

/// The names of numbers that are not finite, as programs print them. A test shows that the pattern is one.
static NON_FINITE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i-u)\b(?:nan|inf|infinity)\b").ok());

/// A metric that a rule has found.
pub type FoundMetric = (MetricName, Result<MetricValue, NonFiniteValue>);

/// The rules of one job, compiled. The time of a search is linear in the length of the line, whatever the pattern.
#[derive(Clone, Debug, Default)]
pub struct MetricRules(Vec<(MetricName, Regex)>);

/// A rule that cannot be used. Its user is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pattern of the metric {name} cannot be used: {why}")]
pub struct RuleError {
    /// The metric whose rule it is.
    pub name: MetricName,
    /// The reason as text, in one line.
    pub why: String,
}

impl MetricRules {
    /// Compiles the rules.
    ///
    /// # Errors
    /// The first rule whose pattern is no regular expression, or takes too much memory.
    pub fn compile(rules: &[MetricRule]) -> Result<Self, RuleError> {
        let compiled = rules.iter().map(|MetricRule { name, pattern }| {
            let compiled = RegexBuilder::new(pattern)
                .size_limit(MAX_COMPILED_BYTES)
                .dfa_size_limit(MAX_COMPILED_BYTES)
                .build();
            let regex = compiled.map_err(|error| RuleError {
                name: name.clone(),
                why: explain(&error),
            })?;
            Ok((name.clone(), regex))
        });
        compiled.collect::<Result<_, _>>().map(Self)
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The metrics in a line: for each rule that matches, the number in its first group, or in the whole match of a
    /// pattern without groups. A text that is no number is no metric.
    ///
    /// A rule also finds `nan` and `inf` where it expects digits: patterns are written for the numbers that a program
    /// printed before it diverged.
    pub fn find(&self, line: &str) -> Vec<FoundMetric> {
        let digits = DigitsForNames::of(line);
        let found = self.0.iter().filter_map(|(name, regex)| {
            let plain = find_number(regex, line).map(|(number, _)| number);
            let number = plain.or_else(|| digits.as_ref()?.find(regex))?;
            Some((name.clone(), MetricValue::classify(number)))
        });
        found.collect()
    }
}

/// The number that a pattern finds in a line, and its place.
fn find_number(regex: &Regex, line: &str) -> Option<(f64, Range<usize>)> {
    let groups = regex.captures(line)?;
    let found = groups.get(1).or_else(|| groups.get(0))?;
    let number = found.as_str().trim().replace(',', "").parse().ok()?;
    Some((number, found.range()))
}

/// A line with the digit 0 for each name of a number that is not finite.
struct DigitsForNames {
    line: String,
    /// The places of the digits, each with the number that the name stands for.
    numbers: Vec<(usize, f64)>,
}

impl DigitsForNames {
    /// `None` if the line has no such names.
    fn of(line: &str) -> Option<Self> {
        let mut replaced = Self {
            line: String::new(),
            numbers: Vec::new(),
        };
        let mut copied = 0;
        for name in NON_FINITE.as_ref()?.find_iter(line) {
            replaced.line.push_str(line.get(copied..name.start())?);
            replaced
                .numbers
                .push((replaced.line.len(), name.as_str().parse().ok()?));
            replaced.line.push('0');
            copied = name.end();
        }
        replaced.line.push_str(line.get(copied..)?);
        (!replaced.numbers.is_empty()).then_some(replaced)
    }

    /// The number whose name stands where a pattern finds a number in the line.
    fn find(&self, regex: &Regex) -> Option<f64> {
        let (zero, place) = find_number(regex, &self.line)?;
        let named = self.numbers.iter().find(|(at, _)| place.contains(at));
        named.map(|(_, number)| number.copysign(zero))
    }
}

/// The last line of the error, which says what is wrong; the lines before it show the pattern.
fn explain(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.trim().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, pattern: &str) -> MetricRule {
        MetricRule {
            name: name.parse().unwrap(),
            pattern: pattern.to_owned(),
        }
    }

    fn find(rules: &[MetricRule], line: &str) -> Vec<(String, f64)> {
        let found = MetricRules::compile(rules).unwrap().find(line);
        let plain = |(name, value): FoundMetric| (name.to_string(), value.unwrap().get());
        found.into_iter().map(plain).collect()
    }

    #[test]
    fn metrics_are_found_as_programs_print_them() {
        let rules = [
            rule("loss", r"loss[:=]\s*([-0-9.eE+]+)"),
            rule("tokens", r"([0-9,]+) tokens"),
            rule("lr", r"'learning_rate': ([0-9.e-]+)"),
            rule("step", r"\d+"),
        ];
        let line = "{'loss': 2.5} loss=-1.5e-3, 12,345 tokens, 'learning_rate': 5e-05";
        let found = find(&rules, line);
        assert_eq!(
            found,
            [
                ("loss".to_owned(), -0.0015),
                ("tokens".to_owned(), 12_345.0),
                ("lr".to_owned(), 5e-5),
                ("step".to_owned(), 2.0),
            ]
        );
        assert_eq!(find(&rules, "nothing here"), []);
        for no_number in ["loss: -", "loss: 1.2.3", "loss: nano", "loss: info 3"] {
            let found = find(&[rule("loss", "loss: (.*)")], no_number);
            assert_eq!(found, [], "{no_number}");
        }
    }

    #[test]
    fn numbers_that_are_not_finite_are_found_by_patterns_for_digits() {
        use NonFiniteValue::{Infinity, NaN, NegativeInfinity};
        for (pattern, line, value) in [
            ("loss: (.*)", "loss: nan", NaN),
            (
                r"'loss': ([0-9.]+)",
                "{'loss': nan, 'grad_norm': inf, 'step': 3}",
                NaN,
            ),
            (
                r"'grad_norm': ([0-9.]+)",
                "{'loss': nan, 'grad_norm': inf, 'step': 3}",
                Infinity,
            ),
            (r"loss=([-0-9.eE+]+)", "loss=-inf", NegativeInfinity),
            (r"loss=([-0-9.eE+]+)", "loss=-NaN acc=1", NaN),
            (r"loss=([-0-9.eE+]+)", "loss=1e999", Infinity),
        ] {
            let found = MetricRules::compile(&[rule("loss", pattern)]).unwrap().find(line);
            assert_eq!(found, [("loss".parse().unwrap(), Err(value))], "{line}");
        }
        let beside = find(&[rule("step", r"step (\d+)")], "loss nan, step 7, nan");
        assert_eq!(beside, [("step".to_owned(), 7.0)]);
    }

    #[test]
    fn a_rule_that_cannot_be_used_is_named() {
        for (pattern, why) in [
            ("(", "unclosed group"),
            (r"(a{1000}){1000}", "limit"),
            ("(?=a)", "look-around"),
        ] {
            let error = MetricRules::compile(&[rule("fine", "x"), rule("loss", pattern)]).unwrap_err();
            assert_eq!(error.name.as_str(), "loss");
            assert!(error.why.contains(why), "{pattern}: {error}");
            assert!(!error.why.contains('\n'));
        }
    }
}
