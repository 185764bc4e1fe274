//! `SubtensorModule`: subnets, neurons, weights, axons. This file is the interface: storage, calls, events and errors with
//! the names and keys of the public chain. What the calls do is in the modules beside it, one subject each.

mod commit_reveal;
mod epoch;
mod extension;
mod genesis;
mod hyperparams;
mod metagraph;
mod neurons;
mod registration;
mod serving;
mod weights;

pub use extension::{PoolRejection, SubtensorTransactionExtension};
pub use genesis::{NeuronGenesis, SubnetGenesis};
pub use pallet::*;

use codec::{Decode, DecodeWithMemTracking, Encode};
use scale_info::TypeInfo;

/// The most bytes of a timelocked commit.
pub const MAX_TIMELOCKED_COMMIT: u32 = 5000;
/// The most commits that one hotkey may leave unrevealed.
pub const MAX_UNREVEALED_COMMITS: usize = 10;

/// How a subnet's epochs turn weights into pay.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EpochConsensus {
    /// Stake-weighted median and bonds.
    #[default]
    Yuma,
    /// One validator's weights as they are.
    Null,
}

/// The pallet.
#[frame_support::pallet]
#[allow(
    missing_docs,
    reason = "the macro generates public items without documentation"
)]
mod pallet {
    use super::{EpochConsensus, MAX_TIMELOCKED_COMMIT, genesis};
    use crate::AccountId;
    use crate::types::{
        AlphaBalance, AxonInfo, ChainIdentityV2, MechId, NetUid, NetUidStorageIndex, NeuronCertificate,
        PrometheusInfo, SubnetIdentityV3, TaoBalance,
    };
    use frame_support::pallet_prelude::*;
    use frame_support::traits::{ConstBool, ConstU16, ConstU64, fungible};
    use frame_system::pallet_prelude::*;
    use sp_core::H256;
    use std::collections::VecDeque;

    #[pallet::pallet]
    #[pallet::without_storage_info]
    pub struct Pallet<T>(_);

    /// What the runtime provides.
    #[pallet::config]
    pub trait Config: frame_system::Config<AccountId = AccountId, RuntimeEvent: From<Event<Self>>> {
        /// TAO: pays for registrations.
        type Currency: fungible::Mutate<AccountId, Balance = u64>;
    }

    // === Networks ===

    /// Which subnets exist.
    #[pallet::storage]
    pub type NetworksAdded<T> = StorageMap<_, Identity, NetUid, bool, ValueQuery>;
    /// How many subnets exist, the root network included.
    #[pallet::storage]
    pub type TotalNetworks<T> = StorageValue<_, u16, ValueQuery>;
    /// The block in which a subnet was made.
    #[pallet::storage]
    pub type NetworkRegisteredAt<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery>;
    /// How many neurons a subnet has.
    #[pallet::storage]
    pub type SubnetworkN<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery>;
    /// How many neurons a subnet may have.
    #[pallet::storage]
    pub type MaxAllowedUids<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<256>>;
    /// How many validators a subnet may have.
    #[pallet::storage]
    pub type MaxAllowedValidators<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<64>>;
    /// The symbol of a subnet's token, in UTF-8.
    #[pallet::storage]
    pub type TokenSymbol<T> = StorageMap<_, Identity, NetUid, Vec<u8>, ValueQuery>;
    /// How a subnet presents itself.
    #[pallet::storage]
    pub type SubnetIdentitiesV3<T> = StorageMap<_, Blake2_128Concat, NetUid, SubnetIdentityV3, OptionQuery>;
    /// How many mechanisms a subnet has.
    #[pallet::storage]
    pub type MechanismCountCurrent<T> = StorageMap<_, Twox64Concat, NetUid, MechId, ValueQuery, OneMechanism>;
    /// A subnet's owner.
    #[pallet::storage]
    pub type SubnetOwner<T> = StorageMap<_, Identity, NetUid, AccountId, OptionQuery>;
    /// The hotkey of a subnet's owner.
    #[pallet::storage]
    pub type SubnetOwnerHotkey<T> = StorageMap<_, Identity, NetUid, AccountId, OptionQuery>;

