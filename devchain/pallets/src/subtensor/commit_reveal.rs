//! Committing to weights and revealing them. Salted commits are revealed by their hotkey in exactly one epoch, the
//! commit's plus the reveal period. Timelocked commits are kept until their epoch.

use super::{
    CommitRevealWeightsEnabled, CommitRevealWeightsVersion, Config, Error, Event, MAX_TIMELOCKED_COMMIT,
    MAX_UNREVEALED_COMMITS, NetworksAdded, Pallet, RevealPeriodEpochs, SubnetEpochIndex,
    TimelockedWeightCommits, Uids, WeightCommits,
};
use crate::AccountId;
use crate::types::{MechId, NetUid, NetUidStorageIndex};
use codec::Compact;
use core::cmp::Ordering;
use frame_support::{BoundedVec, dispatch::DispatchResult, ensure, traits::ConstU32};
use sp_core::H256;
use sp_runtime::traits::{BlakeTwo256, Hash};
use std::collections::{BTreeMap, VecDeque};

/// One salted commit: hash, epoch of the commit, its block; the fourth number is the public chain's and unused.
type Commit = (H256, u64, u64, u64);

/// The window of a commit's reveal, relative to now.
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

    /// The window of a commit of `epoch`, relative to now.
    pub(super) fn reveal_window(netuid: NetUid, epoch: u64) -> RevealWindow {
        let due = epoch.saturating_add(RevealPeriodEpochs::<T>::get(netuid));
        match SubnetEpochIndex::<T>::get(netuid).cmp(&due) {
            Ordering::Less => RevealWindow::TooEarly,
            Ordering::Equal => RevealWindow::Open,
            Ordering::Greater => RevealWindow::Expired,
        }
    }

    /// The block of each hotkey's oldest commit that can still be revealed. A commit from before a neuron's
    /// registration shows nothing about it.
    pub(super) fn oldest_commits(netuid: NetUid, index: NetUidStorageIndex) -> BTreeMap<AccountId, u64> {
        let alive = |epoch: u64| Self::reveal_window(netuid, epoch) != RevealWindow::Expired;
        let salted = WeightCommits::<T>::iter_prefix(index).filter_map(|(who, commits)| {
            let oldest = commits.iter().find(|(_, epoch, ..)| alive(*epoch))?;
            Some((who, oldest.2))
        });
        let timelocked = TimelockedWeightCommits::<T>::iter_prefix(index)
            .filter(|(epoch, _)| alive(*epoch))
            .flat_map(|(_, commits)| commits.into_iter().map(|(who, block, ..)| (who, block)));
        let mut oldest = BTreeMap::new();
        for (who, block) in salted.chain(timelocked) {
            let first = oldest.entry(who).or_insert(block);
            *first = block.min(*first);
        }
        oldest
    }

    pub(super) fn do_commit(who: &AccountId, netuid: NetUid, mecid: MechId, hash: H256) -> DispatchResult {
        let (index, uid) = Self::may_commit(who, netuid, mecid, None)?;
        let epoch = SubnetEpochIndex::<T>::get(netuid);
        WeightCommits::<T>::try_mutate(index, who, |stored| -> DispatchResult {
            let mut commits = stored.take().unwrap_or_default();
            Self::drop_expired(netuid, &mut commits);
            ensure!(
                commits.len() < MAX_UNREVEALED_COMMITS,
                Error::<T>::TooManyUnrevealedCommits
            );
            commits.push_back((hash, epoch, Self::now(), 0));
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
        Self::may_reveal(netuid)?;
        let index = netuid.index(mecid);
        let hash = Self::commit_hash(who, index, uids, values, salt, version_key);
        WeightCommits::<T>::try_mutate_exists(index, who, |stored| -> DispatchResult {
            let commits = stored.as_mut().ok_or(Error::<T>::NoWeightsCommitFound)?;
            let place = Self::revealable(netuid, commits, &[hash])?;
            // Earlier commits are void once a later one is revealed.
            commits.drain(..=place.first().copied().unwrap_or_default());
            if commits.is_empty() {
                *stored = None;
            }
            Self::store_weights(who, netuid, mecid, uids, values, version_key)
        })?;
        Self::deposit_event(Event::WeightsRevealed(who.clone(), index, hash));
        Ok(())
    }

    /// Reveals several commits, all or none. Those between them stay.
    pub(super) fn do_batch_reveal(
        who: AccountId,
        netuid: NetUid,
        uids: &[Vec<u16>],
        values: &[Vec<u16>],
        salts: &[Vec<u16>],
        version_keys: &[u64],
    ) -> DispatchResult {
        ensure!(
            Self::mechanism_exists(netuid, MechId(0)),
            Error::<T>::SubnetNotExists
        );
        let lengths = [values.len(), salts.len(), version_keys.len()];
        ensure!(
            lengths.iter().all(|length| *length == uids.len()),
            Error::<T>::InputLengthsUnequal
        );
        Self::may_reveal(netuid)?;
        let index = netuid.index(MechId(0));
        let reveals = || uids.iter().zip(values).zip(salts.iter().zip(version_keys));
        let hashes: Vec<H256> = reveals()
            .map(|((uids, values), (salt, key))| Self::commit_hash(&who, index, uids, values, salt, *key))
            .collect();
        WeightCommits::<T>::try_mutate_exists(index, &who, |stored| -> DispatchResult {
            let commits = stored.as_mut().ok_or(Error::<T>::NoWeightsCommitFound)?;
            Self::revealable(netuid, commits, &hashes)?;
            for hash in &hashes {
                let place = commits.iter().position(|commit| commit.0 == *hash);
                let place = place.ok_or(Error::<T>::InvalidRevealCommitHashNotMatch)?;
                commits.remove(place);
            }
            if commits.is_empty() {
                *stored = None;
            }
            for ((uids, values), (_, key)) in reveals() {
                Self::store_weights(&who, netuid, MechId(0), uids, values, *key)?;
            }
            Ok(())
        })?;
        Self::deposit_event(Event::WeightsBatchRevealed(who, netuid, hashes));
        Ok(())
    }

    fn may_reveal(netuid: NetUid) -> Result<(), Error<T>> {
        ensure!(NetworksAdded::<T>::get(netuid), Error::<T>::SubnetNotExists);
        ensure!(
            CommitRevealWeightsEnabled::<T>::get(netuid),
            Error::<T>::CommitRevealDisabled
        );
        Ok(())
    }

    /// Where commits stand that can be revealed now, after those were dropped that no longer can.
    fn revealable(
        netuid: NetUid,
        commits: &mut VecDeque<Commit>,
        hashes: &[H256],
    ) -> Result<Vec<usize>, Error<T>> {
        let expired = Self::drop_expired(netuid, commits);
        let find = |hash: &H256| {
            let place = commits.iter().position(|commit| commit.0 == *hash);
            let Some((place, epoch)) = place.and_then(|place| Some((place, commits.get(place)?.1))) else {
                return Err(match (expired.contains(hash), commits.is_empty()) {
                    (true, _) => Error::<T>::ExpiredWeightCommit,
                    (false, true) => Error::<T>::NoWeightsCommitFound,
                    (false, false) => Error::<T>::InvalidRevealCommitHashNotMatch,
                });
            };
            ensure!(
                Self::reveal_window(netuid, epoch) == RevealWindow::Open,
                Error::<T>::RevealTooEarly
            );
            Ok(place)
        };
        hashes.iter().map(find).collect()
    }

    /// Commits to weights on several subnets; an event reports what fails.
    pub(super) fn do_batch_commit(
        who: AccountId,
        netuids: Vec<Compact<NetUid>>,
        hashes: &[H256],
    ) -> DispatchResult {
        ensure!(netuids.len() == hashes.len(), Error::<T>::InputLengthsUnequal);
        let commit =
            |(netuid, hash): (&Compact<NetUid>, &H256)| Self::do_commit(&who, netuid.0, MechId(0), *hash);
        let results: Vec<DispatchResult> = netuids.iter().zip(hashes).map(commit).collect();
        Self::close_batch(who, netuids, results);
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
        let (index, uid) = Self::may_commit(&who, netuid, mecid, Some(version))?;
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
        version: Option<u16>,
    ) -> Result<(NetUidStorageIndex, u16), Error<T>> {
        ensure!(
            Self::mechanism_exists(netuid, mecid),
            Error::<T>::MechanismDoesNotExist
        );
        ensure!(
            CommitRevealWeightsEnabled::<T>::get(netuid),
            Error::<T>::CommitRevealDisabled
        );
        ensure!(
            version.is_none_or(|version| version == CommitRevealWeightsVersion::<T>::get()),
            Error::<T>::IncorrectCommitRevealVersion
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
}
