//! The plan of a batch: when it begins and which executors are challenged. Both follow from a block's hash, which
//! nobody knows before the block and anybody can look up after it.

use std::collections::BTreeMap;

use muster_hardware_proof::challenge_keys::{BatchId, ExecutorName};
use muster_protocol::{ExecutorClass, JobId, MinerKey, ValidatorKey};
use muster_scoring::ObservationKind;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Separates these hashes from all others of Muster, and names their version.
pub const DOMAIN: [u8; 16] = *b"muster-grading/1";

/// The hash of a block.
pub type BlockHash = [u8; 32];

/// A miner's statement of its executors of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Announcement {
    /// The miner that made the statement.
    pub miner: MinerKey,
    /// The class of the executors.
    pub class: ExecutorClass,
    /// The number of executors.
    pub count: u32,
}

/// The largest size of a batch, set by the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchBounds {
    /// Executors of one miner. Executors beyond this bound are never proven, so they never count.
    #[serde(rename = "of_one")]
    pub per_miner: u32,
    /// Executors of all miners together.
    pub executors: u32,
}

impl Default for BatchBounds {
    fn default() -> Self {
        Self {
            per_miner: 256,
            executors: 10_240,
        }
    }
}

/// One executor that takes part in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Participant {
    /// The miner of the executor.
    pub miner: MinerKey,
    /// The class of the executor.
    pub class: ExecutorClass,
    /// The number of the executor among those of the class that the miner announced, from 0.
    pub index: u32,
}

/// The executors that are challenged at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// The id of the batch.
    pub id: BatchId,
    /// All executors of each drawn miner, with the miners in the order of the draw.
    pub participants: Vec<Participant>,
    /// The executors that drawn miners announced beyond the bound per miner.
    pub above_bound: Vec<Announcement>,
    /// Miners for which there was no room, in the order of the draw. They are as likely as others to come first in the
    /// next batch.
    pub left_out: Vec<MinerKey>,
}

/// A session of this validator that an executor serves when the batch is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServingSession {
    /// The miner of the executor.
    pub miner: MinerKey,
    /// The class of the executor.
    pub class: ExecutorClass,
    /// The job of the session.
    pub job: JobId,
}

/// A miner that did not announce its executors when it was asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SilentMiner {
    /// The miner that did not answer.
    pub miner: MinerKey,
    /// The failure as a text, as the validator saw it.
    pub said: String,
}

/// Assigns the sessions in use to executors of the batch, which are then challenged in these sessions. For each miner
/// and class, the last executors get the sessions. The validator does not know which executor serves which session, so
/// the places are nominal.
pub fn assign_sessions(participants: &[Participant], serving: &[ServingSession]) -> BTreeMap<usize, JobId> {
    let mut jobs = BTreeMap::<(MinerKey, ExecutorClass), Vec<JobId>>::new();
    for session in serving {
        jobs.entry((session.miner, session.class))
            .or_default()
            .push(session.job);
    }
    for of_one in jobs.values_mut() {
        of_one.sort_unstable_by(|one, other| other.cmp(one));
        of_one.dedup();
    }
    let places = participants.iter().enumerate().rev();
    places
        .filter_map(|(place, participant)| {
            let job = jobs.get_mut(&(participant.miner, participant.class))?.pop()?;
            Some((place, job))
        })
        .collect()
}

/// Whether a batch of this validator begins with this block. It does once in `every` blocks on average, unpredictably.
pub fn is_due(hash: &BlockHash, me: ValidatorKey, every: u64) -> bool {
    let digest = tagged_hash(b"when", &[hash, me.0.as_bytes()]);
    let (first, _) = digest.as_chunks::<8>();
    let number = first.first().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    every > 0 && number.is_multiple_of(every)
}

/// The id of this validator's batch of a kind that begins with this block.
pub fn batch_id(kind: ObservationKind, hash: &BlockHash, me: ValidatorKey) -> BatchId {
    let tag: &[u8] = match kind {
        ObservationKind::Announced => b"batch",
        ObservationKind::Unannounced => b"probe",
    };
    let digest = tagged_hash(tag, &[hash, me.0.as_bytes()]);
    let (halves, _) = digest.as_chunks::<16>();
    BatchId(halves.first().copied().unwrap_or_default())
}

/// Draws a batch. It contains all executors of a miner or none, so that an unchallenged executor cannot help a
/// challenged one.
pub fn draw_batch(
    kind: ObservationKind,
    hash: &BlockHash,
    me: ValidatorKey,
    announced: &[Announcement],
    bounds: BatchBounds,
) -> BatchPlan {
    let id = batch_id(kind, hash, me);
    let mut miners: Vec<_> = announced.iter().map(|said| said.miner).collect();
    miners.sort_unstable();
    miners.dedup();
    miners.sort_by_cached_key(|miner| tagged_hash(b"who", &[&id.0, miner.0.as_bytes()]));
    let mut plan = BatchPlan {
        id,
        participants: Vec::new(),
        above_bound: Vec::new(),
        left_out: Vec::new(),
    };
    let mut room = bounds.executors;
    for miner in miners {
        let mut said: Vec<_> = announced.iter().filter(|said| said.miner == miner).collect();
        said.sort_unstable();
        let mut left = bounds.per_miner;
        let taken: Vec<_> = said
            .iter()
            .map(|said| {
                let count = said.count.min(left);
                left = left.saturating_sub(count);
                (said, count)
            })
            .collect();
        let wanted = bounds.per_miner.saturating_sub(left);
        if wanted > room {
            plan.left_out.push(miner);
            continue;
        }
        room = room.saturating_sub(wanted);
        for (said, count) in taken {
            let class = said.class;
            plan.participants
                .extend((0..count).map(|index| Participant { miner, class, index }));
            if count < said.count {
                let count = said.count.saturating_sub(count);
                plan.above_bound.push(Announcement { count, ..**said });
            }
        }
    }
    plan
}

