//! Commits and reveals of weights, for chains that keep weights secret at first: the method a subnet demands, the data
//! to remember between commit and reveal, and the time to reveal. Pure; a validator stores a [`PendingReveal`] before
//! it submits the commit.

use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};
use muster_protocol::{BlockNumber, Hotkey, Netuid, Uid};
use serde::{Deserialize, Serialize};
use subxt::ext::codec::Encode;

/// The version of timelocked commits whose format this module writes.
pub const TIMELOCKED_VERSION: u16 = 4;
/// Numbers in a salt.
pub const SALT: usize = 8;

/// A commit's salt, drawn at random by the validator.
pub type Salt = [u16; SALT];

/// A commit that waits for its reveal: all the data that must survive a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingReveal {
    /// The party that reveals the commit.
    pub by: Revealer,
    /// The weights that were committed.
    pub weights: Vec<(u16, u16)>,
    /// The version key of the weights.
    pub version_key: u64,
    /// The block and epoch that accepted the commit; `None` until they are known.
    pub committed: Option<CommitPosition>,
}

/// The party that reveals committed weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Revealer {
    /// This validator reveals them with this salt.
    Us {
        /// Drawn at random and kept secret until the reveal.
        salt: Salt,
    },
    /// The chain reveals them with this round of its beacon.
    Chain {
        /// The number of the round.
        round: u64,
    },
}

/// The block and epoch in which the chain accepted a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitPosition {
    /// The height of the block.
    pub block: u64,
    /// The subnet's epoch in that block, where the chain counts them.
    pub epoch: Option<u64>,
}

impl PendingReveal {
    /// The hash of a salted commit; `None` for one that the chain opens.
    pub fn hash(&self, hotkey: &Hotkey, netuid: Netuid) -> Option<[u8; 32]> {
        match &self.by {
            Revealer::Us { salt } => Some(commit_hash(hotkey, netuid, &self.weights, salt, self.version_key)),
            Revealer::Chain { .. } => None,
        }
    }

    /// The weights by uid.
    pub fn weights(&self) -> Vec<(Uid, u16)> {
        self.weights
            .iter()
            .map(|(uid, weight)| (Uid(*uid), *weight))
            .collect()
    }
}

/// The hash of a salted commit: BlakeTwo256 of the SCALE tuple `(who, index, uids, values, salt, version_key)`, where
/// the index of a subnet's first mechanism is its netuid.
pub fn commit_hash(
    hotkey: &Hotkey,
    netuid: Netuid,
    weights: &[(u16, u16)],
    salt: &[u16],
    version_key: u64,
) -> [u8; 32] {
    let (uids, values): (Vec<u16>, Vec<u16>) = weights.iter().copied().unzip();
    let bytes = (hotkey.as_bytes(), netuid.0, uids, values, salt, version_key).encode();
    Blake2b::<U32>::digest(bytes).into()
}

/// A salted commit as the chain stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredCommit {
    /// The hash from [`commit_hash`].
    pub hash: [u8; 32],
    /// The first and the last block in which it can be revealed, as the chain computed when it accepted the commit.
    pub window: (BlockNumber, BlockNumber),
}

/// A validator's weights and commits as the chain shows them at one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnChainWeights {
    /// The height of the block.
    pub block: u64,
    /// The subnet's epoch in that block, where the chain counts them.
    pub epoch: Option<u64>,
    /// Epochs between a commit and its reveal.
    pub reveal_period: u64,
    /// Salted commits that wait for their reveal.
    pub commits: Vec<StoredCommit>,
    /// The weights in force, as pairs of uid and weight.
    pub weights: Vec<(u16, u16)>,
}

/// The next step about a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStatus {
    /// The time to reveal has not come.
    Wait,
    /// The commit must be revealed now.
    Reveal,
    /// The weights are in force.
    Revealed,
    /// The commit can never be revealed.
    Lost(CommitLoss),
}

/// The reason why committed weights never came into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitLoss {
    /// The epoch in which the commit could be revealed passed while this validator, or the chain's endpoint, was away.
    #[error(
        "the epoch in which the commit could be revealed is over: this validator did not reveal it in time"
    )]
    Expired,
    /// The chain does not have the commit: its block was taken back, or another commit replaced it.
    #[error(
        "the chain no longer has the commit: its block was taken back, or something else signs with this hotkey"
    )]
    Vanished,
    /// The beacon's round did not open the commit in its epoch.
    #[error(
        "the chain did not reveal the weights in their epoch: its beacon was late, or what opened was refused"
    )]
    Unopened,
}

