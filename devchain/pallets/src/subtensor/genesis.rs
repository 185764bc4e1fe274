//! The chain's beginning: the root network, subnets with their hyperparameters, neurons with their stake and permits.

use super::{
    Burn, CommitRevealWeightsEnabled, Config, GenesisConfig, LoopbackAllowed, MaxAllowedUids,
    MaxRegistrationsPerBlock, MaxWeightsLimit, MechanismCountCurrent, MinAllowedWeights,
    NetworkRegistrationAllowed, NetworksAdded, Pallet, RevealPeriodEpochs, ServingRateLimit, StakeThreshold,
    Tempo, TokenSymbol, TotalHotkeyAlpha, TotalNetworks, ValidatorPermit, WeightsSetRateLimit,
    WeightsVersionKey,
};
use crate::AccountId;
use crate::types::{AlphaBalance, MechId, NetUid, TaoBalance};
use serde::{Deserialize, Serialize};

/// A subnet at genesis. Every value is explicit; defaults are the business of whoever writes the specification.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SubnetGenesis {
    /// Its number; not the root network's.
    pub netuid: NetUid,
    /// Blocks between epochs.
    pub tempo: u16,
    /// Whether weights must be committed before they are revealed.
    pub commit_reveal: bool,
    /// Epochs between commit and reveal.
    pub reveal_period: u64,
    /// Blocks between two weight calls of one neuron.
    pub weights_rate_limit: u64,
    /// The oldest version key that weights may carry; 0 accepts any.
    pub weights_version_key: u64,
    /// How many weights a validator must set.
    pub min_allowed_weights: u16,
    /// The largest share of one weight, of 65535.
    pub max_weights_limit: u16,
    /// How many neurons it may have.
    pub max_allowed_uids: u16,
    /// Blocks between two serve calls of one neuron.
    pub serving_rate_limit: u64,
    /// The price of a registration, in rao.
    pub burn: u64,
    /// Whether it takes registrations.
    pub registration_allowed: bool,
    /// Registrations that it takes per block.
    pub max_registrations_per_block: u16,
    /// How many mechanisms it has.
    pub mechanisms: u8,
}

/// A neuron at genesis.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct NeuronGenesis {
    /// Its subnet.
    pub netuid: NetUid,
    /// Its hotkey.
    pub hotkey: AccountId,
    /// Its owner.
    pub coldkey: AccountId,
    /// Its stake on this subnet, in the token's 10⁻⁹ units.
    pub stake: u64,
    /// Whether it may set weights for others.
    pub permit: bool,
}

/// Writes the beginning. Whoever made the configuration checked it: a neuron without room is left out.
pub(super) fn build<T: Config>(genesis: &GenesisConfig<T>) {
    StakeThreshold::<T>::put(genesis.stake_threshold);
    LoopbackAllowed::<T>::put(genesis.allow_loopback);
    add_network::<T>(NetUid::ROOT, "Τ");
    for subnet in &genesis.subnets {
        add_subnet::<T>(subnet);
    }
    for neuron in &genesis.neurons {
        let Ok(uid) = Pallet::<T>::append_neuron(neuron.netuid, &neuron.hotkey, &neuron.coldkey) else {
            continue;
        };
        TotalHotkeyAlpha::<T>::insert(&neuron.hotkey, neuron.netuid, AlphaBalance(neuron.stake));
        ValidatorPermit::<T>::mutate(neuron.netuid, |permits| {
            if let Some(permit) = permits.get_mut(usize::from(uid)) {
                *permit = neuron.permit;
            }
        });
    }
}

fn add_network<T: Config>(netuid: NetUid, symbol: &str) {
    NetworksAdded::<T>::insert(netuid, true);
    TotalNetworks::<T>::mutate(|total| *total = total.saturating_add(1));
    TokenSymbol::<T>::insert(netuid, symbol.as_bytes());
}

fn add_subnet<T: Config>(subnet: &SubnetGenesis) {
    let netuid = subnet.netuid;
    add_network::<T>(netuid, "α");
    Tempo::<T>::insert(netuid, subnet.tempo);
    CommitRevealWeightsEnabled::<T>::insert(netuid, subnet.commit_reveal);
    RevealPeriodEpochs::<T>::insert(netuid, subnet.reveal_period);
    WeightsSetRateLimit::<T>::insert(netuid, subnet.weights_rate_limit);
    WeightsVersionKey::<T>::insert(netuid, subnet.weights_version_key);
    MinAllowedWeights::<T>::insert(netuid, subnet.min_allowed_weights);
    MaxWeightsLimit::<T>::insert(netuid, subnet.max_weights_limit);
    MaxAllowedUids::<T>::insert(netuid, subnet.max_allowed_uids);
    ServingRateLimit::<T>::insert(netuid, subnet.serving_rate_limit);
    Burn::<T>::insert(netuid, TaoBalance(subnet.burn));
    NetworkRegistrationAllowed::<T>::insert(netuid, subnet.registration_allowed);
    MaxRegistrationsPerBlock::<T>::insert(netuid, subnet.max_registrations_per_block);
    MechanismCountCurrent::<T>::insert(netuid, MechId(subnet.mechanisms));
}
