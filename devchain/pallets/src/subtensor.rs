//! `SubtensorModule`: subnets, neurons, weights, axons. This file is the interface: storage, calls, events and errors
//! with the names and keys of the public chain. The effects of the calls are in the modules beside it, one subject
//! each.

mod calls;
mod commit_reveal;
mod epoch;
mod evm;
mod extension;
mod genesis;
mod hyperparams;
mod metagraph;
mod neurons;
mod pow;
mod price;
mod pruning;
mod registration;
mod serving;
mod staking;
mod timelocked;
mod weights;

pub use extension::{PoolRejection, SubtensorTransactionExtension};
pub use genesis::{NeuronGenesis, SubnetGenesis};
pub use pallet::*;
pub use pow::seal;
pub use staking::LEAST_STAKE;
pub use timelocked::WeightsTlockPayload;

use codec::{Decode, DecodeWithMemTracking, Encode};
use frame_support::pallet_macros::import_section;
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

/// Why a timelocked commit came to nothing.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, Copy, PartialEq, Eq, Debug)]
pub enum DroppedCommit {
    /// It is not a sealed payload, or sealed to another round or beacon.
    Closed,
    /// The sealed text is no weights.
    Payload,
    /// The sealed text names another hotkey.
    Hotkey,
    /// The weights are not allowed.
    Refused,
    /// Its round did not come in the epoch of its reveal.
    Expired,
}

/// The pallet. Its calls are in a file of their own.
#[import_section(calls::calls)]
#[frame_support::pallet]
#[allow(
    missing_docs,
    reason = "the macro generates public items without documentation"
)]
mod pallet {
    use super::{DroppedCommit, EpochConsensus, MAX_TIMELOCKED_COMMIT, genesis};
    use crate::AccountId;
    use crate::beacon::Beacon;
    use crate::types::{
        AlphaBalance, AxonInfo, ChainIdentityV2, FixedU128, MechId, NetUid, NetUidStorageIndex,
        NeuronCertificate, PrometheusInfo, SubnetIdentityV3, TaoBalance,
    };
    use codec::Compact;
    use frame_support::pallet_prelude::*;
    use frame_support::traits::{ConstBool, ConstU16, ConstU64, fungible};
    use frame_system::pallet_prelude::*;
    use sp_core::{H160, H256, ecdsa};
    use std::collections::VecDeque;

    #[pallet::pallet]
    #[pallet::without_storage_info]
    pub struct Pallet<T>(_);

    /// The requirements on the runtime.
    #[pallet::config]
    pub trait Config: frame_system::Config<AccountId = AccountId, RuntimeEvent: From<Event<Self>>> {
        /// TAO: pays for registrations.
        type Currency: fungible::Mutate<AccountId, Balance = u64>;
        /// Opens timelocked commits.
        type Beacon: Beacon;
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
    /// Whether axons may announce a loopback address. The public chain never allows it; a network on one machine needs
    /// it.
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
    /// How far bonds follow clipped weights instead of weights as they were set, of 65535.
    #[pallet::storage]
    pub type BondsPenalty<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<{ u16::MAX }>>;
    /// How epochs turn weights into pay. Absent means the default.
    #[pallet::storage]
    pub type SubnetEpochConsensus<T> = StorageMap<_, Identity, NetUid, EpochConsensus, ValueQuery>;

    // === Registration ===

