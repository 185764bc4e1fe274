//! The metagraph: everything about a subnet and its neurons in one record, whole or by selected fields.

use super::{AlphaBalance, AxonInfo, ChainIdentityV2, FixedI128, NetUid, SubnetIdentityV3, TaoBalance};
use crate::AccountId;
use codec::{Compact, Decode, DecodeWithMemTracking, Encode};
use scale_info::TypeInfo;

/// Both records come from one list of fields, so that they cannot differ. A selection names fields by their position in
/// it.
macro_rules! metagraph {
    ($($index:literal $field:ident: $type:ty,)*) => {
        /// A subnet and its neurons at one block.
        #[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug)]
        #[expect(missing_docs, reason = "the names are the chain's own")]
        pub struct Metagraph {
            pub netuid: Compact<NetUid>,
            $(pub $field: $type,)*
        }

        /// The fields of a metagraph that were asked for.
        #[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq, Debug)]
        #[expect(missing_docs, reason = "the names are the chain's own")]
        pub struct SelectiveMetagraph {
            pub netuid: Compact<NetUid>,
            $(pub $field: Option<$type>,)*
            pub validators: Option<Vec<Compact<u16>>>,
            pub commitments: Option<Vec<(AccountId, Vec<Compact<u8>>)>>,
        }

        impl Metagraph {
            /// Keeps the fields whose positions are in `indexes`. Unknown positions ask for nothing.
            #[must_use]
            pub fn select(
                self,
                indexes: &[u16],
                commitments: impl FnOnce() -> Vec<(AccountId, Vec<Compact<u8>>)>,
            ) -> SelectiveMetagraph {
                let wanted = |index: u16| indexes.contains(&index);
                let validators = || {
                    (0u16..).zip(&self.validator_permit).filter(|(_, permit)| **permit).map(|(uid, _)| Compact(uid)).collect()
                };
                SelectiveMetagraph {
                    netuid: self.netuid,
                    validators: wanted(VALIDATORS).then(validators),
                    commitments: wanted(COMMITMENTS).then(commitments),
                    $($field: wanted($index).then_some(self.$field),)*
                }
            }
        }
    };
}

const VALIDATORS: u16 = 72;
const COMMITMENTS: u16 = 73;

metagraph! {
    1 name: Vec<Compact<u8>>,
    2 symbol: Vec<Compact<u8>>,
    3 identity: Option<SubnetIdentityV3>,
    4 network_registered_at: Compact<u64>,
    5 owner_hotkey: AccountId,
    6 owner_coldkey: AccountId,
    7 block: Compact<u64>,
    8 tempo: Compact<u16>,
    9 last_step: Compact<u64>,
    10 blocks_since_last_step: Compact<u64>,
    11 subnet_emission: Compact<u64>,
    12 alpha_in: Compact<AlphaBalance>,
    13 alpha_out: Compact<AlphaBalance>,
    14 tao_in: Compact<TaoBalance>,
    15 alpha_out_emission: Compact<AlphaBalance>,
    16 alpha_in_emission: Compact<AlphaBalance>,
    17 tao_in_emission: Compact<TaoBalance>,
    18 pending_alpha_emission: Compact<AlphaBalance>,
    19 pending_root_emission: Compact<TaoBalance>,
    20 subnet_volume: Compact<u128>,
    21 moving_price: FixedI128,
    22 rho: Compact<u16>,
    23 kappa: Compact<u16>,
    24 min_allowed_weights: Compact<u16>,
    25 max_weights_limit: Compact<u16>,
    26 weights_version: Compact<u64>,
    27 weights_rate_limit: Compact<u64>,
    28 activity_cutoff: Compact<u16>,
    29 max_validators: Compact<u16>,
    30 num_uids: Compact<u16>,
    31 max_uids: Compact<u16>,
    32 burn: Compact<TaoBalance>,
    33 difficulty: Compact<u64>,
    34 registration_allowed: bool,
    35 pow_registration_allowed: bool,
    36 immunity_period: Compact<u16>,
    37 min_difficulty: Compact<u64>,
    38 max_difficulty: Compact<u64>,
    39 min_burn: Compact<TaoBalance>,
    40 max_burn: Compact<TaoBalance>,
    41 adjustment_alpha: Compact<u64>,
    42 adjustment_interval: Compact<u16>,
    43 target_regs_per_interval: Compact<u16>,
    44 max_regs_per_block: Compact<u16>,
    45 serving_rate_limit: Compact<u64>,
    46 commit_reveal_weights_enabled: bool,
    47 commit_reveal_period: Compact<u64>,
    48 liquid_alpha_enabled: bool,
    49 alpha_high: Compact<u16>,
    50 alpha_low: Compact<u16>,
    51 bonds_moving_avg: Compact<u64>,
    52 hotkeys: Vec<AccountId>,
    53 coldkeys: Vec<AccountId>,
    54 identities: Vec<Option<ChainIdentityV2>>,
    55 axons: Vec<AxonInfo>,
    56 active: Vec<bool>,
    57 validator_permit: Vec<bool>,
    58 pruning_score: Vec<Compact<u16>>,
    59 last_update: Vec<Compact<u64>>,
    60 emission: Vec<Compact<AlphaBalance>>,
    61 dividends: Vec<Compact<u16>>,
    62 incentives: Vec<Compact<u16>>,
    63 consensus: Vec<Compact<u16>>,
    64 trust: Vec<Compact<u16>>,
    65 rank: Vec<Compact<u16>>,
    66 block_at_registration: Vec<Compact<u64>>,
    67 alpha_stake: Vec<Compact<AlphaBalance>>,
    68 tao_stake: Vec<Compact<TaoBalance>>,
    69 total_stake: Vec<Compact<TaoBalance>>,
    70 tao_dividends_per_hotkey: Vec<(AccountId, Compact<TaoBalance>)>,
    71 alpha_dividends_per_hotkey: Vec<(AccountId, Compact<AlphaBalance>)>,
}
