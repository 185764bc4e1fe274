//! The earlier attempts of a job, as far as they decide who may be asked next: the miners that are not asked again, and
//! the attempts that count against the most that a job may have.

use std::collections::BTreeSet;

use muster_protocol::job::{Attempt, ImageFetchFailure, Outcome};
use muster_protocol::status::{HordeFailureReason, JobRejectionReason};
use muster_protocol::{Hotkey, MinerKey};

/// An earlier attempt of a job.
#[derive(Clone, Copy, Debug)]
pub struct EarlierAttempt<'a> {
    /// The miner that was asked.
    pub miner: MinerKey,
    /// The state of the attempt.
    pub machine: &'a Attempt,
    /// Whether it has left a checkpoint that was kept.
    pub has_checkpoint: bool,
    /// Whether its miner may have the next attempt as well.
    pub may_return: bool,
}

/// The kind of a job, as far as it decides which attempts count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedFor {
    /// Whether the validator ordered the job itself. Such a job does not wait.
    pub is_own: bool,
    /// Whether only the validator's trusted miner may run it.
    pub on_trusted_miner: bool,
}

impl<'a> EarlierAttempt<'a> {
    /// An attempt of a job without checkpoints.
    pub fn new(miner: MinerKey, machine: &'a Attempt) -> Self {
        Self {
            miner,
            machine,
            has_checkpoint: false,
            may_return: false,
        }
    }

    /// Whether the miner declined the attempt because it was busy, or had no slot for the fetch of the image.
    pub fn was_declined_as_busy(&self) -> bool {
        self.machine.outcome().is_some_and(was_busy)
    }

    /// Whether the miner did not get the job's image in time.
    pub fn is_without_image(&self) -> bool {
        let failure = self.machine.outcome().and_then(Outcome::image_fetch_failure);
        failure.is_some_and(|failure| !failure.is_about_the_miner())
    }

    /// Whether the miner could not be reached before an executor had the job.
    fn was_out_of_reach(&self) -> bool {
        match self.machine.outcome() {
            Some(Outcome::HordeFailed(details)) => {
                details.reason == HordeFailureReason::MinerConnectionFailed
                    && self.machine.ready_at().is_none()
            }
            Some(Outcome::Completed(_) | Outcome::Failed(_) | Outcome::Rejected(_)) | None => false,
        }
    }
}

/// Whether an attempt ended with its miner's word that it was busy: with jobs, or with fetches for others.
fn was_busy(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Rejected(details) => details.reason == JobRejectionReason::Busy,
        Outcome::HordeFailed(_) => outcome.image_fetch_failure() == Some(ImageFetchFailure::NoSlot),
        Outcome::Completed(_) | Outcome::Failed(_) => false,
    }
}

/// The attempts since a job last made progress: the last one that left a checkpoint, and those after it. A miner that
/// failed before that may be asked again, or a job of a month would run out of miners.
fn since_progress<'a, 'b>(
    attempts: &'b [EarlierAttempt<'a>],
) -> impl Iterator<Item = &'b EarlierAttempt<'a>> {
    let last = attempts.iter().rposition(|attempt| attempt.has_checkpoint);
    attempts.iter().skip(last.unwrap_or_default())
}

