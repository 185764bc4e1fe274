//! Setting weights: who may, which vectors are weights at all, and how they are stored. The arithmetic is pure and
//! apart.

use super::{
    CommitRevealWeightsEnabled, Config, Error, Event, LastUpdate, MaxWeightsLimit, MechanismCountCurrent,
    MinAllowedWeights, NetworksAdded, Pallet, StakeThreshold, SubnetworkN, TotalHotkeyAlpha, Uids,
    ValidatorPermit, Weights, WeightsSetRateLimit, WeightsVersionKey,
};
use crate::AccountId;
use crate::types::{MechId, NetUid, NetUidStorageIndex};
use codec::Compact;
use frame_support::{dispatch::DispatchResult, ensure};
use sp_runtime::SaturatedConversion;
use std::collections::BTreeSet;

impl<T: Config> Pallet<T> {
    /// The current block.
    #[must_use]
    pub fn now() -> u64 {
        frame_system::Pallet::<T>::block_number().saturated_into()
    }

    /// Sets weights directly, where the subnet allows it.
    pub(super) fn do_set_weights(
        who: &AccountId,
        netuid: NetUid,
        mecid: MechId,
        uids: &[u16],
        values: &[u16],
        version_key: u64,
    ) -> DispatchResult {
        ensure!(
            !CommitRevealWeightsEnabled::<T>::get(netuid),
            Error::<T>::CommitRevealEnabled
        );
        Self::store_weights(who, netuid, mecid, uids, values, version_key)
    }

    /// Sets weights on several subnets; an event reports what fails.
    pub(super) fn do_batch_set(
        who: AccountId,
        netuids: Vec<Compact<NetUid>>,
        weights: &[Vec<(Compact<u16>, Compact<u16>)>],
        version_keys: &[Compact<u64>],
    ) -> DispatchResult {
        ensure!(
            netuids.len() == weights.len() && netuids.len() == version_keys.len(),
            Error::<T>::InputLengthsUnequal
        );
        let set = |netuid: NetUid, weights: &[(Compact<u16>, Compact<u16>)], key: u64| {
            let (uids, values): (Vec<u16>, Vec<u16>) =
                weights.iter().map(|(uid, value)| (uid.0, value.0)).unzip();
            Self::do_set_weights(&who, netuid, MechId(0), &uids, &values, key)
        };
        let results: Vec<DispatchResult> = netuids
            .iter()
            .zip(weights)
            .zip(version_keys)
            .map(|((netuid, weights), key)| set(netuid.0, weights, key.0))
            .collect();
        Self::close_batch(who, netuids, results);
        Ok(())
    }

    /// Reports what became of a batch.
    pub(super) fn close_batch(who: AccountId, netuids: Vec<Compact<NetUid>>, results: Vec<DispatchResult>) {
        let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        if !errors.is_empty() {
            Self::deposit_event(Event::BatchCompletedWithErrors());
        }
        for error in errors {
            Self::deposit_event(Event::BatchWeightItemFailed(error));
        }
        Self::deposit_event(Event::BatchWeightsCompleted(netuids, who));
    }

    /// The checks in the public chain's order, then the row. Revealed weights pass here too: their rate was limited
    /// when they were committed.
    pub(super) fn store_weights(
        who: &AccountId,
        netuid: NetUid,
        mecid: MechId,
        uids: &[u16],
        values: &[u16],
        version_key: u64,
    ) -> DispatchResult {
        ensure!(netuid != NetUid::ROOT, Error::<T>::CanNotSetRootNetworkWeights);
        ensure!(uids.len() == values.len(), Error::<T>::WeightVecNotEqualSize);
        ensure!(
            Self::mechanism_exists(netuid, mecid),
            Error::<T>::MechanismDoesNotExist
        );
        let neurons = SubnetworkN::<T>::get(netuid);
        ensure!(
            uids.len() <= usize::from(neurons),
            Error::<T>::UidsLengthExceedUidsInSubNet
        );
        let uid = Uids::<T>::get(netuid, who).ok_or(Error::<T>::HotKeyNotRegisteredInSubNet)?;
        ensure!(
            Self::has_stake_for_weights(who, netuid),
            Error::<T>::NotEnoughStakeToSetWeights
        );
        let required = WeightsVersionKey::<T>::get(netuid);
        ensure!(
            required == 0 || version_key >= required,
            Error::<T>::IncorrectWeightVersionKey
        );

        let index = netuid.index(mecid);
        let direct = !CommitRevealWeightsEnabled::<T>::get(netuid);
        ensure!(
            !direct || Self::weights_are_due(netuid, index, uid),
            Error::<T>::SettingWeightsTooFast
        );

        // A neuron's weight on itself alone needs neither permit nor company.
        let alone = uids == [uid];
        let permit = ValidatorPermit::<T>::get(netuid)
            .get(usize::from(uid))
            .copied()
            .unwrap_or(false);
        ensure!(alone || permit, Error::<T>::NeuronNoValidatorPermit);
        ensure!(
            uids.iter().collect::<BTreeSet<_>>().len() == uids.len(),
            Error::<T>::DuplicateUids
        );
        ensure!(
            uids.iter().all(|uid| *uid < neurons),
            Error::<T>::UidVecContainInvalidOne
        );
        let least = MinAllowedWeights::<T>::get(netuid).min(neurons);
        ensure!(
            alone || values.len() >= usize::from(least),
            Error::<T>::WeightVecLengthIsLow
        );

        let scaled = scale_to_max(values);
        let limit = MaxWeightsLimit::<T>::get(netuid);
        ensure!(
            alone || within_limit(&scaled, limit),
            Error::<T>::MaxWeightExceeded
        );

        Weights::<T>::insert(index, uid, uids.iter().copied().zip(scaled).collect::<Vec<_>>());
        if direct {
            Self::set_last_update(index, uid);
        }
        Self::deposit_event(Event::WeightsSet(index, uid));
        Ok(())
    }

