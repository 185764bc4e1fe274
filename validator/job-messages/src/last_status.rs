//! The report of a job's end, for its user and for the log.

use muster_protocol::job::{
    COMPLETION_KEY, CompletionReport, FailureContext, Fault, IMAGE_FETCH_KEY, ImageFetchFailure, Outcome,
};
use muster_protocol::status::ParticipantType;
use muster_protocol::trace::TRACE_KEY;
use muster_protocol::wire::facilitator::{HordeFailureDetails, StatusMetadata};
use muster_protocol::wire::miner::JobImage;
use muster_protocol::wire::muster::StatusExtension;
use muster_protocol::wire::route::{MAX_ROUTE_STEPS, RouteStep};
use muster_protocol::{AttemptId, JobTrace, MinerKey, Receipt, StageTime};
use serde_json::{Value, json};

/// The characters of a miner's complaint that a user is shown.
const MAX_COMPLAINT_CHARS: usize = 500;

/// An attempt that has ended, as it is reported to the job's user.
#[derive(Clone, Debug)]
pub struct EndedAttempt {
    /// The number of the attempt in its job; the first is 1.
    pub ordinal: u32,
    /// The attempt's id on the wire.
    pub attempt: AttemptId,
    /// The miner that ran it.
    pub miner: MinerKey,
    /// How it ended.
    pub outcome: Outcome,
    /// The validator's own stages of it.
    pub stages: Vec<StageTime>,
}

/// The metadata of a job's last status: its outcome, the receipts with both signatures, the image that ran, the results
/// that a failed job left, the stages of its way, its route, and, if there were several attempts, how each of them
/// ended. `decisions` are those about the job, each with the number of the attempt that it was for.
pub fn final_metadata(
    outcome: &Outcome,
    attempts: &[EndedAttempt],
    receipts: Vec<Receipt>,
    trace: Option<JobTrace>,
    decisions: Vec<(u32, RouteStep)>,
) -> StatusMetadata {
    let mut outcome = outcome.clone();
    let told = take_own_parts(&mut outcome);
    let mut metadata = add_attempts(outcome, attempts).metadata();
    let route = route_steps(decisions, attempts);
    if !(attempts.is_empty() && route.is_empty()) {
        metadata.muster = Some(StatusExtension {
            attempt: attempts.last().map(|last| last.attempt),
            receipts,
            image: told.image,
            partial: Some(Box::new(told.partial)).filter(|partial| !partial.is_empty()),
            trace: trace.map(Box::new),
            completion: told.completion.map(Box::new),
            route,
        });
    }
    metadata
}

/// The last decisions about a job, each with its attempt and that attempt's end.
fn route_steps(decisions: Vec<(u32, RouteStep)>, attempts: &[EndedAttempt]) -> Vec<RouteStep> {
    let skipped = decisions.len().saturating_sub(MAX_ROUTE_STEPS);
    let told = decisions.into_iter().skip(skipped).map(|(ordinal, step)| {
        let ended = attempts.iter().find(|ended| ended.ordinal == ordinal);
        let step = RouteStep {
            attempt: ended.map(|ended| ended.attempt),
            // The decision about an attempt is kept before anybody is asked.
            miner: ended.map(|ended| ended.miner),
            ended: ended.map(|ended| describe(&ended.outcome)),
            ..step
        };
        step.bounded()
    });
    told.collect()
}

/// The image that ran, what a failed attempt left, the stages that the miner reported, and the completion report; all
/// but the image of a result leave the outcome.
fn take_own_parts(outcome: &mut Outcome) -> FailureContext {
    match outcome {
        Outcome::Completed(response) => {
            let image = response.extra.get("image");
            let image = image.and_then(|image| serde_json::from_value::<JobImage>(image.clone()).ok());
            FailureContext {
                image: image.filter(JobImage::is_short),
                trace: response
                    .extra
                    .shift_remove(TRACE_KEY)
                    .and_then(|told| JobTrace::read(&told)),
                completion: response
                    .extra
                    .shift_remove(COMPLETION_KEY)
                    .and_then(|told| CompletionReport::read(&told)),
                ..FailureContext::default()
            }
        }
        Outcome::Rejected(_) => FailureContext::default(),
        Outcome::Failed(details) => FailureContext::take_from(&mut details.context),
        Outcome::HordeFailed(details) => FailureContext::take_from(&mut details.context),
    }
}

