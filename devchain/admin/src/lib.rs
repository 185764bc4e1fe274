//! `AdminUtils`: the public chain's calls that change hyperparameters while it runs. Only root calls them, through
//! `Sudo`; the owners of subnets, who may call some of them there, do not exist here. One line of thought for each: who
//! asks, which subnet, is the value possible, store it.

#![allow(clippy::expect_used, reason = "FRAME's macros expand to `expect`")]

pub use pallet::*;

/// The pallet `AdminUtils`.
#[frame_support::pallet]
#[allow(
    missing_docs,
    reason = "the macro generates public items without documentation"
)]
mod pallet {
    use frame_support::pallet_prelude::*;
    use frame_system::pallet_prelude::*;
    use muster_devchain_pallets::subtensor;
    use muster_devchain_pallets::types::{MechId, NetUid, TaoBalance};

    #[pallet::pallet]
    pub struct Pallet<T>(_);

    /// The runtime provides the subnets.
    #[pallet::config]
    pub trait Config: subtensor::Config + frame_system::Config {}

    /// Why a call was refused.
    #[pallet::error]
    pub enum Error<T> {
        /// There is no such subnet.
        SubnetDoesNotExist,
        /// There would be more validators than neurons.
        MaxValidatorsLargerThanMaxUIds,
        /// The subnet has more neurons than that.
        MaxAllowedUIdsLessThanCurrentUIds,
        /// Bonds would remember more than all.
        BondsMovingAverageMaxReached,
        /// The value is not possible.
        #[codec(index = 5)]
        ValueNotInBounds,
    }

    /// The weight of every call: a local chain's blocks are never full.
    const CALL: Weight = Weight::from_parts(10_000_000, 0);

    fn root_asks<T: Config>(origin: OriginFor<T>, netuid: NetUid) -> DispatchResult {
        ensure_root(origin)?;
        ensure!(
            subtensor::NetworksAdded::<T>::get(netuid),
            Error::<T>::SubnetDoesNotExist
        );
        Ok(())
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Blocks between two serve calls of one neuron.
        #[pallet::call_index(3)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_serving_rate_limit(
            origin: OriginFor<T>,
            netuid: NetUid,
            serving_rate_limit: u64,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::ServingRateLimit::<T>::insert(netuid, serving_rate_limit);
            Ok(())
        }

