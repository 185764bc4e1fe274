//! Tests of `Commitments.set_commitment`.

use crate::support::{NET, NOWHERE, bob, by, chain, dave, run_to};
use frame_support::{assert_noop, assert_ok};
use muster_devchain_runtime::commitments::{CommitmentOf, Error, LastCommitment};
use muster_devchain_runtime::types::{CommitmentData, CommitmentInfo};
use muster_devchain_runtime::{Commitments, Runtime};

fn info(bytes: usize) -> Box<CommitmentInfo> {
    let data = CommitmentData::BigRaw(vec![7; bytes].try_into().unwrap());
    Box::new(CommitmentInfo {
        fields: vec![data].try_into().unwrap(),
    })
}

#[test]
fn a_commitment_replaces_the_last() {
    chain(|_| ()).execute_with(|| {
        assert_ok!(Commitments::set_commitment(by(bob()), NET, info(1)));
        run_to(3);
        assert_ok!(Commitments::set_commitment(by(bob()), NET, info(2)));
        let stored = CommitmentOf::<Runtime>::get(NET, bob()).unwrap();
        assert_eq!((stored.deposit, stored.block, stored.info), (0, 3, *info(2)));
        assert_eq!(LastCommitment::<Runtime>::get(NET, bob()), Some(3));
    });
}

#[test]
fn only_neurons_publish() {
    chain(|_| ()).execute_with(|| {
        let refused = Error::<Runtime>::AccountNotAllowedCommit;
        assert_noop!(Commitments::set_commitment(by(dave()), NET, info(1)), refused);
        let refused = Error::<Runtime>::AccountNotAllowedCommit;
        assert_noop!(Commitments::set_commitment(by(bob()), NOWHERE, info(1)), refused);
    });
}

#[test]
fn an_epoch_has_room_for_some() {
    chain(|_| ()).execute_with(|| {
        // 516 bytes each: a count, a variant, a length, the data.
        for _ in 0..6 {
            assert_ok!(Commitments::set_commitment(by(bob()), NET, info(512)));
        }
        let refused = Error::<Runtime>::SpaceLimitExceeded;
        assert_noop!(Commitments::set_commitment(by(bob()), NET, info(1)), refused);
        run_to(10);
        assert_ok!(Commitments::set_commitment(by(bob()), NET, info(512)));
    });
}
