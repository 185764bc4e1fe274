//! One neuron: where it is served, and the records in which runtime APIs describe it.

use super::{AlphaBalance, NetUid, TaoBalance};
use crate::AccountId;
use codec::{Compact, Decode, DecodeWithMemTracking, Encode};
use frame_support::{BoundedVec, traits::ConstU32};
use scale_info::TypeInfo;

/// Where a neuron's axon listens.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug, Default)]
pub struct AxonInfo {
    /// Block in which it was served.
    pub block: u64,
    /// Version of the served software, as it chose to state it.
    pub version: u32,
    /// IPv4 in the low 32 bits, or IPv6.
    pub ip: u128,
    /// TCP or UDP port.
    pub port: u16,
    /// 4 or 6.
    pub ip_type: u8,
    /// 0 TCP, 1 UDP.
    pub protocol: u8,
    /// A byte for free use.
    pub placeholder1: u8,
    /// A second byte for free use.
    pub placeholder2: u8,
}

/// Where a neuron's metrics are served.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug, Default)]
pub struct PrometheusInfo {
    /// Block in which it was served.
    pub block: u64,
    /// Version of the served software.
    pub version: u32,
    /// IPv4 in the low 32 bits, or IPv6.
    pub ip: u128,
    /// The TCP port.
    pub port: u16,
    /// 4 or 6.
    pub ip_type: u8,
}

/// The public key with which a neuron proves itself in TLS.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug, Default)]
pub struct NeuronCertificate {
    /// The key's bytes.
    pub public_key: BoundedVec<u8, ConstU32<64>>,
    /// The key's algorithm, numbered by the clients.
    pub algorithm: u8,
}

impl NeuronCertificate {
    /// Reads `algorithm ‖ public key`. `None` where the bytes cannot be one: the chain ignores those.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (algorithm, key) = bytes.split_first()?;
        Some(Self {
            public_key: key.to_vec().try_into().ok()?,
            algorithm: *algorithm,
        })
    }
}

/// A neuron without its weights and bonds.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the chain's own")]
pub struct NeuronInfoLite {
    pub hotkey: AccountId,
    pub coldkey: AccountId,
    pub uid: Compact<u16>,
    pub netuid: Compact<NetUid>,
    pub active: bool,
    pub axon_info: AxonInfo,
    pub prometheus_info: PrometheusInfo,
    pub stake: Vec<(AccountId, Compact<AlphaBalance>)>,
    pub rank: Compact<u16>,
    pub emission: Compact<AlphaBalance>,
    pub incentive: Compact<u16>,
    pub consensus: Compact<u16>,
    pub trust: Compact<u16>,
    pub validator_trust: Compact<u16>,
    pub dividends: Compact<u16>,
    pub last_update: Compact<u64>,
    pub validator_permit: bool,
    pub pruning_score: Compact<u16>,
}

/// A neuron with its weights and bonds.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the chain's own")]
pub struct NeuronInfo {
    pub hotkey: AccountId,
    pub coldkey: AccountId,
    pub uid: Compact<u16>,
    pub netuid: Compact<NetUid>,
    pub active: bool,
    pub axon_info: AxonInfo,
    pub prometheus_info: PrometheusInfo,
    pub stake: Vec<(AccountId, Compact<AlphaBalance>)>,
    pub rank: Compact<u16>,
    pub emission: Compact<AlphaBalance>,
    pub incentive: Compact<u16>,
    pub consensus: Compact<u16>,
    pub trust: Compact<u16>,
    pub validator_trust: Compact<u16>,
    pub dividends: Compact<u16>,
    pub last_update: Compact<u64>,
    pub validator_permit: bool,
    pub weights: Vec<(Compact<u16>, Compact<u16>)>,
    pub bonds: Vec<(Compact<u16>, Compact<u16>)>,
    pub pruning_score: Compact<u16>,
}

/// The stake of a coldkey to a hotkey on a subnet.
#[derive(Encode, Decode, TypeInfo, Clone, PartialEq, Eq, Debug)]
pub struct StakeInfo {
    /// The hotkey with the stake.
    pub hotkey: AccountId,
    /// The coldkey that staked.
    pub coldkey: AccountId,
    /// The number of the subnet.
    pub netuid: Compact<NetUid>,
    /// The amount in the token's 10⁻⁹ units.
    pub stake: Compact<AlphaBalance>,
    /// How much of it cannot be taken back.
    pub locked: Compact<u64>,
    /// The pay of the hotkey in the last epoch.
    pub emission: Compact<AlphaBalance>,
    /// The pay of the coldkey in TAO.
    pub tao_emission: Compact<TaoBalance>,
    /// No longer used.
    pub drain: Compact<u64>,
    /// Whether the hotkey is a neuron of the subnet.
    pub is_registered: bool,
}
