//! The rules of retention that are pure.

use proptest::prelude::*;

use super::*;

#[test]
fn nothing_is_needed_no_more_before_a_cycle_is_settled() {
    assert_eq!(first_needed_block(&CycleFacts::default()), None);
    let open = CycleFacts {
        settled_through: None,
        open: vec![5],
    };
    assert_eq!(first_needed_block(&open), None);
}

proptest! {
    #[test]
    fn no_block_goes_that_a_cycle_may_be_scored_by(
        settled in proptest::option::of(0u64..10_000), open in proptest::collection::vec(0u64..10_000, 0..6),
        block in 0u64..12_000,
    ) {
        let facts = CycleFacts { settled_through: settled, open };
        if first_needed_block(&facts).is_some_and(|floor| block < floor) {
            prop_assert!(facts.settled_through.is_some_and(|settled| block <= settled), "not settled yet");
            prop_assert!(facts.open.iter().all(|first| block < *first), "of an open cycle");
        }
    }

    #[test]
    fn no_signature_is_forgotten_that_could_be_accepted(
        now in 0i64..2_000_000_000, age in 1u64..10_000_000, signed in 0i64..2_000_000_000,
    ) {
        let horizon = signature_horizon_ns(Timestamp::from_secs(now), Duration::from_secs(age));
        if now - signed <= i64::try_from(age).unwrap() {
            prop_assert!(signed * 1_000_000_000 >= horizon);
        }
    }
}
