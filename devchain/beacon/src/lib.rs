//! `Drand`: a randomness beacon of the chain's own, in the place and the scheme of the one that the public chain
//! listens to.
//!
//! Its secret is part of the genesis, so that everything which waits for a round can be tested without a network;
//! whoever reads the specification can compute every pulse. A round's pulse is made when somebody asks for it whose
//! time has come, and the latest are kept. [`pulse`] and [`sealed`] are the arithmetic.

#![allow(clippy::expect_used, reason = "FRAME's macros expand to `expect`")]

pub mod pulse;
pub mod sealed;
#[cfg(test)]
mod testing;

pub use pallet::*;

use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame_support::{BoundedVec, traits::ConstU32};
use scale_info::TypeInfo;
use std::collections::VecDeque;

/// The secret of a chain whose specification names none.
pub const DEVELOPMENT_SECRET: [u8; 32] = *b"muster development beacon secret";
/// When the rounds of the public beacon began, in seconds since 1970. Ours are counted the same way.
pub const GENESIS_TIME: u32 = 1_692_803_367;
/// Seconds per round of the public beacon.
pub const PERIOD: u32 = 3;
/// How many pulses are kept.
const KEPT: usize = 64;

type Text = BoundedVec<u8, ConstU32<32>>;

/// The facts about the beacon that clients need.
#[derive(
    Encode, Decode, DecodeWithMemTracking, TypeInfo, MaxEncodedLen, Clone, PartialEq, Eq, Debug, Default,
)]
pub struct BeaconConfiguration {
    /// A compressed point of G2.
    pub public_key: BoundedVec<u8, ConstU32<96>>,
    /// Seconds per round.
    pub period: u32,
    /// When round 1 came, in seconds since 1970.
    pub genesis_time: u32,
    /// The beacon's name: a hash of its public key.
    pub hash: Text,
    /// The same; a beacon of one has no group.
    pub group_hash: Text,
    /// The name of the signature scheme.
    pub scheme_id: Text,
    /// More of it.
    pub metadata: Metadata,
}

/// How a beacon is called.
#[derive(
    Encode, Decode, DecodeWithMemTracking, TypeInfo, MaxEncodedLen, Clone, PartialEq, Eq, Debug, Default,
)]
pub struct Metadata {
    /// The name of the beacon.
    pub beacon_id: Text,
}

/// The signed randomness of one round.
#[derive(
    Encode, Decode, DecodeWithMemTracking, TypeInfo, MaxEncodedLen, Clone, PartialEq, Eq, Debug, Default,
)]
pub struct Pulse {
    /// The number of the round.
    pub round: u64,
    /// The SHA-256 hash of the signature.
    pub randomness: Text,
    /// A compressed point of G1.
    pub signature: BoundedVec<u8, ConstU32<144>>,
}

/// The pallet `Drand`.
#[frame_support::pallet]
#[allow(
    missing_docs,
    reason = "the macro generates public items without documentation"
)]
mod pallet {
    use super::{BeaconConfiguration, DEVELOPMENT_SECRET, GENESIS_TIME, PERIOD, Pulse, VecDeque, pulse};
    use frame_support::pallet_prelude::*;
    use frame_system::pallet_prelude::*;

    #[pallet::pallet]
    #[pallet::without_storage_info]
    pub struct Pallet<T>(_);

    /// The runtime provides the time.
    #[pallet::config]
    pub trait Config: pallet_timestamp::Config<Moment = u64> + frame_system::Config {}

