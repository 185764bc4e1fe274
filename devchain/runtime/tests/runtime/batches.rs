//! Batches: those of weights, and those of `Utility`; transfers; what root may change.

use crate::support::{
    BALANCE, NET, NOWHERE, STAKE, alice, bob, by, chain, chain_with, charlie, dave, run_to,
};
use codec::Compact;
use frame_support::{assert_noop, assert_ok};
use muster_devchain_runtime::subtensor::{self, Error, Kappa, MaxAllowedUids, Tempo, WeightCommits, Weights};
use muster_devchain_runtime::types::{MechId, NetUid, TaoBalance};
use muster_devchain_runtime::{
    AdminUtils, Balances, EXISTENTIAL_DEPOSIT, Runtime, RuntimeCall, RuntimeEvent, RuntimeOrigin,
    SubtensorModule, Sudo, System, Utility, admin,
};

use sp_runtime::{DispatchError, MultiAddress, TokenError};

type Call = subtensor::Call<Runtime>;

fn netuids(netuids: &[NetUid]) -> Vec<Compact<NetUid>> {
    netuids.iter().copied().map(Compact).collect()
}

fn events() -> Vec<RuntimeEvent> {
    System::events().into_iter().map(|record| record.event).collect()
}

#[test]
fn a_batch_of_weights_says_what_failed() {
    chain(|_| ()).execute_with(|| {
        let row = vec![(Compact(1), Compact(5))];
        let set = |nets: &[NetUid], rows, keys: usize| {
            SubtensorModule::batch_set_weights(by(alice()), netuids(nets), rows, vec![Compact(0); keys])
        };
        assert_noop!(set(&[NET], vec![], 1), Error::<Runtime>::InputLengthsUnequal);
        assert_noop!(
            set(&[NET], vec![row.clone()], 0),
            Error::<Runtime>::InputLengthsUnequal
        );
        assert_ok!(set(&[NET, NOWHERE], vec![row.clone(), row], 2));
        assert_eq!(Weights::<Runtime>::get(NET.index(MechId(0)), 0), [(1, 65535)]);
        let seen = events();
        let failed = subtensor::Event::BatchWeightItemFailed(Error::<Runtime>::CommitRevealEnabled.into());
        for event in [
            subtensor::Event::BatchCompletedWithErrors(),
            failed,
            subtensor::Event::BatchWeightsCompleted(netuids(&[NET, NOWHERE]), alice()),
        ] {
            assert!(seen.contains(&event.clone().into()), "{event:?}");
        }
    });
}

#[test]
fn a_batch_of_reveals_is_all_or_none() {
    chain(|s| s.commit_reveal = true).execute_with(|| {
        let hash = |value: u16| {
            SubtensorModule::commit_hash(&alice(), NET.index(MechId(0)), &[1], &[value], &[7], 0)
        };
        let hashes = vec![hash(1), hash(2)];
        assert_noop!(
            SubtensorModule::batch_commit_weights(by(alice()), netuids(&[NET]), hashes.clone()),
            Error::<Runtime>::InputLengthsUnequal
        );
        assert_ok!(SubtensorModule::batch_commit_weights(
            by(alice()),
            netuids(&[NET, NET]),
            hashes
        ));
        let reveal = |values: &[u16]| {
            let each = |value: Vec<u16>| vec![value; values.len()];
            let values: Vec<Vec<u16>> = values.iter().map(|value| vec![*value]).collect();
            let keys = vec![0; values.len()];
            SubtensorModule::batch_reveal_weights(
                by(alice()),
                NET,
                each(vec![1]),
                values,
                each(vec![7]),
                keys,
            )
        };
        assert_noop!(reveal(&[1, 2]), Error::<Runtime>::RevealTooEarly);
        run_to(10);
        assert_noop!(reveal(&[1, 3]), Error::<Runtime>::InvalidRevealCommitHashNotMatch);
        assert_ok!(reveal(&[1, 2]));
        assert_eq!(WeightCommits::<Runtime>::get(NET.index(MechId(0)), alice()), None);
        assert_eq!(Weights::<Runtime>::get(NET.index(MechId(0)), 0), [(1, 65535)]);
    });
}

#[test]
fn transfers_move_money_and_keep_accounts_alive() {
    chain(|_| ()).execute_with(|| {
        let to = |who| MultiAddress::Id(who);
        assert_ok!(Balances::transfer_keep_alive(by(alice()), to(bob()), 1_000));
        assert_eq!(Balances::free_balance(bob()), BALANCE + 1_000);
        let all = BALANCE - 1_000;
        let leaves_nothing =
            Balances::transfer_keep_alive(by(alice()), to(bob()), all - EXISTENTIAL_DEPOSIT + 1);
        assert_noop!(leaves_nothing, DispatchError::Token(TokenError::NotExpendable));
        let stranger = subtensor_account(9);
        assert_noop!(
            Balances::transfer_keep_alive(by(alice()), to(stranger.clone()), EXISTENTIAL_DEPOSIT - 1),
            DispatchError::Token(TokenError::BelowMinimum)
        );
        assert_ok!(Balances::transfer_allow_death(
            by(alice()),
            to(stranger.clone()),
            all
        ));
        assert_eq!(Balances::free_balance(alice()), 0);
        assert_ok!(Balances::transfer_all(by(stranger.clone()), to(alice()), false));
        assert_eq!(
            (Balances::free_balance(alice()), Balances::free_balance(stranger)),
            (all, 0)
        );
        assert_noop!(
            Balances::transfer_allow_death(by(alice()), to(bob()), all + 1),
            DispatchError::Token(TokenError::FundsUnavailable)
        );
    });
}