    /// The price of a registration.
    #[pallet::storage]
    pub type Burn<T> = StorageMap<_, Identity, NetUid, TaoBalance, ValueQuery>;
    /// The price does not fall below this.
    #[pallet::storage]
    pub type MinBurn<T> = StorageMap<_, Identity, NetUid, TaoBalance, ValueQuery>;
    /// The price does not rise above this.
    #[pallet::storage]
    pub type MaxBurn<T> = StorageMap<_, Identity, NetUid, TaoBalance, ValueQuery>;
    /// Blocks in which the price halves; 0 keeps it.
    #[pallet::storage]
    pub type BurnHalfLife<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<360>>;
    /// The factor by which a registration raises the price.
    #[pallet::storage]
    pub type BurnIncreaseMult<T> = StorageMap<_, Identity, NetUid, FixedU128, ValueQuery>;
    /// The share of the price that is locked instead of burned, of 65535.
    #[pallet::storage]
    pub type CollateralLockShare<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery>;
    /// Whether a subnet takes registrations.
    #[pallet::storage]
    pub type NetworkRegistrationAllowed<T> =
        StorageMap<_, Identity, NetUid, bool, ValueQuery, ConstBool<true>>;
    /// Whether a subnet takes registrations for work.
    #[pallet::storage]
    pub type NetworkPowRegistrationAllowed<T> = StorageMap<_, Identity, NetUid, bool, ValueQuery>;
    /// How hard the work of a registration is.
    #[pallet::storage]
    pub type Difficulty<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery, ConstU64<10_000_000>>;
    /// Work that was done, and the block in which it was taken.
    #[pallet::storage]
    pub type UsedWork<T> = StorageMap<_, Identity, Vec<u8>, u64, ValueQuery>;
    /// Registrations that a subnet takes per block.
    #[pallet::storage]
    pub type MaxRegistrationsPerBlock<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<1>>;
    /// Registrations that a subnet took in this block.
    #[pallet::storage]
    pub type RegistrationsThisBlock<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery>;
    /// Blocks in the interval over which registrations are counted.
    #[pallet::storage]
    pub type AdjustmentInterval<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<100>>;
    /// A third of the registrations that a subnet takes per interval.
    #[pallet::storage]
    pub type TargetRegistrationsPerInterval<T> =
        StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<2>>;
    /// Registrations that a subnet took in this interval.
    #[pallet::storage]
    pub type RegistrationsThisInterval<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery>;
    /// The block in which this interval began.
    #[pallet::storage]
    pub type LastAdjustmentBlock<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery>;
    /// How many neurons that are not spared stay in any case.
    #[pallet::storage]
    pub type MinNonImmuneUids<T> = StorageMap<_, Identity, NetUid, u16, ValueQuery, ConstU16<10>>;
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
    /// A coldkey's part in a hotkey's stake on a subnet, in shares.
    #[pallet::storage]
    pub type Alpha<T> = StorageNMap<
        _,
        (
            NMapKey<Blake2_128Concat, AccountId>,
            NMapKey<Blake2_128Concat, AccountId>,
            NMapKey<Identity, NetUid>,
        ),
        FixedU128,
        ValueQuery,
    >;
    /// All shares in a hotkey's stake on a subnet.
    #[pallet::storage]
    pub type TotalHotkeyShares<T> =
        StorageDoubleMap<_, Blake2_128Concat, AccountId, Identity, NetUid, FixedU128, ValueQuery>;
    /// TAO that was paid for stake on a subnet and comes back when stake is given up.
    #[pallet::storage]
    pub type SubnetTAO<T> = StorageMap<_, Identity, NetUid, TaoBalance, ValueQuery>;
    /// All stake on a subnet.
    #[pallet::storage]
    pub type SubnetAlphaOut<T> = StorageMap<_, Identity, NetUid, AlphaBalance, ValueQuery>;
    /// The pay of each hotkey for its validating in the last epoch.
    #[pallet::storage]
    pub type AlphaDividendsPerSubnet<T> =
        StorageDoubleMap<_, Identity, NetUid, Blake2_128Concat, AccountId, AlphaBalance, ValueQuery>;
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

    /// The EVM address that a uid's hotkey has associated with itself, and the block in which it did.
    #[pallet::storage]
    pub type AssociatedEvmAddress<T> =
        StorageDoubleMap<_, Twox64Concat, NetUid, Twox64Concat, u16, (H160, u64), OptionQuery>;

    // === By uid: columns that registrations extend and epochs write ===

    /// The permits to set weights for others, by uid.
    #[pallet::storage]
    pub type ValidatorPermit<T> = StorageMap<_, Identity, NetUid, Vec<bool>, ValueQuery>;
    /// Whether each neuron set weights recently enough, by uid.
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
    /// Each neuron's share of the clipped weights by stake, of 65535: its incentive under an older name.
    #[pallet::storage]
    pub type Rank<T> = StorageMap<_, Identity, NetUid, Vec<u16>, ValueQuery>;
    /// How much of the weights on each neuron consensus kept, of 65535.
    #[pallet::storage]
    pub type Trust<T> = StorageMap<_, Identity, NetUid, Vec<u16>, ValueQuery>;
    /// Each neuron's share of all pay; the best has 65535.
    #[pallet::storage]
    pub type PruningScores<T> = StorageMap<_, Identity, NetUid, Vec<u16>, ValueQuery>;
    /// Each neuron's share of the stake that counts, of 65535.
    #[pallet::storage]
    pub type StakeWeight<T> = StorageMap<_, Identity, NetUid, Vec<u16>, ValueQuery>;
    /// The pay of each neuron in the last epoch, by uid.
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
    /// Unrevealed commits of a hotkey: (hash, epoch of the commit, its block, nothing).
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
    /// The block in which a subnet last paid. The name is the public chain's, misspelling included.
    #[pallet::storage]
    pub type LastMechansimStepBlock<T> = StorageMap<_, Identity, NetUid, u64, ValueQuery>;
    /// The emission of a subnet to its neurons per block.
    #[pallet::storage]
    pub type SubnetAlphaOutEmission<T> = StorageMap<_, Identity, NetUid, AlphaBalance, ValueQuery>;
    /// The miners' half of the emission that waits for the next epoch.
    #[pallet::storage]
    pub type PendingServerEmission<T> = StorageMap<_, Identity, NetUid, AlphaBalance, ValueQuery>;
    /// The validators' half of the emission that waits for the next epoch.
    #[pallet::storage]
    pub type PendingValidatorEmission<T> = StorageMap<_, Identity, NetUid, AlphaBalance, ValueQuery>;

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