/// Adds the miner's complaint to a failure that this validator found by itself: a miner that refuses a session gives
/// its reason as text and hangs up.
pub fn add_complaint(outcome: Outcome, complaint: Option<&str>) -> Outcome {
    match (outcome, complaint) {
        (Outcome::HordeFailed(details), Some(complaint))
            if details.reported_by == ParticipantType::Validator =>
        {
            let complaint: String = complaint.chars().take(MAX_COMPLAINT_CHARS).collect();
            let mut context = details.context.clone().unwrap_or_else(|| json!({}));
            if let Some(context) = context.as_object_mut() {
                context.insert("miner_said".to_owned(), json!(complaint));
            }
            Outcome::HordeFailed(HordeFailureDetails {
                context: Some(context),
                ..details
            })
        }
        (outcome, Some(_) | None) => outcome,
    }
}

/// States of an image that came to none of several miners of different owners that its registry is slow or away. That
/// is the user's fault, as far as anyone can know.
pub fn explain_slow_image(outcome: Outcome, image: &str, miners: u32) -> Outcome {
    match outcome {
        Outcome::HordeFailed(details) if miners > 1 => {
            let mut context = details.context.clone().unwrap_or_else(|| json!({}));
            if let Some(context) = context.as_object_mut() {
                context.insert(IMAGE_FETCH_KEY.to_owned(), json!(ImageFetchFailure::CameToNobody));
                context.insert("fault".to_owned(), json!(Fault::User));
            }
            let message = format!(
                "the image {image} came to none of {miners} miners of different owners, so its registry seems to be slow or \
                 away: check it, allow more time for the image, or submit the job with the image as an archive; the last \
                 of them said: {}",
                details.message
            );
            Outcome::HordeFailed(HordeFailureDetails {
                reported_by: ParticipantType::Validator,
                message,
                context: Some(context),
                ..details
            })
        }
        outcome @ (Outcome::Completed(_)
        | Outcome::Rejected(_)
        | Outcome::Failed(_)
        | Outcome::HordeFailed(_)) => outcome,
    }
}

/// The outcome with the list of attempts in its context, if there was more than one.
fn add_attempts(mut outcome: Outcome, attempts: &[EndedAttempt]) -> Outcome {
    if attempts.len() < 2 {
        return outcome;
    }
    let context = match &mut outcome {
        Outcome::Completed(_) => return outcome,
        Outcome::Rejected(details) => &mut details.context,
        Outcome::Failed(details) => &mut details.context,
        Outcome::HordeFailed(details) => &mut details.context,
    };
    let attempts: Value = attempts
        .iter()
        .map(|ended| json!({ "attempt": ended.attempt, "miner": ended.miner, "ended": describe(&ended.outcome) }))
        .collect();
    *context = Some(match context.take() {
        None => json!({ "attempts": attempts }),
        Some(reported) => json!({ "attempts": attempts, "reported": reported }),
    });
    outcome
}

