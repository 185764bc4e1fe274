//! Timelocked commits: at the beginning of every block, those whose epoch of reveal is now are opened with the beacon's
//! pulses. One whose round has not come waits for a later block of the epoch; what cannot be opened, or has a content
//! that is not allowed, is dropped with an event.

use super::{
    Config, DroppedCommit, Event, MAX_TIMELOCKED_COMMIT, MechanismCountCurrent, Pallet, RevealPeriodEpochs,
    SubnetEpochIndex, TimelockedWeightCommits,
};
use crate::AccountId;
use crate::beacon::{Beacon, Closed};
use crate::types::{MechId, NetUid};
use codec::{Decode, Encode};
use frame_support::{BoundedVec, traits::ConstU32};
use std::collections::VecDeque;

/// The sealed payload.
#[derive(Encode, Decode, Clone, PartialEq, Eq, Debug)]
pub struct WeightsTlockPayload {
    /// The encoded account of the hotkey that commits.
    pub hotkey: Vec<u8>,
    /// The uids that get a weight.
    pub uids: Vec<u16>,
    /// The weight of each uid.
    pub values: Vec<u16>,
    /// For which version of the subnet's software.
    pub version_key: u64,
}

type Commit = (
    AccountId,
    u64,
    BoundedVec<u8, ConstU32<MAX_TIMELOCKED_COMMIT>>,
    u64,
);

impl<T: Config> Pallet<T> {
    /// Opens what is due on a subnet. An epoch that begins in this block has begun for commits already.
    pub(super) fn reveal_timelocked(netuid: NetUid, epoch_begins: bool) {
        let epoch = SubnetEpochIndex::<T>::get(netuid).saturating_add(epoch_begins.into());
        let Some(due) = epoch.checked_sub(RevealPeriodEpochs::<T>::get(netuid)) else {
            return;
        };
        for mecid in 0..MechanismCountCurrent::<T>::get(netuid).0 {
            Self::expire_timelocked(netuid, MechId(mecid), due);
            let index = netuid.index(MechId(mecid));
            if !TimelockedWeightCommits::<T>::contains_key(index, due) {
                continue;
            }
            let waiting: VecDeque<Commit> = TimelockedWeightCommits::<T>::take(index, due)
                .into_iter()
                .filter(|commit| !Self::opened(netuid, MechId(mecid), commit))
                .collect();
            if !waiting.is_empty() {
                TimelockedWeightCommits::<T>::insert(index, due, waiting);
            }
        }
    }

    /// Forgets the commits whose epoch of reveal is over.
    fn expire_timelocked(netuid: NetUid, mecid: MechId, due: u64) {
        let index = netuid.index(mecid);
        let over: Vec<u64> = TimelockedWeightCommits::<T>::iter_key_prefix(index)
            .filter(|epoch| *epoch < due)
            .collect();
        for epoch in over {
            for (who, ..) in TimelockedWeightCommits::<T>::take(index, epoch) {
                Self::deposit_event(Event::TimelockedWeightsDropped(
                    index,
                    who,
                    DroppedCommit::Expired,
                ));
            }
        }
    }

    /// Whether a commit is done with: its weights are set, or it is dropped. Until its round comes it is not.
    fn opened(netuid: NetUid, mecid: MechId, (who, _, sealed, round): &Commit) -> bool {
        let Some(opened) = T::Beacon::open(sealed, *round) else {
            return false;
        };
        let index = netuid.index(mecid);
        Self::deposit_event(match Self::reveal_opened(netuid, mecid, who, opened) {
            Ok(()) => Event::TimelockedWeightsRevealed(index, who.clone()),
            Err(reason) => Event::TimelockedWeightsDropped(index, who.clone(), reason),
        });
        true
    }

    fn reveal_opened(
        netuid: NetUid,
        mecid: MechId,
        who: &AccountId,
        opened: Result<Vec<u8>, Closed>,
    ) -> Result<(), DroppedCommit> {
        let bytes = opened.map_err(|Closed| DroppedCommit::Closed)?;
        let payload =
            WeightsTlockPayload::decode(&mut bytes.as_slice()).map_err(|_| DroppedCommit::Payload)?;
        let hotkey = AccountId::decode(&mut payload.hotkey.as_slice()).map_err(|_| DroppedCommit::Payload)?;
        if hotkey != *who {
            return Err(DroppedCommit::Hotkey);
        }
        Self::store_weights(
            who,
            netuid,
            mecid,
            &payload.uids,
            &payload.values,
            payload.version_key,
        )
        .map_err(|_| DroppedCommit::Refused)
    }
}
