//! Full subnets: who leaves when somebody comes, and what is left of them.

use crate::support::{Error, NET, alice, bob, by, chain, charlie, dave, run_to};
use frame_support::{assert_noop, assert_ok};
use muster_devchain_runtime::subtensor::{
    Axons, BlockAtRegistration, Bonds, Burn, Incentive, IsNetworkMember, Keys, LastUpdate, SubnetGenesis,
    SubnetworkN, Uids, ValidatorPermit, Weights,
};
use muster_devchain_runtime::types::{MechId, TaoBalance};
use muster_devchain_runtime::{AccountId, Runtime, SubtensorModule};
use sp_io::TestExternalities;

fn hotkey(i: u8) -> AccountId {
    AccountId::new([i; 32])
}

fn full(change: impl FnOnce(&mut SubnetGenesis)) -> TestExternalities {
    chain(|s| {
        (s.max_allowed_uids, s.immunity_period, s.mechanisms) = (3, 5, 1);
        change(s);
    })
}

fn register(i: u8) -> sp_runtime::DispatchResult {
    SubtensorModule::burned_register(by(dave()), NET, hotkey(i))
}

#[test]
fn the_one_that_earned_least_leaves_nothing_behind() {
    full(|_| ()).execute_with(|| {
        let index = NET.index(MechId(0));
        assert_ok!(SubtensorModule::serve_axon(
            by(charlie()),
            NET,
            1,
            9,
            8091,
            4,
            0,
            0,
            0
        ));
        assert_ok!(SubtensorModule::set_weights(
            by(alice()),
            NET,
            vec![1, 2],
            vec![3, 1],
            0
        ));
        run_to(10);
        assert_eq!(SubtensorModule::neuron_to_prune(NET), Some(2));
        run_to(11);
        assert_ok!(register(1));
        assert_eq!(
            (Uids::<Runtime>::get(NET, hotkey(1)), Keys::<Runtime>::get(NET, 2)),
            (Some(2), Some(hotkey(1)))
        );
        assert_eq!(Uids::<Runtime>::get(NET, charlie()), None);
        assert_eq!(Axons::<Runtime>::get(NET, charlie()), None);
        assert!(!IsNetworkMember::<Runtime>::get(charlie(), NET));
        assert_eq!(SubnetworkN::<Runtime>::get(NET), 3);
        assert_eq!(Incentive::<Runtime>::get(index)[2], 0);
        assert_eq!(
            Weights::<Runtime>::get(index, 0),
            [(1, 65535), (2, 0)],
            "a weight for the old one is not the new one's"
        );
        assert_eq!(
            (
                BlockAtRegistration::<Runtime>::get(NET, 2),
                LastUpdate::<Runtime>::get(index)[2]
            ),
            (11, 11)
        );
        run_to(20);
        assert_eq!(Incentive::<Runtime>::get(index), [0, u16::MAX, 0]);
        assert!(
            !Bonds::<Runtime>::get(index, 0)
                .iter()
                .any(|(target, _)| *target == 2)
        );
    });
}

#[test]
fn a_validator_that_leaves_takes_its_weights_along() {
    full(|s| s.immunity_period = 0).execute_with(|| {
        let index = NET.index(MechId(0));
        assert_ok!(SubtensorModule::set_weights(
            by(alice()),
            NET,
            vec![1],
            vec![1],
            0
        ));
        // Nobody was paid yet: of equals the lowest uid goes.
        assert_ok!(register(1));
        assert_eq!(Uids::<Runtime>::get(NET, alice()), None);
        assert_eq!(Weights::<Runtime>::get(index, 0), []);
        assert!(!ValidatorPermit::<Runtime>::get(NET)[0]);
        let without = SubtensorModule::set_weights(by(hotkey(1)), NET, vec![1], vec![1], 0);
        assert_noop!(without, Error::NeuronNoValidatorPermit);
    });
}

