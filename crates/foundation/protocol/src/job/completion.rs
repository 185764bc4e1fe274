//! The completion report of an attempt: the files that its program left and its use of the machine, as its executor
//! reports them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{MAX_METRICS, MetricName, MetricValue, PrintedStreams};
use crate::digest::Digest;

/// The key of a [`CompletionReport`] in a result's further fields and in a failure's `context`.
pub const COMPLETION_KEY: &str = "completion";

/// The most output files that one [`CompletionReport`] lists.
pub const MAX_LISTED_OUTPUTS: usize = 1_000;

/// The longest path of an output file that is listed, in bytes.
pub const MAX_OUTPUT_PATH_BYTES: usize = 1_024;

/// All permission bits of a file.
const MAX_MODE: u32 = 0o777;

/// A file that a program left among its outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OutputFile {
    /// The path below the folder of outputs.
    pub path: String,
    /// The SHA-256 of the file.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sha256: Digest,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The permission bits of the file, 0 to 0o777; absent from an executor without the feature `folders`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 511))]
    pub mode: Option<u32>,
}

/// The completion report of an attempt. An executor tells it; nobody else has measured it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CompletionReport {
    /// The files among the program's outputs in the order of their paths, at most [`MAX_LISTED_OUTPUTS`]; standard
    /// output and standard error are not among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputFile>,
    /// The number of files among the outputs that are not listed: beyond the bounds of a report, or no regular files.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted: u64,
    /// Milliseconds from the start of the program to its end.
    #[serde(default)]
    pub compute_ms: u64,
    /// Milliseconds of processor time, of all cores together, in samples of a second; absent if nothing was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// The most memory that the program had in a sample, in bytes, without the cache of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak: Option<u64>,
    /// Milliseconds for which the program had GPUs, of all of them together; absent for a program without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_ms: Option<u64>,
    /// The mean utilisation of the program's GPUs, in thousandths; absent if nothing was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 1_000))]
    pub gpu_permille: Option<u16>,
    /// The last value of each metric that the program reported.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, f64>))]
    pub metrics: BTreeMap<MetricName, MetricValue>,
    /// The streams that the program printed, whole. Only where the job's validator ordered it, by the feature `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printed: Option<PrintedStreams>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl CompletionReport {
    /// Reads a report from a peer's JSON; `None` for one of another form or beyond the bounds.
    pub fn read(told: &Value) -> Option<Self> {
        Self::deserialize(told).ok().filter(Self::is_bounded)
    }

    /// Takes the report out of a map of further fields. A report that cannot be read stays, since the map is free in
    /// form.
    pub fn take_from(fields: &mut Map<String, Value>) -> Option<Self> {
        let report = Self::read(fields.get(COMPLETION_KEY)?)?;
        fields.shift_remove(COMPLETION_KEY);
        Some(report)
    }

    fn is_bounded(&self) -> bool {
        let is_short = |file: &OutputFile| {
            (1..=MAX_OUTPUT_PATH_BYTES).contains(&file.path.len())
                && file.mode.is_none_or(|mode| mode <= MAX_MODE)
        };
        self.outputs.len() <= MAX_LISTED_OUTPUTS
            && self.outputs.iter().all(is_short)
            && self.outputs.is_sorted_by(|a, b| a.path < b.path)
            && self.metrics.len() <= MAX_METRICS
            && self.gpu_permille.is_none_or(|mean| mean <= 1_000)
    }
}

/// Reads a report of a message; one of another form or beyond the bounds counts as absent, so that it does not take the
/// rest of the message with it.
///
/// # Errors
/// The text is no JSON.
pub(crate) fn read_completion<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<CompletionReport>>, D::Error> {
    let told = Option::<Value>::deserialize(deserializer)?;
    Ok(told.and_then(|told| CompletionReport::read(&told)).map(Box::new))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file(path: &str) -> Value {
        json!({"path": path, "sha256": Digest::of(path.as_bytes()), "bytes": path.len()})
    }

    #[test]
    fn a_report_is_read_within_its_bounds_only() {
        let report = json!({
            "outputs": [file("a/model.bin"), file("b")], "unlisted": 2, "compute_ms": 61_000, "cpu_ms": 59_000,
            "memory_peak": 1_u64 << 30, "gpu_ms": 122_000, "gpu_permille": 930, "metrics": {"loss": 0.25},
        });
        let read = CompletionReport::read(&report).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), report);
        let broken = |key: &str, value: Value| {
            let mut report = report.clone();
            report[key] = value;
            CompletionReport::read(&report)
        };
        let many: Vec<_> = (0..=MAX_LISTED_OUTPUTS)
            .map(|at| file(&format!("{at:05}")))
            .collect();
        assert_eq!(broken("outputs", json!(many)), None);
        assert!(broken("outputs", json!(many[1..])).is_some());
        assert_eq!(
            broken("outputs", json!([file("b"), file("a")])),
            None,
            "out of order"
        );
        assert_eq!(
            broken("outputs", json!([file("a"), file("a")])),
            None,
            "one path twice"
        );
        assert_eq!(broken("outputs", json!([file("")])), None);
        assert_eq!(broken("outputs", json!([file(&"x".repeat(1_025))])), None);
        let with_mode = |mode: u32| {
            let mut listed = file("a");
            listed["mode"] = json!(mode);
            broken("outputs", json!([listed]))
        };
        assert_eq!(with_mode(0o755).unwrap().outputs[0].mode, Some(0o755));
        assert_eq!(with_mode(0o4755), None);
        assert_eq!(broken("gpu_permille", json!(1_001)), None);
        assert_eq!(broken("compute_ms", json!("soon")), None);
        assert_eq!(
            CompletionReport::read(&json!({})),
            Some(CompletionReport::default())
        );
    }

    #[test]
    fn a_report_of_another_form_stays_in_the_fields() {
        let mut fields = Map::new();
        fields.insert(COMPLETION_KEY.to_owned(), json!("well"));
        assert_eq!(CompletionReport::take_from(&mut fields), None);
        assert!(fields.contains_key(COMPLETION_KEY));
        fields.insert(COMPLETION_KEY.to_owned(), json!({"compute_ms": 5}));
        assert_eq!(CompletionReport::take_from(&mut fields).unwrap().compute_ms, 5);
        assert!(fields.is_empty());
    }
}
