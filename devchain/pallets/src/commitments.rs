//! `Commitments`: what a registered hotkey publishes on a subnet, bounded per epoch.

pub use pallet::*;

use codec::{Decode, DecodeWithMemTracking, Encode};
use scale_info::TypeInfo;

/// Bytes that one hotkey may publish on one subnet per epoch.
pub const MAX_SPACE: u32 = 3100;
/// The space that the smallest commitment counts for, in bytes.
const LEAST_SPACE: u64 = 100;

/// The space that a hotkey used in its last epoch of publishing.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UsageTracker {
    /// The number of that epoch.
    pub last_epoch: u64,
    /// The used space in bytes.
    pub used_space: u64,
}

/// The pallet `Commitments`.
#[frame_support::pallet]
#[allow(
    missing_docs,
    reason = "the macro generates public items without documentation"
)]
mod pallet {
    use super::{LEAST_SPACE, MAX_SPACE, UsageTracker};
    use crate::subtensor;
    use crate::types::{CommitmentInfo, NetUid, Registration};
    use frame_support::pallet_prelude::*;
    use frame_system::pallet_prelude::*;
    use sp_runtime::SaturatedConversion;

    #[pallet::pallet]
    #[pallet::without_storage_info]
    pub struct Pallet<T>(_);

    /// The runtime provides subnets and their neurons.
    #[pallet::config]
    pub trait Config: subtensor::Config + frame_system::Config<RuntimeEvent: From<Event<Self>>> {}

    /// The commitment of each hotkey.
    #[pallet::storage]
    pub type CommitmentOf<T: Config> =
        StorageDoubleMap<_, Identity, NetUid, Twox64Concat, T::AccountId, Registration, OptionQuery>;
    /// When each hotkey last published.
    #[pallet::storage]
    pub type LastCommitment<T: Config> =
        StorageDoubleMap<_, Identity, NetUid, Twox64Concat, T::AccountId, u32, OptionQuery>;
    /// Payloads that a beacon opened: (bytes, block).
    #[pallet::storage]
    pub type RevealedCommitments<T: Config> =
        StorageDoubleMap<_, Identity, NetUid, Twox64Concat, T::AccountId, Vec<(Vec<u8>, u64)>, OptionQuery>;
    /// How much each hotkey published in the epoch.
    #[pallet::storage]
    pub type UsedSpaceOf<T: Config> =
        StorageDoubleMap<_, Identity, NetUid, Twox64Concat, T::AccountId, UsageTracker, OptionQuery>;
    /// Bytes that one hotkey may publish per epoch.
    #[pallet::storage]
    pub type MaxSpace<T> = StorageValue<_, u32, ValueQuery, ConstU32<MAX_SPACE>>;

    /// The events of the pallet.
    #[pallet::event]
    #[pallet::generate_deposit(fn deposit_event)]
    pub enum Event<T: Config> {
        /// A hotkey published something.
        Commitment {
            /// The number of the subnet.
            netuid: NetUid,
            /// The hotkey that published.
            who: T::AccountId,
        },
    }

    /// Why a call was refused.
    #[pallet::error]
    pub enum Error<T> {
        /// Only hotkeys that are registered on the subnet publish.
        #[codec(index = 1)]
        AccountNotAllowedCommit,
        /// The hotkey published enough in this epoch.
        #[codec(index = 2)]
        SpaceLimitExceeded,
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Publishes something in place of what the signing hotkey published before.
        #[pallet::call_index(0)]
        #[pallet::weight((Weight::from_parts(10_000_000, 0), DispatchClass::Normal, Pays::No))]
        pub fn set_commitment(
            origin: OriginFor<T>,
            netuid: NetUid,
            info: Box<CommitmentInfo>,
        ) -> DispatchResult {
            let who = ensure_signed(origin)?;
            ensure!(
                subtensor::Uids::<T>::contains_key(netuid, &who),
                Error::<T>::AccountNotAllowedCommit
            );

            let epoch = subtensor::SubnetEpochIndex::<T>::get(netuid);
            let before = UsedSpaceOf::<T>::get(netuid, &who).filter(|usage| usage.last_epoch == epoch);
            let needed = u64::try_from(info.encoded_size())
                .unwrap_or(u64::MAX)
                .max(LEAST_SPACE);
            let used_space = before.unwrap_or_default().used_space.saturating_add(needed);
            ensure!(
                used_space <= u64::from(MaxSpace::<T>::get()),
                Error::<T>::SpaceLimitExceeded
            );

            let block = frame_system::Pallet::<T>::block_number().saturated_into();
            UsedSpaceOf::<T>::insert(
                netuid,
                &who,
                UsageTracker {
                    last_epoch: epoch,
                    used_space,
                },
            );
            CommitmentOf::<T>::insert(
                netuid,
                &who,
                Registration {
                    deposit: 0,
                    block,
                    info: *info,
                },
            );
            LastCommitment::<T>::insert(netuid, &who, block);
            Self::deposit_event(Event::Commitment { netuid, who });
            Ok(())
        }
    }

    impl<T: Config> Pallet<T> {
        /// Everything published on a subnet, encoded, as the selective metagraph carries it.
        #[must_use]
        pub fn encoded_commitments(netuid: NetUid) -> Vec<(T::AccountId, Vec<codec::Compact<u8>>)> {
            CommitmentOf::<T>::iter_prefix(netuid)
                .map(|(who, registration)| {
                    (
                        who,
                        registration
                            .info
                            .encode()
                            .into_iter()
                            .map(codec::Compact)
                            .collect(),
                    )
                })
                .collect()
        }
    }
}
