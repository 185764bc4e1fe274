//! The runtime of the local chain: the pallets put together under the public chain's indices, and its runtime APIs.
//!
//! Two things bind whoever edits this crate. `Runtime` and the enums that it generates must stay at the crate root: the
//! official client finds errors by the type path `…::RuntimeEvent`. And every change that shows in the metadata must
//! raise [`SPEC_VERSION`]: the official client caches metadata by genesis hash and spec version.

#![allow(
    missing_docs,
    reason = "the macros put what they generate at the crate root, without documentation"
)]

mod apis;
mod config;
mod fees;
mod nonce;

pub use apis::api;
pub use muster_devchain_admin as admin;
pub use muster_devchain_beacon as beacon;
pub use muster_devchain_pallets::{AccountId, commitments, subtensor, types};
pub use nonce::CheckNonce;

use muster_devchain_pallets::aura;
use sp_runtime::{Cow, MultiAddress, MultiSignature, generic, traits::BlakeTwo256};
use sp_version::RuntimeVersion;

/// Raised with every change that shows in the metadata. 425 is the public chain's version whose interface this is; 427
/// has epochs that pay, stake, a beacon, `Sudo` and `AdminUtils`; 428 has hotkeys' EVM keys.
pub const SPEC_VERSION: u32 = 428;

/// The version of the runtime, which clients read first.
pub const VERSION: RuntimeVersion = RuntimeVersion {
    spec_name: Cow::Borrowed("node-subtensor"),
    impl_name: Cow::Borrowed("muster-devchain"),
    authoring_version: 1,
    spec_version: SPEC_VERSION,
    impl_version: 1,
    apis: apis::RUNTIME_API_VERSIONS,
    transaction_version: 1,
    system_version: 1,
};

/// The prefix of the chain's addresses in text.
pub const SS58_PREFIX: u16 = 42;
/// The least balance that keeps an account alive, in rao.
pub const EXISTENTIAL_DEPOSIT: u64 = 500;
/// Milliseconds per block, as clients should assume them.
pub const SLOT_DURATION_MS: u64 = 12_000;

/// An amount in rao.
pub type Balance = u64;
/// Transactions of an account so far.
pub type Nonce = u32;
/// A block's height.
pub type BlockNumber = u32;
/// A block's header.
pub type Header = generic::Header<BlockNumber, BlakeTwo256>;
/// A block of this chain.
pub type Block = generic::Block<Header, UncheckedExtrinsic>;
/// A transaction as it travels.
pub type UncheckedExtrinsic =
    generic::UncheckedExtrinsic<MultiAddress<AccountId, ()>, RuntimeCall, MultiSignature, TxExtension>;
/// The extensions that every transaction carries and is checked for.
pub type TxExtension = (
    frame_system::CheckNonZeroSender<Runtime>,
    frame_system::CheckSpecVersion<Runtime>,
    frame_system::CheckTxVersion<Runtime>,
    frame_system::CheckGenesis<Runtime>,
    frame_system::CheckMortality<Runtime>,
    CheckNonce,
    frame_system::CheckWeight<Runtime>,
    pallet_transaction_payment::ChargeTransactionPayment<Runtime>,
    subtensor::SubtensorTransactionExtension<Runtime>,
);
/// The executive that runs blocks.
pub type Executive = frame_executive::Executive<
    Runtime,
    Block,
    frame_system::ChainContext<Runtime>,
    Runtime,
    AllPalletsWithSystem,
>;

/// The macro puts what it generates into the parent module: the crate root, where clients expect it.
#[frame_support::runtime]
mod runtime {
    /// The runtime and its pallets.
    #[runtime::runtime]
    #[runtime::derive(
        RuntimeCall,
        RuntimeEvent,
        RuntimeError,
        RuntimeOrigin,
        RuntimeFreezeReason,
        RuntimeHoldReason,
        RuntimeSlashReason,
        RuntimeLockId,
        RuntimeTask,
        RuntimeViewFunction
    )]
    pub struct Runtime;

    #[runtime::pallet_index(0)]
    pub type System = frame_system;
    #[runtime::pallet_index(2)]
    pub type Timestamp = pallet_timestamp;
    #[runtime::pallet_index(3)]
    pub type Aura = aura;
    #[runtime::pallet_index(5)]
    pub type Balances = pallet_balances;
    #[runtime::pallet_index(6)]
    pub type TransactionPayment = pallet_transaction_payment;
    #[runtime::pallet_index(7)]
    pub type SubtensorModule = subtensor;
    #[runtime::pallet_index(11)]
    pub type Utility = pallet_utility;
    #[runtime::pallet_index(12)]
    pub type Sudo = pallet_sudo;
    #[runtime::pallet_index(18)]
    pub type Commitments = commitments;
    #[runtime::pallet_index(19)]
    pub type AdminUtils = admin;
    #[runtime::pallet_index(26)]
    pub type Drand = beacon;
}
