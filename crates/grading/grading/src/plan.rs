//! Who is challenged, and when: functions of a block's hash, which nobody knows before the block and anyone can look up after
//! it.

use std::collections::BTreeMap;

use muster_hardware_proof::keys::{BatchId, ExecutorName};
use muster_protocol::{ExecutorClass, JobId, MinerKey, ValidatorKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Separates these hashes from all others, and names their version.
pub const DOMAIN: [u8; 16] = *b"muster-grading/1";

/// A block's hash.
pub type BlockHash = [u8; 32];

/// What a miner says that it has of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Announced {
    /// Who.
    pub miner: MinerKey,
    /// Of which kind.
    pub class: ExecutorClass,
    /// How many.
    pub count: u32,
}

/// How large a batch may become, whatever miners announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Executors of one miner; what it announces beyond them is never proven, so it never counts.
    pub of_one: u32,
    /// Executors of all.
    pub executors: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            of_one: 256,
            executors: 10_240,
        }
    }
}

/// One executor in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Seat {
    /// Whose.
    pub miner: MinerKey,
    /// Of which kind.
    pub class: ExecutorClass,
    /// Which of those that the miner announced, from 0.
    pub index: u32,
}

/// Who is challenged at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The batch.
    pub id: BatchId,
    /// All executors of each miner that is drawn, miners in the order of the draw.
    pub seats: Vec<Seat>,
    /// What drawn miners announced beyond the bound.
    pub beyond: Vec<Announced>,
    /// Miners that there was no room for, in the order of the draw: they are as likely as the others to be first next time.
    pub left_out: Vec<MinerKey>,
}

/// A session of this validator's that an executor serves while the batch is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Serving {
    /// Whose executor.
    pub miner: MinerKey,
    /// Of which kind.
    pub class: ExecutorClass,
    /// The job that the session is.
    pub job: JobId,
}

/// A miner that was asked what it has, and did not say it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Silent {
    /// Who.
    pub miner: MinerKey,
    /// What was seen instead.
    pub said: String,
}

/// Which executors of a batch are challenged in the sessions that they serve: of each kind of each miner's the last ones, as many as there
/// are sessions. Nobody knows which of them serves what; which place a session stands for is nothing but a name.
pub fn in_sessions(seats: &[Seat], serving: &[Serving]) -> BTreeMap<usize, JobId> {
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
    let places = seats.iter().enumerate().rev();
    places
        .filter_map(|(place, seat)| {
            let job = jobs.get_mut(&(seat.miner, seat.class))?.pop()?;
            Some((place, job))
        })
        .collect()
}

/// Whether a batch of this validator begins with this block: once in `every` blocks on average, and never predictably.
pub fn due(hash: &BlockHash, me: ValidatorKey, every: u64) -> bool {
    let digest = tagged(b"when", &[hash, me.0.as_bytes()]);
    let (first, _) = digest.as_chunks::<8>();
    let number = first.first().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    every > 0 && number.is_multiple_of(every)
}

/// The batch of this validator that begins with this block.
pub fn batch_id(hash: &BlockHash, me: ValidatorKey) -> BatchId {
    let digest = tagged(b"batch", &[hash, me.0.as_bytes()]);
    let (halves, _) = digest.as_chunks::<16>();
    BatchId(halves.first().copied().unwrap_or_default())
}

/// Draws a batch. All executors of a miner are in it or none, so that no two of them can lend each other a hand.
pub fn draw(hash: &BlockHash, me: ValidatorKey, announced: &[Announced], bounds: Bounds) -> Plan {
    let id = batch_id(hash, me);
    let mut miners: Vec<_> = announced.iter().map(|said| said.miner).collect();
    miners.sort_unstable();
    miners.dedup();
    miners.sort_by_cached_key(|miner| tagged(b"who", &[&id.0, miner.0.as_bytes()]));
    let mut plan = Plan {
        id,
        seats: Vec::new(),
        beyond: Vec::new(),
        left_out: Vec::new(),
    };
    let mut room = bounds.executors;
    for miner in miners {
        let mut said: Vec<_> = announced.iter().filter(|said| said.miner == miner).collect();
        said.sort_unstable();
        let mut left = bounds.of_one;
        let taken: Vec<_> = said
            .iter()
            .map(|said| {
                let count = said.count.min(left);
                left = left.saturating_sub(count);
                (said, count)
            })
            .collect();
        let wanted = bounds.of_one.saturating_sub(left);
        if wanted > room {
            plan.left_out.push(miner);
            continue;
        }
        room = room.saturating_sub(wanted);
        for (said, count) in taken {
            let class = said.class;
            plan.seats
                .extend((0..count).map(|index| Seat { miner, class, index }));
            if count < said.count {
                let count = said.count.saturating_sub(count);
                plan.beyond.push(Announced { count, ..**said });
            }
        }
    }
    plan
}

