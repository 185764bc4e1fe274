//! Paid attempts run on proven executors: at no instant more of them count than executors are proven.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use muster_protocol::AttemptId;

use crate::parties::PartyNumber;

/// The interval of one paid attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Interval {
    /// When the attempt began, in microseconds since 1970.
    pub(crate) began: i64,
    /// The validator that pays it, by its number in the order of the keys.
    pub(crate) validator: PartyNumber,
    /// The id of the attempt.
    pub(crate) attempt: AttemptId,
    /// The counted time, in microseconds.
    pub(crate) micros: u64,
    /// The place of its receipt in the snapshot.
    pub(crate) receipt: usize,
}

/// The places of the receipts whose intervals do not fit on `executors`. Attempts are placed in the order of their
/// begin, then of their validator and their id, so everybody drops the same ones.
pub(crate) fn beyond(mut intervals: Vec<Interval>, executors: u32) -> Vec<usize> {
    intervals.sort_unstable();
    let most = usize::try_from(executors).unwrap_or(usize::MAX);
    let mut ends = BinaryHeap::<Reverse<i64>>::new();
    let mut dropped = Vec::new();
    for interval in intervals {
        while ends.peek().is_some_and(|Reverse(end)| *end <= interval.began) {
            ends.pop();
        }
        // Later intervals begin later, so the most attempts at once are those at the begin.
        if ends.len() >= most {
            dropped.push(interval.receipt);
            continue;
        }
        let micros = i64::try_from(interval.micros).unwrap_or(i64::MAX);
        ends.push(Reverse(interval.began.saturating_add(micros)));
    }
    dropped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn interval(at: usize, began: i64, micros: u64, validator: u32) -> Interval {
        Interval {
            began,
            validator,
            attempt: AttemptId::from_uuid(Uuid::from_u128(at.try_into().unwrap())),
            micros,
            receipt: at,
        }
    }

    #[test]
    fn the_later_attempt_of_two_at_once_is_dropped() {
        let all = vec![
            interval(0, 0, 10, 1),
            interval(1, 5, 10, 1),
            interval(2, 10, 10, 1),
        ];
        assert_eq!(beyond(all.clone(), 1), [1]);
        assert!(beyond(all.clone(), 2).is_empty());
        assert_eq!(beyond(all, 0), [0, 1, 2]);
        let same = vec![interval(7, 0, 10, 2), interval(8, 0, 10, 1)];
        assert_eq!(
            beyond(same, 1),
            [7],
            "of two at the same time that of the lower validator counts"
        );
    }

    #[test]
    fn many_minimum_charges_cannot_overlap_themselves_rich() {
        let jobs: Vec<_> = (0..100)
            .map(|at| interval(at, i64::try_from(at).unwrap() * 1_000_000, 10_000_000, 1))
            .collect();
        assert_eq!(
            beyond(jobs, 1).len(),
            90,
            "ten seconds each, one a second: a tenth fits"
        );
    }

    proptest! {
        #[test]
        fn at_every_instant_at_most_the_proven_executors_are_paid(
            rows in proptest::collection::vec((0_i64..50, 0_u64..20, 0_u32..3), 0..40), executors in 0_u32..5,
        ) {
            let mut all: Vec<_> = rows.iter().enumerate()
                .map(|(at, (began, micros, validator))| interval(at, *began, *micros, *validator)).collect();
            let dropped = beyond(all.clone(), executors);
            for instant in 0..70 {
                let running = all.iter().filter(|interval| !dropped.contains(&interval.receipt))
                    .filter(|interval| interval.began <= instant && instant < interval.began + i64::try_from(interval.micros).unwrap());
                prop_assert!(running.count() <= usize::try_from(executors).unwrap());
            }
            all.reverse();
            let mut again = beyond(all, executors);
            let mut first = dropped;
            again.sort_unstable();
            first.sort_unstable();
            prop_assert_eq!(first, again, "the order of the receipts does not matter");
        }
    }
}
