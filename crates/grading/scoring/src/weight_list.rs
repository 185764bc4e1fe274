//! From scores to the list of weights that the chain takes.

use std::collections::BTreeMap;

use muster_protocol::Uid;

use crate::normalize::to_u16;
use crate::scores::Score;
use crate::snapshot_rows::{Neuron, OnchainWeight};

/// The same scores under the uids that their miners have now, sorted by uid.
///
/// The score of a miner that left the subnet is dropped: its old uid may belong to a miner that has earned nothing.
pub fn follow_uids(scores: &[Score], neurons: &[Neuron]) -> Vec<Score> {
    let uids: BTreeMap<_, _> = neurons
        .iter()
        .rev()
        .map(|neuron| (neuron.hotkey, neuron.uid))
        .collect();
    let mut moved: Vec<Score> = scores
        .iter()
        .filter_map(|score| {
            let uid = *uids.get(&score.miner.0)?;
            Some(Score { uid, ..*score })
        })
        .collect();
    moved.sort_by_key(|score| score.uid);
    moved
}

/// The weights of these scores: each miner's share of the best one's 65535.
///
/// A subnet may demand a minimum of entries; the list is filled up to it with registered uids of weight 0, lowest
/// first. Empty scores give no weights at all.
pub fn weights_of(scores: &[Score], neurons: &[Neuron], min_entries: u16) -> Vec<(Uid, u16)> {
    let scores: Vec<_> = scores
        .iter()
        .map(|score| (score.uid, score.paid_points()))
        .collect();
    fill_up(to_u16(&scores), neurons, min_entries)
}

/// The list of weights that stand, filled up in the same way.
pub fn weights_of_onchain(
    standing: &[OnchainWeight],
    neurons: &[Neuron],
    min_entries: u16,
) -> Vec<(Uid, u16)> {
    let rows = standing.iter().map(|row| (row.neuron.uid, row.weight));
    fill_up(rows.collect(), neurons, min_entries)
}

fn fill_up(weights: Vec<(Uid, u16)>, neurons: &[Neuron], min_entries: u16) -> Vec<(Uid, u16)> {
    if weights.is_empty() {
        return weights;
    }
    let mut weights: BTreeMap<Uid, u16> = weights.into_iter().collect();
    let mut idle: Vec<_> = neurons
        .iter()
        .map(|neuron| neuron.uid)
        .filter(|uid| !weights.contains_key(uid))
        .collect();
    idle.sort_unstable();
    let missing = usize::from(min_entries).saturating_sub(weights.len());
    weights.extend(idle.into_iter().take(missing).map(|uid| (uid, 0)));
    weights.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use muster_protocol::{Hotkey, MinerKey};

    use super::*;

    const fn hotkey(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    /// A subnet in which the neuron of each seed has that uid and is its own coldkey.
    fn neurons(seeds: &[u8]) -> Vec<Neuron> {
        let neuron = |seed: &u8| Neuron {
            uid: Uid((*seed).into()),
            hotkey: hotkey(*seed),
            coldkey: hotkey(*seed),
            registered: 1,
        };
        seeds.iter().map(neuron).collect()
    }

    fn score(of: u8, vested: Option<u64>) -> Score {
        Score {
            uid: Uid(of.into()),
            miner: MinerKey(hotkey(of)),
            coldkey: None,
            registered: 0,
            micros: 0,
            credit: 0,
            points: 7,
            vested,
        }
    }

    #[test]
    fn weights_are_shares_of_the_best() {
        let neurons = neurons(&[1, 2, 3]);
        let scores = [score(1, Some(21)), score(2, Some(7))];
        assert_eq!(
            weights_of(&scores, &neurons, 0),
            [(Uid(1), 65_535), (Uid(2), 21_845)]
        );
        let earlier = [score(1, None), score(2, Some(7))];
        assert_eq!(
            weights_of(&earlier, &neurons, 0),
            [(Uid(1), 65_535), (Uid(2), 65_535)],
            "scores of an earlier release are paid at once"
        );
    }

    #[test]
    fn a_weight_follows_its_miner_and_not_its_uid() {
        let neurons = neurons(&[0, 1, 2]);
        let scores = [score(1, Some(1)), score(2, Some(2))];
        assert_eq!(follow_uids(&scores, &neurons), scores);
        // Miner 1 now has uid 2, and the miner that had uid 2 is gone.
        let mut later = neurons;
        later[2].hotkey = later[1].hotkey;
        later[1].hotkey = hotkey(9);
        let moved = follow_uids(&scores, &later);
        assert_eq!(
            moved.iter().map(|s| (s.uid, s.vested)).collect::<Vec<_>>(),
            [(Uid(2), Some(1))]
        );
        assert_eq!(weights_of(&moved, &later, 0), [(Uid(2), 65_535)]);
    }

    #[test]
    fn the_list_is_filled_up_to_what_the_subnet_demands() {
        let neurons = neurons(&[0, 1, 2, 3]);
        let set = weights_of(&[score(2, Some(5))], &neurons, 3);
        assert_eq!(set, [(Uid(0), 0), (Uid(1), 0), (Uid(2), 65_535)]);
        assert!(weights_of(&[], &neurons, 3).is_empty(), "no work sets no weights");
    }
}