impl Seat {
    /// The name under which it is graded: every key that it must derive depends on it.
    pub fn name(&self) -> ExecutorName {
        let index = self.index.to_le_bytes();
        let class = self.class.as_str().as_bytes();
        ExecutorName(tagged(b"executor", &[self.miner.0.as_bytes(), &index, class]))
    }
}

fn tagged(what: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(DOMAIN);
    // Of fixed length each, but for a class's name, which comes last.
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

    fn me() -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([9; 32]))
    }

    fn said(miner: u8, count: u32) -> Announced {
        Announced {
            miner: MinerKey(Hotkey::from_bytes([miner; 32])),
            class: CLASS,
            count,
        }
    }

    /// Computed by `hashlib`: a byte of another order, a tag without its length, and these would be others.
    #[test]
    fn hashes_are_those_of_another_implementation() {
        let hash = [7; 32];
        assert_eq!(hex::encode(batch_id(&hash, me()).0), BATCH);
        let seat = Seat {
            miner: said(1, 0).miner,
            class: CLASS,
            index: 3,
        };
        assert_eq!(hex::encode(seat.name().0), NAME);
        let due: Vec<u8> = (0..=255).filter(|byte| due(&[*byte; 32], me(), 50)).collect();
        assert_eq!(due, DUE);
        let announced: Vec<_> = (1..=5).map(|miner| said(miner, 1)).collect();
        let order: Vec<_> = draw(&hash, me(), &announced, Bounds::default())
            .seats
            .iter()
            .map(|seat| seat.miner.0.as_bytes()[0])
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
        let mine: BTreeSet<_> = (0..36_000).filter(|n| due(&block(*n), me(), 360)).collect();
        let others: BTreeSet<_> = (0..36_000).filter(|n| due(&block(*n), other, 360)).collect();
        assert!((70..130).contains(&mine.len()), "{}", mine.len());
        assert!(mine.intersection(&others).count() < 5);
        assert!(!due(&block(1), me(), 0), "never, where grading is off");
    }

    #[test]
    fn a_miner_that_announces_ten_thousand_gets_the_bound_and_takes_nobodys_place() {
        let announced: Vec<_> = (1..=40)
            .map(|miner| said(miner, if miner == 7 { 10_000 } else { 2 }))
            .collect();
        let bounds = Bounds {
            of_one: 16,
            executors: 94,
        };
        let plan = draw(&[1; 32], me(), &announced, bounds);
        let of = |miner: u8| {
            plan.seats
                .iter()
                .filter(|seat| seat.miner == said(miner, 0).miner)
                .count()
        };
        assert_eq!((of(7), plan.seats.len(), plan.left_out.len()), (16, 94, 0));
        assert_eq!(plan.beyond, [said(7, 9_984)]);
    }

    proptest! {
        #[test]
        fn all_of_a_miners_executors_are_drawn_or_none(
            hash: [u8; 32], counts in proptest::collection::vec(0u32..40, 1..30), of_one in 1u32..20, executors in 1u32..100,
        ) {
            let announced: Vec<_> = counts.iter().zip(1u8..).map(|(count, miner)| said(miner, *count)).collect();
            let plan = draw(&hash, me(), &announced, Bounds { of_one, executors });
            prop_assert!(plan.seats.len() <= executors as usize);
            let distinct: BTreeSet<_> = plan.seats.iter().collect();
            prop_assert_eq!(distinct.len(), plan.seats.len());
            for said in &announced {
                let seats = plan.seats.iter().filter(|seat| seat.miner == said.miner).count();
                let out = plan.left_out.contains(&said.miner);
                prop_assert_eq!(seats, if out { 0 } else { said.count.min(of_one) as usize });
            }
            // The order in which miners are looked up does not matter.
            let mut turned = announced.clone();
            turned.reverse();
            prop_assert_eq!(draw(&hash, me(), &turned, Bounds { of_one, executors }), plan);
        }
    }

    const BATCH: &str = "6b58b9911f186eab8c097211e432f567";
    const NAME: &str = "d0c6217d2e3bfe01d7beb02f72eab5c91ee7eddaf5709416599af8722bc0b70e";
    const DUE: [u8; 5] = [77, 91, 95, 101, 134];
    const ORDER: [u8; 5] = [1, 5, 2, 4, 3];
}
