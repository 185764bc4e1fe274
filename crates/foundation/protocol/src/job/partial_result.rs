//! The image of an attempt, and the results that a failed attempt left.
//!
//! ComputeHorde's failures have no place for either, so the miner's side puts both into the `context` of a failure. The
//! validator takes them out again and passes them on in [`crate::wire::muster::StatusExtension`].

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::completion::{COMPLETION_KEY, CompletionReport};
use crate::trace::{JobTrace, TRACE_KEY};
use crate::wire::miner::JobImage;

/// The longest name of an image that is passed on, in bytes.
const MAX_IMAGE_NAME: usize = 4_096;

/// The key of the image in a failure's `context`. The key `image` holds the job's own reference of the image.
/// The key of the image that was prepared for the attempt.
pub(super) const RAN_KEY: &str = "ran";
const STDOUT_KEY: &str = "stdout";
const STDERR_KEY: &str = "stderr";
const ARTIFACTS_KEY: &str = "artifacts";
const UPLOAD_RESULTS_KEY: &str = "upload_results";

/// The results that a failed attempt left, as the miner's side reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialResult {
    /// The program's standard output, where the failure itself has no place for it; long output is cut in the middle.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stdout: String,
    /// The program's standard error, where the failure itself has no place for it; long output is cut in the middle.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stderr: String,
    /// Small output files: path in the container to base64.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub artifacts: IndexMap<String, String>,
    /// The answers of the destinations that got their output before the failure, by path.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub upload_results: IndexMap<String, String>,
}

/// The parts of a failure's `context` that are of Muster's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureContext {
    /// The image that was prepared for the attempt.
    pub image: Option<JobImage>,
    /// The results that the attempt left.
    pub partial: PartialResult,
    /// The stages of the attempt.
    pub trace: Option<JobTrace>,
    /// The completion report of the attempt.
    pub completion: Option<CompletionReport>,
}

impl PartialResult {
    /// Whether the attempt left nothing.
    pub fn is_empty(&self) -> bool {
        let Self {
            stdout,
            stderr,
            artifacts,
            upload_results,
        } = self;
        stdout.is_empty() && stderr.is_empty() && artifacts.is_empty() && upload_results.is_empty()
    }
}

impl FailureContext {
    /// Adds the parts to a failure's context.
    pub fn insert_into(self, context: &mut Map<String, Value>) {
        let Self {
            image,
            partial,
            trace,
            completion,
        } = self;
        if let Some(completion) = completion {
            context.insert(COMPLETION_KEY.to_owned(), json!(completion));
        }
        if let Some(trace) = trace {
            context.insert(TRACE_KEY.to_owned(), json!(trace));
        }
        if let Some(image) = image {
            context.insert(RAN_KEY.to_owned(), json!(image));
        }
        for (key, text) in [(STDOUT_KEY, partial.stdout), (STDERR_KEY, partial.stderr)] {
            if !text.is_empty() {
                context.insert(key.to_owned(), Value::String(text));
            }
        }
        for (key, entries) in [
            (ARTIFACTS_KEY, partial.artifacts),
            (UPLOAD_RESULTS_KEY, partial.upload_results),
        ] {
            if !entries.is_empty() {
                context.insert(key.to_owned(), json!(entries));
            }
        }
    }

    /// Takes the parts out of a failure's context. A part that has another form is left where it is, since the context
    /// is free in form.
    pub fn take_from(context: &mut Option<Value>) -> Self {
        let Some(fields) = context.as_mut().and_then(Value::as_object_mut) else {
            return Self::default();
        };
        let image: Option<JobImage> = take(fields, RAN_KEY);
        Self {
            trace: JobTrace::take_from(fields),
            completion: CompletionReport::take_from(fields),
            image: image.filter(JobImage::is_short),
            partial: PartialResult {
                stdout: take(fields, STDOUT_KEY).unwrap_or_default(),
                stderr: take(fields, STDERR_KEY).unwrap_or_default(),
                artifacts: take(fields, ARTIFACTS_KEY).unwrap_or_default(),
                upload_results: take(fields, UPLOAD_RESULTS_KEY).unwrap_or_default(),
            },
        }
    }
}

impl JobImage {
    /// Whether the name of the image is short enough to be passed on.
    pub fn is_short(&self) -> bool {
        self.name.len() <= MAX_IMAGE_NAME
    }
}

fn take<T: for<'de> Deserialize<'de>>(fields: &mut Map<String, Value>, key: &str) -> Option<T> {
    let value = T::deserialize(fields.get(key)?).ok()?;
    fields.shift_remove(key);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::{Digest, ImageId};

    fn full() -> FailureContext {
        let entry = |key: &str, value: &str| IndexMap::from([(key.to_owned(), value.to_owned())]);
        FailureContext {
            image: Some(JobImage {
                name: "muster/hello".to_owned(),
                id: ImageId(Digest::of(b"configuration")),
                manifest: Some(Digest::of(b"manifest")),
            }),
            partial: PartialResult {
                stdout: "so far".to_owned(),
                stderr: "why".to_owned(),
                artifacts: entry("/artifacts/a", "QQ=="),
                upload_results: entry("model.bin", "{}"),
            },
            trace: Some(JobTrace::new(
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
                    .parse()
                    .unwrap(),
            )),
            completion: Some(CompletionReport {
                compute_ms: 5,
                ..CompletionReport::default()
            }),
        }
    }

    #[test]
    fn a_partial_result_survives_its_context_and_other_fields_stay() {
        let mut fields = Map::new();
        fields.insert("code".to_owned(), json!("E0009"));
        full().insert_into(&mut fields);
        let mut context = Some(Value::Object(fields));
        assert_eq!(FailureContext::take_from(&mut context), full());
        assert_eq!(context, Some(json!({"code": "E0009"})));
        let mut fields = Map::new();
        FailureContext::default().insert_into(&mut fields);
        assert!(fields.is_empty());
    }

    #[test]
    fn a_context_of_another_form_is_left_alone() {
        let long = json!({"name": "x".repeat(5_000), "id": Digest::of(b"").to_string()});
        for context in [
            json!(null),
            json!("ran"),
            json!(["ran"]),
            json!({"ran": "an image", "artifacts": [1], "stdout": 7, "upload_results": {"a": 1}}),
        ] {
            let mut taken = Some(context.clone());
            assert_eq!(FailureContext::take_from(&mut taken), FailureContext::default());
            assert_eq!(taken, Some(context));
        }
        let mut taken = Some(json!({ "ran": long }));
        assert_eq!(FailureContext::take_from(&mut taken), FailureContext::default());
        assert_eq!(FailureContext::take_from(&mut None), FailureContext::default());
    }
}