/// Decides the next step about a commit by the state of the chain. `hash` is that of a commit which this validator
/// reveals.
///
/// The rows of a chain are scaled so that the largest weight is 65535, and so are ours; comparing them shows whether
/// ours are in force.
pub fn assess_commit(pending: &PendingReveal, hash: Option<[u8; 32]>, seen: &OnChainWeights) -> CommitStatus {
    let Some(committed) = pending.committed else {
        return CommitStatus::Wait;
    };
    if seen.block <= committed.block {
        // An endpoint that is behind the block of the commit cannot show it.
        return CommitStatus::Wait;
    }
    let due = committed
        .epoch
        .map(|epoch| epoch.saturating_add(seen.reveal_period));
    match hash {
        Some(hash) => {
            let Some(stored) = seen.commits.iter().find(|commit| commit.hash == hash) else {
                return assess_missing_commit(pending, due, seen);
            };
            match (seen.epoch, due) {
                (Some(now), Some(due)) if now < due => CommitStatus::Wait,
                (Some(now), Some(due)) if now == due => CommitStatus::Reveal,
                (Some(_), Some(_)) => CommitStatus::Lost(CommitLoss::Expired),
                // A chain that does not count epochs uses the window it computed. The call lands in the block after
                // this one.
                (None, _) | (_, None) => match seen.block.saturating_add(1) {
                    lands if lands < stored.window.0.0 => CommitStatus::Wait,
                    lands if lands <= stored.window.1.0 => CommitStatus::Reveal,
                    _ => CommitStatus::Lost(CommitLoss::Expired),
                },
            }
        }
        None => match (seen.epoch, due) {
            (Some(now), Some(due)) if now >= due && is_in_force(pending, seen) => CommitStatus::Revealed,
            (Some(now), Some(due)) if now > due => CommitStatus::Lost(CommitLoss::Unopened),
            (Some(_), Some(_)) | (None, _) | (_, None) => CommitStatus::Wait,
        },
    }
}

/// The status of a salted commit that the chain no longer stores: revealed, expired, or taken back.
fn assess_missing_commit(pending: &PendingReveal, due: Option<u64>, seen: &OnChainWeights) -> CommitStatus {
    if is_in_force(pending, seen) {
        return CommitStatus::Revealed;
    }
    match (seen.epoch, due) {
        (Some(now), Some(due)) if now > due => CommitStatus::Lost(CommitLoss::Expired),
        (Some(_), Some(_)) | (None, _) | (_, None) => CommitStatus::Lost(CommitLoss::Vanished),
    }
}

