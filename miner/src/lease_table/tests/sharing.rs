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
        let MinerToValidator::V0DeclineJobRequest(decline) = &**message else {
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

#[test]
fn beyond_its_share_a_validator_that_does_not_pay_gets_nothing_until_it_pays_or_a_day_has_passed() {
    let mut book = open();
    apply(&mut book, [joined(1)]);
    // Of two executors, one is the validator's share, since it has a rival.
    let contested = |offered| {
        let Event::Offered {
            connection,
            mut offer,
            token,
        } = offered
        else {
            panic!("an offer is an offer")
        };
        offer.stakes = ValidatorStakes {
            own: 1,
            others: 99,
            rivals: 1,
        };
        Event::Offered {
            connection,
            offer,
            token,
        }
    };
    let shared = |n| contested(offered(1, n));
    let late = |seconds| start().plus(Duration::from_secs(seconds));
    let cancel = |n| Event::Cancelled {
        connection: ConnectionId(1),
        cancel: CancelJob {
            job_uuid: attempt(n),
            reason: "enough".to_owned(),
        },
    };
    let accepted = |effects: Vec<Effect>| match told(&effects, 1).first().map(String::as_str) {
        Some("V0AcceptJobRequest") => Ok(()),
        _ => Err(heard(&effects, 1).find_map(|message| {
            let MinerToValidator::V0DeclineJobRequest(decline) = message else {
                return None;
            };
            Some(decline.message.clone())
        })),
    };
    assert_eq!(accepted(book.apply(shared(1), late(0))), Ok(()), "its share");
    assert_eq!(accepted(book.apply(shared(2), late(0))), Ok(()), "beyond it");
    book.apply(cancel(2), late(1_200));
    let refused = accepted(book.apply(shared(3), late(1_200))).unwrap_err().unwrap();
    assert!(
        refused.contains("1200 s of executors' time that it did not pay"),
        "{refused}"
    );
    // The attempt is paid after all.
    let receipt = Event::ReceiptOffered {
        connection: ConnectionId(1),
        receipt: finished_receipt(2),
    };
    book.apply(receipt, late(1_201));
    assert_eq!(accepted(book.apply(shared(4), late(1_201))), Ok(()));
    book.apply(cancel(4), late(2_401));
    assert!(accepted(book.apply(shared(5), late(2_401))).is_err());
    // The lease of its share counts nothing, and the memory of a day ends.
    book.apply(cancel(1), late(2_402));
    assert_eq!(
        accepted(book.apply(shared(6), late(2_402))),
        Ok(()),
        "its share again"
    );
    let tomorrow = 2_401 + rules().memory.as_secs();
    book.apply(Event::Tick, late(tomorrow));
    for n in [7, 8] {
        let fresh = contested(offered_with(1, n, late(tomorrow)));
        assert_eq!(accepted(book.apply(fresh, late(tomorrow))), Ok(()), "attempt {n}");
    }
}