    /// The facts about the beacon that clients need.
    #[pallet::storage]
    pub type BeaconConfig<T> = StorageValue<_, BeaconConfiguration, ValueQuery>;
    /// The pulses that were asked for last.
    #[pallet::storage]
    pub type Pulses<T> = StorageMap<_, Blake2_128Concat, u64, Pulse, OptionQuery>;
    /// The latest round whose time has come.
    #[pallet::storage]
    pub type LastStoredRound<T> = StorageValue<_, u64, ValueQuery>;
    /// The oldest round whose pulse is kept; 0 where none is.
    #[pallet::storage]
    pub type OldestStoredRound<T> = StorageValue<_, u64, ValueQuery>;
    /// The rounds whose pulses are kept, in the order in which they were asked for.
    #[pallet::storage]
    pub type KeptRounds<T> = StorageValue<_, VecDeque<u64>, ValueQuery>;
    /// The beacon's secret. On this chain it is none.
    #[pallet::storage]
    pub type DevelopmentSecret<T> = StorageValue<_, [u8; 32], ValueQuery>;

    /// The beacon from genesis on.
    #[pallet::genesis_config]
    pub struct GenesisConfig<T: Config> {
        /// From which its key comes.
        pub secret: [u8; 32],
        /// When round 1 came, in seconds since 1970.
        pub genesis_time: u32,
        /// Seconds per round.
        pub period: u32,
        /// The type parameter has no field of its own.
        #[serde(skip)]
        pub _config: PhantomData<T>,
    }

    impl<T: Config> Default for GenesisConfig<T> {
        fn default() -> Self {
            Self {
                secret: DEVELOPMENT_SECRET,
                genesis_time: GENESIS_TIME,
                period: PERIOD,
                _config: PhantomData,
            }
        }
    }

    #[pallet::genesis_build]
    impl<T: Config> BuildGenesisConfig for GenesisConfig<T> {
        fn build(&self) {
            DevelopmentSecret::<T>::put(self.secret);
            BeaconConfig::<T>::put(super::configuration(self));
        }
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        /// The time is the last block's: a round is known once its time is in a block, as a pulse of the public beacon
        /// is.
        fn on_initialize(_now: BlockNumberFor<T>) -> Weight {
            let config = BeaconConfig::<T>::get();
            let now = pallet_timestamp::Now::<T>::get().checked_div(1000).unwrap_or(0);
            let round = pulse::round_at(now, config.genesis_time.into(), config.period.into());
            if round != LastStoredRound::<T>::get() {
                LastStoredRound::<T>::put(round);
            }
            Weight::zero()
        }
    }

    impl<T: Config> Pallet<T> {
        /// A round's pulse; `None` before its time.
        pub fn pulse(round: u64) -> Option<Pulse> {
            if round == 0 || round > LastStoredRound::<T>::get() {
                return None;
            }
            if let Some(pulse) = Pulses::<T>::get(round) {
                return Some(pulse);
            }
            let pulse = super::make(&DevelopmentSecret::<T>::get(), round)?;
            Pulses::<T>::insert(round, &pulse);
            KeptRounds::<T>::mutate(|kept| {
                kept.push_back(round);
                if kept.len() > super::KEPT
                    && let Some(old) = kept.pop_front()
                {
                    Pulses::<T>::remove(old);
                }
                OldestStoredRound::<T>::put(kept.iter().copied().min().unwrap_or(0));
            });
            Some(pulse)
        }
    }
}

fn make(secret: &[u8; 32], round: u64) -> Option<Pulse> {
    let signature = pulse::sign(secret, round);
    Some(Pulse {
        round,
        randomness: sp_io::hashing::sha2_256(&signature).to_vec().try_into().ok()?,
        signature: signature.try_into().ok()?,
    })
}

fn configuration<T: Config>(genesis: &GenesisConfig<T>) -> BeaconConfiguration {
    let key = pulse::public_key(&genesis.secret);
    let text = |bytes: &[u8]| BoundedVec::truncate_from(bytes.to_vec());
    let hash = text(&sp_io::hashing::sha2_256(&key));
    BeaconConfiguration {
        public_key: BoundedVec::truncate_from(key),
        period: genesis.period,
        genesis_time: genesis.genesis_time,
        hash: hash.clone(),
        group_hash: hash,
        scheme_id: text(b"bls-unchained-g1-rfc9380"),
        metadata: Metadata {
            beacon_id: text(b"muster-development"),
        },
    }
}
