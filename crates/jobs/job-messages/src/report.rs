//! What a job's user is told at its end, and how it is made to fit into a frame.

use indexmap::IndexMap;
use muster_protocol::job::{Fault, Outcome};
use muster_protocol::status::ParticipantType;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{
    HordeFailureDetails, JobStatusUpdate, StatusMetadata, ToFacilitator,
};
use muster_protocol::wire::muster::StatusExtension;
use muster_protocol::{AttemptId, MinerKey, Receipt};
use serde_json::{Value, json};

use crate::store::Update;

/// The key in a status's metadata that says what was left out of it.
const LEFT_OUT: &str = "muster_left_out";

/// How much of a miner's complaint a user is shown.
const MAX_COMPLAINT_CHARS: usize = 500;

/// One attempt of a job, as its user is told about it.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    pub(crate) attempt: AttemptId,
    pub(crate) miner: MinerKey,
    pub(crate) outcome: Outcome,
}

/// The metadata of a job's last status: its outcome, the receipts that both have signed, and, where it took several
/// miners, what became of each.
pub(crate) fn metadata(outcome: &Outcome, tried: &[Tried], receipts: Vec<Receipt>) -> StatusMetadata {
    let mut metadata = with_context(outcome, tried).metadata();
    if let Some(last) = tried.last() {
        metadata.muster = Some(StatusExtension {
            attempt: Some(last.attempt),
            receipts,
        });
    }
    metadata
}

/// A failure that this validator found by itself, with what the miner had to say before: a miner that refuses a session
/// gives its reason in words and hangs up.
pub(crate) fn with_complaint(outcome: Outcome, complaint: Option<&str>) -> Outcome {
    match (outcome, complaint) {
        (Outcome::HordeFailed(details), Some(said)) if details.reported_by == ParticipantType::Validator => {
            let said: String = said.chars().take(MAX_COMPLAINT_CHARS).collect();
            Outcome::HordeFailed(HordeFailureDetails {
                context: Some(json!({ "miner_said": said })),
                ..details
            })
        }
        (outcome, Some(_) | None) => outcome,
    }
}

/// The outcome with the list of attempts in its context, if there was more than one.
fn with_context(outcome: &Outcome, tried: &[Tried]) -> Outcome {
    let mut outcome = outcome.clone();
    if tried.len() < 2 {
        return outcome;
    }
    let context = match &mut outcome {
        Outcome::Completed(_) => return outcome,
        Outcome::Rejected(details) => &mut details.context,
        Outcome::Failed(details) => &mut details.context,
        Outcome::HordeFailed(details) => &mut details.context,
    };
    let attempts: Value = tried
        .iter()
        .map(|tried| json!({ "attempt": tried.attempt, "miner": tried.miner, "ended": in_words(&tried.outcome) }))
        .collect();
    *context = Some(match context.take() {
        None => json!({ "attempts": attempts }),
        Some(said) => json!({ "attempts": attempts, "reported": said }),
    });
    outcome
}

/// The end of a job that has no user but the validator itself: what it called off is nobody's failure.
pub(crate) fn of_our_own(outcome: Outcome) -> Outcome {
    let Outcome::Failed(mut details) = outcome else {
        return outcome;
    };
    if let Some(context) = details.context.as_mut().and_then(Value::as_object_mut)
        && context.get("cancelled") == Some(&Value::Bool(true))
    {
        let reason = context.get("reason").and_then(Value::as_str).unwrap_or_default();
        details.message = format!("the validator called off this job of its own: {reason}");
        context.insert("fault".to_owned(), json!(Fault::Nobody));
    }
    Outcome::Failed(details)
}

/// Whose fault an end was, as operators see it.
pub(crate) fn fault(outcome: &Outcome) -> Fault {
    let Outcome::Failed(details) = outcome else {
        return outcome.fault();
    };
    let said = details.context.as_ref();
    let of = |name: &str| said.and_then(|context| context.get(name));
    let called_off =
        of("cancelled") == Some(&Value::Bool(true)) && of("fault") == Some(&json!(Fault::Nobody));
    if called_off {
        Fault::Nobody
    } else {
        outcome.fault()
    }
}

