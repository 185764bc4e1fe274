//! A chain with one subnet for each test, and short names for what tests do to it.

use frame_support::traits::Hooks;
use muster_devchain_runtime::subtensor::{NeuronGenesis, SubnetGenesis};
use muster_devchain_runtime::types::NetUid;
use muster_devchain_runtime::{
    AccountId, RuntimeGenesisConfig, RuntimeOrigin, SubtensorModule, System, subtensor,
};
use sp_io::TestExternalities;
use sp_keyring::Sr25519Keyring;
use sp_runtime::BuildStorage;

pub(crate) type Error = subtensor::Error<muster_devchain_runtime::Runtime>;

/// The subnet of these tests.
pub(crate) const NET: NetUid = NetUid(1);
/// A subnet that does not exist.
pub(crate) const NOWHERE: NetUid = NetUid(9);
/// A validator's stake.
pub(crate) const STAKE: u64 = 1_000;
/// The balance of each coldkey in rao.
pub(crate) const BALANCE: u64 = 10_000_000;

/// Uid 0: a validator with permit and stake.
pub(crate) fn alice() -> AccountId {
    Sr25519Keyring::Alice.to_account_id()
}

/// Uid 1: a miner.
pub(crate) fn bob() -> AccountId {
    Sr25519Keyring::Bob.to_account_id()
}

/// Uid 2: a miner.
pub(crate) fn charlie() -> AccountId {
    Sr25519Keyring::Charlie.to_account_id()
}

/// An account that is not registered yet.
pub(crate) fn dave() -> AccountId {
    Sr25519Keyring::Dave.to_account_id()
}

pub(crate) fn by(who: AccountId) -> RuntimeOrigin {
    RuntimeOrigin::signed(who)
}

/// A subnet that allows everything.
pub(crate) fn subnet() -> SubnetGenesis {
    SubnetGenesis {
        netuid: NET,
        tempo: 10,
        commit_reveal: false,
        reveal_period: 1,
        weights_rate_limit: 0,
        weights_version_key: 0,
        min_allowed_weights: 0,
        max_weights_limit: u16::MAX,
        max_allowed_uids: 8,
        serving_rate_limit: 0,
        burn: 1_000,
        registration_allowed: true,
        max_registrations_per_block: 2,
        mechanisms: 2,
        ..SubnetGenesis::default()
    }
}

/// A chain at block 1, after changes to the configuration.
pub(crate) fn chain_with(change: impl FnOnce(&mut RuntimeGenesisConfig)) -> TestExternalities {
    let neuron = |hotkey: AccountId, stake, permit| NeuronGenesis {
        netuid: NET,
        coldkey: hotkey.clone(),
        hotkey,
        stake,
        permit,
    };
    let mut config = RuntimeGenesisConfig::default();
    config.balances.balances = [alice(), bob(), charlie(), dave()]
        .map(|who| (who, BALANCE))
        .to_vec();
    config.subtensor_module.subnets = vec![subnet()];
    config.subtensor_module.neurons = vec![
        neuron(alice(), STAKE, true),
        neuron(bob(), 0, false),
        neuron(charlie(), 0, false),
    ];
    change(&mut config);
    let mut chain = TestExternalities::new(config.build_storage().unwrap());
    chain.execute_with(|| run_to(1));
    chain
}

/// A chain at block 1, after changes to the subnet.
pub(crate) fn chain(change: impl FnOnce(&mut SubnetGenesis)) -> TestExternalities {
    chain_with(|config| change(&mut config.subtensor_module.subnets[0]))
}

/// Begins block after block.
pub(crate) fn run_to(block: u32) {
    while System::block_number() < block {
        let next = System::block_number() + 1;
        System::set_block_number(next);
        SubtensorModule::on_initialize(next);
    }
}
