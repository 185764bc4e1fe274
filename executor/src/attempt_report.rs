//! The last messages of an attempt, made from its conclusion. Pure.

use muster_checkpoints::resume::EXIT_SAVED;
use muster_containers::engine_answer::hide_paths;
use muster_job_data::Uploaded;
use muster_job_data::artifacts::{Artifacts, LONGEST_IN_JSON, MAX_ENTRIES};
use muster_protocol::job::{
    BROKEN_IMAGE_KEY, CompletionReport, FailureContext, IMAGE_FETCH_KEY, MAX_LISTED_OUTPUTS,
    MAX_METRIC_NAME_BYTES, MAX_METRICS, MAX_OUTPUT_PATH_BYTES, PartialResult, RESUME_KEY,
};
use muster_protocol::wire::executor_socket::ExecutorToMiner;
use muster_protocol::wire::miner::{HordeFailed, JobFailed, JobFinished, JobImage, MachineSpecs};
use muster_protocol::{AttemptId, JobTrace, ParticipantType};
use muster_websocket::Limits;
use serde_json::{Map, Value, json};

use crate::attempt_state::{AttemptFailure, Conclusion, FailureKind, ResumeHint};
use crate::config::MAX_ARTIFACTS_MIB;
use crate::output_capture::{CUT, MAX_CHARS, PrintedOutput, shorten, shorten_to};

/// Characters of a failure's message. An error of the engine may quote the job, whose texts have any length.
const MAX_MESSAGE: usize = 4_000;
/// Characters of an image's name; no valid name is longer.
const MAX_IMAGE: usize = 1_000;

/// The bound on what a thousand uploads add once their answers have no room any more: paths, and what is left of each
/// answer, in bytes.
const LONGEST_KEYS: usize = 1_000 * (1_024 * 2 + 64);

/// The largest result in bytes: both texts, files in base64 with their names, servers' answers to uploads, the
/// completion report, and the rest of the message.
const LARGEST_RESULT: usize = {
    let texts = 2 * (MAX_CHARS + CUT.len()) * LONGEST_IN_JSON;
    let files = (MAX_ARTIFACTS_MIB as usize) * 1024 * 1024 / 3 * 4;
    let listing = MAX_LISTED_OUTPUTS * (MAX_OUTPUT_PATH_BYTES * LONGEST_IN_JSON + 128);
    let metrics = MAX_METRICS * (MAX_METRIC_NAME_BYTES + 32);
    let uploads = muster_job_data::upload_reports::MAX_RESULTS + LONGEST_KEYS;
    texts + files + MAX_ENTRIES * 16 + uploads + listing + metrics + 4_096
};
const _: () = assert!(LARGEST_RESULT <= Limits::miner().max_frame);

/// The bytes at the end of stderr in which a program's last words are looked for.
const LAST_WORDS: usize = 64 * 1024;

/// The words of frameworks that have run out of memory.
const MEMORY_WORDS: [&str; 5] = [
    "CUDA out of memory",
    "OutOfMemoryError",
    "MemoryError",
    "std::bad_alloc",
    "Cannot allocate memory",
];

/// The end of a text, [`LAST_WORDS`] bytes at most.
fn last_part(text: &str) -> &str {
    let mut start = text.len().saturating_sub(LAST_WORDS);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text.get(start..).unwrap_or_default()
}

/// The facts of an attempt that has ended.
#[derive(Clone, Debug)]
pub struct AttemptReport {
    /// The id of the attempt.
    pub attempt: AttemptId,
    /// The name that the job gives its image.
    pub image: Option<String>,
    /// The content that the name stood for, if the image was prepared.
    pub ran: Option<JobImage>,
    /// Everything that the job printed.
    pub printed: PrintedOutput,
    /// The job's small files, as far as they could be read.
    pub artifacts: Artifacts,
    /// Servers' answers to its uploads, as far as they succeeded.
    pub uploaded: Uploaded,
    /// Whether the miner is Muster.
    pub muster: bool,
    /// The specs of this machine, if the job finished.
    pub specs: Option<Value>,
    /// The stages of the attempt, if the miner wants them.
    pub trace: Option<JobTrace>,
    /// The completion report, if the program began.
    pub completion: Option<CompletionReport>,
    /// The absolute folders of this machine that no user reads about.
    pub hidden_folders: Vec<String>,
}