/// The outcome of a job of the validator's own: if the validator called the job off, that is no user's fault, and the
/// message states it.
pub fn excuse_own_cancellation(outcome: Outcome) -> Outcome {
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

/// The party at fault for an outcome, as operators see it.
pub fn fault_of(outcome: &Outcome) -> Fault {
    let Outcome::Failed(details) = outcome else {
        return outcome.fault();
    };
    let context = details.context.as_ref();
    let field = |name: &str| context.and_then(|context| context.get(name));
    let excused =
        field("cancelled") == Some(&Value::Bool(true)) && field("fault") == Some(&json!(Fault::Nobody));
    if excused { Fault::Nobody } else { outcome.fault() }
}

/// Describes an outcome in one line: `rejected: busy (all executors are at work)`.
pub fn describe(outcome: &Outcome) -> String {
    let status = outcome.status();
    match outcome {
        Outcome::Completed(_) => status.to_string(),
        Outcome::Rejected(details) => format!("{status}: {} ({})", details.reason, details.message),
        Outcome::Failed(details) => format!("{status}: {} ({})", details.reason, details.message),
        Outcome::HordeFailed(details) => format!("{status}: {} ({})", details.reason, details.message),
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::status::{HordeFailureReason, JobRejectionReason};
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
    fn an_image_that_came_to_two_owners_miners_is_the_users_fault_and_one_that_came_to_one_is_nobodys() {
        let stalled = |by, failure: &str| {
            Outcome::HordeFailed(HordeFailureDetails {
                reported_by: by,
                reason: HordeFailureReason::GenericError,
                message: "the bytes stopped".to_owned(),
                context: Some(json!({ "image_fetch": failure, "code": "E0031" })),
            })
        };
        let told = |miners| explain_slow_image(stalled(ParticipantType::Executor, "stalled"), "a:1", miners);
        assert_eq!(
            (told(1).fault(), fault_of(&told(1))),
            (Fault::Nobody, Fault::Nobody)
        );
        assert_eq!((told(2).fault(), fault_of(&told(2))), (Fault::User, Fault::User));
        assert!(!told(2).is_paid() && !told(2).is_excuse());
        let metadata = told(2).metadata().horde_failure_details.unwrap();
        assert!(
            metadata.message.contains("came to none of 2 miners"),
            "{}",
            metadata.message
        );
        let context = metadata.context.unwrap();
        assert_eq!(
            (&context["image_fetch"], &context["code"]),
            (&json!("came_to_nobody"), &json!("E0031"))
        );
        // A miner cannot report that of others.
        let claimed = stalled(ParticipantType::Executor, "came_to_nobody");
        assert_eq!(claimed.image_fetch_failure(), None);
        assert_eq!(claimed.fault(), Fault::Executor);
    }

    #[test]
    fn a_cancellation_of_the_validators_own_job_is_no_users_fault() {
        let cancelled = Outcome::cancelled(muster_protocol::JobStage::Execution, "its grading is over");
        let ours = excuse_own_cancellation(cancelled.clone());
        assert_eq!(
            (describe(&ours), fault_of(&ours)),
            (
                "failed: unknown (the validator called off this job of its own: its grading is over)"
                    .to_owned(),
                Fault::Nobody
            )
        );
        assert_eq!(ours.status(), cancelled.status());
        // Any other outcome is unchanged.
        assert_eq!(
            (excuse_own_cancellation(busy()), fault_of(&busy())),
            (busy(), Fault::Miner)
        );
        assert_eq!(fault_of(&cancelled), Fault::User);
    }

    #[test]
    fn the_image_and_what_a_failed_attempt_left_stand_beside_the_failure() {
        let image = json!({ "name": "a", "id": format!("sha256:{}", "7".repeat(64)), "manifest": null });
        let failed = |context: Value| {
            Outcome::HordeFailed(HordeFailureDetails {
                reported_by: ParticipantType::Executor,
                reason: HordeFailureReason::GenericError,
                message: "the store is away".to_owned(),
                context: Some(context),
            })
        };
        let attempt = |outcome: &Outcome| EndedAttempt {
            ordinal: 1,
            attempt: AttemptId::first_of(job(1)),
            miner: miner(1),
            outcome: outcome.clone(),
            stages: Vec::new(),
        };
        let told =
            json!({ "code": "E0019", "ran": image, "stdout": "so far", "artifacts": { "/a": "QQ==" } });
        let outcome = failed(told.clone());
        for count in [1, 2] {
            let metadata = final_metadata(&outcome, &vec![attempt(&outcome); count], vec![], None, vec![]);
            let extension = metadata.muster.unwrap();
            assert_eq!(json!(extension.image), image);
            let partial = extension.partial.unwrap();
            assert_eq!(
                (partial.stdout.as_str(), partial.artifacts["/a"].as_str()),
                ("so far", "QQ==")
            );
            let context = metadata.horde_failure_details.unwrap().context.unwrap();
            let kept = if count == 1 {
                &context
            } else {
                &context["reported"]
            };
            assert_eq!(kept, &json!({ "code": "E0019" }));
        }
        let report = json!({ "compute_ms": 1_500, "metrics": { "loss": 0.5 } });
        let told = failed(json!({ "completion": report }));
        let metadata = final_metadata(&told, &[attempt(&told)], vec![], None, vec![]);
        assert_eq!(json!(metadata.muster.unwrap().completion), report);
        let done = Outcome::Completed(Box::new(MinerResponse {
            extra: [("completion".to_owned(), report.clone())].into_iter().collect(),
            ..MinerResponse::default()
        }));
        let metadata = final_metadata(&done, &[attempt(&done)], vec![], None, vec![]);
        assert_eq!(json!(metadata.muster.unwrap().completion), report);
        assert!(metadata.miner_response.unwrap().extra.is_empty());
        // A form that is not ours stays, and nothing is made of it.
        let odd = failed(json!({ "ran": 7, "artifacts": "none" }));
        let metadata = final_metadata(&odd, &[attempt(&odd)], vec![], None, vec![]);
        let extension = metadata.muster.unwrap();
        assert_eq!((extension.image, extension.partial), (None, None));
        assert_eq!(
            metadata.horde_failure_details.unwrap().context,
            Some(json!({ "ran": 7, "artifacts": "none" }))
        );
        // A result names its image too.
        let mut response = MinerResponse::default();
        response.extra.insert("image".to_owned(), image.clone());
        let done = Outcome::Completed(Box::new(response));
        let metadata = final_metadata(&done, &[attempt(&done)], vec![], None, vec![]);
        assert_eq!(json!(metadata.muster.unwrap().image), image);
    }

    #[test]
    fn several_attempts_are_listed_and_what_the_last_miner_said_is_kept() {
        let ended = |seed| EndedAttempt {
            ordinal: u32::try_from(seed).unwrap(),
            attempt: AttemptId::first_of(job(seed)),
            miner: miner(1),
            outcome: busy(),
            stages: Vec::new(),
        };
        let one = final_metadata(&busy(), &[ended(1)], vec![], None, vec![]);
        assert_eq!(
            one.job_rejection_details.unwrap().context,
            Some(json!({ "executors": 1 }))
        );
        let two = final_metadata(&busy(), &[ended(1), ended(2)], vec![], None, vec![]);
        let context = two.job_rejection_details.unwrap().context.unwrap();
        assert_eq!(context["attempts"].as_array().unwrap().len(), 2);
        assert_eq!(context["attempts"][0]["ended"], "rejected: busy (at work)");
        assert_eq!(context["reported"]["executors"], 1);
        assert_eq!(two.muster.unwrap().attempt, Some(AttemptId::first_of(job(2))));
    }

    #[test]
    fn a_route_tells_each_decision_with_the_end_of_its_attempt() {
        let ended = |ordinal, outcome| EndedAttempt {
            ordinal,
            attempt: AttemptId::first_of(job(1)),
            miner: miner(1),
            outcome,
            stages: Vec::new(),
        };
        let decided = |candidates| RouteStep {
            miner: Some(miner(2)),
            candidates,
            ..RouteStep::default()
        };
        let done = Outcome::Completed(Box::default());
        let attempts = [ended(1, busy()), ended(2, done.clone())];
        let decisions = vec![(1, decided(3)), (2, decided(2)), (3, decided(0))];
        let told = final_metadata(&done, &attempts, vec![], None, decisions)
            .muster
            .unwrap();
        let ends: Vec<_> = told
            .route
            .iter()
            .map(|step| (step.candidates, step.miner, step.ended.as_deref()))
            .collect();
        assert_eq!(
            ends,
            [
                (3, Some(miner(1)), Some("rejected: busy (at work)")),
                (2, Some(miner(1)), Some("completed")),
                (0, None, None),
            ]
        );
        // A job that came to nobody states why.
        let told = final_metadata(&busy(), &[], vec![], None, vec![(1, decided(0))]);
        let told = told.muster.unwrap();
        assert_eq!((told.attempt, told.route.len()), (None, 1));
        // The newest decisions are reported.
        let many = (1..=40).map(|ordinal| (ordinal, decided(ordinal))).collect();
        let told = final_metadata(&done, &attempts, vec![], None, many)
            .muster
            .unwrap();
        assert_eq!(
            (told.route.len(), told.route.last().map(|step| step.candidates)),
            (MAX_ROUTE_STEPS, Some(40))
        );
        assert_eq!(final_metadata(&busy(), &[], vec![], None, vec![]).muster, None);
    }
}
