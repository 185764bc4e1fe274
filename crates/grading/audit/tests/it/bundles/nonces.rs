//! A bundle that shows the keys of nonces: answers whose nonces do not follow from them count for the miner.

use muster_audit::{AuditBundle, NoncePeriod, NonceTally, ReplayError, RevealedNonceKey, Verdict, replay};

use crate::bundles::support::{Given, Prompt, World, given};

fn world() -> World {
    let mut world = World::new("int4", 1);
    world.has_nonce_keys = true;
    world
}

fn tally(bundle: &AuditBundle) -> (Option<NonceTally>, Verdict, usize) {
    let replayed = replay(&bundle.to_text()).unwrap();
    (replayed.nonces, replayed.verdict, replayed.counts.scored)
}

/// The bundle with the key of another block in the place of one of its keys.
fn with_another_key(world: &World, mut bundle: AuditBundle, place: usize) -> AuditBundle {
    let period = bundle.nonce_keys[place].period;
    bundle.nonce_keys[place] = RevealedNonceKey {
        period,
        ..world.nonce_key(NoncePeriod(900)).1
    };
    bundle
}

#[test]
fn a_derived_nonce_changes_no_verdict_and_a_foreign_one_takes_its_answer_out_of_the_test() {
    let bundle = world().bundle(&given(12, Prompt::User, |_| true));
    let (nonces, verdict, scored) = tally(&bundle);
    assert_eq!(
        nonces,
        Some(NonceTally {
            derived: 12,
            ..NonceTally::default()
        })
    );
    assert_eq!((verdict, scored), (Verdict::Suspect, 12));
    let foreign = with_another_key(&world(), bundle, 1);
    let (nonces, verdict, scored) = tally(&foreign);
    // Half of the answers began in the period before.
    let half = NonceTally {
        derived: 6,
        foreign: 6,
        unchecked: 0,
    };
    assert_eq!((nonces, scored), (Some(half), 6));
    assert_ne!(verdict, Verdict::Consistent, "{verdict}");
    let all = with_another_key(&world(), foreign, 0);
    let (nonces, verdict, scored) = tally(&all);
    assert_eq!(nonces.unwrap().foreign, 12);
    assert_eq!(scored, 0);
    assert!(matches!(verdict, Verdict::Unproven(_)), "{verdict}");
}

#[test]
fn an_answer_is_unchecked_while_a_key_of_its_time_is_not_revealed() {
    let mut bundle = world().bundle(&given(12, Prompt::User, |_| true));
    bundle.nonce_keys.pop();
    let (nonces, verdict, _) = tally(&bundle);
    assert_eq!(
        nonces,
        Some(NonceTally {
            derived: 6,
            foreign: 0,
            unchecked: 6
        })
    );
    assert_eq!(verdict, Verdict::Suspect);
}

#[test]
fn the_nonce_of_an_own_prompt_is_that_of_its_position_whatever_keys_are_shown() {
    let mut bundle = world().bundle(&given(12, Prompt::Canary, |_| true));
    let all = NonceTally {
        derived: 12,
        ..NonceTally::default()
    };
    assert_eq!(tally(&bundle), (Some(all), Verdict::Convicted, 12));
    bundle = with_another_key(&world(), bundle, 0);
    bundle.nonce_keys.pop();
    assert_eq!(tally(&bundle), (Some(all), Verdict::Convicted, 12));
}

#[test]
fn equal_requests_of_one_client_have_an_ordinal_each() {
    let again: Vec<Given> = given(5, Prompt::User, |_| true)
        .into_iter()
        .map(|one| Given { client: 7, ..one })
        .collect();
    let mut third = world();
    third.is_third_format = true;
    let bundle = third.bundle(&again);
    // Four answers of a client and day are tested.
    let four = NonceTally {
        derived: 4,
        ..NonceTally::default()
    };
    assert_eq!(tally(&bundle).0, Some(four));
}

#[test]
fn keys_are_the_validators_in_rising_order_and_of_the_second_format() {
    let bundle = || world().bundle(&given(12, Prompt::Canary, |_| true));
    let refused = |alter: &dyn Fn(&mut AuditBundle)| {
        let mut altered = bundle();
        alter(&mut altered);
        replay(&altered.to_text()).unwrap_err()
    };
    let hash = refused(&|bundle| bundle.nonce_keys[0].block_hash = muster_protocol::Digest::of(b"luckier"));
    assert!(matches!(hash, ReplayError::NonceKey { period: 332 }), "{hash:?}");
    let order = refused(&|bundle| bundle.nonce_keys.swap(0, 1));
    assert!(
        matches!(order, ReplayError::NonceKey { period: 332 }),
        "{order:?}"
    );
    let format = refused(&|bundle| "muster/audit-bundle/1".clone_into(&mut bundle.format));
    assert!(matches!(format, ReplayError::Format), "{format:?}");
}