/// The message about the machine that runs an attempt.
pub(crate) fn specs_message(job_uuid: AttemptId, specs: Value) -> MachineSpecs {
    MachineSpecs {
        job_uuid,
        specs: json!({"specs": specs}),
    }
}

impl AttemptReport {
    /// The last messages of the attempt, in order. An abandoned attempt has none.
    pub fn messages(self, conclusion: &Conclusion) -> Vec<ExecutorToMiner> {
        match conclusion {
            Conclusion::Finished => self.finished(),
            Conclusion::Failed(failure) => vec![self.failed(failure)],
            Conclusion::Abandoned(_) => vec![],
        }
    }

    fn finished(mut self) -> Vec<ExecutorToMiner> {
        let stderr = std::mem::take(&mut self.printed.stderr);
        let stderr = self.with_notices(stderr);
        let job_uuid = self.attempt;
        let specs = self
            .specs
            .map(|specs| ExecutorToMiner::V0MachineSpecsRequest(specs_message(job_uuid, specs)));
        let finished = ExecutorToMiner::V0JobFinishedRequest(JobFinished {
            job_uuid,
            docker_process_stdout: self.printed.stdout,
            docker_process_stderr: stderr,
            artifacts: Some(self.artifacts.files),
            // ComputeHorde's SDK does not read null in either field.
            upload_results: Some(self.uploaded.results),
            image: self.ran.filter(|_| self.muster),
            trace: self.trace.filter(|_| self.muster).map(Box::new),
            completion: self.completion.filter(|_| self.muster).map(Box::new),
        });
        specs.into_iter().chain([finished]).collect()
    }

    /// Standard error, and below it what was left out of the artifacts and of the delivered outputs.
    fn with_notices(&self, mut stderr: String) -> String {
        let mut notice = self.artifacts.notice();
        for line in &self.uploaded.notices {
            notice.push_str(line);
            notice.push('\n');
        }
        if notice.is_empty() {
            return stderr;
        }
        if !stderr.is_empty() && !stderr.ends_with('\n') {
            stderr.push('\n');
        }
        shorten(&(stderr + &notice))
    }

    fn failed(mut self, failure: &AttemptFailure) -> ExecutorToMiner {
        let mut printed = std::mem::take(&mut self.printed);
        let hint = Self::resume_hint(failure, &printed);
        printed.stderr = self.with_notices(printed.stderr);
        let (shown, beside) = match failure.kind {
            FailureKind::Job { .. } => (printed, PrintedOutput::default()),
            // The message has no place for what the job printed, but the context has.
            FailureKind::Horde(_) => (PrintedOutput::default(), printed),
        };
        let job_uuid = self.attempt;
        let message = shorten_to(&hide_paths(&failure.message, &self.hidden_folders), MAX_MESSAGE);
        let context = Some(self.context(failure, hint, beside));
        match failure.kind {
            FailureKind::Job { reason, exit_code } => ExecutorToMiner::V0JobFailedRequest(JobFailed {
                job_uuid,
                message,
                reason,
                stage: failure.stage,
                docker_process_exit_status: exit_code,
                docker_process_stdout: Some(shown.stdout),
                docker_process_stderr: Some(shown.stderr),
                context,
            }),
            FailureKind::Horde(reason) => ExecutorToMiner::V0HordeFailedRequest(HordeFailed {
                job_uuid,
                reported_by: ParticipantType::Executor,
                message,
                reason,
                context,
            }),
        }
    }

    /// The hint for going on from a checkpoint: by its cause, or by the last words of the program.
    fn resume_hint(failure: &AttemptFailure, printed: &PrintedOutput) -> Option<ResumeHint> {
        let exited = match failure.kind {
            FailureKind::Job { exit_code, .. } => {
                exit_code.is_some_and(|code| code != 0 && code != EXIT_SAVED)
            }
            FailureKind::Horde(_) => false,
        };
        let ending = last_part(&printed.stderr);
        let is_short_of_memory = exited && MEMORY_WORDS.iter().any(|words| ending.contains(words));
        failure
            .resume
            .or(is_short_of_memory.then_some(ResumeHint::OutOfMemory))
    }

