//! The draw of unannounced probes. One validator makes each of them, since a probe takes executors from users.
//!
//! A block's hash decides whether a probe begins with the block, and which validator makes it: each with a chance by
//! its stake. Everybody can look it up, and nobody knows it before the block.

use std::collections::BTreeMap;

use muster_protocol::ValidatorKey;

use crate::batch_plan::{BlockHash, is_due, tagged_hash};

/// Blocks after the begin of a batch in which no other batch begins: two minutes on the public network, which is longer
/// than a batch of classes that are always on.
pub const QUIET_BLOCKS: usize = 10;

/// The largest factor of [`batch_pace`].
const MAX_BATCH_PACE: u64 = 4;

/// Whether a probe begins with this block. One does once in `every` blocks on average, unpredictably; never if `every`
/// is 0.
pub fn is_probe_due(hash: &BlockHash, every: u64) -> bool {
    let number = u64::try_from(draw_number(b"warm", hash) & u128::from(u64::MAX)).unwrap_or(0);
    every > 0 && number.is_multiple_of(every)
}

/// The validator that makes the probe of this block. `stakes` are those by which receipts are valued, in rao; nobody is
/// drawn while all of them are 0.
pub fn drawn_validator(hash: &BlockHash, stakes: &BTreeMap<ValidatorKey, u64>) -> Option<ValidatorKey> {
    let all: u128 = stakes.values().map(|stake| u128::from(*stake)).sum();
    let mut place = draw_number(b"who probes", hash).checked_rem(all)?;
    for (validator, stake) in stakes {
        match place.checked_sub(u128::from(*stake)) {
            Some(left) => place = left,
            None => return Some(*validator),
        }
    }
    None
}

/// How many times `every` blocks lie between two announced batches of a validator: once with a quarter of the stake or
/// more, up to four times with less. Grading pays nothing, so miners bound it by stake. Once where no stake is known.
pub fn batch_pace(validator: ValidatorKey, stakes: &BTreeMap<ValidatorKey, u64>) -> u64 {
    let all: u128 = stakes.values().map(|stake| u128::from(*stake)).sum();
    let own = u128::from(stakes.get(&validator).copied().unwrap_or(0));
    if all == 0 {
        return 1;
    }
    let quarters = all.div_ceil(own.saturating_mul(4).max(1));
    u64::try_from(quarters)
        .unwrap_or(MAX_BATCH_PACE)
        .clamp(1, MAX_BATCH_PACE)
}

/// Whether none of these validators began an announced batch with one of these blocks, if `every` is the subnet's
/// interval. Two batches at once would find each other's leases instead of executors.
pub fn is_quiet(blocks: &[BlockHash], stakes: &BTreeMap<ValidatorKey, u64>, every: u64) -> bool {
    let paces: Vec<_> = stakes
        .keys()
        .map(|validator| (*validator, batch_pace(*validator, stakes)))
        .collect();
    let began = |hash: &BlockHash| {
        let mut paces = paces.iter();
        paces.any(|(validator, pace)| is_due(hash, *validator, every.saturating_mul(*pace)))
    };
    !blocks.iter().any(began)
}

fn draw_number(what: &[u8], hash: &BlockHash) -> u128 {
    let digest = tagged_hash(what, &[hash]);
    let (halves, _) = digest.as_chunks::<16>();
    halves.first().map_or(0, |half| u128::from_le_bytes(*half))
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use sha2::{Digest as _, Sha256};

    use super::*;

    fn validator(seed: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([seed; 32]))
    }

    fn block(number: u32) -> BlockHash {
        Sha256::digest(number.to_le_bytes()).into()
    }

    /// Values computed by Python's `hashlib`.
    #[test]
    fn draws_are_those_of_another_implementation() {
        let due: Vec<u8> = (0..=255).filter(|byte| is_probe_due(&[*byte; 32], 50)).collect();
        assert_eq!(due, DUE);
        let stakes = (1..=3).map(|seed| (validator(seed), u64::from(seed))).collect();
        let drawn: Vec<u8> = (0..12)
            .filter_map(|byte| drawn_validator(&[byte; 32], &stakes))
            .map(|validator| validator.0.as_bytes()[0])
            .collect();
        assert_eq!(drawn, DRAWN);
    }

    #[test]
    fn validators_are_drawn_by_their_stake_and_those_without_never() {
        let stakes = [
            (validator(1), 10),
            (validator(2), 30),
            (validator(3), 0),
            (validator(4), 60),
        ]
        .into();
        let mut counts = BTreeMap::<_, u32>::new();
        for number in 0..10_000 {
            *counts
                .entry(drawn_validator(&block(number), &stakes))
                .or_default() += 1;
        }
        let of = |seed| counts.get(&Some(validator(seed))).copied().unwrap_or(0);
        assert_eq!(of(1) + of(2) + of(4), 10_000);
        assert!(
            (800..1_200).contains(&of(1)) && (2_700..3_300).contains(&of(2)),
            "{counts:?}"
        );
        assert_eq!(drawn_validator(&block(1), &BTreeMap::new()), None);
        assert_eq!(drawn_validator(&block(1), &[(validator(3), 0)].into()), None);
        let most = [(validator(1), u64::MAX), (validator(2), u64::MAX)].into();
        assert!(drawn_validator(&block(1), &most).is_some());
    }

    #[test]
    fn a_crumb_of_stake_grades_four_times_as_rarely() {
        let stakes = [
            (validator(1), 25),
            (validator(2), 24),
            (validator(3), 10),
            (validator(4), 41),
        ]
        .into();
        let pace = |seed| batch_pace(validator(seed), &stakes);
        assert_eq!((pace(1), pace(2), pace(3), pace(4), pace(9)), (1, 2, 3, 1, 4));
        assert_eq!(batch_pace(validator(1), &BTreeMap::new()), 1);
        let block = (0..)
            .map(block)
            .find(|hash| is_due(hash, validator(9), 90))
            .unwrap();
        assert!(
            is_due(&block, validator(9), 45),
            "a longer interval takes some of the shorter one's blocks"
        );
    }

    #[test]
    fn a_probe_is_due_once_in_so_many_blocks_and_keeps_clear_of_batches() {
        let due = (0..36_000)
            .filter(|number| is_probe_due(&block(*number), 360))
            .count();
        assert!((70..130).contains(&due), "{due}");
        assert!(!is_probe_due(&block(1), 0), "never, where probes are off");
        let stakes = |seeds: &[u8]| seeds.iter().map(|seed| (validator(*seed), 1)).collect();
        let graders: BTreeMap<_, _> = stakes(&[1, 2]);
        let begins = (0..)
            .map(block)
            .find(|hash| is_due(hash, validator(2), 360))
            .unwrap();
        let others: Vec<_> = (0..)
            .map(block)
            .filter(|hash| is_quiet(&[*hash], &graders, 360))
            .take(9)
            .collect();
        assert!(is_quiet(&others, &graders, 360));
        assert!(!is_quiet(&[others, vec![begins]].concat(), &graders, 360));
        assert!(is_quiet(&[begins], &stakes(&[1]), 360), "it does not grade");
    }

    const DUE: [u8; 4] = [62, 123, 130, 242];
    const DRAWN: [u8; 12] = [2, 2, 1, 3, 2, 1, 2, 3, 2, 3, 2, 2];
}