fn subtensor_account(i: u8) -> muster_devchain_runtime::AccountId {
    muster_devchain_runtime::AccountId::new([i; 32])
}

fn transfer(value: u64) -> RuntimeCall {
    let dest = MultiAddress::Id(bob());
    pallet_balances::Call::<Runtime>::transfer_keep_alive { dest, value }.into()
}

#[test]
fn batches_stop_undo_or_go_on() {
    chain(|_| ()).execute_with(|| {
        let calls = || vec![transfer(1_000), transfer(BALANCE), transfer(1_000)];
        assert_ok!(Utility::batch(by(alice()), calls()));
        assert_eq!(Balances::free_balance(bob()), BALANCE + 1_000, "batch stops");
        assert!(Utility::batch_all(by(charlie()), calls()).is_err());
        assert_ok!(Utility::force_batch(by(dave()), calls()));
        assert_eq!(
            Balances::free_balance(bob()),
            BALANCE + 3_000,
            "batch_all undoes in a block, force_batch goes on"
        );
    });
}

#[test]
fn a_batch_registers_and_serves() {
    chain(|_| ()).execute_with(|| {
        let register = Call::burned_register {
            netuid: NET,
            hotkey: dave(),
        };
        let serve = Call::serve_prometheus {
            netuid: NET,
            version: 1,
            ip: 9,
            port: 9,
            ip_type: 4,
        };
        assert_ok!(Utility::batch_all(
            by(dave()),
            vec![register.into(), serve.into()]
        ));
        assert!(subtensor::Prometheus::<Runtime>::contains_key(NET, dave()));
    });
}

#[test]
fn root_changes_hyperparameters_through_sudo() {
    chain_with(|config| config.sudo.key = Some(alice())).execute_with(|| {
        let tempo = || {
            Box::new(RuntimeCall::AdminUtils(admin::Call::sudo_set_tempo {
                netuid: NET,
                tempo: 5,
            }))
        };
        assert!(Sudo::sudo(by(bob()), tempo()).is_err());
        assert_ok!(Sudo::sudo(by(alice()), tempo()));
        assert_eq!(Tempo::<Runtime>::get(NET), 5);
        assert_noop!(
            AdminUtils::sudo_set_tempo(by(alice()), NET, 9),
            DispatchError::BadOrigin
        );
        let root = RuntimeOrigin::root;
        assert_ok!(AdminUtils::sudo_set_kappa(root(), NET, 1));
        assert_eq!(Kappa::<Runtime>::get(NET), 1);
        assert_noop!(
            AdminUtils::sudo_set_kappa(root(), NOWHERE, 1),
            admin::Error::<Runtime>::SubnetDoesNotExist
        );
        assert_noop!(
            AdminUtils::sudo_set_max_allowed_uids(root(), NET, 2),
            admin::Error::<Runtime>::MaxAllowedUIdsLessThanCurrentUIds
        );
        assert_ok!(AdminUtils::sudo_set_max_allowed_uids(root(), NET, 3));
        assert_eq!(MaxAllowedUids::<Runtime>::get(NET), 3);
        assert_noop!(
            AdminUtils::sudo_set_max_burn(root(), NET, TaoBalance(0)),
            admin::Error::<Runtime>::ValueNotInBounds
        );
        assert_ok!(AdminUtils::sudo_set_stake_threshold(root(), STAKE + 1));
        let refused = SubtensorModule::set_weights(by(alice()), NET, vec![1], vec![1], 0);
        assert_noop!(refused, Error::<Runtime>::NotEnoughStakeToSetWeights);
    });
}

#[test]
fn ten_thousand_neurons_live_in_one_subnet() {
    use muster_devchain_runtime::subtensor::{Emission, NeuronGenesis};
    const MANY: u16 = 10_000;
    let hotkey =
        |uid: u16| muster_devchain_runtime::AccountId::new(sp_io::hashing::blake2_256(&uid.to_le_bytes()));
    chain_with(|config| {
        let subnet = &mut config.subtensor_module.subnets[0];
        (subnet.max_allowed_uids, subnet.emission, subnet.mechanisms) = (MANY, 1_000_000_000, 1);
        let neuron = |uid: u16| NeuronGenesis {
            netuid: NET,
            hotkey: hotkey(uid),
            coldkey: alice(),
            stake: if uid < 64 { 1_000 + u64::from(uid) } else { 0 },
            permit: uid < 64,
        };
        config.subtensor_module.neurons = (0..MANY).map(neuron).collect();
    })
    .execute_with(|| {
        for validator in 0..64u16 {
            let uids: Vec<u16> = (0..200)
                .map(|i| 64 + (validator * 7 + i * 49) % (MANY - 64))
                .collect();
            let mut uids = uids;
            uids.sort_unstable();
            uids.dedup();
            let values = vec![1_000; uids.len()];
            assert_ok!(SubtensorModule::set_weights(
                by(hotkey(validator)),
                NET,
                uids,
                values,
                0
            ));
        }
        run_to(10);
        let paid: u64 = Emission::<Runtime>::get(NET).iter().map(|paid| paid.0).sum();
        assert_eq!(paid, 10_000_000_000);
        let graph = SubtensorModule::metagraph(NET).unwrap();
        assert_eq!((graph.hotkeys.len(), graph.emission.len()), (10_000, 10_000));
        assert_eq!(SubtensorModule::neurons_lite(NET).len(), 10_000);
        assert!(SubtensorModule::neuron_to_prune(NET).is_some());
    });
}
