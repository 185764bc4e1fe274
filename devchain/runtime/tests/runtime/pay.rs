//! Epochs that pay: consensus and its money, on the chain.

use crate::support::{NET, STAKE, alice, bob, by, chain, chain_with, charlie, dave, run_to};
use frame_support::assert_ok;
use muster_devchain_runtime::subtensor::{
    AlphaDividendsPerSubnet, Bonds, Consensus, Dividends, Emission, Incentive, PendingServerEmission,
    PendingValidatorEmission, SubnetAlphaOut, SubnetGenesis, TotalHotkeyAlpha, ValidatorPermit,
    ValidatorTrust,
};
use muster_devchain_runtime::types::{AlphaBalance, MechId};
use muster_devchain_runtime::{AccountId, Runtime, SubtensorModule};
use sp_io::TestExternalities;

/// The emission of the subnet per block; odd, so that halves differ.
const EMISSION: u64 = 1_001;

fn paying(change: impl FnOnce(&mut SubnetGenesis)) -> TestExternalities {
    chain(|s| {
        (s.emission, s.mechanisms) = (EMISSION, 1);
        change(s);
    })
}

fn stake(who: AccountId) -> u64 {
    TotalHotkeyAlpha::<Runtime>::get(who, NET).0
}

fn incentive() -> Vec<u16> {
    Incentive::<Runtime>::get(NET.index(MechId(0)))
}

#[test]
fn an_epoch_pays_what_was_laid_aside() {
    paying(|_| ()).execute_with(|| {
        run_to(2);
        assert_ok!(SubtensorModule::set_weights(
            by(alice()),
            NET,
            vec![1, 2],
            vec![3, 1],
            0
        ));
        run_to(9);
        assert_eq!(PendingServerEmission::<Runtime>::get(NET), AlphaBalance(9 * 500));
        assert_eq!(
            PendingValidatorEmission::<Runtime>::get(NET),
            AlphaBalance(9 * 501)
        );
        run_to(10);
        assert_eq!(incentive(), [0, 49151, 16383]);
        assert_eq!(Consensus::<Runtime>::get(NET), [0, 49151, 16383]);
        assert_eq!(Dividends::<Runtime>::get(NET), [u16::MAX, 0, 0]);
        assert_eq!(ValidatorTrust::<Runtime>::get(NET), [u16::MAX, 0, 0]);
        let emission = Emission::<Runtime>::get(NET);
        assert_eq!(emission, [5005, 3754, 1251].map(AlphaBalance));
        assert_eq!(emission.iter().map(|paid| paid.0).sum::<u64>(), 10 * EMISSION);
        assert_eq!(
            [stake(alice()), stake(bob()), stake(charlie())],
            [STAKE + 5005, 3754, 1251]
        );
        assert_eq!(
            AlphaDividendsPerSubnet::<Runtime>::get(NET, alice()),
            AlphaBalance(5005)
        );
        assert_eq!(
            SubnetAlphaOut::<Runtime>::get(NET),
            AlphaBalance(STAKE + 10 * EMISSION)
        );
        assert_eq!(PendingServerEmission::<Runtime>::get(NET), AlphaBalance(0));
        assert_eq!(
            Bonds::<Runtime>::get(NET.index(MechId(0)), 0),
            [(1, u16::MAX), (2, u16::MAX)]
        );
        assert_eq!(
            SubtensorModule::stake_of(&bob(), &bob(), NET),
            3754,
            "a miner's pay is its owner's"
        );
    });
}

#[test]
fn without_weights_stake_is_paid() {
    paying(|_| ()).execute_with(|| {
        run_to(10);
        assert_eq!(incentive(), [0, 0, 0]);
        assert_eq!([stake(alice()), stake(bob())], [STAKE + 10 * EMISSION, 0]);
    });
}

