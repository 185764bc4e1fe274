//! Committing to weights and revealing them. Salted commits are revealed by their hotkey in exactly one epoch, the commit's
//! plus the reveal period. Timelocked commits are kept as they are: this chain has no beacon that opens them.

use super::{
    CommitRevealWeightsEnabled, CommitRevealWeightsVersion, Config, Error, Event, MAX_TIMELOCKED_COMMIT,
    MAX_UNREVEALED_COMMITS, Pallet, RevealPeriodEpochs, SubnetEpochIndex, Tempo, TimelockedWeightCommits,
    Uids, WeightCommits,
};
use crate::AccountId;
use crate::types::{MechId, NetUid, NetUidStorageIndex};
use core::cmp::Ordering;
use frame_support::{BoundedVec, dispatch::DispatchResult, ensure, traits::ConstU32};
use sp_core::H256;
use sp_runtime::traits::{BlakeTwo256, Hash};
use std::collections::VecDeque;

/// One salted commit: hash, epoch of the commit, first and last block in which to reveal, as foreseen.
type Commit = (H256, u64, u64, u64);

/// What can be done with a commit now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RevealWindow {
    /// Its epoch has not begun.
    TooEarly,
    /// Its epoch is now.
    Open,
    /// Its epoch is over.
    Expired,
}

impl<T: Config> Pallet<T> {
    /// The hash to which a salted commit commits.
    #[must_use]
    pub fn commit_hash(
        who: &AccountId,
        index: NetUidStorageIndex,
        uids: &[u16],
        values: &[u16],
        salt: &[u16],
        version_key: u64,
    ) -> H256 {
        BlakeTwo256::hash_of(&(who, index, uids, values, salt, version_key))
    }

    /// What can be done now with a commit of `epoch`.
    pub(super) fn reveal_window(netuid: NetUid, epoch: u64) -> RevealWindow {
        let due = epoch.saturating_add(RevealPeriodEpochs::<T>::get(netuid));
        match SubnetEpochIndex::<T>::get(netuid).cmp(&due) {
            Ordering::Less => RevealWindow::TooEarly,
            Ordering::Equal => RevealWindow::Open,
            Ordering::Greater => RevealWindow::Expired,
        }
    }

    pub(super) fn do_commit(who: &AccountId, netuid: NetUid, mecid: MechId, hash: H256) -> DispatchResult {
        let (index, uid) = Self::may_commit(who, netuid, mecid)?;
        let epoch = SubnetEpochIndex::<T>::get(netuid);
        WeightCommits::<T>::try_mutate(index, who, |stored| -> DispatchResult {
            let mut commits = stored.take().unwrap_or_default();
            Self::drop_expired(netuid, &mut commits);
            ensure!(
                commits.len() < MAX_UNREVEALED_COMMITS,
                Error::<T>::TooManyUnrevealedCommits
            );
            let (first, last) = Self::foreseen_reveal(netuid);
            commits.push_back((hash, epoch, first, last));
            *stored = Some(commits);
            Ok(())
        })?;
        Self::set_last_update(index, uid);
        Self::deposit_event(Event::WeightsCommitted(who.clone(), index, hash));
        Ok(())
    }