    /// The events of the pallet.
    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// A coldkey staked: coldkey, hotkey, TAO paid, stake, subnet, fee.
        #[codec(index = 2)]
        StakeAdded(AccountId, AccountId, TaoBalance, AlphaBalance, NetUid, u64),
        /// A coldkey took stake back: coldkey, hotkey, TAO paid, stake, subnet, fee.
        #[codec(index = 3)]
        StakeRemoved(AccountId, AccountId, TaoBalance, AlphaBalance, NetUid, u64),
        /// A validator's weights changed.
        #[codec(index = 5)]
        WeightsSet(NetUidStorageIndex, u16),
        /// A hotkey took a uid.
        #[codec(index = 6)]
        NeuronRegistered(NetUid, u16, AccountId),
        /// A hotkey announced its axon.
        #[codec(index = 28)]
        AxonServed(NetUid, AccountId),
        /// A hotkey announced its metrics.
        #[codec(index = 29)]
        PrometheusServed(NetUid, AccountId),
        /// A hotkey committed to weights.
        #[codec(index = 79)]
        WeightsCommitted(AccountId, NetUidStorageIndex, H256),
        /// A hotkey revealed the weights to which it had committed.
        #[codec(index = 80)]
        WeightsRevealed(AccountId, NetUidStorageIndex, H256),
        /// A hotkey revealed several weights at once.
        #[codec(index = 81)]
        WeightsBatchRevealed(AccountId, NetUid, Vec<H256>),
        /// A batch was worked off.
        #[codec(index = 82)]
        BatchWeightsCompleted(Vec<Compact<NetUid>>, AccountId),
        /// Something in a batch failed.
        #[codec(index = 83)]
        BatchCompletedWithErrors(),
        /// This failed in a batch.
        #[codec(index = 84)]
        BatchWeightItemFailed(DispatchError),
        /// A hotkey was associated with an address of the EVM.
        #[codec(index = 92)]
        EvmKeyAssociated {
            /// The subnet of the hotkey's neuron.
            netuid: NetUid,
            /// The hotkey that signed the call.
            hotkey: AccountId,
            /// The address that signed for it.
            evm_key: H160,
            /// The block of the call.
            block_associated: u64,
        },
        /// A hotkey committed to weights that a beacon's round opens.
        #[codec(index = 101)]
        TimelockedWeightsCommitted(AccountId, NetUidStorageIndex, H256, u64),
        /// Weights that a beacon's round opened were set.
        #[codec(index = 102)]
        TimelockedWeightsRevealed(NetUidStorageIndex, AccountId),
        /// A timelocked commit came to nothing. The public chain reports it in its log only.
        #[codec(index = 250)]
        TimelockedWeightsDropped(NetUidStorageIndex, AccountId, DroppedCommit),
    }

