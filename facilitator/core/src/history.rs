//! The history of a job's statuses, the check of an update against it, and the user's view of the job. Pure.

use muster_protocol::rest::{JobView, StatusEntry};
use muster_protocol::upload::OutputUpload;
use muster_protocol::wire::facilitator::{JobStatusUpdate, MinerResponse, StatusMetadata, UserJobRequest};
use muster_protocol::wire::miner::JobImage;
use muster_protocol::{JobStatus, Timestamp, ValidatorKey};
use serde::Deserialize as _;

/// The most statuses of a job, so that a faulty validator cannot fill the store.
const MAX_ENTRIES: usize = 64;

/// One status of a job, as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryEntry {
    /// The status; `unknown` for a status that only a newer validator knows.
    pub status: JobStatus,
    /// The metadata that the validator sent with the status.
    pub metadata: Option<StatusMetadata>,
    /// The time at which the facilitator recorded it.
    pub at: Timestamp,
}

/// Every status of a job, oldest first. The facilitator itself adds the first, `sent`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobHistory(Vec<HistoryEntry>);

/// The reason why an update does not fit a job's history. The wire has one code for all: `job.integrity_error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateRejection {
    /// The update repeats an earlier one, for example because its answer was lost.
    #[error("the job already has the status {0}")]
    Repeated(JobStatus),
    /// The update goes back, or comes after the end.
    #[error("a job whose status is {from} cannot become {to}")]
    Backwards {
        /// The status that the user has seen.
        from: JobStatus,
        /// The status of the update.
        to: JobStatus,
    },
    /// The history has reached its limit.
    #[error("the job already has {MAX_ENTRIES} statuses")]
    TooMany,
}

// === impl HistoryEntry ===

impl HistoryEntry {
    /// Whether the job has failed and this status has none of its output: the miner or its executor was lost, or the
    /// user cancelled the job. Its live output is then all that there is.
    pub fn lacks_output(&self) -> bool {
        let failed = match self.status {
            JobStatus::Failed | JobStatus::HordeFailed => true,
            JobStatus::Unknown
            | JobStatus::Sent
            | JobStatus::Received
            | JobStatus::Accepted
            | JobStatus::ExecutorReady
            | JobStatus::StreamingReady
            | JobStatus::VolumesReady
            | JobStatus::ExecutionDone
            | JobStatus::Completed
            | JobStatus::Rejected => false,
        };
        if !failed {
            return false;
        }
        let output = program_output(&JobHistory(vec![self.clone()]));
        output.docker_process_stdout.is_empty() && output.docker_process_stderr.is_empty()
    }
}

// === impl JobHistory ===

impl JobHistory {
    /// A history of these entries, oldest first.
    pub fn new(entries: Vec<HistoryEntry>) -> Self {
        Self(entries)
    }

    /// The number of entries, which is the position of the next one.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry. A stored job always has one.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries, oldest first, with those of unknown statuses.
    pub fn entries(&self) -> &[HistoryEntry] {
        &self.0
    }

    /// Adds an entry that [`Self::check`] has accepted.
    pub fn push(&mut self, entry: HistoryEntry) {
        self.0.push(entry);
    }

    /// Whether `update` may become the next entry.
    ///
    /// The update is compared with the status that the user has seen, not with the last entry. Otherwise an unknown
    /// status in between would allow a step back.
    ///
    /// # Errors
    /// The reason, as text for the validator's operator.
    pub fn check(&self, update: &JobStatusUpdate) -> Result<(), UpdateRejection> {
        if self.0.len() >= MAX_ENTRIES {
            return Err(UpdateRejection::TooMany);
        }
        let shown = self.visible_status();
        let last = self.0.last();
        let again =
            last.is_some_and(|entry| entry.status == update.status && entry.metadata == update.metadata);
        if again || (update.status == shown && update.status != JobStatus::Unknown) {
            return Err(UpdateRejection::Repeated(update.status));
        }
        if update.status.may_follow(shown) {
            Ok(())
        } else {
            Err(UpdateRejection::Backwards {
                from: shown,
                to: update.status,
            })
        }
    }

    /// The status that the user sees: the last one that is not unknown.
    pub fn visible_status(&self) -> JobStatus {
        self.visible_entries()
            .next_back()
            .map(|entry| entry.status)
            .unwrap_or_default()
    }

