//! Whether a job that failed on one miner is tried on another. Pure.

use muster_protocol::job::Outcome;

/// What follows the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask another miner.
    TryAnother,
    /// Tell the user.
    Report,
}

/// Decides.
///
/// Once a miner has accepted, the job may have had effects outside (an upload, a request of its own while inputs were
/// fetched), so it is never run a second time behind its user's back. Before that, every end but the job's own failure
/// is a matter between us and that miner: the user's signature was checked at the door.
pub(super) fn next(outcome: &Outcome, accepted: bool, attempts: usize, max_attempts: u32) -> Next {
    let left = attempts < usize::try_from(max_attempts).unwrap_or(usize::MAX);
    match outcome {
        Outcome::Completed(_) | Outcome::Failed(_) => Next::Report,
        Outcome::Rejected(_) | Outcome::HordeFailed(_) if accepted || !left => Next::Report,
        Outcome::Rejected(_) | Outcome::HordeFailed(_) => Next::TryAnother,
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::status::{HordeFailureReason, JobRejectionReason, ParticipantType};
    use muster_protocol::wire::facilitator::{HordeFailureDetails, RejectionDetails};

    use super::*;

    #[test]
    fn only_what_no_miner_began_is_tried_again_and_not_for_ever() {
        let declined = Outcome::Rejected(RejectionDetails {
            rejected_by: ParticipantType::Miner,
            reason: JobRejectionReason::Busy,
            message: String::new(),
            context: None,
        });
        let lost = Outcome::HordeFailed(HordeFailureDetails {
            reported_by: ParticipantType::Validator,
            reason: HordeFailureReason::MinerConnectionFailed,
            message: String::new(),
            context: None,
        });
        for outcome in [&declined, &lost] {
            assert_eq!(next(outcome, false, 1, 3), Next::TryAnother);
            assert_eq!(next(outcome, false, 3, 3), Next::Report);
            assert_eq!(next(outcome, true, 1, 3), Next::Report);
        }
        assert_eq!(
            next(&Outcome::Completed(Box::default()), true, 1, 3),
            Next::Report
        );
    }
}
