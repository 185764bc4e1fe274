//! The step after the end of an attempt: another miner, or the report to the user.

use muster_protocol::job::{Fault, Outcome};

/// The facts that decide the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryContext {
    /// Attempts so far, this one included.
    pub attempts: u32,
    /// The most attempts that a job may have.
    pub max_attempts: u32,
    /// Whether the user has cancelled the job.
    pub cancelled: bool,
    /// Attempts of the job, this one included, to which the image did not come although nobody is at fault.
    pub slow_images: u32,
    /// Whether another miner had the job's image lately, so that a claim that it cannot be had is wrong.
    pub image_elsewhere: bool,
    /// Whether the miner of another owner lately started the same program, so that a claim that the image is broken is
    /// wrong.
    pub started_elsewhere: bool,
    /// Whether the user knows the address of a streaming job. Another attempt would have another address, and a status
    /// is not reported twice.
    pub address_told: bool,
    /// Of a job that leaves checkpoints: whether another attempt may go on from what the last one left, by its own
    /// rules. `None` for any other job, and if the last attempt never had an executor.
    pub goes_on: Option<bool>,
}

/// The step after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Ask another miner, under an attempt id of its own.
    TryAnother,
    /// Report the end to the user.
    Report(ReportReason),
}

/// The reason why no other miner is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportReason {
    /// The attempt succeeded.
    Done,
    /// The user is at fault: another miner would fail as well.
    UsersFault,
    /// The user has cancelled the job.
    Cancelled,
    /// A user is connected to the address of this attempt.
    AddressTold,
    /// The image came to none of the miners that tried it.
    ImageCameToNobody,
    /// The job has had all its attempts.
    OutOfAttempts,
}

/// Miners, of different owners, that try an image which does not come. A second one distinguishes a slow miner from a
/// slow registry; a third would only wait longer.
pub const MAX_SLOW_IMAGES: u32 = 2;

