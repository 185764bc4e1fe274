//! From scores to the weights that the chain takes. The scores themselves are `muster-scoring`'s.

use std::collections::BTreeMap;

use muster_chain::weights::to_u16;
use muster_chain::{Metagraph, Uid};
use muster_grading::settlement::Capacity;
use muster_protocol::ValidatorKey;
use muster_scoring::{Neuron, Paid, Proven, Score, Scores, Snapshot, Streamed, score, zeros};

use crate::config::ScoringConfig;

/// What was done in a cycle.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Finished receipts, of all validators.
    pub receipts: Vec<Paid>,
    /// Sealed sessions of this validator's own gateway.
    pub streamed: Vec<Streamed>,
    /// What each miner's last batch showed.
    pub proven: Vec<Capacity>,
}

/// Everything that the scores of this work depend on. The receipts of whoever may set weights in the subnet count.
pub fn snapshot(me: ValidatorKey, metagraph: &Metagraph, config: &ScoringConfig, work: Work) -> Snapshot {
    let permitted = metagraph.neurons.iter().filter(|neuron| neuron.permit);
    Snapshot {
        me,
        validators: permitted.map(|neuron| ValidatorKey(neuron.hotkey)).collect(),
        neurons: metagraph
            .neurons
            .iter()
            .map(|neuron| Neuron {
                uid: neuron.uid.0,
                hotkey: neuron.hotkey,
                coldkey: neuron.coldkey,
            })
            .collect(),
        class_weights: config.class_weights.clone(),
        receipts: work.receipts,
        streaming_weight: config.streaming_weight,
        streamed: work.streamed,
        proven: work
            .proven
            .iter()
            .map(|count| Proven {
                miner: count.miner,
                class: count.class,
                executors: count.proven.saturating_add(count.excused),
            })
            .collect(),
        capacity_percent: config.capacity_percent,
    }
}

/// The scores of a snapshot, the weights they lead to, and the reason of every zero.
pub fn scored(snapshot: &Snapshot, metagraph: &Metagraph, min_entries: u16) -> (Scores, Vec<(Uid, u16)>) {
    let mut scores = score(snapshot);
    let weights = weights(&scores.scores, metagraph, min_entries);
    let plain: Vec<_> = weights.iter().map(|(uid, weight)| (uid.0, *weight)).collect();
    scores.zeros = zeros(snapshot, &scores, &plain);
    (scores, weights)
}

/// The same scores at the places that their miners have now. Whoever has none any more is left out: its old place may
/// belong to somebody who has not earned anything.
pub fn reseated(scores: &[Score], metagraph: &Metagraph) -> Vec<Score> {
    let mut moved: Vec<Score> = scores
        .iter()
        .filter_map(|score| {
            let uid = metagraph.find(&score.miner.0)?.uid.0;
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
pub fn weights(scores: &[Score], metagraph: &Metagraph, min_entries: u16) -> Vec<(Uid, u16)> {
    let scores: Vec<_> = scores
        .iter()
        .map(|score| (Uid(score.uid), score.points))
        .collect();
    let mut weights: BTreeMap<Uid, u16> = to_u16(&scores).into_iter().collect();
    if weights.is_empty() {
        return Vec::new();
    }
    let mut idle: Vec<_> = metagraph
        .neurons
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
    use muster_protocol::ExecutorClass;
    use muster_scoring::Why;

    use super::*;
    use crate::testing::{finished, hotkey, metagraph};

    fn paid(attempt: u128, of: u8, amount: &str) -> Paid {
        Paid {
            receipt: finished(attempt, of, amount),
            class: Some(ExecutorClass::AlwaysOnTest),
        }
    }

    fn both(neurons: &Metagraph, receipts: Vec<Paid>, min_entries: u16) -> (Scores, Vec<(u16, u16)>) {
        let me = ValidatorKey(hotkey(255));
        let work = Work {
            receipts,
            ..Work::default()
        };
        let snapshot = snapshot(me, neurons, &ScoringConfig::default(), work);
        let (scores, weights) = scored(&snapshot, neurons, min_entries);
        (
            scores,
            weights.iter().map(|(uid, weight)| (uid.0, *weight)).collect(),
        )
    }

    #[test]
    fn weights_are_shares_of_the_best() {
        let neurons = metagraph(&[(1, None), (2, None), (3, None)]);
        let (scores, set) = both(&neurons, vec![paid(1, 1, "21"), paid(2, 2, "7")], 0);
        assert_eq!(set, [(1, 65_535), (2, 21_845)]);
        assert_eq!(scores.zeros.len(), 1);
        assert_eq!((scores.zeros[0].uid, &scores.zeros[0].why), (3, &Why::NoReceipts));
    }

    #[test]
    fn a_weight_follows_its_miner_and_not_its_uid() {
        let neurons = metagraph(&[(0, None), (1, None), (2, None)]);
        let scores = both(&neurons, vec![paid(1, 1, "1.0"), paid(2, 2, "2.0")], 0)
            .0
            .scores;
        assert_eq!(reseated(&scores, &neurons), scores);
        // Miner 1 has miner 2's old place, whose own is gone.
        let mut later = neurons;
        later.neurons[2].hotkey = later.neurons[1].hotkey;
        later.neurons[1].hotkey = hotkey(9);
        let moved = reseated(&scores, &later);
        assert_eq!(
            moved.iter().map(|s| (s.uid, s.micros)).collect::<Vec<_>>(),
            [(2, 1_000_000)]
        );
        assert_eq!(weights(&moved, &later, 0), [(Uid(2), 65_535)]);
    }

    #[test]
    fn the_list_is_filled_up_to_what_the_subnet_demands() {
        let neurons = metagraph(&[(0, None), (1, None), (2, None), (3, None)]);
        let (_, set) = both(&neurons, vec![paid(1, 2, "1.000000")], 3);
        assert_eq!(set, [(0, 0), (1, 0), (2, 65_535)]);
        assert!(weights(&[], &neurons, 3).is_empty(), "no work sets no weights");
    }
}