/// An outcome in one line: `rejected: busy (all executors are at work)`.
pub(crate) fn in_words(outcome: &Outcome) -> String {
    let status = outcome.status();
    match outcome {
        Outcome::Completed(_) => status.to_string(),
        Outcome::Rejected(details) => format!("{status}: {} ({})", details.reason, details.message),
        Outcome::Failed(details) => format!("{status}: {} ({})", details.reason, details.message),
        Outcome::HordeFailed(details) => format!("{status}: {} ({})", details.reason, details.message),
    }
}

/// What may be left out of a status that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Artifacts,
    Stdout,
    Stderr,
}

impl Part {
    /// In the order in which they are left out.
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
        let named = metadata
            .extra
            .entry(LEFT_OUT.to_owned())
            .or_insert_with(|| json!([]));
        if let Value::Array(parts) = named {
            parts.push(json!(self.name()));
        }
    }
}

/// The frame of an update, of at most `limit` bytes if that can be: what is too long is left out and named, first the
/// artifacts, then what the program printed. A status that never arrives would be worse.
pub(crate) fn frame(update: &Update, limit: usize) -> String {
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
    for part in Part::ALL {
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
    use muster_protocol::JobStatus;
    use muster_protocol::status::JobRejectionReason;
    use muster_protocol::wire::facilitator::{MinerResponse, RejectionDetails};

    use super::*;
    use crate::testing::{job, miner};

    fn busy() -> Outcome {
        Outcome::Rejected(RejectionDetails {
            rejected_by: ParticipantType::Miner,
            reason: JobRejectionReason::Busy,
            message: "at work".to_owned(),
            context: Some(json!({ "executors": 1 })),
        })
    }

    #[test]
    fn what_a_validator_calls_off_itself_no_user_has_cancelled() {
        let cancelled = Outcome::cancelled(muster_protocol::JobStage::Execution, "its grading is over");
        let ours = of_our_own(cancelled.clone());
        assert_eq!(
            (in_words(&ours), fault(&ours)),
            (
                "failed: unknown (the validator called off this job of its own: its grading is over)"
                    .to_owned(),
                Fault::Nobody
            )
        );
        assert_eq!(ours.status(), cancelled.status());
        // What else becomes of it stays what it was.
        assert_eq!((of_our_own(busy()), fault(&busy())), (busy(), Fault::Miner));
        assert_eq!(fault(&cancelled), Fault::User);
    }

    #[test]
    fn several_attempts_are_listed_and_what_the_last_miner_said_is_kept() {
        let tried = |seed| Tried {
            attempt: AttemptId::first_of(job(seed)),
            miner: miner(1),
            outcome: busy(),
        };
        let one = metadata(&busy(), &[tried(1)], vec![]);
        assert_eq!(
            one.job_rejection_details.unwrap().context,
            Some(json!({ "executors": 1 }))
        );
        let two = metadata(&busy(), &[tried(1), tried(2)], vec![]);
        let context = two.job_rejection_details.unwrap().context.unwrap();
        assert_eq!(context["attempts"].as_array().unwrap().len(), 2);
        assert_eq!(context["attempts"][0]["ended"], "rejected: busy (at work)");
        assert_eq!(context["reported"]["executors"], 1);
        assert_eq!(two.muster.unwrap().attempt, Some(AttemptId::first_of(job(2))));
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_named() {
        let response = MinerResponse {
            docker_process_stdout: "o".repeat(2_000),
            docker_process_stderr: "e".repeat(100),
            artifacts: Some([("/a".to_owned(), "x".repeat(5_000))].into_iter().collect()),
            ..MinerResponse::default()
        };
        let outcome = Outcome::Completed(Box::new(response));
        let update = Update {
            sequence: 1,
            job: job(1),
            status: JobStatus::Completed,
            metadata: Some(outcome.metadata()),
        };
        let whole = frame(&update, 100_000);
        assert!(whole.contains(&"x".repeat(5_000)) && !whole.contains(LEFT_OUT));
        let some = frame(&update, 4_000);
        assert!(
            some.len() <= 4_000
                && some.contains("\"muster_left_out\":[\"artifacts\"]")
                && some.contains("ooo")
        );
        let least = frame(&update, 1_000);
        assert!(
            least.len() <= 1_000 && least.contains("[\"artifacts\",\"stdout\"]") && least.contains("eee")
        );
    }
}