    /// Why a call was refused, with the public chain's numbers. Clients read the names from the metadata.
    #[pallet::error]
    pub enum Error<T> {
        /// The address type is neither 4 nor 6.
        #[codec(index = 1)]
        InvalidIpType,
        /// The address cannot be served.
        #[codec(index = 2)]
        InvalidIpAddress,
        /// The port is 0.
        #[codec(index = 3)]
        InvalidPort,
        /// The hotkey is not registered on this subnet.
        #[codec(index = 4)]
        HotKeyNotRegisteredInSubNet,
        /// Nobody owns the hotkey.
        #[codec(index = 5)]
        HotKeyAccountNotExists,
        /// The hotkey is not registered on the subnet on which it serves.
        #[codec(index = 6)]
        HotKeyNotRegisteredInNetwork,
        /// The hotkey belongs to another coldkey.
        #[codec(index = 7)]
        NonAssociatedColdKey,
        /// The coldkey has less stake with this hotkey.
        #[codec(index = 9)]
        NotEnoughStakeToWithdraw,
        /// The hotkey's stake is below the threshold for weights.
        #[codec(index = 10)]
        NotEnoughStakeToSetWeights,
        /// The coldkey cannot pay for the registration.
        #[codec(index = 12)]
        NotEnoughBalanceToStake,
        /// Only validators with a permit set weights for others.
        #[codec(index = 15)]
        NeuronNoValidatorPermit,
        /// There are not as many weights as uids.
        #[codec(index = 16)]
        WeightVecNotEqualSize,
        /// A uid occurs twice.
        #[codec(index = 17)]
        DuplicateUids,
        /// A uid is not in the subnet.
        #[codec(index = 18)]
        UidVecContainInvalidOne,
        /// There are fewer weights than the subnet asks for.
        #[codec(index = 19)]
        WeightVecLengthIsLow,
        /// The subnet took its registrations of this block.
        #[codec(index = 20)]
        TooManyRegistrationsThisBlock,
        /// The hotkey is registered on this subnet.
        #[codec(index = 21)]
        HotKeyAlreadyRegisteredInSubNet,
        /// The work's block is in the future or too long ago.
        #[codec(index = 23)]
        InvalidWorkBlock,
        /// The work was not hard enough.
        #[codec(index = 24)]
        InvalidDifficulty,
        /// The work is not the hotkey's.
        #[codec(index = 25)]
        InvalidSeal,
        /// One weight is a larger share than the subnet allows.
        #[codec(index = 26)]
        MaxWeightExceeded,
        /// The last weights are too recent.
        #[codec(index = 28)]
        SettingWeightsTooFast,
        /// The version key is older than the subnet's.
        #[codec(index = 29)]
        IncorrectWeightVersionKey,
        /// The last serve call is too recent.
        #[codec(index = 30)]
        ServingRateLimitExceeded,
        /// There are more uids than neurons.
        #[codec(index = 31)]
        UidsLengthExceedUidsInSubNet,
        /// The subnet takes no registrations.
        #[codec(index = 36)]
        SubNetRegistrationDisabled,
        /// The subnet took its registrations of this interval.
        #[codec(index = 37)]
        TooManyRegistrationsThisInterval,
        /// The hotkey itself registers for work.
        #[codec(index = 38)]
        TransactorAccountShouldBeHotKey,
        /// The root network has registrations of its own.
        #[codec(index = 41)]
        RegistrationNotPermittedOnRootSubnet,
        /// The root network has no weights.
        #[codec(index = 46)]
        CanNotSetRootNetworkWeights,
        /// The subnet is full.
        #[codec(index = 47)]
        NoNeuronIdAvailable,
        /// There is no commit to reveal.
        #[codec(index = 50)]
        NoWeightsCommitFound,
        /// The revealed weights do not match the commit.
        #[codec(index = 51)]
        InvalidRevealCommitHashNotMatch,
        /// This subnet's weights must be committed first.
        #[codec(index = 52)]
        CommitRevealEnabled,
        /// This subnet's weights are set directly.
        #[codec(index = 53)]
        CommitRevealDisabled,
        /// There is no such subnet or mechanism.
        #[codec(index = 71)]
        MechanismDoesNotExist,
        /// There is no such subnet.
        #[codec(index = 73)]
        SubnetNotExists,
        /// Too many commits wait for their reveal.
        #[codec(index = 74)]
        TooManyUnrevealedCommits,
        /// The epoch in which to reveal is over.
        #[codec(index = 75)]
        ExpiredWeightCommit,
        /// The epoch in which to reveal has not begun.
        #[codec(index = 76)]
        RevealTooEarly,
        /// The lists of a batch differ in length.
        #[codec(index = 77)]
        InputLengthsUnequal,
        /// The last commit is too recent.
        #[codec(index = 78)]
        CommittingWeightsTooFast,
        /// The amount is below the least that can be staked.
        #[codec(index = 79)]
        AmountTooLow,
        /// The subnet does not hold that much TAO.
        #[codec(index = 80)]
        InsufficientLiquidity,
        /// The signature is no signature of any key.
        #[codec(index = 89)]
        UnableToRecoverPublicKey,
        /// Another key made the signature.
        #[codec(index = 90)]
        InvalidRecoveredPublicKey,
        /// The chain accepts another version of timelocked commits.
        #[codec(index = 109)]
        IncorrectCommitRevealVersion,
        /// The price of a registration is above the limit. Later than spec version 365.
        #[codec(index = 200)]
        RegistrationPriceLimitExceeded,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn on_initialize(_now: BlockNumberFor<T>) -> Weight {
            Self::begin_block();
            Weight::zero()
        }
    }
}
