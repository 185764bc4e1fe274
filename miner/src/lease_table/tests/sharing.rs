//! Several validators at one miner: each keeps its share, and none keeps everything.

use super::*;

const THIRTY_DAYS: u64 = 30 * 86_400;

/// A connection of another validator.
fn joined_by(connection: u64, validator: u8) -> Event {
    Event::Joined {
        connection: ConnectionId(connection),
        validator: ValidatorKey(muster_protocol::Hotkey::from_bytes([validator; 32])),
        muster: true,
        features: FeatureSet::ours(),
    }
}

/// An offer of a job that may run for `seconds`, by a validator with one rival of the same stake.
fn offered_for(connection: u64, n: u128, seconds: u64) -> Event {
    let Event::Offered {
        connection,
        mut offer,
        token,
    } = offered(connection, n)
    else {
        panic!("an offer is an offer")
    };
    let timing = offer.request.executor_timing.as_mut().unwrap();
    timing.execution_time_limit = seconds;
    offer.stakes = ValidatorStakes {
        own: 7,
        others: 7,
        rivals: 1,
    };
    Event::Offered {
        connection,
        offer,
        token,
    }
}

/// The reason of the answer to an offer, if it was declined.
fn decline_of(effects: &[Effect]) -> Option<String> {
    effects.iter().find_map(|effect| {
        let Effect::Tell { message, .. } = effect else {
            return None;
        };
        let FromMiner::V0DeclineJobRequest(decline) = &**message else {
            return None;
        };
        Some(decline.message.clone())
    })
}

#[test]
fn no_validator_leases_every_executor_for_thirty_days() {
    let mut book = open();
    apply(&mut book, [joined(1), joined_by(2, 9)]);
    assert_eq!(
        decline_of(&apply(&mut book, [offered_for(1, 1, THIRTY_DAYS)])),
        None
    );
    let declined = decline_of(&apply(&mut book, [offered_for(1, 2, THIRTY_DAYS)])).unwrap();
    assert!(
        declined.contains("share is 1 executors") && declined.contains("3600 s"),
        "{declined}"
    );
    // The other validator gets its share for as long as it likes.
    assert_eq!(
        decline_of(&apply(&mut book, [offered_for(2, 3, THIRTY_DAYS)])),
        None
    );
}

#[test]
fn a_borrowed_executor_goes_to_the_validator_that_waits() {
    let mut book = open();
    apply(&mut book, [joined(1), joined_by(2, 9)]);
    assert_eq!(decline_of(&apply(&mut book, [offered_for(1, 1, 60)])), None);
    assert_eq!(
        decline_of(&apply(&mut book, [offered_for(1, 2, 60)])),
        None,
        "nobody else wants it"
    );
    let full = decline_of(&apply(&mut book, [offered_for(2, 3, 60)])).unwrap();
    assert!(full.contains("all 2 executors"), "{full}");
    let cancelled = Event::Cancelled {
        connection: ConnectionId(1),
        cancel: CancelJob {
            job_uuid: attempt(1),
            reason: "enough".to_owned(),
        },
    };
    apply(&mut book, [cancelled]);
    let held_back = decline_of(&apply(&mut book, [offered_for(1, 4, 60)])).unwrap();
    assert!(held_back.contains("another validator waits"), "{held_back}");
    assert_eq!(decline_of(&apply(&mut book, [offered_for(2, 5, 60)])), None);
}
