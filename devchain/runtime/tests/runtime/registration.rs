//! Tests of the call `burned_register`.

use crate::support::{BALANCE, Error, NET, NOWHERE, alice, bob, by, chain, dave, run_to};
use frame_support::{assert_noop, assert_ok};
use muster_devchain_runtime::subtensor::{
    BlockAtRegistration, Keys, OwnedHotkeys, Owner, RAORecycledForRegistration, SubnetworkN, Uids,
    ValidatorPermit,
};
use muster_devchain_runtime::types::{NetUid, TaoBalance};
use muster_devchain_runtime::{AccountId, Balances, EXISTENTIAL_DEPOSIT, Runtime, SubtensorModule};

fn hotkey(i: u8) -> AccountId {
    AccountId::new([i; 32])
}

#[test]
fn a_registration_takes_the_next_uid_and_its_price() {
    chain(|_| ()).execute_with(|| {
        run_to(4);
        let issued = Balances::total_issuance();
        assert_ok!(SubtensorModule::burned_register(by(dave()), NET, hotkey(1)));
        assert_eq!(Uids::<Runtime>::get(NET, hotkey(1)), Some(3));
        assert_eq!(Keys::<Runtime>::get(NET, 3), Some(hotkey(1)));
        assert_eq!(Owner::<Runtime>::get(hotkey(1)), Some(dave()));
        assert_eq!(OwnedHotkeys::<Runtime>::get(dave()), [hotkey(1)]);
        assert_eq!(SubnetworkN::<Runtime>::get(NET), 4);
        assert_eq!(BlockAtRegistration::<Runtime>::get(NET, 3), 4);
        assert_eq!(ValidatorPermit::<Runtime>::get(NET), [true, false, false, false]);
        assert_eq!(Balances::free_balance(dave()), BALANCE - 1_000);
        assert_eq!(Balances::total_issuance(), issued - 1_000);
        assert_eq!(RAORecycledForRegistration::<Runtime>::get(NET), TaoBalance(1_000));
    });
}

#[test]
fn where_one_may_register() {
    chain(|_| ()).execute_with(|| {
        let at = |netuid| SubtensorModule::burned_register(by(dave()), netuid, hotkey(1));
        assert_noop!(at(NetUid::ROOT), Error::RegistrationNotPermittedOnRootSubnet);
        assert_noop!(at(NOWHERE), Error::SubnetNotExists);
    });
    chain(|s| s.registration_allowed = false).execute_with(|| {
        let closed = SubtensorModule::burned_register(by(dave()), NET, hotkey(1));
        assert_noop!(closed, Error::SubNetRegistrationDisabled);
    });
    // Nobody can go where all are needed.
    chain(|s| (s.max_allowed_uids, s.min_non_immune_uids, s.immunity_period) = (3, 3, 0)).execute_with(
        || {
            let full = SubtensorModule::burned_register(by(dave()), NET, hotkey(1));
            assert_noop!(full, Error::NoNeuronIdAvailable);
        },
    );
}

#[test]
fn registrations_of_known_or_foreign_hotkeys_are_refused() {
    chain(|_| ()).execute_with(|| {
        let again = SubtensorModule::burned_register(by(bob()), NET, bob());
        assert_noop!(again, Error::HotKeyAlreadyRegisteredInSubNet);
        Owner::<Runtime>::insert(hotkey(1), alice());
        let foreign = SubtensorModule::burned_register(by(dave()), NET, hotkey(1));
        assert_noop!(foreign, Error::NonAssociatedColdKey);
    });
}

#[test]
fn the_price_must_be_there() {
    // The coldkey keeps the least balance.
    let all = BALANCE - EXISTENTIAL_DEPOSIT;
    chain(|s| s.burn = all + 1).execute_with(|| {
        let dear = SubtensorModule::burned_register(by(dave()), NET, hotkey(1));
        assert_noop!(dear, Error::NotEnoughBalanceToStake);
    });
    chain(|s| s.burn = all).execute_with(|| {
        assert_ok!(SubtensorModule::burned_register(by(dave()), NET, hotkey(1)));
        assert_eq!(Balances::free_balance(dave()), EXISTENTIAL_DEPOSIT);
    });
}

#[test]
fn a_block_has_room_for_some() {
    chain(|_| ()).execute_with(|| {
        let register = |i| SubtensorModule::burned_register(by(dave()), NET, hotkey(i));
        assert_ok!(register(1));
        assert_ok!(register(2));
        assert_noop!(register(3), Error::TooManyRegistrationsThisBlock);
        run_to(2);
        assert_ok!(register(3));
    });
}