    /// The entries that the user sees. ComputeHorde's SDK cannot read unknown statuses, so they are left out.
    fn visible_entries(&self) -> impl DoubleEndedIterator<Item = &HistoryEntry> {
        self.0.iter().filter(|entry| entry.status != JobStatus::Unknown)
    }

    /// The newest value that `pick` finds in the metadata.
    fn newest<'a, T>(&'a self, pick: impl Fn(&'a StatusMetadata) -> Option<T>) -> Option<T> {
        self.0
            .iter()
            .rev()
            .filter_map(|entry| entry.metadata.as_ref())
            .find_map(pick)
    }
}

/// The user's view of a job.
pub fn job_view(request: &UserJobRequest, validator: ValidatorKey, history: &JobHistory) -> JobView {
    let status_history: Vec<_> = history
        .visible_entries()
        .map(|entry| StatusEntry {
            status: entry.status,
            metadata: entry.metadata.clone(),
            created_at: entry.at,
        })
        .collect();
    let first = status_history
        .first()
        .map_or(Timestamp::from_secs(0), |entry| entry.created_at);
    let last = status_history.last().map_or(first, |entry| entry.created_at);
    let output = program_output(history);
    let image = find_image(history);
    let address = history
        .newest(|metadata| metadata.streaming_details.clone())
        .unwrap_or_default();
    JobView {
        uuid: request.uuid,
        executor_class: request.executor_class,
        created_at: first,
        last_update: last,
        status: history.visible_status().display_name(),
        docker_image: request.docker_image.clone(),
        job_namespace: request.job_namespace.clone(),
        args: request.args.clone(),
        env: request.env.clone(),
        use_gpu: request.use_gpu,
        tag: String::new(),
        stdout: output.docker_process_stdout,
        stderr: output.docker_process_stderr,
        volumes: request
            .volume
            .as_ref()
            .map(|volume| volume.clone().into_parts())
            .unwrap_or_default(),
        uploads: request
            .output_upload
            .as_ref()
            .map(OutputUpload::files)
            .unwrap_or_default(),
        artifacts: output.artifacts.unwrap_or_default(),
        artifacts_dir: request.artifacts_dir.clone(),
        target_validator_hotkey: validator,
        on_trusted_miner: request.on_trusted_miner,
        upload_results: output.upload_results.unwrap_or_default(),
        download_time_limit: request.download_time_limit,
        execution_time_limit: request.execution_time_limit,
        streaming_start_time_limit: request.streaming_start_time_limit,
        upload_time_limit: request.upload_time_limit,
        streaming_client_cert: request
            .streaming_details
            .as_ref()
            .map(|details| details.public_key.clone())
            .unwrap_or_default(),
        streaming_server_cert: address.streaming_server_cert.unwrap_or_default(),
        streaming_server_address: address.streaming_server_address.unwrap_or_default(),
        streaming_server_port: address.streaming_server_port.unwrap_or_default(),
        status_history,
        muster: request.muster.as_ref().and_then(|extension| extension.to_view()),
        queue: None,
        image: image.map(Box::new),
        completion: history.newest(|metadata| metadata.muster.as_ref()?.completion.clone()),
        webhook: None,
    }
}

/// The image that ran: beside the outcome, or in the result of a validator without the feature `results`.
fn find_image(history: &JobHistory) -> Option<JobImage> {
    let told = history.newest(|metadata| metadata.muster.as_ref()?.image.clone());
    told.or_else(|| {
        let image = history.newest(|metadata| metadata.miner_response.as_ref()?.extra.get("image"))?;
        JobImage::deserialize(image).ok().filter(JobImage::is_short)
    })
}

