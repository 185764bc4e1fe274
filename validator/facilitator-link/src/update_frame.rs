//! The frame of a status update, shortened where it would be longer than the facilitator takes.

use indexmap::IndexMap;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{JobStatusUpdate, StatusMetadata, ToFacilitator};
use muster_protocol::{Feature, FeatureSet};
use muster_validator_store::StatusUpdate;
use serde_json::{Value, json};

/// The key in a status's metadata that lists the parts that were left out.
const LEFT_OUT: &str = "muster_left_out";

/// A part of a status that is left out if the frame is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionalPart {
    Artifacts,
    Stdout,
    Stderr,
    UploadResults,
    Completion,
    Context,
}

impl OptionalPart {
    /// All parts, in the order in which they are left out.
    const ALL: [Self; 6] = [
        Self::Artifacts,
        Self::Stdout,
        Self::Stderr,
        Self::UploadResults,
        Self::Completion,
        Self::Context,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Artifacts => "artifacts",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::UploadResults => "upload_results",
            Self::Completion => "completion",
            Self::Context => "context",
        }
    }

    fn leave_out(self, metadata: &mut StatusMetadata) {
        if let Some(response) = &mut metadata.miner_response {
            match self {
                Self::Artifacts => response.artifacts = Some(IndexMap::new()),
                Self::Stdout => response.docker_process_stdout.clear(),
                Self::Stderr => response.docker_process_stderr.clear(),
                Self::UploadResults => response.upload_results = Some(IndexMap::new()),
                Self::Completion => {}
                Self::Context => response.extra.clear(),
            }
        }
        if let Some(failure) = &mut metadata.job_failure_details {
            match self {
                Self::Artifacts | Self::UploadResults | Self::Completion => {}
                Self::Stdout => failure.docker_process_stdout = None,
                Self::Stderr => failure.docker_process_stderr = None,
                Self::Context => failure.context = None,
            }
        }
        if self == Self::Context {
            if let Some(failure) = &mut metadata.horde_failure_details {
                failure.context = None;
            }
            if let Some(rejection) = &mut metadata.job_rejection_details {
                rejection.context = None;
            }
        }
        if let Some(partial) = metadata
            .muster
            .as_mut()
            .and_then(|muster| muster.partial.as_mut())
        {
            match self {
                Self::Artifacts => partial.artifacts.clear(),
                Self::Stdout => partial.stdout.clear(),
                Self::Stderr => partial.stderr.clear(),
                Self::UploadResults => partial.upload_results.clear(),
                Self::Completion | Self::Context => {}
            }
        }
        if self == Self::Completion
            && let Some(extension) = &mut metadata.muster
        {
            extension.completion = None;
        }
        let names = metadata
            .extra
            .entry(LEFT_OUT.to_owned())
            .or_insert_with(|| json!([]));
        if let Value::Array(names) = names {
            names.push(json!(self.name()));
        }
    }
}

/// Encodes an update in at most `limit` bytes, if that is possible: parts are left out and named in the metadata, first
/// the artifacts, then the program's output, then the rest of what others wrote. A status that never arrives would be
/// worse. A facilitator without the feature `results` gets the parts that it knows.
pub(crate) fn encode_update(update: &StatusUpdate, features: FeatureSet, limit: usize) -> String {
    let encoded = |metadata: &Option<StatusMetadata>| {
        let update = JobStatusUpdate {
            uuid: update.job,
            status: update.status,
            metadata: metadata.clone(),
        };
        encode(&ToFacilitator::V0JobStatusUpdate(Box::new(update)))
    };
    let mut metadata = update.metadata.clone();
    if !features.has(Feature::Results)
        && let Some(extension) = metadata.as_mut().and_then(|metadata| metadata.muster.as_mut())
    {
        extension.image = None;
        extension.partial = None;
    }
    if !features.has(Feature::Trace)
        && let Some(extension) = metadata.as_mut().and_then(|metadata| metadata.muster.as_mut())
    {
        extension.trace = None;
        extension.route.clear();
    }
    if !features.has(Feature::Completion)
        && let Some(extension) = metadata.as_mut().and_then(|metadata| metadata.muster.as_mut())
    {
        extension.completion = None;
    }
    let mut text = encoded(&metadata);
    for part in OptionalPart::ALL {
        if text.len() <= limit {
            break;
        }
        if let Some(metadata) = &mut metadata {
            part.leave_out(metadata);
        }
        text = encoded(&metadata);
    }
    text
}