    /// The default of [`MechanismCountCurrent`].
    #[pallet::type_value]
    pub fn OneMechanism() -> MechId {
        MechId(1)
    }

    // === Hyperparameters ===

    /// Blocks between epochs.
    #[pallet::storage]
    pub type Tempo<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<360>>;
    /// Whether weights must be committed before they are revealed.
    #[pallet::storage]
    pub type CommitRevealWeightsEnabled<T> =
        StorageMap<_, Identity, NetUid, bool, ValueQuery, ConstBool<true>>;
    /// The version of timelocked commits that the chain accepts.
    #[pallet::storage]
    pub type CommitRevealWeightsVersion<T> = StorageValue<_, u16, ValueQuery, ConstU16<4>>;
    /// Epochs between commit and reveal.
    #[pallet::storage]
    pub type RevealPeriodEpochs<T> = StorageMap<_, Twox64Concat, NetUid, u64, ValueQuery, ConstU64<1>>;
    /// The oldest version key that weights may carry; 0 accepts any.
    #[pallet::storage]
    pub type WeightsVersionKey<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery>;
    /// Blocks between two weight calls of one neuron.
    #[pallet::storage]
    pub type WeightsSetRateLimit<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery, ConstU64<100>>;
    /// How many weights a validator must set.
    #[pallet::storage]
    pub type MinAllowedWeights<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<1024>>;
    /// The largest share of one weight, of 65535.
    #[pallet::storage]
    pub type MaxWeightsLimit<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<{ u16::MAX }>>;
    /// Stake that weight calls require, in rao.
    #[pallet::storage]
    pub type StakeThreshold<T> = StorageValue<_, u64, ValueQuery>;
    /// Blocks between two serve calls of one neuron.
    #[pallet::storage]
    pub type ServingRateLimit<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery, ConstU64<50>>;
    /// Whether axons may announce a loopback address. The public chain never allows it; a network on one machine needs it.
    #[pallet::storage]
    pub type LoopbackAllowed<T> = StorageValue<_, bool, ValueQuery>;
    /// Slope of the trust sigmoid.
    #[pallet::storage]
    pub type Rho<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<10>>;
    /// The majority that consensus needs, of 65535.
    #[pallet::storage]
    pub type Kappa<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<32767>>;
    /// Blocks for which a new neuron cannot be replaced.
    #[pallet::storage]
    pub type ImmunityPeriod<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<4096>>;
    /// Blocks without weights after which a validator counts as inactive.
    #[pallet::storage]
    pub type ActivityCutoff<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<5000>>;
    /// Memory of bonds, of 10⁶.
    #[pallet::storage]
    pub type BondsMovingAverage<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery, ConstU64<900_000>>;
    /// How epochs turn weights into pay. Absent means the default.
    #[pallet::storage]
    pub type SubnetEpochConsensus<T> = StorageMap<_, Identity, NetUid, EpochConsensus, ValueQuery>;

    // === Registration ===

    /// The price of a registration.
    #[pallet::storage]
    pub type Burn<T> = StorageMap<_, Identity, NetUid, TaoBalance, ValueQuery>;
    /// The share of the price that is locked instead of burned, of 65535.
    #[pallet::storage]
    pub type CollateralLockShare<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery>;
    /// Whether a subnet takes registrations.
    #[pallet::storage]
    pub type NetworkRegistrationAllowed<T> =
        StorageMap<_, Identity, NetUid, bool, ValueQuery, ConstBool<true>>;
    /// Registrations that a subnet takes per block.
    #[pallet::storage]
    pub type MaxRegistrationsPerBlock<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<1>>;
    /// Registrations that a subnet took in this block.
    #[pallet::storage]
    pub type RegistrationsThisBlock<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery>;
    /// Rao that registrations burned.
    #[pallet::storage]
    pub type RAORecycledForRegistration<T> = StorageMap<_, Identity, NetUid, TaoBalance, ValueQuery>;

    // === Neurons ===

