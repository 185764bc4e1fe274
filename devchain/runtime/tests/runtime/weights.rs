//! `set_weights` and `set_mechanism_weights`.

use crate::support::{Error, NET, NOWHERE, STAKE, alice, bob, by, chain, chain_with, dave, run_to};
use frame_support::{assert_noop, assert_ok};
use muster_devchain_runtime::subtensor::{LastUpdate, SubnetGenesis, Weights};
use muster_devchain_runtime::types::{MechId, NetUid};
use muster_devchain_runtime::{AccountId, Runtime, RuntimeEvent, SubtensorModule, System, subtensor};

fn set(who: AccountId, uids: &[u16], values: &[u16]) -> sp_runtime::DispatchResult {
    SubtensorModule::set_weights(by(who), NET, uids.to_vec(), values.to_vec(), 0)
}

/// On a chain whose subnet is changed, these weights of Alice's are refused with this error.
#[track_caller]
fn refused(change: impl FnOnce(&mut SubnetGenesis), uids: &[u16], values: &[u16], error: Error) {
    chain(change).execute_with(|| {
        assert_noop!(set(alice(), uids, values), error);
    });
}

#[test]
fn weights_are_scaled_stored_and_noted() {
    chain(|_| ()).execute_with(|| {
        run_to(7);
        assert_ok!(set(alice(), &[1, 2], &[100, 50]));
        assert_eq!(
            Weights::<Runtime>::get(NET.index(MechId(0)), 0),
            [(1, 65535), (2, 32768)]
        );
        assert_eq!(LastUpdate::<Runtime>::get(NET.index(MechId(0))), [7, 0, 0]);
        let event = subtensor::Event::WeightsSet(NET.index(MechId(0)), 0);
        System::assert_last_event(RuntimeEvent::SubtensorModule(event));
    });
}

#[test]
fn mechanisms_have_weights_of_their_own() {
    chain(|_| ()).execute_with(|| {
        let index = NET.index(MechId(1));
        assert_eq!(index.0, 4097);
        assert_ok!(SubtensorModule::set_mechanism_weights(
            by(alice()),
            NET,
            MechId(1),
            vec![1],
            vec![5],
            0
        ));
        assert_eq!(Weights::<Runtime>::get(index, 0), [(1, 65535)]);
        assert_eq!(Weights::<Runtime>::get(NET.index(MechId(0)), 0), []);
        let beyond = SubtensorModule::set_mechanism_weights(by(alice()), NET, MechId(2), vec![1], vec![5], 0);
        assert_noop!(beyond, Error::MechanismDoesNotExist);
    });
}

#[test]
fn the_subnet_must_exist_and_have_weights() {
    chain(|_| ()).execute_with(|| {
        let on = |netuid| SubtensorModule::set_weights(by(alice()), netuid, vec![1], vec![1], 0);
        subtensor::CommitRevealWeightsEnabled::<Runtime>::insert(NOWHERE, false);
        subtensor::CommitRevealWeightsEnabled::<Runtime>::insert(NetUid::ROOT, false);
        assert_noop!(on(NOWHERE), Error::MechanismDoesNotExist);
        assert_noop!(on(NetUid::ROOT), Error::CanNotSetRootNetworkWeights);
    });
}

#[test]
fn the_vectors_must_be_weights() {
    refused(|_| (), &[1, 2], &[1], Error::WeightVecNotEqualSize);
    refused(
        |_| (),
        &[0, 1, 2, 3],
        &[1, 1, 1, 1],
        Error::UidsLengthExceedUidsInSubNet,
    );
    refused(|_| (), &[1, 1], &[1, 1], Error::DuplicateUids);
    refused(|_| (), &[1, 3], &[1, 1], Error::UidVecContainInvalidOne);
    refused(
        |s| s.min_allowed_weights = 2,
        &[1],
        &[1],
        Error::WeightVecLengthIsLow,
    );
    refused(
        |s| s.max_weights_limit = 32768,
        &[1, 2],
        &[3, 1],
        Error::MaxWeightExceeded,
    );
}

#[test]
fn the_validator_must_be_one() {
    chain(|_| ()).execute_with(|| {
        assert_noop!(set(dave(), &[1], &[1]), Error::HotKeyNotRegisteredInSubNet);
        assert_noop!(set(bob(), &[2], &[1]), Error::NeuronNoValidatorPermit);
    });
    chain_with(|config| config.subtensor_module.stake_threshold = STAKE + 1).execute_with(|| {
        assert_noop!(set(alice(), &[1], &[1]), Error::NotEnoughStakeToSetWeights);
    });
    chain_with(|config| config.subtensor_module.stake_threshold = STAKE).execute_with(|| {
        assert_ok!(set(alice(), &[1], &[1]));
    });
}

#[test]
fn a_neuron_may_weigh_itself_alone() {
    chain(|s| (s.min_allowed_weights, s.max_weights_limit) = (2, 100)).execute_with(|| {
        assert_ok!(set(bob(), &[1], &[1]));
        assert_noop!(set(bob(), &[1, 2], &[1, 1]), Error::NeuronNoValidatorPermit);
    });
}

#[test]
fn an_old_version_key_is_refused() {
    chain(|s| s.weights_version_key = 5).execute_with(|| {
        let with = |key| SubtensorModule::set_weights(by(alice()), NET, vec![1], vec![1], key);
        assert_noop!(with(4), Error::IncorrectWeightVersionKey);
        assert_ok!(with(5));
        assert_ok!(with(6));
    });
}

#[test]
fn weights_wait_for_the_rate_limit() {
    chain(|s| s.weights_rate_limit = 5).execute_with(|| {
        run_to(3);
        assert_ok!(set(alice(), &[1], &[1]));
        run_to(7);
        assert_noop!(set(alice(), &[1], &[1]), Error::SettingWeightsTooFast);
        run_to(8);
        assert_ok!(set(alice(), &[1], &[1]));
    });
}

#[test]
fn a_committing_subnet_takes_no_direct_weights() {
    refused(|s| s.commit_reveal = true, &[1], &[1], Error::CommitRevealEnabled);
}
