//! The chain's beginning: the root network, subnets with their hyperparameters, neurons with their stake and permits.

use super::{
    ActivityCutoff, AdjustmentInterval, BondsMovingAverage, BondsPenalty, Burn, BurnHalfLife,
    BurnIncreaseMult, CommitRevealWeightsEnabled, Config, Difficulty, GenesisConfig, ImmunityPeriod, Kappa,
    LoopbackAllowed, MaxAllowedUids, MaxAllowedValidators, MaxBurn, MaxRegistrationsPerBlock,
    MaxWeightsLimit, MechanismCountCurrent, MinAllowedWeights, MinBurn, MinNonImmuneUids,
    NetworkPowRegistrationAllowed, NetworkRegistrationAllowed, NetworksAdded, Pallet, RevealPeriodEpochs,
    ServingRateLimit, StakeThreshold, SubnetAlphaOutEmission, SubnetTAO, SubnetworkN,
    TargetRegistrationsPerInterval, Tempo, TokenSymbol, TotalNetworks, ValidatorPermit, WeightsSetRateLimit,
    WeightsVersionKey, price,
};
use crate::AccountId;
use crate::types::{AlphaBalance, MechId, NetUid, TaoBalance};
use serde::{Deserialize, Serialize};

/// A subnet at genesis.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(default)]
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
    /// How many of them may hold a validator's permit.
    pub max_validators: u16,
    /// Blocks for which a new neuron is spared when a full subnet replaces its weakest.
    pub immunity_period: u16,
    /// How many neurons that are not spared stay in any case.
    pub min_non_immune_uids: u16,
    /// Blocks without weights after which a validator's stake does not count.
    pub activity_cutoff: u16,
    /// The majority that a weight needs, of 65535.
    pub kappa: u16,
    /// The share of the last bonds in the next, of 10⁶.
    pub bonds_moving_average: u64,
    /// How far bonds follow clipped weights, of 65535.
    pub bonds_penalty: u16,
    /// The emission to its neurons per block, in the token's 10⁻⁹ units.
    pub emission: u64,
    /// Blocks between two serve calls of one neuron.
    pub serving_rate_limit: u64,
    /// The price of a registration, in rao.
    pub burn: u64,
    /// The price does not fall below this; the first price where it is not given.
    pub min_burn: Option<u64>,
    /// The price does not rise above this.
    pub max_burn: u64,
    /// Blocks in which the price halves; 0 keeps it.
    pub burn_half_life: u16,
    /// The factor by which a registration raises the price, in thousandths.
    pub burn_increase: u32,
    /// Whether it takes registrations.
    pub registration_allowed: bool,
    /// Whether it takes registrations for work.
    pub pow_registration_allowed: bool,
    /// How hard that work is.
    pub difficulty: u64,
    /// Registrations that it takes per block.
    pub max_registrations_per_block: u16,
    /// A third of the registrations that it takes per interval.
    pub target_registrations_per_interval: u16,
    /// Blocks in that interval.
    pub adjustment_interval: u16,
    /// How many mechanisms it has.
    pub mechanisms: u8,
}

/// A subnet that a developer can use at once. Where the public chain's defaults do not stand in the way, they are
/// these.
impl Default for SubnetGenesis {
    fn default() -> Self {
        Self {
            netuid: NetUid(1),
            tempo: 20,
            commit_reveal: false,
            reveal_period: 1,
            weights_rate_limit: 0,
            weights_version_key: 0,
            min_allowed_weights: 0,
            max_weights_limit: u16::MAX,
            max_allowed_uids: 256,
            max_validators: 64,
            immunity_period: 4096,
            min_non_immune_uids: 0,
            activity_cutoff: 5000,
            kappa: 32767,
            bonds_moving_average: 900_000,
            bonds_penalty: u16::MAX,
            emission: 1_000_000_000,
            serving_rate_limit: 0,
            burn: 1_000_000,
            min_burn: None,
            max_burn: 100_000_000_000,
            burn_half_life: 360,
            burn_increase: 1260,
            registration_allowed: true,
            pow_registration_allowed: false,
            difficulty: 10_000_000,
            max_registrations_per_block: 16,
            target_registrations_per_interval: u16::MAX,
            adjustment_interval: 100,
            mechanisms: 1,
        }
    }
}