    /// A hotkey's uid.
    #[pallet::storage]
    pub type Uids<T> = StorageDoubleMap<_, Identity, NetUid, Blake2_128Concat, AccountId, u16, OptionQuery>;
    /// A uid's hotkey.
    #[pallet::storage]
    pub type Keys<T> = StorageDoubleMap<_, Identity, NetUid, Identity, u16, AccountId, OptionQuery>;
    /// A hotkey's coldkey.
    #[pallet::storage]
    pub type Owner<T> = StorageMap<_, Blake2_128Concat, AccountId, AccountId, OptionQuery>;
    /// A coldkey's hotkeys.
    #[pallet::storage]
    pub type OwnedHotkeys<T> = StorageMap<_, Blake2_128Concat, AccountId, Vec<AccountId>, ValueQuery>;
    /// Whether a hotkey is registered on a subnet.
    #[pallet::storage]
    pub type IsNetworkMember<T> =
        StorageDoubleMap<_, Blake2_128Concat, AccountId, Identity, NetUid, bool, ValueQuery>;
    /// The block in which a uid was registered.
    #[pallet::storage]
    pub type BlockAtRegistration<T> = StorageDoubleMap<_, Identity, NetUid, Identity, u16, u64, ValueQuery>;
    /// A hotkey's stake on a subnet.
    #[pallet::storage]
    pub type TotalHotkeyAlpha<T> =
        StorageDoubleMap<_, Blake2_128Concat, AccountId, Identity, NetUid, AlphaBalance, ValueQuery>;
    /// Where a hotkey's axon listens.
    #[pallet::storage]
    pub type Axons<T> =
        StorageDoubleMap<_, Identity, NetUid, Blake2_128Concat, AccountId, AxonInfo, OptionQuery>;
    /// The TLS key that a hotkey served with its axon.
    #[pallet::storage]
    pub type NeuronCertificates<T> =
        StorageDoubleMap<_, Identity, NetUid, Blake2_128Concat, AccountId, NeuronCertificate, OptionQuery>;
    /// Where a hotkey's metrics are served.
    #[pallet::storage]
    pub type Prometheus<T> =
        StorageDoubleMap<_, Identity, NetUid, Blake2_128Concat, AccountId, PrometheusInfo, OptionQuery>;
    /// How a coldkey presents itself.
    #[pallet::storage]
    pub type IdentitiesV2<T> = StorageMap<_, Blake2_128Concat, AccountId, ChainIdentityV2, OptionQuery>;

    // === By uid: columns that registrations extend and epochs write ===

    /// Who may set weights for others.
    #[pallet::storage]
    pub type ValidatorPermit<T> = StorageMap<_, Identity, NetUid, Vec<bool>, ValueQuery>;
    /// Who set weights recently enough.
    #[pallet::storage]
    pub type Active<T> = StorageMap<_, Identity, NetUid, Vec<bool>, ValueQuery>;
    /// When each neuron last set or committed weights.
    #[pallet::storage]
    pub type LastUpdate<T> = StorageMap<_, Identity, NetUidStorageIndex, Vec<u64>, ValueQuery>;
    /// Each neuron's share of the miners' pay, of 65535.
    #[pallet::storage]
    pub type Incentive<T> = StorageMap<_, Identity, NetUidStorageIndex, Vec<u16>, ValueQuery>;
    /// Each neuron's share of the validators' pay, of 65535.
    #[pallet::storage]
    pub type Dividends<T> = StorageMap<_, Identity, NetUid, Vec<u16>, ValueQuery>;
    /// The weight on which validators agreed for each neuron, of 65535.
    #[pallet::storage]
    pub type Consensus<T> = StorageMap<_, Identity, NetUid, Vec<u16>, ValueQuery>;
    /// How much of each validator's weights consensus kept, of 65535.
    #[pallet::storage]
    pub type ValidatorTrust<T> = StorageMap<_, Identity, NetUid, Vec<u16>, ValueQuery>;
    /// What each neuron earned in the last epoch.
    #[pallet::storage]
    pub type Emission<T> = StorageMap<_, Identity, NetUid, Vec<AlphaBalance>, ValueQuery>;

    // === Weights ===

