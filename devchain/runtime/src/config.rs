//! The configuration of each pallet.

use crate::{
    AccountId, Balances, Block, BlockNumber, EXISTENTIAL_DEPOSIT, Nonce, OriginCaller, PalletInfo, Runtime,
    RuntimeCall, RuntimeEvent, RuntimeFreezeReason, RuntimeHoldReason, RuntimeOrigin, RuntimeTask,
    SLOT_DURATION_MS, SS58_PREFIX, System, VERSION, admin, aura, beacon, commitments, fees::WeightToFee,
    subtensor,
};
use frame_support::traits::{ConstU8, ConstU16, ConstU32, ConstU64};
use frame_support::weights::ConstantMultiplier;
use frame_support::{derive_impl, parameter_types};
use muster_devchain_pallets::beacon::{Beacon, Closed};
use sp_version::RuntimeVersion;

parameter_types! {
    pub const Version: RuntimeVersion = VERSION;
    /// How many blocks back a transaction may name its beginning. The public chain keeps 2400; each kept hash is a key
    /// of every state, whose root is computed anew for every block.
    pub const BlockHashCount: BlockNumber = 256;
}

#[derive_impl(frame_system::config_preludes::SolochainDefaultConfig)]
impl frame_system::Config for Runtime {
    type Block = Block;
    type BlockHashCount = BlockHashCount;
    type AccountId = AccountId;
    type Nonce = Nonce;
    type Version = Version;
    type AccountData = pallet_balances::AccountData<u64>;
    type SS58Prefix = ConstU16<SS58_PREFIX>;
    type MaxConsumers = ConstU32<16>;
}

impl pallet_timestamp::Config for Runtime {
    type Moment = u64;
    type OnTimestampSet = ();
    type MinimumPeriod = ConstU64<1>;
    type WeightInfo = ();
}

#[derive_impl(pallet_balances::config_preludes::TestDefaultConfig)]
impl pallet_balances::Config for Runtime {
    type AccountStore = System;
    type Balance = u64;
    type ExistentialDeposit = ConstU64<EXISTENTIAL_DEPOSIT>;
}

#[derive_impl(pallet_transaction_payment::config_preludes::TestDefaultConfig)]
impl pallet_transaction_payment::Config for Runtime {
    type OnChargeTransaction = pallet_transaction_payment::FungibleAdapter<Balances, ()>;
    type OperationalFeeMultiplier = ConstU8<5>;
    type WeightToFee = WeightToFee;
    type LengthToFee = ConstantMultiplier<u64, ConstU64<1>>;
}

impl pallet_utility::Config for Runtime {
    type RuntimeEvent = RuntimeEvent;
    type RuntimeCall = RuntimeCall;
    type PalletsOrigin = OriginCaller;
    type WeightInfo = ();
}

impl aura::Config for Runtime {
    type SlotDuration = ConstU64<SLOT_DURATION_MS>;
}

impl subtensor::Config for Runtime {
    type Currency = Balances;
    type Beacon = DevelopmentBeacon;
}

impl commitments::Config for Runtime {}

impl beacon::Config for Runtime {}

/// The chain's own beacon.
pub struct DevelopmentBeacon;

impl Beacon for DevelopmentBeacon {
    fn last_round() -> u64 {
        beacon::LastStoredRound::<Runtime>::get()
    }

    fn open(sealed: &[u8], round: u64) -> Option<Result<Vec<u8>, Closed>> {
        let pulse = beacon::Pallet::<Runtime>::pulse(round)?;
        Some(beacon::sealed::open(sealed, &pulse.signature).map_err(|_| Closed))
    }
}

impl admin::Config for Runtime {}

impl pallet_sudo::Config for Runtime {
    type RuntimeEvent = RuntimeEvent;
    type RuntimeCall = RuntimeCall;
    type WeightInfo = ();
}