#[cfg(test)]
mod tests {
    use muster_protocol::job::{Outcome, PartialResult};
    use muster_protocol::wire::facilitator::{HordeFailureDetails, MinerResponse};
    use muster_protocol::wire::miner::JobImage;
    use muster_protocol::wire::muster::StatusExtension;
    use muster_protocol::wire::route::RouteStep;
    use muster_protocol::{Digest, HordeFailureReason, ImageId, JobId, JobStatus, ParticipantType};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn parts_that_do_not_fit_are_left_out_and_named() {
        let response = MinerResponse {
            docker_process_stdout: "o".repeat(2_000),
            docker_process_stderr: "e".repeat(100),
            artifacts: Some([("/a".to_owned(), "x".repeat(5_000))].into_iter().collect()),
            ..MinerResponse::default()
        };
        let outcome = Outcome::Completed(Box::new(response));
        let update = StatusUpdate {
            sequence: 1,
            job: JobId::from_uuid(Uuid::from_u128(1)),
            status: JobStatus::Completed,
            metadata: Some(outcome.metadata()),
        };
        let whole = encode_update(&update, FeatureSet::ours(), 100_000);
        assert!(whole.contains(&"x".repeat(5_000)) && !whole.contains(LEFT_OUT));
        let some = encode_update(&update, FeatureSet::ours(), 4_000);
        assert!(
            some.len() <= 4_000
                && some.contains("\"muster_left_out\":[\"artifacts\"]")
                && some.contains("ooo")
        );
        let least = encode_update(&update, FeatureSet::ours(), 1_000);
        assert!(
            least.len() <= 1_000 && least.contains("[\"artifacts\",\"stdout\"]") && least.contains("eee")
        );
    }
    /// A failure with an image and partial results.
    fn failure(context: usize) -> StatusUpdate {
        let details = HordeFailureDetails {
            reported_by: ParticipantType::Executor,
            reason: HordeFailureReason::GenericError,
            message: String::new(),
            context: Some(json!({ "code": "x".repeat(context) })),
        };
        let entry = |value: &str| IndexMap::from([("/a".to_owned(), value.to_owned())]);
        let partial = PartialResult {
            stdout: "o".repeat(3_000),
            stderr: "e".repeat(100),
            artifacts: entry(&"y".repeat(5_000)),
            upload_results: entry("{}"),
        };
        let mut metadata = Outcome::HordeFailed(details).metadata();
        metadata.muster = Some(StatusExtension {
            image: Some(JobImage {
                name: "alpine".to_owned(),
                id: ImageId(Digest::of(b"alpine")),
                manifest: None,
            }),
            partial: Some(Box::new(partial)),
            route: vec![RouteStep {
                candidates: 3,
                ..RouteStep::default()
            }],
            ..StatusExtension::default()
        });
        StatusUpdate {
            sequence: 1,
            job: JobId::from_uuid(Uuid::from_u128(1)),
            status: JobStatus::HordeFailed,
            metadata: Some(metadata),
        }
    }

    #[test]
    fn only_facilitators_with_the_feature_get_the_image_and_partial_results() {
        let whole = encode_update(&failure(1), FeatureSet::ours(), 100_000);
        assert!(whole.contains("alpine") && whole.contains("yyy") && whole.contains("ooo"));
        assert!(whole.contains(r#""route":[{"candidates":3}]"#), "{whole}");
        let older = encode_update(&failure(1), FeatureSet::NONE, 100_000);
        assert!(older.ends_with(r#""muster":{}}}"#), "{older}");
    }

    #[test]
    fn a_failure_fits_whatever_its_miner_wrote() {
        let ours = FeatureSet::ours();
        let some = encode_update(&failure(1), ours, 4_500);
        assert!(some.len() <= 4_500 && some.contains("ooo") && some.contains(r#"["artifacts"]"#));
        let least = encode_update(&failure(50_000), ours, 1_000);
        assert!(
            least.len() <= 1_000
                && least.contains("alpine")
                && least
                    .contains(r#"["artifacts","stdout","stderr","upload_results","completion","context"]"#),
            "{least}"
        );
    }
}