    /// The details of a failure. A Muster miner also gets the image that ran, and the results so far: ComputeHorde's
    /// failures have no place for them.
    fn context(self, failure: &AttemptFailure, hint: Option<ResumeHint>, printed: PrintedOutput) -> Value {
        let mut context = Map::new();
        if let Some(code) = failure.code {
            context.insert("code".to_owned(), json!(code.code()));
        }
        context.insert("stage".to_owned(), json!(failure.stage));
        if let Some(image) = &self.image {
            context.insert("image".to_owned(), json!(shorten_to(image, MAX_IMAGE)));
        }
        context.insert("fault".to_owned(), json!(failure.fault));
        if failure.broken_image {
            context.insert(BROKEN_IMAGE_KEY.to_owned(), json!(true));
        }
        if let Some(image_fetch) = failure.image_fetch {
            context.insert(IMAGE_FETCH_KEY.to_owned(), json!(image_fetch));
        }
        if self.muster
            && let Some(hint) = hint
        {
            context.insert(RESUME_KEY.to_owned(), json!(hint.word()));
        }
        if self.muster {
            let own = FailureContext {
                image: self.ran,
                partial: PartialResult {
                    stdout: printed.stdout,
                    stderr: printed.stderr,
                    artifacts: self.artifacts.files,
                    upload_results: self.uploaded.results,
                },
                trace: self.trace,
                completion: self.completion,
            };
            own.insert_into(&mut context);
        }
        Value::Object(context)
    }
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;
    use muster_protocol::job::Fault;
    use muster_protocol::wire::encode;
    use muster_protocol::{Digest, ErrorCode, HordeFailureReason, ImageId, JobFailureReason, JobStage};

    use super::*;
    use crate::attempt_state::Abandonment;

    const UUID: &str = "11111111-2222-4333-8444-555555555555";

    fn report() -> AttemptReport {
        AttemptReport {
            attempt: UUID.parse().unwrap(),
            image: Some("muster/hello".into()),
            ran: Some(JobImage {
                name: "muster/hello".into(),
                id: ImageId(Digest::of(b"configuration")),
                manifest: None,
            }),
            printed: PrintedOutput {
                stdout: "out\n".into(),
                stderr: "err".into(),
            },
            artifacts: Artifacts {
                files: IndexMap::from([("/artifacts/a".to_owned(), "QQ==".to_owned())]),
                ..Artifacts::default()
            },
            uploaded: Uploaded::default(),
            muster: false,
            specs: Some(json!({"os": "Debian"})),
            trace: None,
            completion: None,
            hidden_folders: vec!["/srv/executor".to_owned()],
        }
    }

    #[test]
    fn a_failures_message_names_no_folder_of_the_machine() {
        let message =
            "cannot write /srv/executor/work/x/volume/a: /volume is full at /var/lib/docker/overlay2";
        let failure = AttemptFailure::horde(HordeFailureReason::GenericError, JobStage::Execution, message);
        let frames: Vec<_> = report()
            .messages(&Conclusion::Failed(failure))
            .iter()
            .map(encode)
            .collect();
        let sent = frames.concat();
        assert!(!sent.contains("/srv/") && !sent.contains("/var/lib"), "{sent}");
        assert!(sent.contains("/volume is full"), "{sent}");
    }

    #[test]
    fn a_broken_image_is_its_users_fault_and_marked() {
        let frames: Vec<_> = report()
            .messages(&Conclusion::Failed(AttemptFailure::broken_image("no USER")))
            .iter()
            .map(encode)
            .collect();
        let sent: serde_json::Value = serde_json::from_str(&frames.concat()).unwrap();
        assert_eq!(sent["message"], "the image cannot be started: no USER");
        let context = json!({
            "code": "E0036", "stage": "execution", "image": "muster/hello", "fault": "user", "broken_image": true
        });
        assert_eq!(sent["context"], context);
    }

