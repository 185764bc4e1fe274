//! Salted and timelocked commits.

use crate::support::{Error, NET, NOWHERE, alice, by, chain, dave, run_to};
use frame_support::{assert_noop, assert_ok};
use muster_devchain_runtime::subtensor::{LastUpdate, TimelockedWeightCommits, WeightCommits, Weights};
use muster_devchain_runtime::types::{MechId, NetUid};
use muster_devchain_runtime::{AccountId, Runtime, SubtensorModule};
use sp_core::H256;
use sp_io::TestExternalities;
use sp_runtime::DispatchResult;

const SALT: [u16; 3] = [7, 8, 9];

/// Epochs in blocks 10, 20, 30; commits are revealed in the next epoch.
fn committing() -> TestExternalities {
    chain(|s| s.commit_reveal = true)
}

fn hash(values: &[u16]) -> H256 {
    SubtensorModule::commit_hash(&alice(), NET.index(MechId(0)), &[1, 2], values, &SALT, 0)
}

fn commit(who: AccountId, netuid: NetUid, hash: H256) -> DispatchResult {
    SubtensorModule::commit_weights(by(who), netuid, hash)
}

fn reveal(values: &[u16]) -> DispatchResult {
    SubtensorModule::reveal_weights(by(alice()), NET, vec![1, 2], values.to_vec(), SALT.to_vec(), 0)
}

fn timelocked(who: AccountId, netuid: NetUid, version: u16) -> DispatchResult {
    SubtensorModule::commit_timelocked_weights(by(who), netuid, vec![1; 80].try_into().unwrap(), 99, version)
}

#[test]
fn a_commit_is_revealed_in_its_epoch() {
    committing().execute_with(|| {
        run_to(3);
        assert_ok!(commit(alice(), NET, hash(&[1, 2])));
        assert_eq!(LastUpdate::<Runtime>::get(NET.index(MechId(0)))[0], 3);
        let stored = WeightCommits::<Runtime>::get(NET.index(MechId(0)), alice()).unwrap();
        assert_eq!(stored, [(hash(&[1, 2]), 0, 3, 0)]);
        assert_noop!(reveal(&[1, 2]), Error::RevealTooEarly);
        run_to(10);
        assert_noop!(reveal(&[2, 1]), Error::InvalidRevealCommitHashNotMatch);
        assert_ok!(reveal(&[1, 2]));
        assert_eq!(
            Weights::<Runtime>::get(NET.index(MechId(0)), 0),
            [(1, 32768), (2, 65535)]
        );
        assert_eq!(
            LastUpdate::<Runtime>::get(NET.index(MechId(0)))[0],
            3,
            "the commit counts, not the reveal"
        );
        assert_noop!(reveal(&[1, 2]), Error::NoWeightsCommitFound);
    });
}

#[test]
fn a_late_reveal_is_expired() {
    committing().execute_with(|| {
        assert_ok!(commit(alice(), NET, hash(&[1, 2])));
        run_to(20);
        assert_noop!(reveal(&[1, 2]), Error::ExpiredWeightCommit);
        assert_noop!(reveal(&[2, 1]), Error::NoWeightsCommitFound);
    });
}

#[test]
fn revealing_a_later_commit_voids_the_earlier() {
    committing().execute_with(|| {
        assert_ok!(commit(alice(), NET, hash(&[1, 2])));
        assert_ok!(commit(alice(), NET, hash(&[3, 4])));
        run_to(10);
        assert_ok!(reveal(&[3, 4]));
        assert_noop!(reveal(&[1, 2]), Error::NoWeightsCommitFound);
    });
}

#[test]
fn mechanisms_have_commits_of_their_own() {
    committing().execute_with(|| {
        let mechanism = MechId(1);
        let hash = SubtensorModule::commit_hash(&alice(), NET.index(mechanism), &[1], &[1], &SALT, 0);
        assert_ok!(SubtensorModule::commit_mechanism_weights(
            by(alice()),
            NET,
            mechanism,
            hash
        ));
        run_to(10);
        let reveal = |mechanism| {
            let (uids, values) = (vec![1], vec![1]);
            SubtensorModule::reveal_mechanism_weights(
                by(alice()),
                NET,
                mechanism,
                uids,
                values,
                SALT.to_vec(),
                0,
            )
        };
        assert_noop!(reveal(MechId(0)), Error::NoWeightsCommitFound);
        assert_noop!(reveal(MechId(2)), Error::NoWeightsCommitFound);
        assert_ok!(reveal(mechanism));
        assert_eq!(Weights::<Runtime>::get(NET.index(mechanism), 0), [(1, 65535)]);
    });
}

#[test]
fn commits_of_keys_outside_the_subnet_are_refused() {
    committing().execute_with(|| {
        assert_noop!(
            commit(dave(), NET, H256::zero()),
            Error::HotKeyNotRegisteredInSubNet
        );
        assert_noop!(timelocked(dave(), NET, 4), Error::HotKeyNotRegisteredInSubNet);
        assert_noop!(
            commit(alice(), NOWHERE, H256::zero()),
            Error::MechanismDoesNotExist
        );
        assert_noop!(timelocked(alice(), NOWHERE, 4), Error::MechanismDoesNotExist);
    });
    chain(|_| ()).execute_with(|| {
        assert_noop!(commit(alice(), NET, H256::zero()), Error::CommitRevealDisabled);
        assert_noop!(timelocked(alice(), NET, 4), Error::CommitRevealDisabled);
        assert_noop!(reveal(&[1, 2]), Error::CommitRevealDisabled);
    });
}

#[test]
fn commits_wait_for_the_rate_limit() {
    chain(|s| (s.commit_reveal, s.weights_rate_limit) = (true, 5)).execute_with(|| {
        assert_ok!(commit(alice(), NET, hash(&[1, 2])));
        run_to(5);
        assert_noop!(
            commit(alice(), NET, hash(&[3, 4])),
            Error::CommittingWeightsTooFast
        );
        assert_noop!(timelocked(alice(), NET, 4), Error::CommittingWeightsTooFast);
        run_to(6);
        assert_ok!(timelocked(alice(), NET, 4));
    });
}

#[test]
fn ten_commits_may_wait() {
    committing().execute_with(|| {
        for i in 0..10 {
            assert_ok!(commit(alice(), NET, H256::repeat_byte(i)));
            assert_ok!(timelocked(alice(), NET, 4));
        }
        assert_noop!(
            commit(alice(), NET, H256::zero()),
            Error::TooManyUnrevealedCommits
        );
        assert_noop!(timelocked(alice(), NET, 4), Error::TooManyUnrevealedCommits);
        run_to(20);
        assert_ok!(commit(alice(), NET, H256::zero()));
    });
}

#[test]
fn timelocked_commits_are_kept_by_epoch() {
    committing().execute_with(|| {
        run_to(12);
        assert_noop!(timelocked(alice(), NET, 3), Error::IncorrectCommitRevealVersion);
        assert_ok!(timelocked(alice(), NET, 4));
        let commit = vec![2; 90].try_into().unwrap();
        assert_ok!(SubtensorModule::commit_timelocked_mechanism_weights(
            by(alice()),
            NET,
            MechId(1),
            commit,
            7,
            4
        ));
        let stored = TimelockedWeightCommits::<Runtime>::get(NET.index(MechId(0)), 1);
        assert_eq!(
            (stored.len(), &stored[0].0, stored[0].1, stored[0].3),
            (1, &alice(), 12, 99)
        );
        assert_eq!(
            TimelockedWeightCommits::<Runtime>::get(NET.index(MechId(1)), 1)[0].3,
            7
        );
    });
}