        /// The oldest version key that weights may carry; 0 accepts any.
        #[pallet::call_index(6)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_weights_version_key(
            origin: OriginFor<T>,
            netuid: NetUid,
            weights_version_key: u64,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::WeightsVersionKey::<T>::insert(netuid, weights_version_key);
            Ok(())
        }

        /// Blocks between two weight calls of one neuron.
        #[pallet::call_index(7)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_weights_set_rate_limit(
            origin: OriginFor<T>,
            netuid: NetUid,
            weights_set_rate_limit: u64,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::WeightsSetRateLimit::<T>::insert(netuid, weights_set_rate_limit);
            Ok(())
        }

        /// Blocks in the interval over which registrations are counted.
        #[pallet::call_index(8)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_adjustment_interval(
            origin: OriginFor<T>,
            netuid: NetUid,
            adjustment_interval: u16,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::AdjustmentInterval::<T>::insert(netuid, adjustment_interval);
            Ok(())
        }

        /// Blocks for which a new neuron is spared.
        #[pallet::call_index(13)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_immunity_period(
            origin: OriginFor<T>,
            netuid: NetUid,
            immunity_period: u16,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::ImmunityPeriod::<T>::insert(netuid, immunity_period);
            Ok(())
        }

        /// How many weights a validator must set.
        #[pallet::call_index(14)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_min_allowed_weights(
            origin: OriginFor<T>,
            netuid: NetUid,
            min_allowed_weights: u16,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::MinAllowedWeights::<T>::insert(netuid, min_allowed_weights);
            Ok(())
        }

        /// How many neurons a subnet may have.
        #[pallet::call_index(15)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_max_allowed_uids(
            origin: OriginFor<T>,
            netuid: NetUid,
            max_allowed_uids: u16,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            let neurons = subtensor::SubnetworkN::<T>::get(netuid);
            ensure!(
                max_allowed_uids >= neurons,
                Error::<T>::MaxAllowedUIdsLessThanCurrentUIds
            );
            subtensor::MaxAllowedUids::<T>::insert(netuid, max_allowed_uids);
            Ok(())
        }

        /// The majority that a weight needs, of 65535.
        #[pallet::call_index(16)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_kappa(origin: OriginFor<T>, netuid: NetUid, kappa: u16) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::Kappa::<T>::insert(netuid, kappa);
            Ok(())
        }

        /// Slope of the trust sigmoid.
        #[pallet::call_index(17)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_rho(origin: OriginFor<T>, netuid: NetUid, rho: u16) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::Rho::<T>::insert(netuid, rho);
            Ok(())
        }

        /// Blocks without weights after which a validator's stake does not count.
        #[pallet::call_index(18)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_activity_cutoff(
            origin: OriginFor<T>,
            netuid: NetUid,
            activity_cutoff: u16,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::ActivityCutoff::<T>::insert(netuid, activity_cutoff);
            Ok(())
        }

        /// Whether a subnet takes registrations.
        #[pallet::call_index(19)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_network_registration_allowed(
            origin: OriginFor<T>,
            netuid: NetUid,
            registration_allowed: bool,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::NetworkRegistrationAllowed::<T>::insert(netuid, registration_allowed);
            Ok(())
        }

        /// Whether a subnet takes registrations for work.
        #[pallet::call_index(20)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_network_pow_registration_allowed(
            origin: OriginFor<T>,
            netuid: NetUid,
            registration_allowed: bool,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::NetworkPowRegistrationAllowed::<T>::insert(netuid, registration_allowed);
            Ok(())
        }

        /// A third of the registrations that a subnet takes per interval.
        #[pallet::call_index(21)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_target_registrations_per_interval(
            origin: OriginFor<T>,
            netuid: NetUid,
            target_registrations_per_interval: u16,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::TargetRegistrationsPerInterval::<T>::insert(netuid, target_registrations_per_interval);
            Ok(())
        }

        /// The price of a registration does not fall below this.
        #[pallet::call_index(22)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_min_burn(
            origin: OriginFor<T>,
            netuid: NetUid,
            min_burn: TaoBalance,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            ensure!(
                min_burn <= subtensor::MaxBurn::<T>::get(netuid),
                Error::<T>::ValueNotInBounds
            );
            subtensor::MinBurn::<T>::insert(netuid, min_burn);
            Ok(())
        }

        /// The price of a registration does not rise above this.
        #[pallet::call_index(23)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_max_burn(
            origin: OriginFor<T>,
            netuid: NetUid,
            max_burn: TaoBalance,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            ensure!(
                max_burn >= subtensor::MinBurn::<T>::get(netuid),
                Error::<T>::ValueNotInBounds
            );
            subtensor::MaxBurn::<T>::insert(netuid, max_burn);
            Ok(())
        }

        /// How hard the work of a registration is.
        #[pallet::call_index(24)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_difficulty(origin: OriginFor<T>, netuid: NetUid, difficulty: u64) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::Difficulty::<T>::insert(netuid, difficulty);
            Ok(())
        }

        /// How many neurons may hold a validator's permit.
        #[pallet::call_index(25)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_max_allowed_validators(
            origin: OriginFor<T>,
            netuid: NetUid,
            max_allowed_validators: u16,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            let most = subtensor::MaxAllowedUids::<T>::get(netuid);
            ensure!(
                max_allowed_validators <= most,
                Error::<T>::MaxValidatorsLargerThanMaxUIds
            );
            subtensor::MaxAllowedValidators::<T>::insert(netuid, max_allowed_validators);
            Ok(())
        }

        /// The share of the last bonds in the next, of 10⁶.
        #[pallet::call_index(26)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_bonds_moving_average(
            origin: OriginFor<T>,
            netuid: NetUid,
            bonds_moving_average: u64,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            ensure!(
                bonds_moving_average <= 1_000_000,
                Error::<T>::BondsMovingAverageMaxReached
            );
            subtensor::BondsMovingAverage::<T>::insert(netuid, bonds_moving_average);
            Ok(())
        }

        /// Registrations that a subnet takes per block.
        #[pallet::call_index(27)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_max_registrations_per_block(
            origin: OriginFor<T>,
            netuid: NetUid,
            max_registrations_per_block: u16,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::MaxRegistrationsPerBlock::<T>::insert(netuid, max_registrations_per_block);
            Ok(())
        }

        /// Blocks between epochs.
        #[pallet::call_index(30)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_tempo(origin: OriginFor<T>, netuid: NetUid, tempo: u16) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::Tempo::<T>::insert(netuid, tempo);
            Ok(())
        }

        /// The stake that weight calls require, in rao.
        #[pallet::call_index(42)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_stake_threshold(origin: OriginFor<T>, min_stake: u64) -> DispatchResult {
            ensure_root(origin)?;
            subtensor::StakeThreshold::<T>::put(min_stake);
            Ok(())
        }

        /// Whether weights must be committed before they are revealed.
        #[pallet::call_index(49)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_commit_reveal_weights_enabled(
            origin: OriginFor<T>,
            netuid: NetUid,
            enabled: bool,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::CommitRevealWeightsEnabled::<T>::insert(netuid, enabled);
            Ok(())
        }

        /// Epochs between commit and reveal.
        #[pallet::call_index(57)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_commit_reveal_weights_interval(
            origin: OriginFor<T>,
            netuid: NetUid,
            interval: u64,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            ensure!((1..=100).contains(&interval), Error::<T>::ValueNotInBounds);
            subtensor::RevealPeriodEpochs::<T>::insert(netuid, interval);
            Ok(())
        }

        /// How far bonds follow clipped weights, of 65535.
        #[pallet::call_index(60)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_bonds_penalty(
            origin: OriginFor<T>,
            netuid: NetUid,
            bonds_penalty: u16,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::BondsPenalty::<T>::insert(netuid, bonds_penalty);
            Ok(())
        }

        /// The version of timelocked commits that the chain accepts.
        #[pallet::call_index(71)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_commit_reveal_version(origin: OriginFor<T>, version: u16) -> DispatchResult {
            ensure_root(origin)?;
            subtensor::CommitRevealWeightsVersion::<T>::put(version);
            Ok(())
        }

        /// How many mechanisms a subnet has.
        #[pallet::call_index(76)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_mechanism_count(
            origin: OriginFor<T>,
            netuid: NetUid,
            mechanism_count: MechId,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            ensure!(
                (1..=15).contains(&mechanism_count.0),
                Error::<T>::ValueNotInBounds
            );
            subtensor::MechanismCountCurrent::<T>::insert(netuid, mechanism_count);
            Ok(())
        }

        /// How many neurons that are not spared stay in any case.
        #[pallet::call_index(84)]
        #[pallet::weight((CALL, DispatchClass::Operational, Pays::No))]
        pub fn sudo_set_min_non_immune_uids(
            origin: OriginFor<T>,
            netuid: NetUid,
            min: u16,
        ) -> DispatchResult {
            root_asks::<T>(origin, netuid)?;
            subtensor::MinNonImmuneUids::<T>::insert(netuid, min);
            Ok(())
        }
    }
}