impl Participant {
    /// The name under which the executor is graded. Every key of its challenges depends on it.
    pub fn executor_name(&self) -> ExecutorName {
        let index = self.index.to_le_bytes();
        let class = self.class.as_str().as_bytes();
        ExecutorName(tagged_hash(
            b"executor",
            &[self.miner.0.as_bytes(), &index, class],
        ))
    }
}

pub(crate) fn tagged_hash(what: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(DOMAIN);
    // All parts have a fixed length, except the name of a class, which comes last.
    hash.update([u8::try_from(what.len()).unwrap_or(u8::MAX)]);
    hash.update(what);
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use muster_protocol::Hotkey;
    use proptest::prelude::*;

    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
    const KIND: ObservationKind = ObservationKind::Announced;

    fn me() -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([9; 32]))
    }

    fn said(miner: u8, count: u32) -> Announcement {
        Announcement {
            miner: MinerKey(Hotkey::from_bytes([miner; 32])),
            class: CLASS,
            count,
        }
    }

    /// Values computed by Python's `hashlib`. They change if the order of a byte or the length of a tag changes.
    #[test]
    fn hashes_are_those_of_another_implementation() {
        let hash = [7; 32];
        assert_eq!(hex::encode(batch_id(KIND, &hash, me()).0), BATCH);
        let participant = Participant {
            miner: said(1, 0).miner,
            class: CLASS,
            index: 3,
        };
        assert_eq!(hex::encode(participant.executor_name().0), NAME);
        let due: Vec<u8> = (0..=255).filter(|byte| is_due(&[*byte; 32], me(), 50)).collect();
        assert_eq!(due, DUE);
        let announced: Vec<_> = (1..=5).map(|miner| said(miner, 1)).collect();
        let order: Vec<_> = draw_batch(KIND, &hash, me(), &announced, BatchBounds::default())
            .participants
            .iter()
            .map(|participant| participant.miner.0.as_bytes()[0])
            .collect();
        assert_eq!(order, ORDER);
    }

    #[test]
    fn a_batch_is_due_once_in_so_many_blocks_and_another_validators_with_other_blocks() {
        let block = |number: u32| {
            let mut hash = [0; 32];
            hash[..4].copy_from_slice(&number.to_le_bytes());
            Sha256::digest(hash).into()
        };
        let other = ValidatorKey(Hotkey::from_bytes([8; 32]));
        let mine: BTreeSet<_> = (0..36_000).filter(|n| is_due(&block(*n), me(), 360)).collect();
        let others: BTreeSet<_> = (0..36_000).filter(|n| is_due(&block(*n), other, 360)).collect();
        assert!((70..130).contains(&mine.len()), "{}", mine.len());
        assert!(mine.intersection(&others).count() < 5);
        assert!(!is_due(&block(1), me(), 0), "never, where grading is off");
    }

    #[test]
    fn a_miner_that_announces_ten_thousand_gets_the_bound_and_takes_nobodys_place() {
        let announced: Vec<_> = (1..=40)
            .map(|miner| said(miner, if miner == 7 { 10_000 } else { 2 }))
            .collect();
        let bounds = BatchBounds {
            per_miner: 16,
            executors: 94,
        };
        let plan = draw_batch(KIND, &[1; 32], me(), &announced, bounds);
        let of = |miner: u8| {
            plan.participants
                .iter()
                .filter(|participant| participant.miner == said(miner, 0).miner)
                .count()
        };
        assert_eq!((of(7), plan.participants.len(), plan.left_out.len()), (16, 94, 0));
        assert_eq!(plan.above_bound, [said(7, 9_984)]);
    }

    proptest! {
        #[test]
        fn all_of_a_miners_executors_are_drawn_or_none(
            hash: [u8; 32], counts in proptest::collection::vec(0u32..40, 1..30), per_miner in 1u32..20, executors in 1u32..100,
        ) {
            let announced: Vec<_> = counts.iter().zip(1u8..).map(|(count, miner)| said(miner, *count)).collect();
            let plan = draw_batch(KIND, &hash, me(), &announced, BatchBounds { per_miner, executors });
            prop_assert!(plan.participants.len() <= executors as usize);
            let distinct: BTreeSet<_> = plan.participants.iter().collect();
            prop_assert_eq!(distinct.len(), plan.participants.len());
            for said in &announced {
                let participants = plan.participants.iter().filter(|participant| participant.miner == said.miner).count();
                let out = plan.left_out.contains(&said.miner);
                prop_assert_eq!(participants, if out { 0 } else { said.count.min(per_miner) as usize });
            }
            // The plan does not depend on the order of the announcements.
            let mut turned = announced.clone();
            turned.reverse();
            prop_assert_eq!(draw_batch(KIND, &hash, me(), &turned, BatchBounds { per_miner, executors }), plan);
        }
    }

    const BATCH: &str = "6b58b9911f186eab8c097211e432f567";
    const NAME: &str = "d0c6217d2e3bfe01d7beb02f72eab5c91ee7eddaf5709416599af8722bc0b70e";
    const DUE: [u8; 5] = [77, 91, 95, 101, 134];
    const ORDER: [u8; 5] = [1, 5, 2, 4, 3];
}