    /// A validator's weights: (uid, weight), the largest being 65535.
    #[pallet::storage]
    pub type Weights<T> =
        StorageDoubleMap<_, Identity, NetUidStorageIndex, Identity, u16, Vec<(u16, u16)>, ValueQuery>;
    /// A validator's bonds.
    #[pallet::storage]
    pub type Bonds<T> =
        StorageDoubleMap<_, Identity, NetUidStorageIndex, Identity, u16, Vec<(u16, u16)>, ValueQuery>;
    /// Unrevealed commits of a hotkey: (hash, epoch of the commit, first and last block in which to reveal, as foreseen).
    #[pallet::storage]
    pub type WeightCommits<T> = StorageDoubleMap<
        _,
        Twox64Concat,
        NetUidStorageIndex,
        Twox64Concat,
        AccountId,
        VecDeque<(H256, u64, u64, u64)>,
        OptionQuery,
    >;
    /// Timelocked commits by epoch: (hotkey, block, ciphertext, round that opens it).
    #[pallet::storage]
    pub type TimelockedWeightCommits<T> = StorageDoubleMap<
        _,
        Twox64Concat,
        NetUidStorageIndex,
        Twox64Concat,
        u64,
        VecDeque<(
            AccountId,
            u64,
            BoundedVec<u8, ConstU32<MAX_TIMELOCKED_COMMIT>>,
            u64,
        )>,
        ValueQuery,
    >;

    // === Epochs ===

    /// The block of a subnet's last epoch.
    #[pallet::storage]
    pub type LastEpochBlock<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery>;
    /// The block of an epoch that an owner asked for; 0 for none.
    #[pallet::storage]
    pub type PendingEpochAt<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery>;
    /// How many epochs a subnet has had.
    #[pallet::storage]
    pub type SubnetEpochIndex<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery>;
    /// Blocks since a subnet's last epoch.
    #[pallet::storage]
    pub type BlocksSinceLastStep<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery>;

    /// The chain's beginning.
    #[pallet::genesis_config]
    #[derive(frame_support::DefaultNoBound)]
    pub struct GenesisConfig<T: Config> {
        /// Subnets beside the root network.
        pub subnets: Vec<genesis::SubnetGenesis>,
        /// Neurons, in the order of their uids.
        pub neurons: Vec<genesis::NeuronGenesis>,
        /// Stake that weight calls require, in rao.
        pub stake_threshold: u64,
        /// Whether axons may announce a loopback address.
        pub allow_loopback: bool,
        /// The type parameter has no field of its own.
        #[serde(skip)]
        pub _config: PhantomData<T>,
    }

    #[pallet::genesis_build]
    impl<T: Config> BuildGenesisConfig for GenesisConfig<T> {
        fn build(&self) {
            genesis::build(self);
        }
    }

