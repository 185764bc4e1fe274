//! One subnet: its hyperparameters in the forms that clients ask for, its state by column, its identity.

use super::{AlphaBalance, NetUid, TaoBalance};
use crate::AccountId;
use codec::{Compact, Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use scale_info::TypeInfo;

/// A signed fixed-point number with 32 fractional bits, as raw bits.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FixedI64 {
    /// Value × 2³².
    pub bits: i64,
}

/// A signed fixed-point number, as raw bits; the fraction's width depends on the field.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FixedI128 {
    /// Value × 2ⁿ.
    pub bits: i128,
}

/// An unsigned fixed-point number with 64 fractional bits, as raw bits.
#[derive(
    Encode, Decode, DecodeWithMemTracking, TypeInfo, MaxEncodedLen, Clone, Copy, PartialEq, Eq, Debug, Default,
)]
pub struct FixedU128 {
    /// Value × 2⁶⁴.
    pub bits: u128,
}

/// How a subnet presents itself.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug, Default)]
#[expect(missing_docs, reason = "the names are the chain's own")]
pub struct SubnetIdentityV3 {
    pub subnet_name: Vec<u8>,
    pub github_repo: Vec<u8>,
    pub subnet_contact: Vec<u8>,
    pub subnet_url: Vec<u8>,
    pub discord: Vec<u8>,
    pub description: Vec<u8>,
    pub logo_url: Vec<u8>,
    pub additional: Vec<u8>,
}

/// How a coldkey presents itself.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug, Default)]
#[expect(missing_docs, reason = "the names are the chain's own")]
pub struct ChainIdentityV2 {
    pub name: Vec<u8>,
    pub url: Vec<u8>,
    pub github_repo: Vec<u8>,
    pub image: Vec<u8>,
    pub discord: Vec<u8>,
    pub description: Vec<u8>,
    pub additional: Vec<u8>,
}

/// A subnet's hyperparameters in one record.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the chain's own")]
pub struct SubnetHyperparams {
    pub rho: Compact<u16>,
    pub kappa: Compact<u16>,
    pub immunity_period: Compact<u16>,
    pub min_allowed_weights: Compact<u16>,
    pub max_weights_limit: Compact<u16>,
    pub tempo: Compact<u16>,
    pub min_difficulty: Compact<u64>,
    pub max_difficulty: Compact<u64>,
    pub weights_version: Compact<u64>,
    pub weights_rate_limit: Compact<u64>,
    pub adjustment_interval: Compact<u16>,
    pub activity_cutoff: Compact<u16>,
    pub registration_allowed: bool,
    pub target_regs_per_interval: Compact<u16>,
    pub min_burn: Compact<TaoBalance>,
    pub max_burn: Compact<TaoBalance>,
    pub bonds_moving_avg: Compact<u64>,
    pub max_regs_per_block: Compact<u16>,
    pub serving_rate_limit: Compact<u64>,
    pub max_validators: Compact<u16>,
    pub adjustment_alpha: Compact<u64>,
    pub difficulty: Compact<u64>,
    pub commit_reveal_period: Compact<u64>,
    pub commit_reveal_weights_enabled: bool,
    pub alpha_high: Compact<u16>,
    pub alpha_low: Compact<u16>,
    pub liquid_alpha_enabled: bool,
}

/// The value of one hyperparameter, by type.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the chain's own")]
pub enum HyperparamValue {
    Bool(bool),
    U16(Compact<u16>),
    U32(Compact<u32>),
    U64(Compact<u64>),
    U128(Compact<u128>),
    TaoBalance(Compact<TaoBalance>),
    I32F32(i64),
    U64F64(u128),
}

/// One hyperparameter by name: the form that survives new ones.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug)]
pub struct HyperparamEntry {
    /// The name in UTF-8.
    pub name: Vec<u8>,
    /// The value of the parameter.
    pub value: HyperparamValue,
}

/// A subnet's neurons by column.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the chain's own")]
pub struct SubnetState {
    pub netuid: Compact<NetUid>,
    pub hotkeys: Vec<AccountId>,
    pub coldkeys: Vec<AccountId>,
    pub active: Vec<bool>,
    pub validator_permit: Vec<bool>,
    pub pruning_score: Vec<Compact<u16>>,
    pub last_update: Vec<Compact<u64>>,
    pub emission: Vec<Compact<AlphaBalance>>,
    pub dividends: Vec<Compact<u16>>,
    pub incentives: Vec<Compact<u16>>,
    pub consensus: Vec<Compact<u16>>,
    pub trust: Vec<Compact<u16>>,
    pub rank: Vec<Compact<u16>>,
    pub block_at_registration: Vec<Compact<u64>>,
    pub alpha_stake: Vec<Compact<AlphaBalance>>,
    pub tao_stake: Vec<Compact<TaoBalance>>,
    pub total_stake: Vec<Compact<TaoBalance>>,
    pub emission_history: Vec<Vec<Compact<AlphaBalance>>>,
}

/// A subnet's token pool and schedule.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the chain's own")]
pub struct DynamicInfo {
    pub netuid: Compact<NetUid>,
    pub owner_hotkey: AccountId,
    pub owner_coldkey: AccountId,
    pub subnet_name: Vec<Compact<u8>>,
    pub token_symbol: Vec<Compact<u8>>,
    pub tempo: Compact<u16>,
    pub last_step: Compact<u64>,
    pub blocks_since_last_step: Compact<u64>,
    pub emission: Compact<u64>,
    pub alpha_in: Compact<AlphaBalance>,
    pub alpha_out: Compact<AlphaBalance>,
    pub tao_in: Compact<TaoBalance>,
    pub alpha_out_emission: Compact<AlphaBalance>,
    pub alpha_in_emission: Compact<AlphaBalance>,
    pub tao_in_emission: Compact<TaoBalance>,
    pub pending_alpha_emission: Compact<AlphaBalance>,
    pub pending_root_emission: Compact<TaoBalance>,
    pub subnet_volume: Compact<u128>,
    pub network_registered_at: Compact<u64>,
    pub subnet_identity: Option<SubnetIdentityV3>,
    pub moving_price: FixedI128,
}
