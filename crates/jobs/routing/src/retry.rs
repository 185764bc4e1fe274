//! What follows the end of an attempt: another miner, or the user's last word.

use muster_protocol::job::{Fault, Outcome};

/// What is decided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryContext {
    /// Attempts that there have been, this one included.
    pub attempts: u32,
    /// Attempts that a job may have.
    pub max_attempts: u32,
    /// Whether the user has called the job off.
    pub cancelled: bool,
    /// Whether the user was told where a streaming job answers. Another attempt would answer elsewhere, and a status is
    /// not told twice.
    pub address_told: bool,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Ask another miner, under an attempt id of its own.
    TryAnother,
    /// Tell the user.
    Report(ReportReason),
}

/// Why no other miner is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportReason {
    /// It worked.
    Done,
    /// The fault is the user's: another miner would meet it too.
    UsersFault,
    /// Nobody wants the job any longer.
    Cancelled,
    /// A user is connected to where this attempt answered.
    AddressTold,
    /// There have been as many attempts as there may be.
    OutOfAttempts,
}

/// Decides.
///
/// A job that fails by anybody's fault but its user's is tried elsewhere, also when its miner had accepted it. What it
/// does outside (its uploads) then happens at most once per attempt; results of an attempt that was given up are dropped by
/// its id. See ADR 0025.
pub fn next_step(outcome: &Outcome, context: RetryContext) -> NextStep {
    if context.cancelled {
        return NextStep::Report(ReportReason::Cancelled);
    }
    let users = match outcome {
        Outcome::Completed(_) => return NextStep::Report(ReportReason::Done),
        // A program that fails fails everywhere; and a miner that lies about it is found out by audits, not by retries.
        Outcome::Failed(_) => true,
        // The user's signature was checked at the door: a miner that refuses means us.
        Outcome::Rejected(_) => false,
        Outcome::HordeFailed(_) => match outcome.fault() {
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
    } else if context.attempts >= context.max_attempts {
        NextStep::Report(ReportReason::OutOfAttempts)
    } else {
        NextStep::TryAnother
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::status::{HordeFailureReason, JobRejectionReason, JobStage, ParticipantType};
    use muster_protocol::wire::facilitator::{HordeFailureDetails, RejectionDetails};
    use serde_json::json;

    use super::*;

    const FIRST: RetryContext = RetryContext {
        attempts: 1,
        max_attempts: 3,
        cancelled: false,
        address_told: false,
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
    fn whatever_is_not_the_users_fault_is_tried_elsewhere() {
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
}
