//! Which of the miner's answers a validator has left out of its log. Pure.

use std::time::Duration;

use muster_protocol::Timestamp;
use muster_response_proof::SessionId;

use crate::finding::{Finding, FindingKind, about_answer};

/// How long an answer may be in no header at all.
pub const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// An answer of the miner that stands in no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnlistedAnswer {
    /// The session that answered.
    pub session: SessionId,
    /// The number of the answer's proof.
    pub sequence: u64,
    /// When the answer ended.
    pub ended_at: Timestamp,
    /// The first bucket with a leaf of the same session and a higher number.
    pub later_in: Option<u64>,
}

/// The finding about an answer that stands in no header, if it has waited too long. A validator gives every answer that
/// it has found proven a place when it closes a bucket; an answer may miss the bucket of the next one by moments, but
/// not the bucket after it. `newest` is the newest bucket of which the miner has a header.
pub fn find_withheld(answer: &UnlistedAnswer, newest: Option<u64>, now: Timestamp) -> Option<Finding> {
    let was_passed = match (answer.later_in, newest) {
        (Some(later), Some(newest)) => later < newest,
        (None, _) | (_, None) => false,
    };
    let has_waited = now.since(answer.ended_at) >= LONGEST_WAIT;
    if !was_passed && !has_waited {
        return None;
    }
    let words = match answer.later_in {
        Some(later) => format!(
            "a later answer of the session stands in bucket {later}; the validator withheld this one, or did not find \
             it proven"
        ),
        None => "no header of a day has it; the validator withheld it, or did not find it proven".to_owned(),
    };
    Some(Finding::new(
        FindingKind::Withheld,
        about_answer(answer.session, answer.sequence),
        words,
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_secs(1_000_000)
    }

    fn unlisted(sequence: u64, age_s: u64, later_in: Option<u64>) -> UnlistedAnswer {
        UnlistedAnswer {
            session: SessionId(Uuid::from_u128(1)),
            sequence,
            ended_at: now().minus(Duration::from_secs(age_s)),
            later_in,
        }
    }

    #[test]
    fn an_answer_is_withheld_once_a_later_one_was_passed_by_a_bucket_or_after_a_day() {
        let found = |answer, newest| find_withheld(&answer, newest, now()).is_some();
        assert!(!found(unlisted(3, 60, None), Some(9)), "it is young");
        assert!(
            !found(unlisted(3, 60, Some(9)), Some(9)),
            "it may come in the next bucket"
        );
        assert!(found(unlisted(3, 60, Some(8)), Some(9)));
        assert!(found(unlisted(3, 86_400, None), None), "a day has passed");
        let words = find_withheld(&unlisted(3, 60, Some(8)), Some(9), now()).unwrap();
        assert!(words.about.starts_with("answer 3 of session"), "{words:?}");
    }

    proptest! {
        /// A validator that gives every answer a place in the bucket of its end or in the next one is never accused,
        /// and one that leaves an answer out is, once two more buckets with answers of the session were closed.
        #[test]
        fn an_honest_log_is_clean_and_an_omission_is_found(
            delays in prop::collection::vec(0u64..2, 3..40), left_out in any::<prop::sample::Index>(),
        ) {
            let places: BTreeMap<u64, u64> = (0..).zip(&delays).map(|(number, late)| (number, number / 3 + late)).collect();
            let last = places.values().max().copied().unwrap_or_default();
            let missing = u64::try_from(left_out.index(delays.len())).unwrap_or_default();
            for newest in 0..=last {
                for (number, place) in &places {
                    let listed = *place <= newest;
                    // Closed buckets have all answers of earlier ends, so what is open now is not passed.
                    let later = |skip: Option<u64>| {
                        let later = places.iter().filter(|(other, place)| *other > number && **place <= newest && Some(**other) != skip);
                        later.map(|(_, place)| *place).min()
                    };
                    if !listed {
                        let answer = unlisted(*number, 60, later(None));
                        prop_assert!(find_withheld(&answer, Some(newest), now()).is_none(), "{number} in {place}, {newest}");
                    }
                    if *number == missing && later(None).is_some_and(|later| later < newest) {
                        let answer = unlisted(*number, 60, later(None));
                        prop_assert!(find_withheld(&answer, Some(newest), now()).is_some());
                    }
                }
            }
        }
    }
}