    /// What happened.
    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// A validator's weights changed.
        WeightsSet(NetUidStorageIndex, u16),
        /// A hotkey took a uid.
        NeuronRegistered(NetUid, u16, AccountId),
        /// A hotkey announced its axon.
        AxonServed(NetUid, AccountId),
        /// A hotkey announced its metrics.
        PrometheusServed(NetUid, AccountId),
        /// A hotkey committed to weights.
        WeightsCommitted(AccountId, NetUidStorageIndex, H256),
        /// A hotkey revealed the weights to which it had committed.
        WeightsRevealed(AccountId, NetUidStorageIndex, H256),
        /// A hotkey committed to weights that a beacon's round opens.
        TimelockedWeightsCommitted(AccountId, NetUidStorageIndex, H256, u64),
    }

    /// Why a call was refused. Clients read the names from the metadata.
    #[pallet::error]
    pub enum Error<T> {
        /// The address type is neither 4 nor 6.
        InvalidIpType,
        /// The address cannot be served.
        InvalidIpAddress,
        /// The port is 0.
        InvalidPort,
        /// The hotkey is not registered on this subnet.
        HotKeyNotRegisteredInSubNet,
        /// The hotkey is not registered on the subnet on which it serves.
        HotKeyNotRegisteredInNetwork,
        /// The hotkey belongs to another coldkey.
        NonAssociatedColdKey,
        /// The hotkey's stake is below the threshold for weights.
        NotEnoughStakeToSetWeights,
        /// The coldkey cannot pay for the registration.
        NotEnoughBalanceToStake,
        /// Only validators with a permit set weights for others.
        NeuronNoValidatorPermit,
        /// There are not as many weights as uids.
        WeightVecNotEqualSize,
        /// A uid occurs twice.
        DuplicateUids,
        /// A uid is not in the subnet.
        UidVecContainInvalidOne,
        /// There are fewer weights than the subnet asks for.
        WeightVecLengthIsLow,
        /// The subnet took its registrations of this block.
        TooManyRegistrationsThisBlock,
        /// The hotkey is registered on this subnet.
        HotKeyAlreadyRegisteredInSubNet,
        /// One weight is a larger share than the subnet allows.
        MaxWeightExceeded,
        /// The last weights are too recent.
        SettingWeightsTooFast,
        /// The last commit is too recent.
        CommittingWeightsTooFast,
        /// The version key is older than the subnet's.
        IncorrectWeightVersionKey,
        /// The last serve call is too recent.
        ServingRateLimitExceeded,
        /// There are more uids than neurons.
        UidsLengthExceedUidsInSubNet,
        /// The subnet takes no registrations.
        SubNetRegistrationDisabled,
        /// The root network has registrations of its own.
        RegistrationNotPermittedOnRootSubnet,
        /// The root network has no weights.
        CanNotSetRootNetworkWeights,
        /// The subnet is full.
        NoNeuronIdAvailable,
        /// There is no commit to reveal.
        NoWeightsCommitFound,
        /// What is revealed is not what was committed.
        InvalidRevealCommitHashNotMatch,
        /// This subnet's weights must be committed first.
        CommitRevealEnabled,
        /// This subnet's weights are set directly.
        CommitRevealDisabled,
        /// There is no such subnet or mechanism.
        MechanismDoesNotExist,
        /// There is no such subnet.
        SubnetNotExists,
        /// Too many commits wait for their reveal.
        TooManyUnrevealedCommits,
        /// The epoch in which to reveal is over.
        ExpiredWeightCommit,
        /// The epoch in which to reveal has not begun.
        RevealTooEarly,
        /// The chain accepts another version of timelocked commits.
        IncorrectCommitRevealVersion,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn on_initialize(_now: BlockNumberFor<T>) -> Weight {
            Self::begin_block();
            Weight::zero()
        }
    }

    /// The weight of every call: a local chain's blocks are never full.
    const CALL: Weight = Weight::from_parts(10_000_000, 0);

    #[pallet::call]
    #[allow(clippy::too_many_arguments, reason = "the public chain's calls have these")]
    impl<T: Config> Pallet<T> {
        /// Sets the weights of the signing validator.
        #[pallet::call_index(0)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn set_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            dests: Vec<u16>,
            weights: Vec<u16>,
            version_key: u64,
        ) -> DispatchResult {
            Self::do_set_weights(
                &ensure_signed(origin)?,
                netuid,
                MechId(0),
                &dests,
                &weights,
                version_key,
            )
        }

        /// Announces the signing hotkey's axon.
        #[pallet::call_index(4)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn serve_axon(
            origin: OriginFor<T>,
            netuid: NetUid,
            version: u32,
            ip: u128,
            port: u16,
            ip_type: u8,
            protocol: u8,
            placeholder1: u8,
            placeholder2: u8,
        ) -> DispatchResult {
            let axon = AxonInfo {
                block: 0,
                version,
                ip,
                port,
                ip_type,
                protocol,
                placeholder1,
                placeholder2,
            };
            Self::do_serve_axon(ensure_signed(origin)?, netuid, axon, None)
        }

        /// Announces where the signing hotkey's metrics are served.
        #[pallet::call_index(5)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn serve_prometheus(
            origin: OriginFor<T>,
            netuid: NetUid,
            version: u32,
            ip: u128,
            port: u16,
            ip_type: u8,
        ) -> DispatchResult {
            let info = PrometheusInfo {
                block: 0,
                version,
                ip,
                port,
                ip_type,
            };
            Self::do_serve_prometheus(ensure_signed(origin)?, netuid, info)
        }

        /// Registers a hotkey; the signing coldkey pays.
        #[pallet::call_index(7)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::Yes))]
        pub fn burned_register(origin: OriginFor<T>, netuid: NetUid, hotkey: AccountId) -> DispatchResult {
            Self::do_burned_register(&ensure_signed(origin)?, netuid, &hotkey)
        }

        /// Announces the signing hotkey's axon and its TLS key.
        #[pallet::call_index(40)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn serve_axon_tls(
            origin: OriginFor<T>,
            netuid: NetUid,
            version: u32,
            ip: u128,
            port: u16,
            ip_type: u8,
            protocol: u8,
            placeholder1: u8,
            placeholder2: u8,
            certificate: Vec<u8>,
        ) -> DispatchResult {
            let axon = AxonInfo {
                block: 0,
                version,
                ip,
                port,
                ip_type,
                protocol,
                placeholder1,
                placeholder2,
            };
            Self::do_serve_axon(ensure_signed(origin)?, netuid, axon, Some(&certificate))
        }

        /// Commits to weights by their hash.
        #[pallet::call_index(96)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn commit_weights(origin: OriginFor<T>, netuid: NetUid, commit_hash: H256) -> DispatchResult {
            Self::do_commit(&ensure_signed(origin)?, netuid, MechId(0), commit_hash)
        }

        /// Reveals weights to which the signer committed.
        #[pallet::call_index(97)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn reveal_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            uids: Vec<u16>,
            values: Vec<u16>,
            salt: Vec<u16>,
            version_key: u64,
        ) -> DispatchResult {
            Self::do_reveal(
                &ensure_signed(origin)?,
                netuid,
                MechId(0),
                &uids,
                &values,
                &salt,
                version_key,
            )
        }

        /// Commits to weights that a beacon's round opens.
        #[pallet::call_index(113)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn commit_timelocked_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            commit: BoundedVec<u8, ConstU32<MAX_TIMELOCKED_COMMIT>>,
            reveal_round: u64,
            commit_reveal_version: u16,
        ) -> DispatchResult {
            let who = ensure_signed(origin)?;
            Self::do_commit_timelocked(
                who,
                netuid,
                MechId(0),
                commit,
                reveal_round,
                commit_reveal_version,
            )
        }

        /// Commits to weights of one mechanism by their hash.
        #[pallet::call_index(115)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn commit_mechanism_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            mecid: MechId,
            commit_hash: H256,
        ) -> DispatchResult {
            Self::do_commit(&ensure_signed(origin)?, netuid, mecid, commit_hash)
        }

        /// Reveals weights of one mechanism to which the signer committed.
        #[pallet::call_index(116)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn reveal_mechanism_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            mecid: MechId,
            uids: Vec<u16>,
            values: Vec<u16>,
            salt: Vec<u16>,
            version_key: u64,
        ) -> DispatchResult {
            Self::do_reveal(
                &ensure_signed(origin)?,
                netuid,
                mecid,
                &uids,
                &values,
                &salt,
                version_key,
            )
        }

        /// Commits to weights of one mechanism that a beacon's round opens.
        #[pallet::call_index(118)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn commit_timelocked_mechanism_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            mecid: MechId,
            commit: BoundedVec<u8, ConstU32<MAX_TIMELOCKED_COMMIT>>,
            reveal_round: u64,
            commit_reveal_version: u16,
        ) -> DispatchResult {
            let who = ensure_signed(origin)?;
            Self::do_commit_timelocked(who, netuid, mecid, commit, reveal_round, commit_reveal_version)
        }

        /// Sets the weights of the signing validator for one mechanism.
        #[pallet::call_index(119)]
        #[pallet::weight((CALL, DispatchClass::Normal, Pays::No))]
        pub fn set_mechanism_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            mecid: MechId,
            dests: Vec<u16>,
            weights: Vec<u16>,
            version_key: u64,
        ) -> DispatchResult {
            Self::do_set_weights(
                &ensure_signed(origin)?,
                netuid,
                mecid,
                &dests,
                &weights,
                version_key,
            )
        }
    }
}
