//! Marks of images whose programs may tell machines apart, and what a difference of a user's job does. Pure.
//!
//! A user chooses the program, so a difference says something about the program or about the miner, and nobody can tell
//! which. It refunds the one job and marks the image. It is no evidence about a miner.

use std::time::Duration;

use muster_protocol::wire::checks::CheckState;
use muster_protocol::{JobId, Timestamp};

use crate::verdict::CheckVerdict;

/// The time for which a mark stands.
pub const MARKED_FOR: Duration = Duration::from_secs(30 * 86_400);

/// The mark of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageMark {
    /// The job whose outputs differed.
    pub job: JobId,
    /// When they did.
    pub at: Timestamp,
}

/// The effect of the verdict about a user's job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckEffect {
    /// The verdict for the user.
    pub verdict: CheckVerdict,
    /// Whether the attempt is refunded, and the image marked.
    pub refunds: bool,
}

/// The effect of a verdict about a user's job with an image of this mark, if it has one.
pub fn effect_of(verdict: CheckVerdict, mark: Option<&ImageMark>, now: Timestamp) -> CheckEffect {
    let refunds = verdict.state == CheckState::Differs;
    match mark.filter(|mark| refunds && stands(mark, now)) {
        Some(mark) => CheckEffect {
            verdict: CheckVerdict {
                outputs: verdict.outputs,
                ..CheckVerdict::unproven(uncounted(mark))
            },
            refunds: false,
        },
        None => CheckEffect { verdict, refunds },
    }
}

/// Whether a mark stands.
pub fn stands(mark: &ImageMark, now: Timestamp) -> bool {
    now.since(mark.at) < MARKED_FOR
}

/// The reason why no check of a marked image counts.
pub fn uncounted(mark: &ImageMark) -> String {
    format!(
        "the image of the job may tell machines apart, as job {} showed, so its outputs prove nothing for thirty days",
        mark.job
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn verdict(state: CheckState) -> CheckVerdict {
        CheckVerdict {
            state,
            ..CheckVerdict::unproven("")
        }
    }

    fn any_state() -> impl Strategy<Value = CheckState> {
        prop_oneof![
            Just(CheckState::Agrees),
            Just(CheckState::Differs),
            Just(CheckState::Unproven)
        ]
    }

    #[test]
    fn a_mark_lasts_thirty_days() {
        let at = Timestamp::from_secs(100);
        let job = JobId::from_uuid(Uuid::from_u128(1));
        let mark = ImageMark { job, at };
        let refunds = |now| effect_of(verdict(CheckState::Differs), Some(&mark), now).refunds;
        assert!(!refunds(at));
        assert!(!refunds(at.plus(MARKED_FOR).minus(Duration::from_secs(1))));
        assert!(refunds(at.plus(MARKED_FOR)));
    }

    proptest! {
        /// Users' jobs with images of their choice: of each image one difference in thirty days refunds.
        #[test]
        fn an_image_costs_one_refund_in_thirty_days_and_no_other_image_is_touched(
            jobs in prop::collection::vec((0_u8..3, any_state(), 0_i64..5), 0..60),
        ) {
            let mut marks: BTreeMap<u8, ImageMark> = BTreeMap::new();
            let mut refunded: BTreeMap<u8, Vec<Timestamp>> = BTreeMap::new();
            let mut now = Timestamp::from_secs(0);
            for (number, (image, state, days)) in jobs.iter().enumerate() {
                now = now.plus(Duration::from_secs(u64::try_from(days * 86_400).unwrap()));
                let effect = effect_of(verdict(*state), marks.get(image), now);
                let is_free = marks.get(image).is_none_or(|mark| !stands(mark, now));
                prop_assert_eq!(effect.refunds, *state == CheckState::Differs && is_free);
                prop_assert!(effect.refunds == (effect.verdict.state == CheckState::Differs));
                if effect.refunds {
                    let job = JobId::from_uuid(Uuid::from_u128(number as u128));
                    marks.insert(*image, ImageMark { job, at: now });
                    refunded.entry(*image).or_default().push(now);
                }
            }
            for times in refunded.values() {
                prop_assert!(times.windows(2).all(|pair| pair[1].since(pair[0]) >= MARKED_FOR));
            }
        }
    }
}
