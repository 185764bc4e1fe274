//! One line of a program's progress file: a JSON object, every part of which may be absent.

use std::collections::BTreeMap;

use muster_protocol::job::{MAX_METRICS, MetricName, MetricValue, NonFiniteValue};
use serde_json::Value;

use crate::non_finite_json::quote_non_finite;

/// The parts of a line that could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressLine {
    /// The part of the work that is done, in thousandths.
    pub done_permille: Option<u16>,
    /// The epoch that is under way, as the program counts.
    pub epoch: Option<u64>,
    /// The epochs that the program means to run.
    pub epochs: Option<u64>,
    /// The step that is under way, as the program counts.
    pub step: Option<u64>,
    /// The steps that the program means to run.
    pub steps: Option<u64>,
    /// Metrics by name.
    pub metrics: BTreeMap<MetricName, MetricValue>,
    /// Metrics whose value is no finite number; with the others at most [`MAX_METRICS`].
    pub non_finite: BTreeMap<MetricName, NonFiniteValue>,
    /// The seconds until the program expects to end.
    pub eta_s: Option<u64>,
    /// The name of a checkpoint that is whole now, at most [`MAX_CHECKPOINT_NAME`] bytes.
    pub checkpoint: Option<String>,
}

/// The longest name of a checkpoint, in bytes: that of a file.
pub const MAX_CHECKPOINT_NAME: usize = 255;

/// The reason for which a line, or a part of one, reports nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line is no JSON object.
    #[error("the line is no JSON object")]
    NoObject,
    /// A part has a value that it cannot have.
    #[error("`{0}` has a value that it cannot have")]
    Part(String),
    /// There are more metrics than a report holds.
    #[error("the line has more than {MAX_METRICS} metrics")]
    TooManyMetrics,
}

/// Reads a line. A part that cannot be read costs that part only. Parts of other names are ignored, since programs may
/// write more into the file than is asked for. `NaN`, `Infinity` and numbers beyond the largest one are values of
/// metrics, although JSON has no such numbers: Python writes them.
///
/// Epochs and steps may be fractions, as some trainers count them; the whole part counts.
pub fn parse(line: &[u8]) -> (ProgressLine, Vec<LineError>) {
    let Ok(Value::Object(parts)) = serde_json::from_slice(&quote_non_finite(line)) else {
        return (ProgressLine::default(), vec![LineError::NoObject]);
    };
    let mut read = ProgressLine::default();
    let mut errors = Vec::new();
    for (name, value) in &parts {
        let known = match name.as_str() {
            "fraction" => as_fraction(value).map(|permille| read.done_permille = Some(permille)),
            "epoch" => as_count(value).map(|count| read.epoch = Some(count)),
            "epochs" => as_count(value).map(|count| read.epochs = Some(count)),
            "step" => as_count(value).map(|count| read.step = Some(count)),
            "steps" => as_count(value).map(|count| read.steps = Some(count)),
            "eta_s" => as_count(value).map(|count| read.eta_s = Some(count)),
            "checkpoint" => as_name(value).map(|name| read.checkpoint = Some(name)),
            "metrics" => value.as_object().map(|metrics| {
                for (name, value) in metrics {
                    let has_room = read.metrics.len() + read.non_finite.len() < MAX_METRICS;
                    match as_metric(name, value) {
                        Some(_) if !has_room => errors.push(LineError::TooManyMetrics),
                        Some((name, Ok(value))) => {
                            read.metrics.insert(name, value);
                        }
                        Some((name, Err(value))) => {
                            read.non_finite.insert(name, value);
                        }
                        None => errors.push(part_error(name)),
                    }
                }
            }),
            _ => Some(()),
        };
        if known.is_none() {
            errors.push(part_error(name));
        }
    }
    errors.dedup();
    (read, errors)
}

fn part_error(name: &str) -> LineError {
    let shown = name.chars().filter(|c| !c.is_control()).take(64);
    LineError::Part(shown.collect())
}

/// The last name of a path, as programs that know their checkpoints by paths write it.
fn as_name(value: &Value) -> Option<String> {
    let name = value.as_str()?.trim_end_matches('/').rsplit('/').next()?;
    let fits = (1..=MAX_CHECKPOINT_NAME).contains(&name.len()) && !matches!(name, "." | "..");
    fits.then(|| name.to_owned())
}

/// A part of one as thousandths, rounded down.
fn as_fraction(value: &Value) -> Option<u16> {
    let fraction = value.as_f64().filter(|fraction| (0.0..=1.0).contains(fraction))?;
    whole(fraction * 1_000.0).and_then(|permille| u16::try_from(permille).ok())
}

/// A number from 0 to 2⁵³, rounded down.
fn as_count(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| whole(value.as_f64()?))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number is between 0 and 2⁵³"
)]
fn whole(number: f64) -> Option<u64> {
    (0.0..=9_007_199_254_740_992.0)
        .contains(&number)
        .then_some(number as u64)
}

