//! `add_stake` and `remove_stake`, and whose the stake is.

use crate::support::{BALANCE, Error, NET, NOWHERE, STAKE, alice, bob, by, chain, dave, run_to};
use frame_support::{assert_noop, assert_ok};
use muster_devchain_runtime::subtensor::{LEAST_STAKE, SubnetTAO, TotalHotkeyAlpha};
use muster_devchain_runtime::types::{AlphaBalance, NetUid, TaoBalance};
use muster_devchain_runtime::{AccountId, Balances, Runtime, SubtensorModule};
use sp_runtime::DispatchResult;

const AMOUNT: u64 = 4_000_000;

fn add(who: AccountId, hotkey: AccountId, netuid: NetUid, amount: u64) -> DispatchResult {
    SubtensorModule::add_stake(by(who), hotkey, netuid, TaoBalance(amount))
}

fn remove(who: AccountId, hotkey: AccountId, amount: u64) -> DispatchResult {
    SubtensorModule::remove_stake(by(who), hotkey, NET, AlphaBalance(amount))
}

#[test]
fn stake_is_paid_for_and_given_back() {
    chain(|s| s.emission = 0).execute_with(|| {
        let issued = Balances::total_issuance();
        assert_ok!(add(dave(), alice(), NET, AMOUNT));
        assert_eq!(TotalHotkeyAlpha::<Runtime>::get(alice(), NET).0, STAKE + AMOUNT);
        assert_eq!(SubtensorModule::stake_of(&alice(), &dave(), NET), AMOUNT);
        assert_eq!(SubtensorModule::stake_of(&alice(), &alice(), NET), STAKE);
        assert_eq!(Balances::free_balance(dave()), BALANCE - AMOUNT);
        assert_eq!(SubnetTAO::<Runtime>::get(NET).0, STAKE + AMOUNT);
        assert_ok!(remove(dave(), alice(), AMOUNT));
        assert_eq!(SubtensorModule::stake_of(&alice(), &dave(), NET), 0);
        assert_eq!(
            (Balances::free_balance(dave()), Balances::total_issuance()),
            (BALANCE, issued)
        );
        assert_eq!(TotalHotkeyAlpha::<Runtime>::get(alice(), NET).0, STAKE);
    });
}

#[test]
fn stakes_that_cannot_be_added_or_removed_are_refused_by_name() {
    chain(|_| ()).execute_with(|| {
        assert_noop!(add(dave(), alice(), NOWHERE, AMOUNT), Error::SubnetNotExists);
        assert_noop!(add(dave(), alice(), NET, LEAST_STAKE - 1), Error::AmountTooLow);
        assert_noop!(add(dave(), alice(), NET, BALANCE), Error::NotEnoughBalanceToStake);
        assert_noop!(add(dave(), dave(), NET, AMOUNT), Error::HotKeyAccountNotExists);
        assert_noop!(remove(dave(), alice(), AMOUNT), Error::NotEnoughStakeToWithdraw);
        assert_noop!(remove(dave(), dave(), AMOUNT), Error::HotKeyAccountNotExists);
        assert_ok!(add(dave(), alice(), NET, AMOUNT));
        assert_noop!(remove(dave(), alice(), 1), Error::AmountTooLow);
        // Less than the least may go if it is all.
        assert_ok!(remove(alice(), alice(), STAKE));
    });
}

#[test]
fn dividends_are_shared_by_those_who_staked() {
    chain(|s| (s.emission, s.mechanisms) = (8_000_000, 1)).execute_with(|| {
        assert_ok!(add(dave(), alice(), NET, AMOUNT));
        assert_ok!(SubtensorModule::set_weights(
            by(alice()),
            NET,
            vec![1],
            vec![1],
            0
        ));
        run_to(10);
        // Ten blocks' validator half: 40,000,000, almost all of it Dave's.
        let (daves, alices) = (
            SubtensorModule::stake_of(&alice(), &dave(), NET),
            SubtensorModule::stake_of(&alice(), &alice(), NET),
        );
        let all = TotalHotkeyAlpha::<Runtime>::get(alice(), NET).0;
        assert_eq!(all, STAKE + AMOUNT + 40_000_000);
        assert!(all - daves - alices <= 1, "rounding leaves one unit at most");
        assert!(daves > 43_980_000 && alices > STAKE, "{daves} {alices}");
        // The emitted stake is not all backed by TAO.
        assert_noop!(remove(dave(), alice(), daves), Error::InsufficientLiquidity);
        assert_eq!(SubtensorModule::stake_of(&bob(), &bob(), NET), 40_000_000);
    });
}

#[test]
fn clients_read_stake() {
    chain(|_| ()).execute_with(|| {
        assert_ok!(add(dave(), alice(), NET, AMOUNT));
        let info = SubtensorModule::stake_info(&alice(), &dave(), NET).unwrap();
        assert_eq!((info.stake.0.0, info.is_registered), (AMOUNT, true));
        assert_eq!(SubtensorModule::stake_info(&alice(), &dave(), NOWHERE), None);
        assert_eq!(SubtensorModule::stakes_of(&dave()), [info]);
        assert_eq!(SubtensorModule::stakes_of(&bob()), []);
    });
}