    #[test]
    fn success_is_specs_and_then_the_result_byte_by_byte() {
        let frames: Vec<_> = report()
            .messages(&Conclusion::Finished)
            .iter()
            .map(encode)
            .collect();
        let specs = format!(
            r#"{{"message_type":"V0MachineSpecsRequest","job_uuid":"{UUID}","specs":{{"specs":{{"os":"Debian"}}}}}}"#
        );
        let finished = format!(
            r#"{{"message_type":"V0JobFinishedRequest","job_uuid":"{UUID}","docker_process_stdout":"out\n","docker_process_stderr":"err","artifacts":{{"/artifacts/a":"QQ=="}},"upload_results":{{}}}}"#
        );
        assert_eq!(frames, [specs, finished]);
    }

    #[test]
    fn result_for_a_muster_miner_names_the_image_byte_by_byte() {
        let report = AttemptReport {
            muster: true,
            specs: None,
            ..report()
        };
        let frames: Vec<_> = report
            .messages(&Conclusion::Finished)
            .iter()
            .map(encode)
            .collect();
        let id = Digest::of(b"configuration");
        let finished = format!(
            r#"{{"message_type":"V0JobFinishedRequest","job_uuid":"{UUID}","docker_process_stdout":"out\n","docker_process_stderr":"err","artifacts":{{"/artifacts/a":"QQ=="}},"upload_results":{{}},"image":{{"name":"muster/hello","id":"{id}","manifest":null}}}}"#
        );
        assert_eq!(frames, [finished]);
    }

    #[test]
    fn omissions_are_noted_at_the_end_of_stderr() {
        let mut report = report();
        report
            .artifacts
            .omitted
            .push("muster: artifact /a/b was not returned: too large".into());
        let messages = report.messages(&Conclusion::Finished);
        let Some(ExecutorToMiner::V0JobFinishedRequest(finished)) = messages.last() else {
            panic!("{messages:?}")
        };
        assert_eq!(
            finished.docker_process_stderr,
            "err\nmuster: artifact /a/b was not returned: too large\n"
        );
    }

    #[test]
    fn a_jobs_failure_carries_what_it_printed() {
        let failure = AttemptFailure::job(
            JobFailureReason::NonzeroReturnCode,
            JobStage::Execution,
            "it failed",
        );
        let kind = FailureKind::Job {
            reason: JobFailureReason::NonzeroReturnCode,
            exit_code: Some(3),
        };
        let failure = AttemptFailure { kind, ..failure }.with_code(ErrorCode::JobExitCode);
        let messages = report().messages(&Conclusion::Failed(failure));
        let [ExecutorToMiner::V0JobFailedRequest(failed)] = messages.as_slice() else {
            panic!("{messages:?}")
        };
        assert_eq!(failed.docker_process_exit_status, Some(3));
        assert_eq!(failed.docker_process_stdout.as_deref(), Some("out\n"));
        let context =
            json!({"code": "E0009", "stage": "execution", "image": "muster/hello", "fault": "user"});
        assert_eq!(failed.context, Some(context));
    }

    #[test]
    fn a_missing_image_is_the_subnets_message_and_its_users_fault() {
        let reason = HordeFailureReason::GenericError;
        let failure = AttemptFailure::horde(reason, JobStage::ExecutorStartup, "no such image")
            .with_code(ErrorCode::ImageMissing)
            .blame(Fault::User);
        let messages = report().messages(&Conclusion::Failed(failure));
        let [ExecutorToMiner::V0HordeFailedRequest(failed)] = messages.as_slice() else {
            panic!("{messages:?}")
        };
        assert_eq!(failed.reported_by, ParticipantType::Executor);
        let context =
            json!({"code": "E0008", "stage": "executor_startup", "image": "muster/hello", "fault": "user"});
        assert_eq!(failed.context, Some(context));
    }