/// The program's output: the miner's response, or the output of a failure and the results that it left.
fn program_output(history: &JobHistory) -> MinerResponse {
    let finished = history.newest(|metadata| metadata.miner_response.clone());
    finished.unwrap_or_else(|| {
        let failure = history.newest(|metadata| metadata.job_failure_details.as_ref());
        let stdout = failure.and_then(|details| details.docker_process_stdout.clone());
        let stderr = failure.and_then(|details| details.docker_process_stderr.clone());
        let partial = history
            .newest(|metadata| metadata.muster.as_ref()?.partial.as_deref().cloned())
            .unwrap_or_default();
        let or_partial =
            |text: Option<String>, partial| text.filter(|text| !text.is_empty()).unwrap_or(partial);
        MinerResponse {
            docker_process_stdout: or_partial(stdout, partial.stdout),
            docker_process_stderr: or_partial(stderr, partial.stderr),
            artifacts: Some(partial.artifacts),
            upload_results: Some(partial.upload_results),
            ..MinerResponse::default()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::wire::decode;
    use proptest::prelude::*;

    const UUID: &str = "11111111-2222-4333-8444-555555555555";

    fn update(status: JobStatus) -> JobStatusUpdate {
        JobStatusUpdate {
            uuid: UUID.parse().unwrap(),
            status,
            metadata: None,
        }
    }

    fn entry(status: JobStatus, metadata: &str) -> HistoryEntry {
        HistoryEntry {
            status,
            metadata: decode(metadata).unwrap(),
            at: Timestamp::from_secs(1_769_000_000),
        }
    }

    fn sent() -> JobHistory {
        JobHistory::new(vec![entry(JobStatus::Sent, "null")])
    }

    fn request() -> UserJobRequest {
        let frame = serde_json::json!({
            "signature": {
                "signature_type": "bittensor",
                "signatory": "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
                "timestamp_ns": 1,
                "signature": "A".repeat(85) + "Q==",
                "signature_scope": "SignedFields",
            },
            "uuid": UUID, "executor_class": "always_on.test", "docker_image": "alpine", "args": [],
            "env": {"B": "1", "A": "2"}, "use_gpu": true, "download_time_limit": 1, "execution_time_limit": 2,
            "upload_time_limit": 3, "streaming_start_time_limit": 4,
        });
        serde_json::from_value(frame).unwrap()
    }

    fn validator() -> ValidatorKey {
        "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"
            .parse()
            .unwrap()
    }

    #[test]
    fn repetitions_and_steps_back_are_told_apart() {
        let mut history = sent();
        history.push(entry(JobStatus::Accepted, "null"));
        assert_eq!(history.check(&update(JobStatus::ExecutorReady)), Ok(()));
        assert_eq!(
            history.check(&update(JobStatus::Accepted)),
            Err(UpdateRejection::Repeated(JobStatus::Accepted))
        );
        let back = UpdateRejection::Backwards {
            from: JobStatus::Accepted,
            to: JobStatus::Received,
        };
        assert_eq!(history.check(&update(JobStatus::Received)), Err(back));
    }

    #[test]
    fn an_unknown_status_is_kept_but_opens_no_way_back_and_is_not_shown() {
        let mut history = sent();
        history.push(entry(JobStatus::Accepted, "null"));
        assert_eq!(history.check(&update(JobStatus::Unknown)), Ok(()));
        history.push(entry(JobStatus::Unknown, "null"));
        assert_eq!(history.visible_status(), JobStatus::Accepted);
        assert!(history.check(&update(JobStatus::Unknown)).is_err());
        assert!(history.check(&update(JobStatus::Received)).is_err());
        let seen = job_view(&request(), validator(), &history);
        assert_eq!(seen.status_history.len(), 2);
        assert_eq!(seen.status, "Accepted");
    }

    #[test]
    fn the_view_takes_the_result_out_of_the_metadata() {
        let mut history = sent();
        let result = r#"{"miner_response":{"docker_process_stderr":"e","docker_process_stdout":"o",
            "artifacts":{"/artifacts/x":"aGk="},"upload_results":null}}"#;
        history.push(entry(JobStatus::Completed, result));
        let seen = job_view(&request(), validator(), &history);
        assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("o", "e"));
        assert_eq!(
            seen.artifacts.get("/artifacts/x").map(String::as_str),
            Some("aGk=")
        );
        assert_eq!(seen.env.keys().collect::<Vec<_>>(), ["B", "A"]);
        let text = serde_json::to_value(&seen).unwrap();
        let shown = text.pointer("/status_history/1/metadata").unwrap();
        assert_eq!(
            shown.to_string(),
            r#"{"miner_response":{"docker_process_stderr":"e","docker_process_stdout":"o","artifacts":{"/artifacts/x":"aGk="}}}"#
        );
    }

    #[test]
    fn the_output_of_a_failed_program_is_shown_too() {
        let mut history = sent();
        let details = r#"{"job_failure_details":{"reason":"nonzero_return_code","stage":"execution","message":"exit 3",
            "docker_process_exit_status":3,"docker_process_stdout":"so far","docker_process_stderr":null}}"#;
        history.push(entry(JobStatus::Failed, details));
        let seen = job_view(&request(), validator(), &history);
        assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("so far", ""));
        assert!(!history.entries()[1].lacks_output());
        let lost = r#"{"horde_failure_details":{"reported_by":"miner","reason":"executor_disconnected","message":"m"}}"#;
        assert!(entry(JobStatus::HordeFailed, lost).lacks_output());
        assert!(!entry(JobStatus::Completed, "null").lacks_output());
        assert!(!entry(JobStatus::Accepted, "null").lacks_output());
    }

    #[test]
    fn a_failed_jobs_outputs_and_image_are_shown() {
        let id = format!("sha256:{}", "7".repeat(64));
        let mut history = sent();
        let details = r#"{"horde_failure_details":{"reported_by":"executor","reason":"generic_error","message":"m"},
            "muster":{"image":{"name":"alpine","id":"ID"},"partial":{"stdout":"so far","artifacts":{"/a/x":"aGk="},
            "upload_results":{"one":"{}"}}}}"#;
        history.push(entry(JobStatus::HordeFailed, &details.replace("ID", &id)));
        let seen = job_view(&request(), validator(), &history);
        assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("so far", ""));
        assert_eq!(seen.artifacts["/a/x"], "aGk=");
        assert_eq!(seen.upload_results["one"], "{}");
        assert_eq!(seen.image.unwrap().id.to_string(), id);
        // An older validator reports the image in the result.
        let mut history = sent();
        let result = r#"{"miner_response":{"docker_process_stderr":"","docker_process_stdout":"",
            "image":{"name":"alpine","id":"ID","manifest":null}}}"#;
        history.push(entry(JobStatus::Completed, &result.replace("ID", &id)));
        let seen = job_view(&request(), validator(), &history);
        assert_eq!(seen.image.unwrap().id.to_string(), id);
        let mut history = sent();
        history.push(entry(JobStatus::Completed, &result.replace("ID", "not a digest")));
        let seen = job_view(&request(), validator(), &history);
        assert_eq!(seen.image, None);
        assert!(!serde_json::to_string(&seen).unwrap().contains(r#""queue""#));
        assert!(serde_json::to_value(&seen).unwrap().get("image").is_none());
    }

    #[test]
    fn a_streaming_job_shows_where_it_answers_even_after_it_went_on() {
        let mut history = sent();
        let details = r#"{"streaming_details":{"streaming_server_cert":"PEM","streaming_server_address":"1.2.3.4","streaming_server_port":6006}}"#;
        history.push(entry(JobStatus::StreamingReady, details));
        history.push(entry(JobStatus::ExecutionDone, "null"));
        let seen = job_view(&request(), validator(), &history);
        assert_eq!(
            (seen.streaming_server_address.as_str(), seen.streaming_server_port),
            ("1.2.3.4", 6006)
        );
    }

    proptest! {
        /// No sequence of updates makes the status that the user sees go back.
        #[test]
        fn the_outward_status_never_goes_back(picks in proptest::collection::vec(0..JobStatus::ALL.len(), 0..200)) {
            let mut history = sent();
            let mut shown = vec![history.visible_status()];
            for pick in picks {
                let next = update(JobStatus::ALL[pick]);
                if history.check(&next).is_ok() {
                    history.push(entry(next.status, "null"));
                    shown.push(history.visible_status());
                }
            }
            prop_assert!(history.len() <= MAX_ENTRIES);
            for pair in shown.windows(2) {
                prop_assert!(pair[0] == pair[1] || pair[1].may_follow(pair[0]), "{:?}", pair);
            }
            let ends = shown.iter().position(|status| status.is_terminal());
            if let Some(end) = ends {
                prop_assert!(shown[end..].iter().all(|status| *status == shown[end]));
            }
        }
    }
}
