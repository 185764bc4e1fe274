//! The frame of a status update, shortened where it would be longer than the facilitator takes.

use indexmap::IndexMap;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{JobStatusUpdate, StatusMetadata, ToFacilitator};
use serde_json::{Value, json};

use crate::StatusUpdate;

/// The key in a status's metadata that lists the parts that were left out.
const LEFT_OUT: &str = "muster_left_out";

/// A part of a status that is left out if the frame is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionalPart {
    Artifacts,
    Stdout,
    Stderr,
}

impl OptionalPart {
    /// All parts, in the order in which they are left out.
    const ALL: [Self; 3] = [Self::Artifacts, Self::Stdout, Self::Stderr];

    fn name(self) -> &'static str {
        match self {
            Self::Artifacts => "artifacts",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    fn leave_out(self, metadata: &mut StatusMetadata) {
        if let Some(response) = &mut metadata.miner_response {
            match self {
                Self::Artifacts => response.artifacts = Some(IndexMap::new()),
                Self::Stdout => response.docker_process_stdout.clear(),
                Self::Stderr => response.docker_process_stderr.clear(),
            }
        }
        if let Some(failure) = &mut metadata.job_failure_details {
            match self {
                Self::Artifacts => {}
                Self::Stdout => failure.docker_process_stdout = None,
                Self::Stderr => failure.docker_process_stderr = None,
            }
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
/// the artifacts, then the program's output. A status that never arrives would be worse.
pub(crate) fn encode_update(update: &StatusUpdate, limit: usize) -> String {
    let encoded = |metadata: &Option<StatusMetadata>| {
        let update = JobStatusUpdate {
            uuid: update.job,
            status: update.status,
            metadata: metadata.clone(),
        };
        encode(&ToFacilitator::V0JobStatusUpdate(Box::new(update)))
    };
    let mut metadata = update.metadata.clone();
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
    use muster_protocol::job::Outcome;
    use muster_protocol::wire::facilitator::MinerResponse;
    use muster_protocol::{JobId, JobStatus};
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
        let whole = encode_update(&update, 100_000);
        assert!(whole.contains(&"x".repeat(5_000)) && !whole.contains(LEFT_OUT));
        let some = encode_update(&update, 4_000);
        assert!(
            some.len() <= 4_000
                && some.contains("\"muster_left_out\":[\"artifacts\"]")
                && some.contains("ooo")
        );
        let least = encode_update(&update, 1_000);
        assert!(
            least.len() <= 1_000 && least.contains("[\"artifacts\",\"stdout\"]") && least.contains("eee")
        );
    }
}