    #[test]
    fn no_job_can_make_a_message_larger_than_a_frame() {
        let folder = tempfile::tempdir().unwrap();
        let total = crate::config::MAX_ARTIFACTS_MIB << 20;
        for number in 0..30 {
            let name = format!("{number}{}", "\u{1}".repeat(200));
            std::fs::write(folder.path().join(name), vec![0; 999_999]).unwrap();
        }
        let capture = crate::output_capture::OutputCapture::default();
        for _ in 0..100 {
            let message = bytes::Bytes::from(vec![0; 100_000]);
            capture.push(&bollard::container::LogOutput::StdOut {
                message: message.clone(),
            });
            capture.push(&bollard::container::LogOutput::StdErr { message });
        }
        let report = || AttemptReport {
            image: Some("\0".repeat(50 << 20)),
            printed: capture.printed(),
            artifacts: Artifacts::collect(folder.path(), "/a", total).unwrap(),
            ..report()
        };
        let largest = |conclusion| {
            let frames: Vec<_> = report().messages(&conclusion).iter().map(encode).collect();
            frames.iter().map(String::len).max().unwrap()
        };
        let limit = muster_websocket::Limits::miner().max_frame;
        let finished = largest(Conclusion::Finished);
        assert!((30 << 20..limit).contains(&finished), "{finished}");
        let failure = AttemptFailure::job(
            JobFailureReason::Unknown,
            JobStage::Execution,
            "\0".repeat(10 << 20),
        );
        let failed = largest(Conclusion::Failed(failure));
        assert!((10 << 20..13 << 20).contains(&failed), "{failed}");
        for failure in [
            AttemptFailure::job(
                JobFailureReason::Unknown,
                JobStage::Execution,
                "\0".repeat(10 << 20),
            ),
            AttemptFailure::horde(
                HordeFailureReason::GenericError,
                JobStage::Execution,
                "\0".repeat(10 << 20),
            ),
        ] {
            let report = AttemptReport {
                muster: true,
                ..report()
            };
            let whole = report
                .messages(&Conclusion::Failed(failure))
                .iter()
                .map(encode)
                .map(|frame| frame.len())
                .max();
            assert!((30 << 20..limit).contains(&whole.unwrap()), "{whole:?}");
        }
    }

    #[test]
    fn a_muster_miner_gets_what_a_failed_job_left() {
        for muster in [true, false] {
            let report = AttemptReport { muster, ..report() };
            let failure = AttemptFailure::job(JobFailureReason::Timeout, JobStage::Execution, "late");
            let message = report.messages(&Conclusion::Failed(failure)).remove(0);
            let ExecutorToMiner::V0JobFailedRequest(failed) = message else {
                panic!("{message:?}")
            };
            assert_eq!(failed.docker_process_stdout.as_deref(), Some("out\n"));
            let mut context = failed.context;
            let left = FailureContext::take_from(&mut context);
            assert_eq!(left.image.is_some(), muster);
            let artifacts = IndexMap::from([("/artifacts/a".to_owned(), "QQ==".to_owned())]);
            assert_eq!(
                left.partial.artifacts,
                if muster { artifacts } else { IndexMap::new() }
            );
            assert_eq!(left.partial.stdout, "", "it stands in the failure itself");
            let rest = json!({"stage": "execution", "image": "muster/hello", "fault": "user"});
            assert_eq!(context, Some(rest));
        }
    }

    #[test]
    fn failure_of_the_subnet_carries_the_jobs_output_and_uploads() {
        let uploaded = Uploaded {
            results: IndexMap::from([("one".to_owned(), "{}".to_owned())]),
            notices: vec!["muster: left out: x".to_owned()],
        };
        let report = AttemptReport {
            muster: true,
            uploaded: uploaded.clone(),
            ..report()
        };
        let reason = HordeFailureReason::GenericError;
        let failure = AttemptFailure::horde(reason, JobStage::ResultUpload, "the store is away");
        let message = report.messages(&Conclusion::Failed(failure)).remove(0);
        let ExecutorToMiner::V0HordeFailedRequest(mut failed) = message else {
            panic!("{message:?}")
        };
        let left = FailureContext::take_from(&mut failed.context).partial;
        assert_eq!(
            (left.stdout.as_str(), left.stderr.as_str()),
            ("out\n", "err\nmuster: left out: x\n")
        );
        assert_eq!(left.upload_results, uploaded.results);
    }

    #[test]
    fn an_abandoned_attempt_is_not_reported() {
        assert_eq!(
            report().messages(&Conclusion::Abandoned(Abandonment::ShutDown)),
            []
        );
    }
}
