//! A running program's report of its progress: its metrics, the rules that find metrics in its output, and the newest
//! state of both.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::features::{Feature, FeatureSet};
use crate::macros::serde_as_text;

/// The most metrics that one report holds.
pub const MAX_METRICS: usize = 64;

/// The longest name of a metric, in bytes.
pub const MAX_METRIC_NAME_BYTES: usize = 64;

/// The most rules of one job.
pub const MAX_METRIC_RULES: usize = 40;

/// The longest pattern of a rule, in bytes.
pub const MAX_METRIC_PATTERN_BYTES: usize = 500;

/// The name of a metric: 1 to 64 bytes of ASCII letters, digits, and `_ - . / : @`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetricName(String);

/// The text is no name of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a metric's name has 1 to {MAX_METRIC_NAME_BYTES} characters out of the letters a to z and A to Z, digits, and _ - . / : @"
)]
pub struct MetricNameError;

/// The value of a metric: a finite number. Values are ordered by size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct MetricValue(f64);

/// The number is infinite, or not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a metric's value is a finite number")]
pub struct MetricValueError;

/// A value that a program reported for a metric and that is no finite number, as Python's `json` writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum NonFiniteValue {
    /// Not a number.
    NaN,
    /// More than the largest number.
    Infinity,
    /// Less than the smallest number.
    #[serde(rename = "-Infinity")]
    NegativeInfinity,
}

/// A rule by which a metric is found in the lines of a program's standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MetricRule {
    /// The metric's name.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: MetricName,
    /// A regular expression, at most 500 bytes. Its first group, or the whole match without one, is the value.
    pub pattern: String,
}

/// The newest state of a running program, as it reported itself. Every part is absent until the program has told it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProgramReport {
    /// The part of the work that is done, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 1_000))]
    pub done_permille: Option<u16>,
    /// The epoch that is under way, from 1, or the number of those that are done; the program decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The epochs that the program means to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// The step that is under way, counted as the program counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The steps that the program means to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// The newest value of each metric, at most [`MAX_METRICS`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, f64>))]
    pub metrics: BTreeMap<MetricName, MetricValue>,
    /// The metrics whose newest value is no finite number. They are not among `metrics`, with which they are at most
    /// [`MAX_METRICS`]. Only peers with the feature `non-finite-metrics` get them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, NonFiniteValue>))]
    pub non_finite: BTreeMap<MetricName, NonFiniteValue>,
    /// Seconds since the program started.
    pub elapsed_s: u64,
    /// Seconds until the program is likely to end: its own word, or an estimate from its pace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<u64>,
}

// === impl ProgramReport ===

impl ProgramReport {
    /// Whether a peer with these features knows every part of the report.
    pub fn fits(&self, features: FeatureSet) -> bool {
        self.non_finite.is_empty() || features.has(Feature::NonFiniteMetrics)
    }

    /// Leaves out what a peer with these features does not know.
    pub fn fit_to(&mut self, features: FeatureSet) {
        if !self.fits(features) {
            self.non_finite.clear();
        }
    }
}

// === impl NonFiniteValue ===

impl NonFiniteValue {
    /// The text of the value: `NaN`, `Infinity` or `-Infinity`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NaN => "NaN",
            Self::Infinity => "Infinity",
            Self::NegativeInfinity => "-Infinity",
        }
    }
}

impl fmt::Display for NonFiniteValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl MetricName ===

impl MetricName {
    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MetricName {
    type Err = MetricNameError;

    fn from_str(text: &str) -> Result<Self, MetricNameError> {
        let plain = |byte: u8| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/' | b':' | b'@')
        };
        let fits = (1..=MAX_METRIC_NAME_BYTES).contains(&text.len());
        match fits && text.bytes().all(plain) {
            true => Ok(Self(text.to_owned())),
            false => Err(MetricNameError),
        }
    }
}

impl fmt::Display for MetricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

serde_as_text!(MetricName);

// === impl MetricValue ===

impl MetricValue {
    /// The value of a number.
    ///
    /// # Errors
    /// The kind of a number that is not finite.
    pub const fn classify(number: f64) -> Result<Self, NonFiniteValue> {
        if number.is_finite() {
            Ok(Self(number))
        } else if number.is_nan() {
            Err(NonFiniteValue::NaN)
        } else if number.is_sign_positive() {
            Err(NonFiniteValue::Infinity)
        } else {
            Err(NonFiniteValue::NegativeInfinity)
        }
    }

