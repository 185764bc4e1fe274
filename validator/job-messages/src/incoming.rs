//! The meaning of a miner's message for an attempt.

use std::time::Duration;

use muster_protocol::job::{COMPLETION_KEY, CompletionReport, Event, JobState};
use muster_protocol::status::{HordeFailureReason, ParticipantType};
use muster_protocol::trace::TRACE_KEY;
use muster_protocol::wire::checkpoints::CheckpointNotice;
use muster_protocol::wire::executor::{JobLog, JobMetrics, JobProgress};
use muster_protocol::wire::facilitator::{
    FailureDetails, HordeFailureDetails, MinerResponse, RejectionDetails, StreamingAddress,
};
use muster_protocol::wire::machines::MachinesNotice;
use muster_protocol::wire::miner::{ExecutorManifest, JobImage};
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{JobTrace, Receipt};
use serde_json::{Value, json};

/// The meaning of a miner's message.
#[derive(Debug, PartialEq)]
pub enum MessageMeaning {
    /// An event of the attempt's state machine.
    Event(Event),
    /// The executors that the miner announces.
    Manifest(ExecutorManifest),
    /// The specs of the machine of the attempt's executor, as the miner claims them, free in form.
    Specs(Value),
    /// The load of the miner's machines, as the miner claims it.
    Machines(Box<MachinesNotice>),
    /// A receipt with the miner's signature, which is not checked yet.
    Countersigned(Box<Receipt>),
    /// An error that the miner reports as text, not checked or shortened.
    Complaint(String),
    /// Output or progress of a running job. It changes no state; the job's result has the whole output.
    Live(LiveUpdate),
    /// A checkpoint of the attempt is in the file store, as the miner reports it.
    Checkpoint(Box<CheckpointNotice>),
    /// A message that no attempt needs.
    Ignored,
}

/// Output or progress of a running job, passed on to the user as it comes.
#[derive(Debug, PartialEq)]
pub enum LiveUpdate {
    /// A piece of the program's output.
    Log(Box<JobLog>),
    /// The progress of a download, the execution or an upload.
    Progress(JobProgress),
    /// The progress and the metrics that the program reports itself.
    Metrics(Box<JobMetrics>),
}

impl From<LiveUpdate> for MessageMeaning {
    fn from(update: LiveUpdate) -> Self {
        Self::Live(update)
    }
}