fn is_in_force(pending: &PendingReveal, seen: &OnChainWeights) -> bool {
    let row = |weights: &[(u16, u16)]| {
        let mut row: Vec<_> = weights
            .iter()
            .copied()
            .filter(|(_, weight)| *weight > 0)
            .collect();
        row.sort_unstable();
        row
    };
    row(&pending.weights) == row(&seen.weights)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn salted(committed: Option<(u64, Option<u64>)>) -> PendingReveal {
        PendingReveal {
            by: Revealer::Us { salt: [1; SALT] },
            weights: vec![(1, 65535), (2, 0)],
            version_key: 0,
            committed: committed.map(|(block, epoch)| CommitPosition { block, epoch }),
        }
    }

    fn seen(block: u64, epoch: Option<u64>, commits: Vec<StoredCommit>) -> OnChainWeights {
        OnChainWeights {
            block,
            epoch,
            reveal_period: 2,
            commits,
            weights: vec![],
        }
    }

    const HASH: [u8; 32] = [5; 32];

    fn kept() -> Vec<StoredCommit> {
        vec![StoredCommit {
            hash: HASH,
            window: (BlockNumber(60), BlockNumber(79)),
        }]
    }

    #[test]
    fn a_salted_commit_is_revealed_in_its_epoch_and_in_no_other() {
        let pending = salted(Some((30, Some(4))));
        let at = |block, epoch| assess_commit(&pending, Some(HASH), &seen(block, Some(epoch), kept()));
        assert_eq!([at(40, 4), at(50, 5)], [CommitStatus::Wait; 2]);
        assert_eq!([at(55, 6), at(79, 6)], [CommitStatus::Reveal; 2]);
        assert_eq!(at(80, 7), CommitStatus::Lost(CommitLoss::Expired));
        assert_eq!(at(30, 4), CommitStatus::Wait, "an endpoint that is behind");
    }

    #[test]
    fn without_counted_epochs_the_chains_foresight_holds() {
        let pending = salted(Some((30, None)));
        let at = |block| assess_commit(&pending, Some(HASH), &seen(block, None, kept()));
        assert_eq!([at(31), at(58)], [CommitStatus::Wait; 2]);
        assert_eq!([at(59), at(78)], [CommitStatus::Reveal; 2]);
        assert_eq!(at(79), CommitStatus::Lost(CommitLoss::Expired));
    }

    #[test]
    fn a_commit_that_is_gone_was_revealed_or_lost() {
        let pending = salted(Some((30, Some(4))));
        let mut chain = seen(60, Some(6), vec![]);
        assert_eq!(
            assess_commit(&pending, Some(HASH), &chain),
            CommitStatus::Lost(CommitLoss::Vanished)
        );
        chain.epoch = Some(7);
        assert_eq!(
            assess_commit(&pending, Some(HASH), &chain),
            CommitStatus::Lost(CommitLoss::Expired)
        );
        chain.weights = vec![(1, 65535)];
        assert_eq!(
            assess_commit(&pending, Some(HASH), &chain),
            CommitStatus::Revealed
        );
        assert_eq!(
            assess_commit(&salted(None), Some(HASH), &chain),
            CommitStatus::Wait
        );
    }

    #[test]
    fn the_chain_opens_timelocked_weights_or_they_are_lost() {
        let pending = PendingReveal {
            by: Revealer::Chain { round: 9 },
            ..salted(Some((30, Some(4))))
        };
        let mut chain = seen(60, Some(6), vec![]);
        assert_eq!(assess_commit(&pending, None, &chain), CommitStatus::Wait);
        chain.weights = vec![(2, 0), (1, 65535)];
        assert_eq!(assess_commit(&pending, None, &chain), CommitStatus::Revealed);
        chain.epoch = Some(5);
        assert_eq!(
            assess_commit(&pending, None, &chain),
            CommitStatus::Wait,
            "those are the weights before"
        );
        (chain.epoch, chain.weights) = (Some(7), vec![]);
        assert_eq!(
            assess_commit(&pending, None, &chain),
            CommitStatus::Lost(CommitLoss::Unopened)
        );
    }

    #[test]
    fn a_stored_pending_reveal_is_read_back() {
        let pending = salted(Some((30, Some(4))));
        let text = serde_json::to_string(&pending).unwrap();
        assert_eq!(serde_json::from_str::<PendingReveal>(&text).unwrap(), pending);
    }

    #[test]
    fn hashes_are_those_of_scale_by_hand() {
        const GOLDEN: &str = include_str!("../../../../tests/vectors/chain.json");
        let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        let hashes = golden["commit_hashes"].as_array().unwrap();
        assert_eq!(hashes.len(), 3);
        for given in hashes {
            let list = |name: &str| serde_json::from_value::<Vec<u16>>(given[name].clone()).unwrap();
            let weights: Vec<_> = list("uids").into_iter().zip(list("values")).collect();
            let hotkey: [u8; 32] = hex::decode(given["hotkey"].as_str().unwrap())
                .unwrap()
                .try_into()
                .unwrap();
            let netuid = Netuid(serde_json::from_value(given["netuid"].clone()).unwrap());
            let version = given["version_key"].as_u64().unwrap();
            let hash = commit_hash(
                &Hotkey::from_bytes(hotkey),
                netuid,
                &weights,
                &list("salt"),
                version,
            );
            assert_eq!(hex::encode(hash), given["hash"].as_str().unwrap());
        }
    }

    proptest! {
        #[test]
        fn every_part_of_a_commit_is_in_its_hash(
            key: [u8; 32], netuid: u16, weights in proptest::collection::vec(any::<(u16, u16)>(), 0..20), salt: [u16; SALT], version: u64,
        ) {
            let hash = |key: [u8; 32], netuid: u16, weights: &[(u16, u16)], salt: &Salt, version: u64| {
                commit_hash(&Hotkey::from_bytes(key), Netuid(netuid), weights, salt, version)
            };
            let one = hash(key, netuid, &weights, &salt, version);
            let mut other_key = key;
            other_key[0] ^= 1;
            let mut other_salt = salt;
            other_salt[7] ^= 1;
            let more: Vec<_> = weights.iter().copied().chain([(1, 1)]).collect();
            prop_assert_ne!(one, hash(other_key, netuid, &weights, &salt, version));
            prop_assert_ne!(one, hash(key, netuid ^ 1, &weights, &salt, version));
            prop_assert_ne!(one, hash(key, netuid, &more, &salt, version));
            prop_assert_ne!(one, hash(key, netuid, &weights, &other_salt, version));
            prop_assert_ne!(one, hash(key, netuid, &weights, &salt, version ^ 1));
        }
    }
}