    pub(super) fn do_reveal(
        who: &AccountId,
        netuid: NetUid,
        mecid: MechId,
        uids: &[u16],
        values: &[u16],
        salt: &[u16],
        version_key: u64,
    ) -> DispatchResult {
        ensure!(
            CommitRevealWeightsEnabled::<T>::get(netuid),
            Error::<T>::CommitRevealDisabled
        );
        ensure!(
            Self::mechanism_exists(netuid, mecid),
            Error::<T>::MechanismDoesNotExist
        );
        let index = netuid.index(mecid);
        let hash = Self::commit_hash(who, index, uids, values, salt, version_key);
        WeightCommits::<T>::try_mutate_exists(index, who, |stored| -> DispatchResult {
            let commits = stored.as_mut().ok_or(Error::<T>::NoWeightsCommitFound)?;
            let expired = Self::drop_expired(netuid, commits);
            let place = commits.iter().position(|commit| commit.0 == hash);
            let Some((place, epoch)) = place.and_then(|place| Some((place, commits.get(place)?.1))) else {
                let error = match (expired.contains(&hash), commits.is_empty()) {
                    (true, _) => Error::<T>::ExpiredWeightCommit,
                    (false, true) => Error::<T>::NoWeightsCommitFound,
                    (false, false) => Error::<T>::InvalidRevealCommitHashNotMatch,
                };
                return Err(error.into());
            };
            ensure!(
                Self::reveal_window(netuid, epoch) == RevealWindow::Open,
                Error::<T>::RevealTooEarly
            );
            // Earlier commits are void once a later one is revealed.
            commits.drain(..=place);
            if commits.is_empty() {
                *stored = None;
            }
            Self::store_weights(who, netuid, mecid, uids, values, version_key)
        })?;
        Self::deposit_event(Event::WeightsRevealed(who.clone(), index, hash));
        Ok(())
    }

    pub(super) fn do_commit_timelocked(
        who: AccountId,
        netuid: NetUid,
        mecid: MechId,
        commit: BoundedVec<u8, ConstU32<MAX_TIMELOCKED_COMMIT>>,
        round: u64,
        version: u16,
    ) -> DispatchResult {
        ensure!(
            CommitRevealWeightsVersion::<T>::get() == version,
            Error::<T>::IncorrectCommitRevealVersion
        );
        let (index, uid) = Self::may_commit(&who, netuid, mecid)?;
        let hash = BlakeTwo256::hash(&commit);
        let epoch = SubnetEpochIndex::<T>::get(netuid);
        TimelockedWeightCommits::<T>::try_mutate(index, epoch, |commits| -> DispatchResult {
            let waiting = commits.iter().filter(|commit| commit.0 == who).count();
            ensure!(
                waiting < MAX_UNREVEALED_COMMITS,
                Error::<T>::TooManyUnrevealedCommits
            );
            commits.push_back((who.clone(), Self::now(), commit, round));
            Ok(())
        })?;
        Self::set_last_update(index, uid);
        Self::deposit_event(Event::TimelockedWeightsCommitted(who, index, hash, round));
        Ok(())
    }

    /// The checks that both kinds of commit share, in the public chain's order.
    fn may_commit(
        who: &AccountId,
        netuid: NetUid,
        mecid: MechId,
    ) -> Result<(NetUidStorageIndex, u16), Error<T>> {
        ensure!(
            Self::mechanism_exists(netuid, mecid),
            Error::<T>::MechanismDoesNotExist
        );
        ensure!(
            CommitRevealWeightsEnabled::<T>::get(netuid),
            Error::<T>::CommitRevealDisabled
        );
        let uid = Uids::<T>::get(netuid, who).ok_or(Error::<T>::HotKeyNotRegisteredInSubNet)?;
        let index = netuid.index(mecid);
        ensure!(
            Self::weights_are_due(netuid, index, uid),
            Error::<T>::CommittingWeightsTooFast
        );
        Ok((index, uid))
    }

    /// Removes commits that can no longer be revealed from the front of the queue and returns their hashes.
    fn drop_expired(netuid: NetUid, commits: &mut VecDeque<Commit>) -> Vec<H256> {
        let mut expired = Vec::new();
        while let Some((hash, epoch, ..)) = commits.front()
            && Self::reveal_window(netuid, *epoch) == RevealWindow::Expired
        {
            expired.push(*hash);
            commits.pop_front();
        }
        expired
    }

    /// The blocks in which a commit made now can be revealed, if epochs keep their tempo.
    fn foreseen_reveal(netuid: NetUid) -> (u64, u64) {
        let tempo = u64::from(Tempo::<T>::get(netuid));
        let first = Self::next_epoch(netuid).unwrap_or(u64::MAX).saturating_add(
            RevealPeriodEpochs::<T>::get(netuid)
                .saturating_sub(1)
                .saturating_mul(tempo),
        );
        (first, first.saturating_add(tempo.saturating_sub(1)))
    }
}