/// Interprets a message of a miner.
pub fn interpret(message: MinerToValidator) -> MessageMeaning {
    let event = match message {
        MinerToValidator::V0ExecutorManifestRequest(m) => return MessageMeaning::Manifest(m),
        MinerToValidator::V0MachineSpecsRequest(m) => return MessageMeaning::Specs(m.specs),
        MinerToValidator::MusterMachines(notice) => return MessageMeaning::Machines(notice),
        MinerToValidator::MusterReceiptCountersigned(m) => {
            return MessageMeaning::Countersigned(Box::new(m.receipt));
        }
        MinerToValidator::GenericError(m) => return MessageMeaning::Complaint(m.details.unwrap_or_default()),
        MinerToValidator::UnauthorizedError(m) => {
            return MessageMeaning::Complaint(format!("{}: {}", m.code, m.details.unwrap_or_default()));
        }
        MinerToValidator::MusterJobLog(piece) => return LiveUpdate::Log(piece).into(),
        MinerToValidator::MusterJobProgress(progress) => return LiveUpdate::Progress(progress).into(),
        MinerToValidator::MusterCheckpoint(notice) => return MessageMeaning::Checkpoint(notice),
        MinerToValidator::MusterJobMetrics(metrics) => return LiveUpdate::Metrics(metrics).into(),
        MinerToValidator::V0MainHotkeyMessage(_)
        | MinerToValidator::MusterAuditReply(_)
        | MinerToValidator::MusterSessionClosed(_) => return MessageMeaning::Ignored,
        MinerToValidator::V0AcceptJobRequest(_) => Event::Accepted,
        MinerToValidator::V0DeclineJobRequest(m) => Event::Declined(RejectionDetails {
            rejected_by: ParticipantType::Miner,
            reason: m.reason,
            message: m.message,
            context: m.context,
        }),
        MinerToValidator::MusterExecutorUp(m) => Event::ExecutorUp {
            allowed: Duration::from_secs(m.image_s),
        },
        MinerToValidator::V0ExecutorReadyRequest(_) => Event::ExecutorReady,
        MinerToValidator::V0VolumesReadyRequest(_) => Event::VolumesReady,
        MinerToValidator::V0ExecutionDoneRequest(_) => Event::ExecutionDone,
        MinerToValidator::V0StreamingJobReadyRequest(m) => Event::StreamingReady(StreamingAddress {
            streaming_server_cert: Some(m.public_key),
            streaming_server_address: m.ip,
            streaming_server_port: Some(m.port),
        }),
        MinerToValidator::V0JobFinishedRequest(m) => Event::Finished(Box::new(MinerResponse {
            docker_process_stderr: m.docker_process_stderr,
            docker_process_stdout: m.docker_process_stdout,
            // ComputeHorde's SDK takes no null here.
            artifacts: Some(m.artifacts.unwrap_or_default()),
            upload_results: Some(m.upload_results.unwrap_or_default()),
            extra: own_fields(m.image, m.trace, m.completion).collect(),
        })),
        MinerToValidator::V0JobFailedRequest(m) => Event::Failed(Box::new(FailureDetails {
            reason: m.reason,
            stage: m.stage,
            message: m.message,
            context: m.context,
            docker_process_exit_status: m.docker_process_exit_status,
            docker_process_stdout: m.docker_process_stdout,
            docker_process_stderr: m.docker_process_stderr,
        })),
        MinerToValidator::V0HordeFailedRequest(m) => Event::HordeFailed(HordeFailureDetails {
            reported_by: to_miners_side(m.reported_by),
            reason: m.reason,
            message: m.message,
            context: m.context,
        }),
        MinerToValidator::V0ExecutorFailedRequest(_) => horde_failed(
            HordeFailureReason::ExecutorSpinupFailed,
            "the miner could not start an executor",
        ),
        MinerToValidator::V0StreamingJobNotReadyRequest(_) => horde_failed(
            HordeFailureReason::StreamingFailed,
            "the streaming job did not start",
        ),
    };
    MessageMeaning::Event(event)
}

/// The fields of a result that ComputeHorde's have no place for.
fn own_fields(
    image: Option<JobImage>,
    trace: Option<Box<JobTrace>>,
    completion: Option<Box<CompletionReport>>,
) -> impl Iterator<Item = (String, Value)> {
    let image = image.map(|image| ("image".to_owned(), json!(image)));
    let trace = trace.map(|trace| (TRACE_KEY.to_owned(), json!(trace)));
    let completion = completion.map(|report| (COMPLETION_KEY.to_owned(), json!(report)));
    image.into_iter().chain(trace).chain(completion)
}

fn horde_failed(reason: HordeFailureReason, message: &str) -> Event {
    Event::HordeFailed(HordeFailureDetails {
        reported_by: ParticipantType::Miner,
        reason,
        message: message.to_owned(),
        context: None,
    })
}

/// The party that a miner's failure report counts against: the miner or its executor. A miner cannot blame any other
/// party.
fn to_miners_side(party: ParticipantType) -> ParticipantType {
    match party {
        ParticipantType::Executor => ParticipantType::Executor,
        ParticipantType::Miner
        | ParticipantType::Unknown
        | ParticipantType::Sdk
        | ParticipantType::Facilitator
        | ParticipantType::Validator => ParticipantType::Miner,
    }
}

