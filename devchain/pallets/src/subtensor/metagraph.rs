//! A subnet as clients see it: the metagraph, the same by column, and the pool of its token. There is no pool on this
//! chain: its reserves, volumes and prices are zero.

use super::neurons::zero_account;
use super::{
    AlphaDividendsPerSubnet, BlockAtRegistration, BlocksSinceLastStep, Config, IdentitiesV2,
    LastMechansimStepBlock, NetworkRegisteredAt, NetworksAdded, Pallet, PendingServerEmission,
    PendingValidatorEmission, SubnetAlphaOut, SubnetAlphaOutEmission, SubnetIdentitiesV3, SubnetOwner,
    SubnetOwnerHotkey, SubnetTAO, TokenSymbol,
};
use crate::AccountId;
use crate::types::{
    AlphaBalance, DynamicInfo, FixedI128, Metagraph, NetUid, NeuronInfoLite, SubnetIdentityV3, SubnetState,
    TaoBalance,
};
use codec::Compact;

const NO_ALPHA: Compact<AlphaBalance> = Compact(AlphaBalance(0));
const NO_TAO: Compact<TaoBalance> = Compact(TaoBalance(0));

fn text(bytes: &[u8]) -> Vec<Compact<u8>> {
    bytes.iter().copied().map(Compact).collect()
}

/// One column of all neurons.
fn column<V>(neurons: &[NeuronInfoLite], value: impl Fn(&NeuronInfoLite) -> V) -> Vec<V> {
    neurons.iter().map(value).collect()
}

/// A neuron's own stake on its subnet.
fn stake(neuron: &NeuronInfoLite) -> u64 {
    neuron
        .stake
        .iter()
        .map(|(_, amount)| amount.0.0)
        .fold(0, u64::saturating_add)
}

impl<T: Config> Pallet<T> {
    /// A subnet and its neurons; `None` where there is no such subnet.
    #[must_use]
    pub fn metagraph(netuid: NetUid) -> Option<Metagraph> {
        let p = Self::hyperparams(netuid)?;
        let neurons = Self::neurons_lite(netuid);
        let identity = SubnetIdentitiesV3::<T>::get(netuid);
        let registered_at = |n: &NeuronInfoLite| Compact(BlockAtRegistration::<T>::get(netuid, n.uid.0));
        Some(Metagraph {
            netuid: Compact(netuid),
            name: Self::subnet_name(netuid, identity.as_ref()),
            symbol: text(&TokenSymbol::<T>::get(netuid)),
            identity,
            network_registered_at: Compact(NetworkRegisteredAt::<T>::get(netuid)),
            owner_hotkey: SubnetOwnerHotkey::<T>::get(netuid).unwrap_or_else(zero_account),
            owner_coldkey: SubnetOwner::<T>::get(netuid).unwrap_or_else(zero_account),
            block: Compact(Self::now()),
            tempo: Compact(p.tempo),
            last_step: Compact(LastMechansimStepBlock::<T>::get(netuid)),
            blocks_since_last_step: Compact(BlocksSinceLastStep::<T>::get(netuid)),
            subnet_emission: Compact(SubnetAlphaOutEmission::<T>::get(netuid).0),
            alpha_in: NO_ALPHA,
            alpha_out: Compact(SubnetAlphaOut::<T>::get(netuid)),
            tao_in: Compact(SubnetTAO::<T>::get(netuid)),
            alpha_out_emission: Compact(SubnetAlphaOutEmission::<T>::get(netuid)),
            alpha_in_emission: NO_ALPHA,
            tao_in_emission: NO_TAO,
            pending_alpha_emission: Compact(Self::laid_aside(netuid)),
            pending_root_emission: NO_TAO,
            subnet_volume: Compact(0),
            moving_price: FixedI128::default(),
            rho: Compact(p.rho),
            kappa: Compact(p.kappa),
            min_allowed_weights: Compact(p.min_allowed_weights),
            max_weights_limit: Compact(p.max_weights_limit),
            weights_version: Compact(p.weights_version),
            weights_rate_limit: Compact(p.weights_rate_limit),
            activity_cutoff: Compact(p.activity_cutoff),
            max_validators: Compact(p.max_validators),
            num_uids: Compact(u16::try_from(neurons.len()).unwrap_or(u16::MAX)),
            max_uids: Compact(p.max_uids),
            burn: Compact(p.burn),
            difficulty: Compact(p.difficulty),
            registration_allowed: p.registration_allowed,
            pow_registration_allowed: p.pow_registration_allowed,
            immunity_period: Compact(p.immunity_period),
            min_difficulty: Compact(0),
            max_difficulty: Compact(0),
            min_burn: Compact(p.min_burn),
            max_burn: Compact(p.max_burn),
            adjustment_alpha: Compact(0),
            adjustment_interval: Compact(p.adjustment_interval),
            target_regs_per_interval: Compact(p.target_regs_per_interval),
            max_regs_per_block: Compact(p.max_regs_per_block),
            serving_rate_limit: Compact(p.serving_rate_limit),
            commit_reveal_weights_enabled: p.commit_reveal_enabled,
            commit_reveal_period: Compact(p.commit_reveal_period),
            liquid_alpha_enabled: false,
            alpha_high: Compact(0),
            alpha_low: Compact(0),
            bonds_moving_avg: Compact(p.bonds_moving_avg),
            hotkeys: column(&neurons, |n| n.hotkey.clone()),
            coldkeys: column(&neurons, |n| n.coldkey.clone()),
            identities: column(&neurons, |n| IdentitiesV2::<T>::get(&n.coldkey)),
            axons: column(&neurons, |n| n.axon_info.clone()),
            active: column(&neurons, |n| n.active),
            validator_permit: column(&neurons, |n| n.validator_permit),
            pruning_score: column(&neurons, |n| n.pruning_score),
            last_update: column(&neurons, |n| n.last_update),
            emission: column(&neurons, |n| n.emission),
            dividends: column(&neurons, |n| n.dividends),
            incentives: column(&neurons, |n| n.incentive),
            consensus: column(&neurons, |n| n.consensus),
            trust: column(&neurons, |n| n.trust),
            rank: column(&neurons, |n| n.rank),
            block_at_registration: column(&neurons, registered_at),
            alpha_stake: column(&neurons, |n| Compact(AlphaBalance(stake(n)))),
            tao_stake: column(&neurons, |_| NO_TAO),
            total_stake: column(&neurons, |n| Compact(TaoBalance(stake(n)))),
            tao_dividends_per_hotkey: Vec::new(),
            alpha_dividends_per_hotkey: Self::dividends_by_hotkey(netuid),
        })
    }

