//! From scores to the list of weights that the chain takes.

use std::collections::BTreeMap;

use muster_protocol::Uid;

use crate::{Neuron, Score, Scores, ScoringSnapshot, explain_zeros, score, to_u16};

/// The scores of a snapshot, the weights they lead to, and the reason of every zero.
///
/// `min_entries` is the least number of weights that the subnet takes in one call.
pub fn score_and_weigh(snapshot: &ScoringSnapshot, min_entries: u16) -> (Scores, Vec<(Uid, u16)>) {
    let mut scores = score(snapshot);
    let weights = weights_of(&scores.scores, &snapshot.neurons, min_entries);
    scores.zeros = explain_zeros(snapshot, &scores, &weights);
    (scores, weights)
}

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
    let scores: Vec<_> = scores.iter().map(|score| (score.uid, score.points)).collect();
    let mut weights: BTreeMap<Uid, u16> = to_u16(&scores).into_iter().collect();
    if weights.is_empty() {
        return Vec::new();
    }
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
    use muster_protocol::receipt::{FinishedReceipt, FinishedTag};
    use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, Timestamp, ValidatorKey};
    use uuid::Uuid;

    use super::*;
    use crate::{PaidReceipt, ZeroReason};

    const ME: ValidatorKey = ValidatorKey(hotkey(255));

    const fn hotkey(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    /// A subnet in which the neuron of each seed has that uid and is its own coldkey.
    fn neurons(seeds: &[u8]) -> Vec<Neuron> {
        let neuron = |seed: &u8| Neuron {
            uid: Uid((*seed).into()),
            hotkey: hotkey(*seed),
            coldkey: hotkey(*seed),
        };
        seeds.iter().map(neuron).collect()
    }

    fn paid(attempt: u128, of: u8, amount: &str) -> PaidReceipt {
        PaidReceipt {
            receipt: FinishedReceipt {
                job_uuid: AttemptId::from_uuid(Uuid::from_u128(attempt)),
                miner_hotkey: MinerKey(hotkey(of)),
                validator_hotkey: ME,
                timestamp: Timestamp::from_secs(1_769_000_000),
                receipt_type: FinishedTag,
                time_started: Timestamp::from_secs(1_769_000_000),
                time_took_us: 1,
                score_str: amount.to_owned(),
                block_numbers: vec![],
            },
            class: Some(ExecutorClass::AlwaysOnTest),
        }
    }

    fn both(neurons: &[Neuron], receipts: Vec<PaidReceipt>, min_entries: u16) -> (Scores, Vec<(Uid, u16)>) {
        let snapshot = ScoringSnapshot {
            me: ME,
            neurons: neurons.to_vec(),
            validators: [].into(),
            class_weights: [(ExecutorClass::AlwaysOnTest, 1)].into(),
            receipts,
            streaming_weight: 0,
            streamed: vec![],
            proven: vec![],
            capacity_percent: 0,
        };
        score_and_weigh(&snapshot, min_entries)
    }

    #[test]
    fn weights_are_shares_of_the_best() {
        let neurons = neurons(&[1, 2, 3]);
        let (scores, set) = both(&neurons, vec![paid(1, 1, "21"), paid(2, 2, "7")], 0);
        assert_eq!(set, [(Uid(1), 65_535), (Uid(2), 21_845)]);
        assert_eq!(scores.zeros.len(), 1);
        assert_eq!(
            (scores.zeros[0].uid, &scores.zeros[0].why),
            (Uid(3), &ZeroReason::NoReceipts)
        );
    }

    #[test]
    fn a_weight_follows_its_miner_and_not_its_uid() {
        let neurons = neurons(&[0, 1, 2]);
        let scores = both(&neurons, vec![paid(1, 1, "1.0"), paid(2, 2, "2.0")], 0)
            .0
            .scores;
        assert_eq!(follow_uids(&scores, &neurons), scores);
        // Miner 1 now has uid 2, and the miner that had uid 2 is gone.
        let mut later = neurons;
        later[2].hotkey = later[1].hotkey;
        later[1].hotkey = hotkey(9);
        let moved = follow_uids(&scores, &later);
        assert_eq!(
            moved.iter().map(|s| (s.uid, s.micros)).collect::<Vec<_>>(),
            [(Uid(2), 1_000_000)]
        );
        assert_eq!(weights_of(&moved, &later, 0), [(Uid(2), 65_535)]);
    }

    #[test]
    fn the_list_is_filled_up_to_what_the_subnet_demands() {
        let neurons = neurons(&[0, 1, 2, 3]);
        let (_, set) = both(&neurons, vec![paid(1, 2, "1.000000")], 3);
        assert_eq!(set, [(Uid(0), 0), (Uid(1), 0), (Uid(2), 65_535)]);
        assert!(weights_of(&[], &neurons, 3).is_empty(), "no work sets no weights");
    }
}