/// The events that must have happened before `event` and whose messages were lost with a connection.
///
/// A miner keeps the result of a job and delivers it again, but does not repeat the messages of stages that are over.
/// The caller asks only after a reconnection; without one, a miner that skips a stage breaks the protocol. No event of
/// a streaming job is implied, since the address cannot be guessed.
pub fn implied_events(state: &JobState, event: &Event, streaming: bool) -> Vec<Event> {
    let result = match event {
        Event::Finished(_) => true,
        Event::ExecutionDone => false,
        Event::Connected
        | Event::Disconnected
        | Event::Accepted
        | Event::Declined(_)
        | Event::ExecutorUp { .. }
        | Event::ImageProgress
        | Event::ExecutorReady
        | Event::VolumesReady
        | Event::StreamingReady(_)
        | Event::Failed(_)
        | Event::HordeFailed(_)
        | Event::Cancelled(_)
        | Event::Tick => return Vec::new(),
    };
    if streaming {
        return Vec::new();
    }
    let mut missing = match state {
        JobState::Ready => vec![Event::VolumesReady, Event::ExecutionDone],
        JobState::VolumesReady => vec![Event::ExecutionDone],
        JobState::Connecting
        | JobState::Offered
        | JobState::Accepted
        | JobState::Fetching
        | JobState::Streaming
        | JobState::Executed
        | JobState::Ended(_) => Vec::new(),
    };
    if !result {
        missing.retain(|event| *event != Event::ExecutionDone);
    }
    missing
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::decode;

    use super::*;

    fn read(frame: &str) -> MessageMeaning {
        interpret(decode(frame).unwrap())
    }

    const JOB: &str = r#""job_uuid":"11111111-2222-4333-8444-555555555555""#;

    #[test]
    fn a_miner_cannot_blame_another_party() {
        for (claimed, recorded) in [
            ("validator", ParticipantType::Miner),
            ("executor", ParticipantType::Executor),
        ] {
            let frame = format!(
                r#"{{"message_type":"V0HordeFailedRequest",{JOB},"reported_by":"{claimed}","message":"x","reason":"generic_error"}}"#
            );
            let MessageMeaning::Event(Event::HordeFailed(details)) = read(&frame) else {
                panic!("not a failure")
            };
            assert_eq!(details.reported_by, recorded);
        }
    }

    #[test]
    fn a_result_without_artifacts_has_none_rather_than_null() {
        let frame = format!(
            r#"{{"message_type":"V0JobFinishedRequest",{JOB},"docker_process_stdout":"o","docker_process_stderr":"","artifacts":null}}"#
        );
        let MessageMeaning::Event(Event::Finished(response)) = read(&frame) else {
            panic!("not a result")
        };
        assert_eq!(response.artifacts.map(|a| a.len()), Some(0));
        assert_eq!(response.upload_results.map(|u| u.len()), Some(0));
        assert!(response.extra.is_empty());
    }

    #[test]
    fn the_user_hears_which_image_it_was() {
        let image = format!(
            r#"{{"name":"tool:1","id":"sha256:{}","manifest":null}}"#,
            "ab".repeat(32)
        );
        let frame = format!(
            r#"{{"message_type":"V0JobFinishedRequest",{JOB},"docker_process_stdout":"o","docker_process_stderr":"","image":{image}}}"#
        );
        let MessageMeaning::Event(Event::Finished(response)) = read(&frame) else {
            panic!("not a result")
        };
        assert!(
            json!(response)
                .to_string()
                .ends_with(&format!(r#","image":{image}}}"#))
        );
    }

    #[test]
    fn complaints_and_old_messages_are_understood() {
        let unauthorised = r#"{"message_type":"UnauthorizedError","code":"TOKEN_TOO_OLD","details":"late"}"#;
        assert_eq!(
            read(unauthorised),
            MessageMeaning::Complaint("TOKEN_TOO_OLD: late".to_owned())
        );
        let failed = format!(r#"{{"message_type":"V0ExecutorFailedRequest",{JOB}}}"#);
        assert!(matches!(
            read(&failed),
            MessageMeaning::Event(Event::HordeFailed(_))
        ));
    }

    #[test]
    fn only_stages_that_a_result_proves_are_implied() {
        let finished = Event::Finished(Box::default());
        assert_eq!(
            implied_events(&JobState::Ready, &finished, false),
            [Event::VolumesReady, Event::ExecutionDone]
        );
        assert_eq!(
            implied_events(&JobState::VolumesReady, &finished, false),
            [Event::ExecutionDone]
        );
        assert_eq!(
            implied_events(&JobState::Ready, &Event::ExecutionDone, false),
            [Event::VolumesReady]
        );
        assert_eq!(
            implied_events(&JobState::Accepted, &finished, false),
            [],
            "the job itself was never sent"
        );
        assert_eq!(implied_events(&JobState::Ready, &finished, true), []);
        assert_eq!(implied_events(&JobState::Ready, &Event::Tick, false), []);
    }
}
