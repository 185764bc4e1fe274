//! The draw of the sessions that end for a batch, so that their executors prove their class in full.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{ExecutorClass, MinerKey, ValidatorKey};

use crate::batch_plan::{BlockHash, ServingSession, tagged_hash};
use crate::batch_settlement::ProvenBefore;

/// The miners and classes whose sessions are drained before an announced batch, so that their executors prove the class
/// in full: a model's memory cannot be proven beside it. One in `one_in` is drawn by the block's hash; 0 draws none. A
/// miner that serves more sessions than it proved at once in one of the last eight batches is among them too, because
/// the batch would count none of the further ones.
pub fn draw_full_courses(
    hash: &BlockHash,
    validator: ValidatorKey,
    serving: &[ServingSession],
    before: &ProvenBefore,
    one_in: u32,
) -> BTreeSet<(MinerKey, ExecutorClass)> {
    let mut sessions = BTreeMap::<_, u32>::new();
    for session in serving {
        let count = sessions.entry((session.miner, session.class)).or_default();
        *count = count.saturating_add(1);
    }
    let due = |((miner, class), sessions): ((MinerKey, ExecutorClass), u32)| {
        let proven = before.get(&(miner, class)).copied().unwrap_or(0);
        let name = class.to_string();
        let parts: [&[u8]; 4] = [hash, validator.0.as_bytes(), miner.0.as_bytes(), name.as_bytes()];
        let digest = tagged_hash(b"full course", &parts);
        let (halves, _) = digest.as_chunks::<16>();
        let drawn = halves.first().map_or(0, |half| u128::from_le_bytes(*half));
        (sessions > proven || drawn.checked_rem(u128::from(one_in)) == Some(0)).then_some((miner, class))
    };
    sessions.into_iter().filter_map(due).collect()
}

#[cfg(test)]
mod tests {
    use muster_protocol::{Hotkey, JobId};
    use sha2::{Digest as _, Sha256};
    use uuid::Uuid;

    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    fn miner(seed: u8) -> MinerKey {
        MinerKey(Hotkey::from_bytes([seed; 32]))
    }

    fn serving(miners: &[u8]) -> Vec<ServingSession> {
        let session = |(number, seed): (u128, &u8)| ServingSession {
            miner: miner(*seed),
            class: CLASS,
            job: JobId::from_uuid(Uuid::from_u128(number)),
        };
        (0..).zip(miners).map(session).collect()
    }

    fn drawn(hash: BlockHash, sessions: &[u8], before: &ProvenBefore, one_in: u32) -> Vec<u8> {
        let me = ValidatorKey(Hotkey::from_bytes([9; 32]));
        let drawn = draw_full_courses(&hash, me, &serving(sessions), before, one_in);
        drawn.iter().map(|(miner, _)| miner.0.as_bytes()[0]).collect()
    }

    #[test]
    fn one_miner_in_four_is_drawn_and_every_one_that_serves_beyond_what_it_proved() {
        let before: ProvenBefore = [((miner(1), CLASS), 2), ((miner(2), CLASS), 1)].into();
        let batches: Vec<BlockHash> = (0_u32..4_000)
            .map(|number| Sha256::digest(number.to_le_bytes()).into())
            .collect();
        let times = |sessions: &[u8], seed| {
            let of_seed = |hash: &&BlockHash| drawn(**hash, sessions, &before, 4).contains(&seed);
            batches.iter().filter(of_seed).count()
        };
        assert!((900..1_100).contains(&times(&[1, 1, 2], 1)));
        assert!((900..1_100).contains(&times(&[1, 1, 2], 2)));
        assert_eq!(times(&[1, 2, 2], 2), 4_000, "two serve, and one was proven");
        assert_eq!(times(&[3], 3), 4_000, "never proven");
        assert_eq!(times(&[1], 2), 0, "it serves nobody");
        let beyond = |hash: &BlockHash| drawn(*hash, &[1, 3], &before, 0) == [3];
        assert!(
            batches.iter().all(beyond),
            "none but those that were never proven"
        );
    }

    /// Values computed by Python's `hashlib`.
    #[test]
    fn draws_are_those_of_another_implementation() {
        let before: ProvenBefore = (0..=255).map(|seed| ((miner(seed), CLASS), 1)).collect();
        let all: Vec<u8> = (0..=47).collect();
        assert_eq!(drawn([7; 32], &all, &before, 4), DRAWN);
    }

    const DRAWN: [u8; 7] = [0, 2, 11, 19, 25, 30, 40];
}