#[test]
fn newcomers_are_spared_while_others_can_go() {
    full(|_| ()).execute_with(|| {
        run_to(6);
        assert_ok!(register(1));
        assert_eq!(Uids::<Runtime>::get(NET, hotkey(1)), Some(0));
        assert_ok!(register(2));
        assert_eq!(
            Uids::<Runtime>::get(NET, hotkey(2)),
            Some(1),
            "the newcomer at uid 0 is spared"
        );
        run_to(7);
        assert_ok!(register(3));
        assert_eq!(Uids::<Runtime>::get(NET, hotkey(3)), Some(2));
        assert_ok!(register(4));
        assert_eq!(
            Uids::<Runtime>::get(NET, hotkey(4)),
            Some(0),
            "all are spared: the oldest goes"
        );
        assert_eq!(Uids::<Runtime>::get(NET, bob()), None);
    });
}

#[test]
fn registrations_raise_the_price_and_time_lowers_it() {
    chain(|s| (s.burn, s.min_burn, s.burn_half_life) = (1_000_000, Some(400_000), 10)).execute_with(|| {
        let price = || Burn::<Runtime>::get(NET).0;
        assert_ok!(register(1));
        assert_eq!(price(), 1_259_999);
        run_to(11);
        assert!(
            (629_900..=630_000).contains(&price()),
            "half is left after ten blocks: {}",
            price()
        );
        run_to(200);
        assert_eq!(price(), 400_000);
    });
    chain(|s| (s.burn, s.max_burn) = (1_000, 1_100)).execute_with(|| {
        assert_ok!(register(1));
        assert_eq!(Burn::<Runtime>::get(NET), TaoBalance(1_100));
    });
}

#[test]
fn a_registration_may_name_its_limit() {
    chain(|s| s.burn = 1_000).execute_with(|| {
        let within = |limit| SubtensorModule::register_limit(by(dave()), NET, hotkey(1), limit);
        assert_noop!(within(999), Error::RegistrationPriceLimitExceeded);
        assert_ok!(within(1_000));
    });
}

#[test]
fn an_interval_has_room_for_some() {
    chain(|s| {
        (
            s.target_registrations_per_interval,
            s.adjustment_interval,
            s.max_registrations_per_block,
        ) = (1, 20, 9);
    })
    .execute_with(|| {
        for i in 1..=3 {
            assert_ok!(register(i));
        }
        assert_noop!(register(4), Error::TooManyRegistrationsThisInterval);
        run_to(19);
        assert_noop!(register(4), Error::TooManyRegistrationsThisInterval);
        run_to(20);
        assert_ok!(register(4));
    });
}

#[test]
fn work_registers_where_it_is_allowed() {
    use muster_devchain_runtime::{System, subtensor::seal};
    let with = |nonce, work: Vec<u8>| {
        SubtensorModule::register(by(hotkey(1)), NET, 1, nonce, work, hotkey(1), dave())
    };
    chain(|_| ()).execute_with(|| {
        assert_noop!(with(0, vec![0; 32]), Error::SubNetRegistrationDisabled);
    });
    chain(|s| (s.pow_registration_allowed, s.difficulty) = (true, 4)).execute_with(|| {
        run_to(2);
        let found = (0..).map(|nonce| (nonce, seal(System::block_hash(1).as_ref(), &hotkey(1), nonce)));
        let (nonce, work) = found.into_iter().find(|(_, work)| work[31] < 64).unwrap();
        assert_noop!(with(nonce, vec![255; 32]), Error::InvalidDifficulty);
        assert_noop!(with(nonce, vec![1; 32]), Error::InvalidSeal);
        assert_noop!(with(nonce, vec![1; 31]), Error::InvalidSeal);
        assert_noop!(
            SubtensorModule::register(by(dave()), NET, 1, nonce, work.to_vec(), hotkey(1), dave()),
            Error::TransactorAccountShouldBeHotKey
        );
        assert_ok!(with(nonce, work.to_vec()));
        assert_eq!(Uids::<Runtime>::get(NET, hotkey(1)), Some(3));
        run_to(5);
        let late = SubtensorModule::register(by(hotkey(2)), NET, 1, nonce, work.to_vec(), hotkey(2), dave());
        assert_noop!(late, Error::InvalidWorkBlock);
    });
}
