//! Timelocked weights: sealed to the chain's beacon, opened by it in the epoch of their reveal.

use crate::support::{NET, alice, bob, by, chain, run_to};
use codec::Encode;
use frame_support::assert_ok;
use frame_support::traits::Hooks;
use muster_devchain_runtime::beacon::sealed::{Entropy, seal};
use muster_devchain_runtime::beacon::{BeaconConfig, LastStoredRound, Pulses};
use muster_devchain_runtime::subtensor::{
    DroppedCommit, Event, TimelockedWeightCommits, Weights, WeightsTlockPayload,
};
use muster_devchain_runtime::types::MechId;
use muster_devchain_runtime::{AccountId, Drand, Runtime, RuntimeEvent, SubtensorModule, System, Timestamp};
use sp_io::TestExternalities;

fn committing() -> TestExternalities {
    chain(|s| s.commit_reveal = true)
}

/// Lets time reach a round.
fn come(round: u64) {
    let config = BeaconConfig::<Runtime>::get();
    let seconds = u64::from(config.genesis_time) + (round - 1) * u64::from(config.period);
    Timestamp::set_timestamp(seconds * 1_000);
    Drand::on_initialize(System::block_number());
    assert_eq!(LastStoredRound::<Runtime>::get(), round);
}

fn payload(hotkey: &AccountId, uids: &[u16], values: &[u16]) -> Vec<u8> {
    let (uids, values) = (uids.to_vec(), values.to_vec());
    let hotkey = hotkey.encode();
    WeightsTlockPayload {
        hotkey,
        uids,
        values,
        version_key: 0,
    }
    .encode()
}

fn sealed(round: u64, payload: &[u8]) -> Vec<u8> {
    let entropy = Entropy {
        key: [1; 32],
        sigma: [2; 32],
        nonce: [3; 12],
    };
    seal(
        &BeaconConfig::<Runtime>::get().public_key,
        round,
        payload,
        &entropy,
    )
    .unwrap()
}

fn commit(bytes: Vec<u8>, round: u64) {
    let bytes = bytes.try_into().unwrap();
    assert_ok!(SubtensorModule::commit_timelocked_weights(
        by(alice()),
        NET,
        bytes,
        round,
        4
    ));
}

fn weights() -> Vec<(u16, u16)> {
    Weights::<Runtime>::get(NET.index(MechId(0)), 0)
}

fn saw(event: Event<Runtime>) -> bool {
    let event = RuntimeEvent::SubtensorModule(event);
    System::events().into_iter().any(|record| record.event == event)
}

fn dropped(reason: DroppedCommit) -> bool {
    saw(Event::TimelockedWeightsDropped(
        NET.index(MechId(0)),
        alice(),
        reason,
    ))
}

#[test]
fn weights_are_opened_in_their_epoch() {
    committing().execute_with(|| {
        come(100);
        commit(sealed(110, &payload(&alice(), &[1, 2], &[1, 2])), 110);
        run_to(9);
        come(120);
        assert_eq!(weights(), []);
        run_to(10);
        assert_eq!(weights(), [(1, 32768), (2, 65535)]);
        assert!(saw(Event::TimelockedWeightsRevealed(
            NET.index(MechId(0)),
            alice()
        )));
        assert!(Pulses::<Runtime>::contains_key(110));
        assert_eq!(
            TimelockedWeightCommits::<Runtime>::get(NET.index(MechId(0)), 0),
            []
        );
    });
}

#[test]
fn a_late_round_is_awaited_within_the_epoch_only() {
    committing().execute_with(|| {
        come(100);
        commit(sealed(110, &payload(&alice(), &[1], &[1])), 110);
        commit(sealed(999, &payload(&alice(), &[2], &[1])), 999);
        run_to(12);
        assert_eq!(weights(), []);
        come(110);
        run_to(13);
        assert_eq!(weights(), [(1, 65535)]);
        run_to(20);
        assert!(dropped(DroppedCommit::Expired));
        assert_eq!(TimelockedWeightCommits::<Runtime>::iter().count(), 0);
    });
}

#[test]
fn the_last_of_several_commits_stands() {
    committing().execute_with(|| {
        come(100);
        for target in [1, 2] {
            commit(sealed(101, &payload(&alice(), &[target], &[1])), 101);
        }
        come(101);
        run_to(10);
        assert_eq!(weights(), [(2, 65535)]);
    });
}

#[test]
fn forbidden_timelocked_weights_are_dropped_with_their_reason() {
    let check = |bytes: fn() -> Vec<u8>, reason| {
        committing().execute_with(|| {
            come(100);
            commit(bytes(), 101);
            come(101);
            run_to(10);
            assert_eq!(weights(), []);
            assert!(dropped(reason), "{reason:?}");
        });
    };
    check(|| vec![7; 300], DroppedCommit::Closed);
    check(Vec::new, DroppedCommit::Closed);
    check(|| vec![255; 5_000], DroppedCommit::Closed);
    check(
        || sealed(102, &payload(&alice(), &[1], &[1])),
        DroppedCommit::Closed,
    );
    check(|| sealed(101, b"no weights"), DroppedCommit::Payload);
    check(|| sealed(101, &[]), DroppedCommit::Payload);
    // A list that claims a thousand million entries.
    check(|| sealed(101, &[0x02, 0x00, 0x00, 0xee]), DroppedCommit::Payload);
    check(
        || sealed(101, &payload(&bob(), &[1], &[1])),
        DroppedCommit::Hotkey,
    );
    check(
        || sealed(101, &payload(&alice(), &[1, 1], &[1, 1])),
        DroppedCommit::Refused,
    );
}

#[test]
fn the_beacon_says_what_it_is() {
    committing().execute_with(|| {
        let config = BeaconConfig::<Runtime>::get();
        assert_eq!((config.public_key.len(), config.period), (96, 3));
        assert_eq!(&config.scheme_id[..], b"bls-unchained-g1-rfc9380");
        assert_eq!(Drand::pulse(5), None, "no round has come at genesis");
        come(100);
        let pulse = Drand::pulse(100).unwrap();
        assert_eq!(pulse.randomness[..], sp_io::hashing::sha2_256(&pulse.signature));
        for round in 1..=80 {
            Drand::pulse(round).unwrap();
        }
        assert_eq!(Pulses::<Runtime>::iter().count(), 64, "kept pulses are bounded");
        assert_eq!(Drand::pulse(101), None);
    });
}