#[test]
fn without_stake_the_money_waits() {
    chain_with(|config| {
        config.subtensor_module.subnets[0].emission = EMISSION;
        config.subtensor_module.subnets[0].mechanisms = 1;
        config.subtensor_module.neurons[0].stake = 0;
    })
    .execute_with(|| {
        run_to(20);
        let waiting =
            PendingServerEmission::<Runtime>::get(NET).0 + PendingValidatorEmission::<Runtime>::get(NET).0;
        assert_eq!(waiting, 20 * EMISSION);
        assert_eq!(ValidatorPermit::<Runtime>::get(NET), [false; 3]);
    });
}

#[test]
fn permits_follow_stake() {
    paying(|s| s.max_validators = 2).execute_with(|| {
        assert_ok!(SubtensorModule::set_weights(
            by(alice()),
            NET,
            vec![1, 2],
            vec![3, 1],
            0
        ));
        assert_eq!(ValidatorPermit::<Runtime>::get(NET), [true, false, false]);
        run_to(10);
        assert_eq!(
            ValidatorPermit::<Runtime>::get(NET),
            [true, false, false],
            "stake before the pay decides"
        );
        run_to(20);
        assert_eq!(ValidatorPermit::<Runtime>::get(NET), [true, true, false]);
    });
}

#[test]
fn stake_below_the_threshold_counts_nothing() {
    chain_with(|config| {
        config.subtensor_module.subnets[0].emission = EMISSION;
        config.subtensor_module.stake_threshold = STAKE + 1;
    })
    .execute_with(|| {
        run_to(10);
        assert_eq!(ValidatorPermit::<Runtime>::get(NET), [false; 3]);
        assert_eq!(stake(alice()), STAKE);
    });
}

#[test]
fn weights_set_before_a_registration_do_not_reach_the_newcomer() {
    paying(|s| s.burn = 1_000).execute_with(|| {
        assert_ok!(SubtensorModule::burned_register(by(dave()), NET, dave()));
        assert_ok!(SubtensorModule::set_weights(
            by(alice()),
            NET,
            vec![1, 3],
            vec![1, 1],
            0
        ));
        run_to(10);
        assert_eq!(incentive(), [0, u16::MAX, 0, 0], "the same block is not later");
        run_to(11);
        assert_ok!(SubtensorModule::set_weights(
            by(alice()),
            NET,
            vec![1, 3],
            vec![1, 1],
            0
        ));
        run_to(20);
        assert_eq!(incentive(), [0, 32767, 0, 32767]);
    });
}

#[test]
fn mechanisms_share_the_emission() {
    paying(|s| s.mechanisms = 2).execute_with(|| {
        assert_ok!(SubtensorModule::set_weights(
            by(alice()),
            NET,
            vec![1],
            vec![1],
            0
        ));
        assert_ok!(SubtensorModule::set_mechanism_weights(
            by(alice()),
            NET,
            MechId(1),
            vec![2],
            vec![1],
            0
        ));
        run_to(10);
        assert_eq!(Incentive::<Runtime>::get(NET.index(MechId(0))), [0, u16::MAX, 0]);
        assert_eq!(Incentive::<Runtime>::get(NET.index(MechId(1))), [0, 0, u16::MAX]);
        let paid: Vec<u64> = Emission::<Runtime>::get(NET).iter().map(|paid| paid.0).collect();
        assert_eq!(paid.iter().sum::<u64>(), 10 * EMISSION);
        assert_eq!(paid[1], paid[2]);
    });
}

#[test]
fn a_silent_validator_does_not_vote() {
    paying(|s| s.activity_cutoff = 3).execute_with(|| {
        run_to(2);
        assert_ok!(SubtensorModule::set_weights(
            by(alice()),
            NET,
            vec![1],
            vec![1],
            0
        ));
        run_to(10);
        assert_eq!(incentive(), [0, 0, 0]);
        run_to(18);
        assert_ok!(SubtensorModule::set_weights(
            by(alice()),
            NET,
            vec![1],
            vec![1],
            0
        ));
        run_to(20);
        assert_eq!(incentive(), [0, u16::MAX, 0]);
    });
}
