//! The one place where scores become `u16` weights. Integers only, so that all validators that compute the same scores
//! set the same weights to the last bit.

use std::collections::BTreeMap;

use muster_protocol::Uid;

/// Scales scores so that the largest becomes 65535, rounding halves up.
///
/// The result is sorted by uid; scores of a repeated uid are added. A score of zero, or one so small beside the largest
/// that it rounds to zero, is left out: the chain reads a missing weight as zero.
pub fn to_u16(scores: &[(Uid, u64)]) -> Vec<(Uid, u16)> {
    let mut sums: BTreeMap<Uid, u128> = BTreeMap::new();
    for (uid, score) in scores {
        *sums.entry(*uid).or_default() += u128::from(*score);
    }
    let largest = sums.values().copied().max().unwrap_or(0);
    sums.into_iter()
        .filter_map(|(uid, score)| Some((uid, scaled(score, largest)?)))
        .collect()
}

/// `score / largest` of 65535, rounded; `None` for zero. A score is at most the largest, so the result fits.
fn scaled(score: u128, largest: u128) -> Option<u16> {
    let share = (score * 2 * u128::from(u16::MAX) + largest).checked_div(largest * 2)?;
    u16::try_from(share).ok().filter(|weight| *weight != 0)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn uids(weights: &[(u16, u64)]) -> Vec<(Uid, u64)> {
        weights.iter().map(|(uid, score)| (Uid(*uid), *score)).collect()
    }

    #[test]
    fn small_examples() {
        assert_eq!(to_u16(&[]), []);
        assert_eq!(to_u16(&uids(&[(1, 0), (2, 0)])), []);
        assert_eq!(to_u16(&uids(&[(7, 1)])), [(Uid(7), 65535)]);
        assert_eq!(
            to_u16(&uids(&[(2, 1), (1, 2)])),
            [(Uid(1), 65535), (Uid(2), 32768)]
        );
        assert_eq!(
            to_u16(&uids(&[(1, 1), (1, 1), (2, 4)])),
            [(Uid(1), 32768), (Uid(2), 65535)]
        );
        assert_eq!(to_u16(&uids(&[(1, u64::MAX), (2, 1)])), [(Uid(1), 65535)]);
    }

    proptest! {
        #[test]
        fn the_largest_is_full_and_order_is_kept(scores in vec((0_u16..300, any::<u64>()), 0..300)) {
            let weights = to_u16(&uids(&scores));
            let mut sums = BTreeMap::<u16, u128>::new();
            for (uid, score) in &scores {
                *sums.entry(*uid).or_default() += u128::from(*score);
            }
            let any = sums.values().any(|sum| *sum > 0);
            prop_assert_eq!(weights.iter().map(|(_, weight)| *weight).max(), any.then_some(u16::MAX));
            prop_assert!(weights.is_sorted_by(|a, b| a.0 < b.0));
            prop_assert!(weights.iter().all(|(_, weight)| *weight > 0));
            let weight_of = |uid: u16| weights.iter().find(|(u, _)| u.0 == uid).map_or(0, |(_, weight)| *weight);
            for (a, score_a) in &sums {
                for (b, score_b) in sums.iter().take(20) {
                    prop_assert!(score_a < score_b || weight_of(*a) >= weight_of(*b));
                }
            }
        }

        #[test]
        fn the_order_of_scores_does_not_matter(scores in vec((0_u16..300, any::<u64>()), 0..100)) {
            let mut reversed = scores.clone();
            reversed.reverse();
            prop_assert_eq!(to_u16(&uids(&scores)), to_u16(&uids(&reversed)));
        }

        #[test]
        fn each_weight_is_within_half_a_step(a in 1_u64..u64::MAX, b in 1_u64..u64::MAX) {
            let (small, large) = (a.min(b), a.max(b));
            let weights = to_u16(&uids(&[(0, large), (1, small)]));
            let weight = weights.get(1).map_or(0, |(_, weight)| u128::from(*weight));
            // |weight/65535 - small/large| <= 1/2 of a step, in whole numbers.
            let (left, right) = (weight * u128::from(large), u128::from(small) * 65_535);
            prop_assert!(left.abs_diff(right) * 2 <= u128::from(large));
        }

        #[test]
        fn a_common_factor_changes_nothing(scores in vec((0_u16..300, 0_u64..1_000_000), 0..50), factor in 1_u64..1_000_000) {
            let scaled: Vec<_> = scores.iter().map(|(uid, score)| (*uid, score * factor)).collect();
            prop_assert_eq!(to_u16(&uids(&scores)), to_u16(&uids(&scaled)));
        }
    }
}