    /// Whether a subnet has this mechanism.
    pub(super) fn mechanism_exists(netuid: NetUid, mecid: MechId) -> bool {
        NetworksAdded::<T>::get(netuid) && mecid < MechanismCountCurrent::<T>::get(netuid)
    }

    /// Whether a hotkey's stake lets it call for weights at all.
    pub(super) fn has_stake_for_weights(who: &AccountId, netuid: NetUid) -> bool {
        TotalHotkeyAlpha::<T>::get(who, netuid).0 >= StakeThreshold::<T>::get()
    }

    /// Whether enough blocks have passed since a neuron's last weights or commit. Block 0 counts as never.
    pub(super) fn weights_are_due(netuid: NetUid, index: NetUidStorageIndex, uid: u16) -> bool {
        let last = LastUpdate::<T>::get(index)
            .get(usize::from(uid))
            .copied()
            .unwrap_or(0);
        last == 0 || Self::now().saturating_sub(last) >= WeightsSetRateLimit::<T>::get(netuid)
    }

    /// Notes that a neuron set or committed weights now.
    pub(super) fn set_last_update(index: NetUidStorageIndex, uid: u16) {
        LastUpdate::<T>::mutate(index, |column| {
            let place = usize::from(uid);
            if column.len() <= place {
                column.resize(place.saturating_add(1), 0);
            }
            if let Some(block) = column.get_mut(place) {
                *block = Self::now();
            }
        });
    }
}

/// Scales weights so that the largest is 65535, rounding halves up. All-zero weights stay as they are.
fn scale_to_max(values: &[u16]) -> Vec<u16> {
    let max = u64::from(values.iter().copied().max().unwrap_or(0));
    if max == 0 {
        return values.to_vec();
    }
    let scale = |value: u16| {
        let doubled = u64::from(value)
            .saturating_mul(2)
            .saturating_mul(u64::from(u16::MAX));
        let rounded = doubled
            .saturating_add(max)
            .checked_div(max.saturating_mul(2))
            .unwrap_or(0);
        u16::try_from(rounded).unwrap_or(u16::MAX)
    };
    values.iter().copied().map(scale).collect()
}

/// Whether the largest weight's share of all is at most `limit` of 65535. Without any weight there is no share.
fn within_limit(values: &[u16], limit: u16) -> bool {
    if limit == u16::MAX {
        return true;
    }
    let max = u64::from(values.iter().copied().max().unwrap_or(0));
    let sum: u64 = values.iter().copied().map(u64::from).sum();
    sum != 0 && max.saturating_mul(u64::from(u16::MAX)) <= sum.saturating_mul(u64::from(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_weight_becomes_the_maximum() {
        assert_eq!(scale_to_max(&[1, 2]), [32768, 65535]);
        assert_eq!(scale_to_max(&[65535, 1]), [65535, 1]);
        assert_eq!(scale_to_max(&[100, 300, 200]), [21845, 65535, 43690]);
        assert_eq!(scale_to_max(&[0, 0]), [0, 0]);
        assert_eq!(scale_to_max(&[]), [] as [u16; 0]);
    }

    #[test]
    fn the_limit_is_a_share_of_the_sum() {
        assert!(within_limit(&[65535, 65535], 32768));
        assert!(!within_limit(&[65535, 65534], 32767));
        assert!(!within_limit(&[0, 0], 32767));
        assert!(within_limit(&[0, 65535], u16::MAX));
    }
}