    /// The dividends of the last epoch, by hotkey.
    fn dividends_by_hotkey(netuid: NetUid) -> Vec<(AccountId, Compact<AlphaBalance>)> {
        AlphaDividendsPerSubnet::<T>::iter_prefix(netuid)
            .map(|(hotkey, amount)| (hotkey, Compact(amount)))
            .collect()
    }

    /// A subnet's neurons by column.
    #[must_use]
    pub fn subnet_state(netuid: NetUid) -> Option<SubnetState> {
        let m = Self::metagraph(netuid)?;
        Some(SubnetState {
            netuid: m.netuid,
            hotkeys: m.hotkeys,
            coldkeys: m.coldkeys,
            active: m.active,
            validator_permit: m.validator_permit,
            pruning_score: m.pruning_score,
            last_update: m.last_update,
            emission: m.emission,
            dividends: m.dividends,
            incentives: m.incentives,
            consensus: m.consensus,
            trust: m.trust,
            rank: m.rank,
            block_at_registration: m.block_at_registration,
            alpha_stake: m.alpha_stake,
            tao_stake: m.tao_stake,
            total_stake: m.total_stake,
            emission_history: Vec::new(),
        })
    }

    /// A subnet's token pool and schedule.
    #[must_use]
    pub fn dynamic_info(netuid: NetUid) -> Option<DynamicInfo> {
        let m = Self::metagraph(netuid)?;
        Some(DynamicInfo {
            netuid: m.netuid,
            owner_hotkey: m.owner_hotkey,
            owner_coldkey: m.owner_coldkey,
            subnet_name: m.name,
            token_symbol: m.symbol,
            tempo: m.tempo,
            last_step: m.last_step,
            blocks_since_last_step: m.blocks_since_last_step,
            emission: m.subnet_emission,
            alpha_in: m.alpha_in,
            alpha_out: m.alpha_out,
            tao_in: m.tao_in,
            alpha_out_emission: m.alpha_out_emission,
            alpha_in_emission: m.alpha_in_emission,
            tao_in_emission: m.tao_in_emission,
            pending_alpha_emission: m.pending_alpha_emission,
            pending_root_emission: m.pending_root_emission,
            subnet_volume: m.subnet_volume,
            network_registered_at: m.network_registered_at,
            subnet_identity: m.identity,
            moving_price: m.moving_price,
        })
    }

    /// The numbers of all subnets, in order.
    #[must_use]
    pub fn netuids() -> Vec<NetUid> {
        let mut netuids: Vec<NetUid> = NetworksAdded::<T>::iter_keys().collect();
        netuids.sort_unstable();
        netuids
    }

    /// The emission that waits for a subnet's next epoch.
    fn laid_aside(netuid: NetUid) -> AlphaBalance {
        let miners = PendingServerEmission::<T>::get(netuid).0;
        AlphaBalance(miners.saturating_add(PendingValidatorEmission::<T>::get(netuid).0))
    }

    fn subnet_name(netuid: NetUid, identity: Option<&SubnetIdentityV3>) -> Vec<Compact<u8>> {
        match identity {
            Some(identity) => text(&identity.subnet_name),
            None => text(format!("subnet {}", netuid.0).as_bytes()),
        }
    }
}