/// A neuron at genesis.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct NeuronGenesis {
    /// The number of its subnet.
    pub netuid: NetUid,
    /// The account of its hotkey.
    pub hotkey: AccountId,
    /// The account of its coldkey.
    pub coldkey: AccountId,
    /// Its stake on this subnet, in the token's 10⁻⁹ units.
    pub stake: u64,
    /// Whether it may set weights for others.
    pub permit: bool,
}

/// Writes the first state. The author of the configuration has checked it: a neuron without room is left out.
pub(super) fn build<T: Config>(genesis: &GenesisConfig<T>) {
    StakeThreshold::<T>::put(genesis.stake_threshold);
    LoopbackAllowed::<T>::put(genesis.allow_loopback);
    add_network::<T>(NetUid::ROOT, "Τ");
    for subnet in &genesis.subnets {
        add_subnet::<T>(subnet);
    }
    for neuron in &genesis.neurons {
        if SubnetworkN::<T>::get(neuron.netuid) >= MaxAllowedUids::<T>::get(neuron.netuid) {
            continue;
        }
        let Ok(uid) = Pallet::<T>::take_uid(neuron.netuid, &neuron.hotkey, &neuron.coldkey) else {
            continue;
        };
        if neuron.stake > 0 {
            Pallet::<T>::stake_for(&neuron.hotkey, &neuron.coldkey, neuron.netuid, neuron.stake);
            SubnetTAO::<T>::mutate(neuron.netuid, |paid| paid.0 = paid.0.saturating_add(neuron.stake));
        }
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
    MaxAllowedValidators::<T>::insert(netuid, subnet.max_validators);
    ImmunityPeriod::<T>::insert(netuid, subnet.immunity_period);
    MinNonImmuneUids::<T>::insert(netuid, subnet.min_non_immune_uids);
    ActivityCutoff::<T>::insert(netuid, subnet.activity_cutoff);
    Kappa::<T>::insert(netuid, subnet.kappa);
    BondsMovingAverage::<T>::insert(netuid, subnet.bonds_moving_average);
    BondsPenalty::<T>::insert(netuid, subnet.bonds_penalty);
    SubnetAlphaOutEmission::<T>::insert(netuid, AlphaBalance(subnet.emission));
    ServingRateLimit::<T>::insert(netuid, subnet.serving_rate_limit);
    Burn::<T>::insert(netuid, TaoBalance(subnet.burn));
    MinBurn::<T>::insert(netuid, TaoBalance(subnet.min_burn.unwrap_or(subnet.burn)));
    MaxBurn::<T>::insert(netuid, TaoBalance(subnet.max_burn.max(subnet.burn)));
    BurnHalfLife::<T>::insert(netuid, subnet.burn_half_life);
    BurnIncreaseMult::<T>::insert(netuid, price::thousandths(subnet.burn_increase));
    TargetRegistrationsPerInterval::<T>::insert(netuid, subnet.target_registrations_per_interval);
    AdjustmentInterval::<T>::insert(netuid, subnet.adjustment_interval);
    NetworkRegistrationAllowed::<T>::insert(netuid, subnet.registration_allowed);
    NetworkPowRegistrationAllowed::<T>::insert(netuid, subnet.pow_registration_allowed);
    Difficulty::<T>::insert(netuid, subnet.difficulty);
    MaxRegistrationsPerBlock::<T>::insert(netuid, subnet.max_registrations_per_block);
    MechanismCountCurrent::<T>::insert(netuid, MechId(subnet.mechanisms));
}