    /// The number, which is finite.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for MetricValue {
    type Error = MetricValueError;

    fn try_from(number: f64) -> Result<Self, MetricValueError> {
        Self::classify(number).map_err(|_| MetricValueError)
    }
}

impl From<MetricValue> for f64 {
    fn from(value: MetricValue) -> Self {
        value.0
    }
}

impl PartialEq for MetricValue {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for MetricValue {}

impl PartialOrd for MetricValue {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for MetricValue {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl fmt::Display for MetricValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_this_text_and_what_is_no_report_is_refused() {
        let report = ProgramReport {
            done_permille: Some(250),
            epoch: Some(1),
            epochs: Some(4),
            metrics: [("loss".parse().unwrap(), MetricValue::try_from(0.5).unwrap())].into(),
            elapsed_s: 30,
            eta_s: Some(90),
            ..ProgramReport::default()
        };
        let text =
            r#"{"done_permille":250,"epoch":1,"epochs":4,"metrics":{"loss":0.5},"elapsed_s":30,"eta_s":90}"#;
        assert_eq!(serde_json::to_string(&report).unwrap(), text);
        assert_eq!(serde_json::from_str::<ProgramReport>(text).unwrap(), report);
        for wrong in [
            r#"{"elapsed_s":1,"metrics":{"":1}}"#,
            r#"{"elapsed_s":1,"metrics":{"a b":1}}"#,
            r#"{"elapsed_s":1,"metrics":{"a":null}}"#,
            r#"{"elapsed_s":1,"metrics":{"a":1e999}}"#,
            r#"{"elapsed_s":-1}"#,
            r#"{"elapsed_s":1,"mood":"good"}"#,
        ] {
            assert!(serde_json::from_str::<ProgramReport>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_that_are_not_finite_go_only_to_peers_that_know_them() {
        let mut report = ProgramReport {
            metrics: [("acc".parse().unwrap(), MetricValue::try_from(0.25).unwrap())].into(),
            non_finite: [
                ("loss".parse().unwrap(), NonFiniteValue::NaN),
                ("norm".parse().unwrap(), NonFiniteValue::NegativeInfinity),
                ("perplexity".parse().unwrap(), NonFiniteValue::Infinity),
            ]
            .into(),
            elapsed_s: 30,
            ..ProgramReport::default()
        };
        let text = concat!(
            r#"{"metrics":{"acc":0.25},"#,
            r#""non_finite":{"loss":"NaN","norm":"-Infinity","perplexity":"Infinity"},"elapsed_s":30}"#
        );
        assert_eq!(serde_json::to_string(&report).unwrap(), text);
        assert_eq!(serde_json::from_str::<ProgramReport>(text).unwrap(), report);
        for value in report.non_finite.values() {
            assert_eq!(serde_json::to_string(value).unwrap(), format!("\"{value}\""));
            let number: f64 = value.as_str().parse().unwrap();
            assert_eq!(MetricValue::classify(number), Err(*value));
        }
        let before: FeatureSet = [Feature::Metrics].into_iter().collect();
        let whole = report.clone();
        report.fit_to(FeatureSet::ours());
        assert_eq!(report, whole);
        assert!(!report.fits(before));
        report.fit_to(before);
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"metrics":{"acc":0.25},"elapsed_s":30}"#
        );
    }

    #[test]
    fn names_and_values_have_their_bounds() {
        for name in ["loss", "eval/loss:0", "top@5", &"x".repeat(64)] {
            assert_eq!(name.parse::<MetricName>().unwrap().as_str(), name);
        }
        for name in ["", "a b", "verlust\u{e4}", "a\u{1b}[2J", &"x".repeat(65)] {
            assert!(name.parse::<MetricName>().is_err(), "{name:?}");
        }
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(MetricValue::try_from(number), Err(MetricValueError));
        }
        let of = |number: f64| MetricValue::try_from(number).unwrap();
        assert!(of(-1.0) < of(0.0) && of(1e-300) < of(1e300));
    }
}