/// The miners that are not asked for a job that does not wait: all that were asked. A miner that was busy is asked
/// again only after the job has waited. No other miner stands in for the trusted one; the ledger remembers that it was
/// busy.
pub fn asked_miners(earlier: &[EarlierAttempt<'_>], job: AskedFor) -> BTreeSet<MinerKey> {
    if job.on_trusted_miner && !job.is_own {
        return BTreeSet::new();
    }
    let asked = since_progress(earlier).filter(|attempt| !attempt.may_return);
    asked.map(|attempt| attempt.miner).collect()
}

/// The miners that have had their attempt at a job that waits: all but those that only reported that they were busy.
/// The trusted miner may be asked again, because no other miner runs its jobs.
pub fn tried_miners(earlier: &[EarlierAttempt<'_>], on_trusted_miner: bool) -> BTreeSet<MinerKey> {
    if on_trusted_miner {
        return BTreeSet::new();
    }
    let real = since_progress(earlier).filter(|attempt| !attempt.was_declined_as_busy());
    let real = real.filter(|attempt| !attempt.may_return);
    real.map(|attempt| attempt.miner).collect()
}

/// The owners whose miners are not asked again, because one of them did not get the job's image in time: an owner's
/// miners mostly share a line. `owner_of` is the chain's word for the owner of a miner.
pub fn avoided_owners(
    earlier: &[EarlierAttempt<'_>],
    owner_of: impl Fn(MinerKey) -> Option<Hotkey>,
) -> BTreeSet<Hotkey> {
    let without = earlier.iter().filter(|attempt| attempt.is_without_image());
    without.filter_map(|attempt| owner_of(attempt.miner)).collect()
}

/// The number of attempts that count against the most that a job may have. A user's job waits while miners are busy, so
/// their word for it does not count, and one for the trusted miner waits while that miner is away.
pub fn count_attempts<'a>(attempts: impl IntoIterator<Item = EarlierAttempt<'a>>, job: AskedFor) -> u32 {
    let counted = attempts
        .into_iter()
        .filter(|attempt| job.is_own || !attempt.was_declined_as_busy())
        .filter(|attempt| job.is_own || !job.on_trusted_miner || !attempt.was_out_of_reach());
    u32::try_from(counted.count()).unwrap_or(u32::MAX)
}

/// How the last of these attempts ended that was more than a miner's word that it is busy.
pub fn last_failure(earlier: &[EarlierAttempt<'_>]) -> Option<Outcome> {
    let mut real = earlier
        .iter()
        .rev()
        .filter(|attempt| !attempt.was_declined_as_busy());
    real.find_map(|attempt| attempt.machine.outcome().cloned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_protocol::job::{AttemptPlan, Event};
    use muster_protocol::status::ParticipantType;
    use muster_protocol::wire::facilitator::{HordeFailureDetails, RejectionDetails};
    use muster_protocol::wire::miner::ExecutorTiming;
    use muster_protocol::{ExecutorClass, Timestamp};
    use serde_json::json;

    use super::*;
    use crate::testing::hotkey;

    fn miner(seed: u8) -> MinerKey {
        MinerKey(hotkey(seed))
    }

    /// An attempt that its miner declined for this reason.
    fn declined(reason: JobRejectionReason) -> Attempt {
        let second = Duration::from_secs(1);
        let plan = AttemptPlan {
            class: ExecutorClass::AlwaysOnTest,
            streaming: false,
            timing: ExecutorTiming {
                allowed_leeway: 1,
                download_time_limit: 1,
                execution_time_limit: 1,
                upload_time_limit: 1,
                streaming_start_time_limit: 1,
            },
            dial: second,
            reservation: second,
            startup: second,
            reconnect: second,
            image: None,
        };
        let now = Timestamp::from_secs(1);
        let refusal = RejectionDetails {
            rejected_by: ParticipantType::Miner,
            reason,
            message: String::new(),
            context: None,
        };
        let offered = Attempt::new(plan, now).assume_offered(now);
        offered.apply(Event::Declined(refusal), now).unwrap().0
    }

    #[test]
    fn a_busy_miner_is_asked_again_once_the_job_has_waited() {
        let (busy, full) = (
            declined(JobRejectionReason::Busy),
            declined(JobRejectionReason::NoMinerForJob),
        );
        let earlier = [
            EarlierAttempt::new(miner(1), &full),
            EarlierAttempt::new(miner(2), &busy),
        ];
        assert_eq!(
            asked_miners(&earlier, AskedFor::default()),
            [miner(1), miner(2)].into()
        );
        assert_eq!(tried_miners(&earlier, false), [miner(1)].into());
        assert_eq!(count_attempts(earlier, AskedFor::default()), 1);
        assert_eq!(last_failure(&earlier), full.outcome().cloned());
        let own = AskedFor {
            is_own: true,
            on_trusted_miner: false,
        };
        assert_eq!(count_attempts(earlier, own), 2);
        assert_eq!(last_failure(&earlier[1..]), None);
    }

    #[test]
    fn a_miner_without_a_slot_for_the_fetch_is_busy() {
        let ended = |failure: &str| {
            Outcome::HordeFailed(HordeFailureDetails {
                reported_by: ParticipantType::Miner,
                reason: HordeFailureReason::GenericError,
                message: String::new(),
                context: Some(json!({ "image_fetch": failure })),
            })
        };
        assert!(was_busy(&ended("no_slot")));
        for failure in ["no_executor", "timed_out", "no_such_image"] {
            assert!(!was_busy(&ended(failure)), "{failure}");
        }
    }

    #[test]
    fn no_other_miner_stands_in_for_the_trusted_one() {
        let failed = declined(JobRejectionReason::NoMinerForJob);
        let earlier = [EarlierAttempt::new(miner(1), &failed)];
        let trusted = AskedFor {
            is_own: false,
            on_trusted_miner: true,
        };
        assert_eq!(asked_miners(&earlier, trusted), BTreeSet::new());
        assert_eq!(tried_miners(&earlier, true), BTreeSet::new());
        let own = AskedFor {
            is_own: true,
            ..trusted
        };
        assert_eq!(asked_miners(&earlier, own), [miner(1)].into());
    }

    #[test]
    fn progress_lets_earlier_miners_be_asked_again() {
        let failed = declined(JobRejectionReason::NoMinerForJob);
        let first = EarlierAttempt::new(miner(1), &failed);
        let left = EarlierAttempt {
            has_checkpoint: true,
            may_return: true,
            ..EarlierAttempt::new(miner(2), &failed)
        };
        let last = EarlierAttempt::new(miner(3), &failed);
        let earlier = [first, left, last];
        assert_eq!(asked_miners(&earlier, AskedFor::default()), [miner(3)].into());
        assert_eq!(tried_miners(&earlier, false), [miner(3)].into());
    }
}
