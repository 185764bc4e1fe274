//! Finds metrics in the lines of a program's standard output, by the rules of the job's user.

use muster_protocol::job::{MetricName, MetricRule, MetricValue};
use regex::{Regex, RegexBuilder};

/// The memory that one compiled pattern may take, in bytes.
const MAX_COMPILED_BYTES: usize = 256 * 1024;

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
    /// pattern without groups. A text that is no finite number is no metric.
    pub fn find(&self, line: &str) -> Vec<(MetricName, MetricValue)> {
        let found = self.0.iter().filter_map(|(name, regex)| {
            let groups = regex.captures(line)?;
            let text = groups.get(1).or_else(|| groups.get(0))?.as_str();
            let number: f64 = text.trim().replace(',', "").parse().ok()?;
            Some((name.clone(), MetricValue::try_from(number).ok()?))
        });
        found.collect()
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
        let plain = |(name, value): (MetricName, MetricValue)| (name.to_string(), value.get());
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
        for no_number in ["loss: nan", "loss: inf", "loss: 1e999", "loss: -", "loss: 1.2.3"] {
            let found = find(&[rule("loss", "loss: (.*)")], no_number);
            assert_eq!(found, [], "{no_number}");
        }
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
