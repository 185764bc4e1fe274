//! What follows the end of an attempt: another miner, or the user's last word.

use muster_protocol::job::{Fault, Outcome};

/// What is decided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
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
pub enum Next {
    /// Ask another miner, under an attempt id of its own.
    TryAnother,
    /// Tell the user.
    Report(Because),
}

/// Why no other miner is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
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
pub fn next(outcome: &Outcome, facts: Facts) -> Next {
    if facts.cancelled {
        return Next::Report(Because::Cancelled);
    }
    let users = match outcome {
        Outcome::Completed(_) => return Next::Report(Because::Done),
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
        Next::Report(Because::UsersFault)
    } else if facts.address_told {
        Next::Report(Because::AddressTold)
    } else if facts.attempts >= facts.max_attempts {
        Next::Report(Because::OutOfAttempts)
    } else {
        Next::TryAnother
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::status::{HordeFailureReason, JobRejectionReason, JobStage, ParticipantType};
    use muster_protocol::wire::facilitator::{HordeFailureDetails, RejectionDetails};
    use serde_json::json;

    use super::*;

    const FIRST: Facts = Facts {
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
            assert_eq!(next(&horde(reason, None), FIRST), Next::TryAnother, "{reason}");
        }
        assert_eq!(next(&declined(), FIRST), Next::TryAnother);
        let generic = HordeFailureReason::GenericError;
        assert_eq!(next(&horde(generic, Some("network")), FIRST), Next::TryAnother);
        assert_eq!(
            next(&horde(generic, Some("user")), FIRST),
            Next::Report(Because::UsersFault)
        );
        let failed = Outcome::cancelled(JobStage::Execution, "");
        assert_eq!(next(&failed, FIRST), Next::Report(Because::UsersFault));
        let done = Outcome::Completed(Box::default());
        assert_eq!(next(&done, FIRST), Next::Report(Because::Done));
    }

    #[test]
    fn nothing_is_tried_again_without_end_after_a_cancellation_or_behind_a_users_back() {
        let lost = horde(HordeFailureReason::ExecutorDisconnected, None);
        let with = |facts: Facts| next(&lost, facts);
        assert_eq!(
            with(Facts { attempts: 3, ..FIRST }),
            Next::Report(Because::OutOfAttempts)
        );
        assert_eq!(
            with(Facts {
                cancelled: true,
                ..FIRST
            }),
            Next::Report(Because::Cancelled)
        );
        assert_eq!(
            with(Facts {
                address_told: true,
                ..FIRST
            }),
            Next::Report(Because::AddressTold)
        );
    }
}