/// A metric. Of texts, only those of numbers that are not finite are values, as Protocol Buffers write them in JSON.
fn as_metric(name: &str, value: &Value) -> Option<(MetricName, Result<MetricValue, NonFiniteValue>)> {
    let value = match value.as_f64() {
        Some(number) => MetricValue::classify(number),
        None => Err(MetricValue::classify(value.as_str()?.parse().ok()?).err()?),
    };
    Some((name.parse().ok()?, value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(line: &str) -> ProgressLine {
        let (read, errors) = parse(line.as_bytes());
        assert_eq!(errors, [], "{line}");
        read
    }

    #[test]
    fn every_part_of_a_line_is_read() {
        let line = r#"{"fraction":0.2509,"epoch":2.75,"epochs":10,"step":300,"steps":1200,"eta_s":42.9,
            "metrics":{"loss":0.5,"eval/loss":-1},"checkpoint":"c1","note":"x"}"#;
        let metric = |name: &str, value: f64| (name.parse().unwrap(), MetricValue::try_from(value).unwrap());
        let expected = ProgressLine {
            done_permille: Some(250),
            epoch: Some(2),
            epochs: Some(10),
            step: Some(300),
            steps: Some(1_200),
            metrics: [metric("loss", 0.5), metric("eval/loss", -1.0)].into(),
            eta_s: Some(42),
            checkpoint: Some("c1".to_owned()),
            ..ProgressLine::default()
        };
        assert_eq!(parsed(line), expected);
        assert_eq!(parsed("{}"), ProgressLine::default());
        assert_eq!(
            parsed(r#"{"checkpoint":"/checkpoint/step-20/"}"#)
                .checkpoint
                .as_deref(),
            Some("step-20")
        );
    }

    #[test]
    fn a_part_that_cannot_be_read_costs_that_part_only() {
        for (line, wrong) in [
            (r#"{"step":1,"epoch":"two"}"#, "epoch"),
            (r#"{"step":1,"fraction":1.5}"#, "fraction"),
            (r#"{"step":1,"epochs":-1}"#, "epochs"),
            (r#"{"step":1,"metrics":[1]}"#, "metrics"),
            (r#"{"step":1,"metrics":{"loss":null}}"#, "loss"),
            (r#"{"step":1,"metrics":{"a b":1}}"#, "a b"),
            (r#"{"step":1,"eta_s":1e300}"#, "eta_s"),
            (r#"{"step":1,"checkpoint":".."}"#, "checkpoint"),
            (r#"{"step":1,"checkpoint":7}"#, "checkpoint"),
        ] {
            let (read, errors) = parse(line.as_bytes());
            assert_eq!(read.step, Some(1), "{line}");
            assert_eq!(errors, [LineError::Part(wrong.to_owned())], "{line}");
        }
        let many: String = (0..100).map(|number| format!(r#""m{number}":1,"#)).collect();
        let (read, errors) = parse(format!(r#"{{"metrics":{{{}}}}}"#, many.trim_end_matches(',')).as_bytes());
        assert_eq!(
            (read.metrics.len(), errors),
            (MAX_METRICS, vec![LineError::TooManyMetrics])
        );
    }

    #[test]
    fn metrics_without_a_finite_value_leave_the_rest_of_a_line_whole() {
        use NonFiniteValue::{Infinity, NaN, NegativeInfinity};
        for (written, value) in [
            ("NaN", NaN),
            ("-nan", NaN),
            ("\"NaN\"", NaN),
            ("Infinity", Infinity),
            ("-Infinity", NegativeInfinity),
            ("-inf", NegativeInfinity),
            ("1e400", Infinity),
            ("-1E+400", NegativeInfinity),
            ("\"-Infinity\"", NegativeInfinity),
        ] {
            let line = format!(
                r#"{{"epoch":2,"note":[{written},"NaN"],"metrics":{{"loss":{written},"acc":0.25}},"checkpoint":"NaN"}}"#
            );
            let read = parsed(&line);
            assert_eq!((read.epoch, read.metrics.len()), (Some(2), 1), "{line}");
            assert_eq!(
                read.non_finite,
                [("loss".parse().unwrap(), value)].into(),
                "{line}"
            );
            assert_eq!(read.checkpoint.as_deref(), Some("NaN"), "{line}");
        }
        let (read, errors) = parse(br#"{"step":1,"epoch":NaN,"eta_s":Infinity,"fraction":1e400,"steps":4}"#);
        assert_eq!((read.step, read.steps, read.epoch), (Some(1), Some(4), None));
        assert_eq!(errors.len(), 3);
        let many: String = (0..100).map(|number| format!(r#""m{number}":NaN,"#)).collect();
        let (read, errors) =
            parse(format!(r#"{{"metrics":{{"a":1,{}}}}}"#, many.trim_end_matches(',')).as_bytes());
        assert_eq!(read.metrics.len() + read.non_finite.len(), MAX_METRICS);
        assert_eq!(errors, [LineError::TooManyMetrics]);
    }

    #[test]
    fn lines_that_are_no_object_are_reported() {
        for line in [
            &b"epoch 1"[..],
            b"",
            b"[1]",
            b"{\"step\":1",
            b"NaN",
            b"{\"step\":NaN",
            b"{\"step\":Nan1}",
            b"\xff",
        ] {
            assert_eq!(parse(line), (ProgressLine::default(), vec![LineError::NoObject]));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (read, _) = parse(&line);
            prop_assert!(read.done_permille.is_none_or(|permille| permille <= 1_000));
        }
    }
}
