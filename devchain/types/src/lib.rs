//! The types of the interface, with the names and layouts that the public chain's metadata gives them. Definitions are
//! our own; a client decodes by name, so names are part of the contract.

mod commitment;
mod metagraph;
mod neuron;
mod subnet;

pub use commitment::{
    COMMITMENT_RAW_MAX, CommitmentData, CommitmentInfo, MAX_COMMITMENT_FIELDS, Registration,
};
pub use metagraph::{Metagraph, SelectiveMetagraph};
pub use neuron::{AxonInfo, NeuronCertificate, NeuronInfo, NeuronInfoLite, PrometheusInfo, StakeInfo};
pub use subnet::{
    ChainIdentityV2, DynamicInfo, FixedI64, FixedI128, FixedU128, HyperparamEntry, HyperparamValue,
    SubnetHyperparams, SubnetIdentityV3, SubnetState,
};

use codec::{CompactAs, Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use scale_info::TypeInfo;
use serde::{Deserialize, Serialize};

/// The account type of the chain. Fixed, because the interface is: no other chain uses these types.
pub type AccountId = sp_runtime::AccountId32;

/// The public chain keeps every mechanism of a subnet under one index: `mecid * 4096 + netuid`.
pub const MAX_SUBNETS: u16 = 4096;

/// A number with a role. One field, so that clients may encode the bare number.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Encode, Decode, DecodeWithMemTracking, CompactAs, TypeInfo, MaxEncodedLen, Serialize, Deserialize, Clone,
            Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default,
        )]
        pub struct $name(pub $inner);
    };
}

number! {
    /// A subnet. Netuid 0 is the root network.
    NetUid(u16)
}
number! {
    /// A mechanism within a subnet: one set of weights and its own incentive. Every subnet has mechanism 0.
    MechId(u8)
}
number! {
    /// A subnet's mechanism as a storage key.
    NetUidStorageIndex(u16)
}
number! {
    /// An amount of a subnet's own token, in 10⁻⁹ units.
    AlphaBalance(u64)
}
number! {
    /// An amount of TAO, in rao (10⁻⁹ TAO).
    TaoBalance(u64)
}

impl NetUid {
    /// The root network.
    pub const ROOT: Self = Self(0);

    /// Where the weights and commits of a mechanism of this subnet are kept.
    #[must_use]
    pub const fn index(self, mecid: MechId) -> NetUidStorageIndex {
        NetUidStorageIndex(
            (mecid.0 as u16)
                .saturating_mul(MAX_SUBNETS)
                .saturating_add(self.0),
        )
    }
}
