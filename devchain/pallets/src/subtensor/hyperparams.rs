//! A subnet's hyperparameters: read once, shown in the form that a client asks for.

use super::{
    ActivityCutoff, AdjustmentInterval, BondsMovingAverage, Burn, CommitRevealWeightsEnabled, Config,
    Difficulty, ImmunityPeriod, Kappa, MaxAllowedUids, MaxAllowedValidators, MaxBurn,
    MaxRegistrationsPerBlock, MaxWeightsLimit, MinAllowedWeights, MinBurn, NetworkPowRegistrationAllowed,
    NetworkRegistrationAllowed, NetworksAdded, Pallet, RevealPeriodEpochs, Rho, ServingRateLimit,
    TargetRegistrationsPerInterval, Tempo, WeightsSetRateLimit, WeightsVersionKey,
};
use crate::types::{HyperparamEntry, HyperparamValue, NetUid, SubnetHyperparams, TaoBalance};
use codec::Compact;

/// The hyperparameters that this chain keeps. Parameters that it does not have (bounds of the difficulty, liquid alpha)
/// are constants where a record has a field for them.
pub(super) struct Hyperparams {
    pub rho: u16,
    pub kappa: u16,
    pub tempo: u16,
    pub immunity_period: u16,
    pub min_allowed_weights: u16,
    pub max_weights_limit: u16,
    pub weights_version: u64,
    pub weights_rate_limit: u64,
    pub activity_cutoff: u16,
    pub max_validators: u16,
    pub max_uids: u16,
    pub burn: TaoBalance,
    pub min_burn: TaoBalance,
    pub max_burn: TaoBalance,
    pub difficulty: u64,
    pub pow_registration_allowed: bool,
    pub adjustment_interval: u16,
    pub target_regs_per_interval: u16,
    pub registration_allowed: bool,
    pub max_regs_per_block: u16,
    pub serving_rate_limit: u64,
    pub bonds_moving_avg: u64,
    pub commit_reveal_enabled: bool,
    pub commit_reveal_period: u64,
}

impl<T: Config> Pallet<T> {
    pub(super) fn hyperparams(netuid: NetUid) -> Option<Hyperparams> {
        NetworksAdded::<T>::get(netuid).then(|| Hyperparams {
            rho: Rho::<T>::get(netuid),
            kappa: Kappa::<T>::get(netuid),
            tempo: Tempo::<T>::get(netuid),
            immunity_period: ImmunityPeriod::<T>::get(netuid),
            min_allowed_weights: MinAllowedWeights::<T>::get(netuid),
            max_weights_limit: MaxWeightsLimit::<T>::get(netuid),
            weights_version: WeightsVersionKey::<T>::get(netuid),
            weights_rate_limit: WeightsSetRateLimit::<T>::get(netuid),
            activity_cutoff: ActivityCutoff::<T>::get(netuid),
            max_validators: MaxAllowedValidators::<T>::get(netuid),
            max_uids: MaxAllowedUids::<T>::get(netuid),
            burn: Burn::<T>::get(netuid),
            min_burn: MinBurn::<T>::get(netuid),
            max_burn: MaxBurn::<T>::get(netuid),
            difficulty: Difficulty::<T>::get(netuid),
            pow_registration_allowed: NetworkPowRegistrationAllowed::<T>::get(netuid),
            adjustment_interval: AdjustmentInterval::<T>::get(netuid),
            target_regs_per_interval: TargetRegistrationsPerInterval::<T>::get(netuid),
            registration_allowed: NetworkRegistrationAllowed::<T>::get(netuid),
            max_regs_per_block: MaxRegistrationsPerBlock::<T>::get(netuid),
            serving_rate_limit: ServingRateLimit::<T>::get(netuid),
            bonds_moving_avg: BondsMovingAverage::<T>::get(netuid),
            commit_reveal_enabled: CommitRevealWeightsEnabled::<T>::get(netuid),
            commit_reveal_period: RevealPeriodEpochs::<T>::get(netuid),
        })
    }

    /// Hyperparameters in one record.
    #[must_use]
    pub fn subnet_hyperparams(netuid: NetUid) -> Option<SubnetHyperparams> {
        let p = Self::hyperparams(netuid)?;
        Some(SubnetHyperparams {
            rho: Compact(p.rho),
            kappa: Compact(p.kappa),
            immunity_period: Compact(p.immunity_period),
            min_allowed_weights: Compact(p.min_allowed_weights),
            max_weights_limit: Compact(p.max_weights_limit),
            tempo: Compact(p.tempo),
            min_difficulty: Compact(0),
            max_difficulty: Compact(0),
            weights_version: Compact(p.weights_version),
            weights_rate_limit: Compact(p.weights_rate_limit),
            adjustment_interval: Compact(p.adjustment_interval),
            activity_cutoff: Compact(p.activity_cutoff),
            registration_allowed: p.registration_allowed,
            target_regs_per_interval: Compact(p.target_regs_per_interval),
            min_burn: Compact(p.min_burn),
            max_burn: Compact(p.max_burn),
            bonds_moving_avg: Compact(p.bonds_moving_avg),
            max_regs_per_block: Compact(p.max_regs_per_block),
            serving_rate_limit: Compact(p.serving_rate_limit),
            max_validators: Compact(p.max_validators),
            adjustment_alpha: Compact(0),
            difficulty: Compact(p.difficulty),
            commit_reveal_period: Compact(p.commit_reveal_period),
            commit_reveal_weights_enabled: p.commit_reveal_enabled,
            alpha_high: Compact(0),
            alpha_low: Compact(0),
            liquid_alpha_enabled: false,
        })
    }

    /// Hyperparameters by name.
    #[must_use]
    pub fn subnet_hyperparams_v3(netuid: NetUid) -> Option<Vec<HyperparamEntry>> {
        use HyperparamValue::{Bool, TaoBalance, U16, U64};
        let p = Self::hyperparams(netuid)?;
        let entries = [
            ("rho", U16(Compact(p.rho))),
            ("kappa", U16(Compact(p.kappa))),
            ("immunity_period", U16(Compact(p.immunity_period))),
            ("min_allowed_weights", U16(Compact(p.min_allowed_weights))),
            ("max_weights_limit", U16(Compact(p.max_weights_limit))),
            ("tempo", U16(Compact(p.tempo))),
            ("weights_version", U64(Compact(p.weights_version))),
            ("weights_rate_limit", U64(Compact(p.weights_rate_limit))),
            ("activity_cutoff", U16(Compact(p.activity_cutoff))),
            ("registration_allowed", Bool(p.registration_allowed)),
            ("min_burn", TaoBalance(Compact(p.min_burn))),
            ("max_burn", TaoBalance(Compact(p.max_burn))),
            ("bonds_moving_avg", U64(Compact(p.bonds_moving_avg))),
            ("max_regs_per_block", U16(Compact(p.max_regs_per_block))),
            ("serving_rate_limit", U64(Compact(p.serving_rate_limit))),
            ("max_validators", U16(Compact(p.max_validators))),
            ("commit_reveal_period", U64(Compact(p.commit_reveal_period))),
            ("commit_reveal_weights_enabled", Bool(p.commit_reveal_enabled)),
        ];
        Some(
            entries
                .into_iter()
                .map(|(name, value)| HyperparamEntry {
                    name: name.into(),
                    value,
                })
                .collect(),
        )
    }
}