/// Decides the step after an attempt.
///
/// A job that fails by another party's fault than its user's is tried elsewhere, also when its miner had accepted it.
/// Its effects outside (its uploads) then happen at most once per attempt; results of an abandoned attempt are dropped
/// by its id. See ADR 0025.
pub fn next_step(outcome: &Outcome, context: RetryContext) -> NextStep {
    if context.cancelled {
        return NextStep::Report(ReportReason::Cancelled);
    }
    // A job with checkpoints knows failures of its program that another attempt mends, and others that none does.
    let users = match outcome {
        Outcome::Completed(_) => return NextStep::Report(ReportReason::Done),
        Outcome::Failed(_) | Outcome::Rejected(_) | Outcome::HordeFailed(_)
            if context.goes_on == Some(true) =>
        {
            false
        }
        Outcome::Failed(_) | Outcome::Rejected(_) | Outcome::HordeFailed(_)
            if context.goes_on == Some(false) =>
        {
            true
        }
        Outcome::Failed(_) if outcome.is_broken_image() && context.started_elsewhere => false,
        // No other miner can show what such a claim is worth but by a try of its own.
        Outcome::Failed(_) if outcome.is_unnamed_broken_image() => false,
        // A failing program fails at every miner; audits, not retries, find a miner that lies about it.
        Outcome::Failed(_) => true,
        // The user's signature was checked on admission: a miner's rejection is about us.
        Outcome::Rejected(_) => false,
        Outcome::HordeFailed(_) => match outcome.fault() {
            Fault::User if outcome.image_fetch_failure().is_some() => !context.image_elsewhere,
            Fault::User => true,
            Fault::Nobody
            | Fault::Executor
            | Fault::Miner
            | Fault::Validator
            | Fault::Facilitator
            | Fault::Network => false,
        },
    };
    if users {
        NextStep::Report(ReportReason::UsersFault)
    } else if context.address_told {
        NextStep::Report(ReportReason::AddressTold)
    } else if context.slow_images >= MAX_SLOW_IMAGES {
        NextStep::Report(ReportReason::ImageCameToNobody)
    } else if context.attempts >= context.max_attempts {
        NextStep::Report(ReportReason::OutOfAttempts)
    } else {
        NextStep::TryAnother
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::status::{HordeFailureReason, JobRejectionReason, JobStage, ParticipantType};
    use muster_protocol::wire::facilitator::{FailureDetails, HordeFailureDetails, RejectionDetails};
    use muster_protocol::{Digest, ImageId, JobFailureReason};
    use serde_json::json;

    use super::*;

    const FIRST: RetryContext = RetryContext {
        attempts: 1,
        max_attempts: 3,
        slow_images: 0,
        image_elsewhere: false,
        started_elsewhere: false,
        cancelled: false,
        address_told: false,
        goes_on: None,
    };

    fn horde(reason: HordeFailureReason, fault: Option<&str>) -> Outcome {
        Outcome::HordeFailed(HordeFailureDetails {
            reported_by: ParticipantType::Miner,
            reason,
            message: String::new(),
            context: fault.map(|fault| json!({ "fault": fault })),
        })
    }

    fn declined() -> Outcome {
        Outcome::Rejected(RejectionDetails {
            rejected_by: ParticipantType::Miner,
            reason: JobRejectionReason::Busy,
            message: String::new(),
            context: None,
        })
    }

    #[test]
    fn an_image_that_does_not_come_is_tried_by_two_miners_and_one_that_is_not_there_by_one() {
        let image = |failure: &str| {
            Outcome::HordeFailed(HordeFailureDetails {
                reported_by: ParticipantType::Executor,
                reason: HordeFailureReason::GenericError,
                message: String::new(),
                context: Some(json!({ "image_fetch": failure, "fault": "user" })),
            })
        };
        let with = |slow_images, image_elsewhere| RetryContext {
            slow_images,
            image_elsewhere,
            ..FIRST
        };
        for slow in ["stalled", "timed_out", "unreachable"] {
            assert_eq!(next_step(&image(slow), with(1, false)), NextStep::TryAnother);
            assert_eq!(
                next_step(&image(slow), with(2, false)),
                NextStep::Report(ReportReason::ImageCameToNobody)
            );
        }
        for users in ["no_such_image", "no_right", "too_large", "wrong_platform"] {
            assert_eq!(
                next_step(&image(users), with(0, false)),
                NextStep::Report(ReportReason::UsersFault)
            );
            // A miner that has the image shows that the claim is wrong.
            assert_eq!(next_step(&image(users), with(0, true)), NextStep::TryAnother);
        }
    }

    #[test]
    fn failures_that_are_not_the_users_are_tried_elsewhere() {
        for &reason in HordeFailureReason::ALL {
            assert_eq!(
                next_step(&horde(reason, None), FIRST),
                NextStep::TryAnother,
                "{reason}"
            );
        }
        assert_eq!(next_step(&declined(), FIRST), NextStep::TryAnother);
        let generic = HordeFailureReason::GenericError;
        assert_eq!(
            next_step(&horde(generic, Some("network")), FIRST),
            NextStep::TryAnother
        );
        assert_eq!(
            next_step(&horde(generic, Some("user")), FIRST),
            NextStep::Report(ReportReason::UsersFault)
        );
        let failed = Outcome::cancelled(JobStage::Execution, "");
        assert_eq!(
            next_step(&failed, FIRST),
            NextStep::Report(ReportReason::UsersFault)
        );
        let done = Outcome::Completed(Box::default());
        assert_eq!(next_step(&done, FIRST), NextStep::Report(ReportReason::Done));
    }

    #[test]
    fn a_job_with_checkpoints_goes_on_by_its_own_rules() {
        let saved = Outcome::cancelled(JobStage::Execution, "");
        let lost = horde(HordeFailureReason::ExecutorDisconnected, None);
        let with = |goes_on, attempts| RetryContext {
            goes_on: Some(goes_on),
            attempts,
            ..FIRST
        };
        for outcome in [&saved, &lost] {
            assert_eq!(next_step(outcome, with(true, 1)), NextStep::TryAnother);
            assert_eq!(
                next_step(outcome, with(false, 1)),
                NextStep::Report(ReportReason::UsersFault)
            );
            assert_eq!(
                next_step(outcome, with(true, 3)),
                NextStep::Report(ReportReason::OutOfAttempts)
            );
        }
        let done = Outcome::Completed(Box::default());
        assert_eq!(
            next_step(&done, with(true, 1)),
            NextStep::Report(ReportReason::Done)
        );
    }

    #[test]
    fn nothing_is_tried_again_without_end_after_a_cancellation_or_behind_a_users_back() {
        let lost = horde(HordeFailureReason::ExecutorDisconnected, None);
        let with = |context: RetryContext| next_step(&lost, context);
        assert_eq!(
            with(RetryContext { attempts: 3, ..FIRST }),
            NextStep::Report(ReportReason::OutOfAttempts)
        );
        assert_eq!(
            with(RetryContext {
                cancelled: true,
                ..FIRST
            }),
            NextStep::Report(ReportReason::Cancelled)
        );
        assert_eq!(
            with(RetryContext {
                address_told: true,
                ..FIRST
            }),
            NextStep::Report(ReportReason::AddressTold)
        );
    }

    #[test]
    fn a_broken_image_is_tried_once_unless_another_miner_has_started_it() {
        let failed_with = |context| {
            Outcome::Failed(Box::new(FailureDetails {
                reason: JobFailureReason::Unknown,
                stage: JobStage::Execution,
                message: String::new(),
                context: Some(context),
                docker_process_exit_status: None,
                docker_process_stdout: None,
                docker_process_stderr: None,
            }))
        };
        let id = ImageId(Digest::of(b"x"));
        let broken = failed_with(json!({ "broken_image": true, "ran": { "id": id } }));
        // A claim that names no image is not believed.
        let unnamed = failed_with(json!({ "broken_image": true }));
        assert_eq!(next_step(&unnamed, FIRST), NextStep::TryAnother);
        assert_eq!(
            next_step(&broken, FIRST),
            NextStep::Report(ReportReason::UsersFault)
        );
        let started_elsewhere = RetryContext {
            started_elsewhere: true,
            ..FIRST
        };
        assert_eq!(next_step(&broken, started_elsewhere), NextStep::TryAnother);
    }
}
