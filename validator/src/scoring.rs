//! From the finished receipts of one cycle to weights: a pure fold over integers that anyone can run again.
//!
//! The unit is the executor-microsecond: a millionth of an executor-second, which is what a receipt's `score_str`
//! counts. A receipt that does not count is dropped with a reason and never stops the others.

use std::collections::BTreeMap;
use std::fmt;

use muster_chain::weights::to_u16;
use muster_chain::{Metagraph, Uid};
use muster_protocol::receipt::FinishedReceipt;
use muster_protocol::{AttemptId, MinerKey};
use serde::{Deserialize, Serialize};

/// What one miner earned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// Its place in the subnet.
    pub uid: u16,
    /// Who it is.
    pub miner: MinerKey,
    /// Executor-seconds paid, in millionths.
    pub micros: u64,
}

/// Why a receipt does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dropped {
    /// The hotkey is not, or no longer, in the subnet.
    NotRegistered,
    /// `score_str` is no amount.
    NoAmount,
    /// The same attempt stood in another receipt already.
    Repeated,
    /// It pays nothing: the attempt failed.
    Unpaid,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRegistered => "the miner is not registered in the subnet",
            Self::NoAmount => "its score is not an amount",
            Self::Repeated => "its attempt was counted already",
            Self::Unpaid => "it pays nothing",
        })
    }
}

/// The whole answer: every receipt counts towards a score or is among the dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scores {
    /// By uid; nobody with nothing.
    pub scores: Vec<Score>,
    /// In the order given.
    pub dropped: Vec<(AttemptId, Dropped)>,
}

/// Folds the receipts of one cycle.
pub fn score<'a>(receipts: impl IntoIterator<Item = &'a FinishedReceipt>, metagraph: &Metagraph) -> Scores {
    let uids: BTreeMap<MinerKey, Uid> = metagraph
        .neurons
        .iter()
        .map(|neuron| (MinerKey(neuron.hotkey), neuron.uid))
        .collect();
    let mut totals = BTreeMap::<MinerKey, (Uid, u64)>::new();
    let mut seen = std::collections::BTreeSet::new();
    let mut dropped = Vec::new();
    for receipt in receipts {
        let amount = match (uids.get(&receipt.miner_hotkey), receipt.score_micros()) {
            (None, _) => Err(Dropped::NotRegistered),
            (Some(_), None) => Err(Dropped::NoAmount),
            (Some(_), Some(0)) => Err(Dropped::Unpaid),
            (Some(_), Some(_)) if !seen.insert(receipt.job_uuid) => Err(Dropped::Repeated),
            (Some(uid), Some(micros)) => Ok((*uid, micros)),
        };
        match amount {
            Ok((uid, micros)) => {
                let total = totals.entry(receipt.miner_hotkey).or_insert((uid, 0));
                total.1 = total.1.saturating_add(micros);
            }
            Err(reason) => dropped.push((receipt.job_uuid, reason)),
        }
    }
    let mut scores: Vec<_> = totals
        .into_iter()
        .map(|(miner, (uid, micros))| Score {
            uid: uid.0,
            miner,
            micros,
        })
        .collect();
    scores.sort_by_key(|score| score.uid);
    Scores { scores, dropped }
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
        .map(|score| (Uid(score.uid), score.micros))
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
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{finished, metagraph};

    #[test]
    fn scores_are_sums_and_one_bad_receipt_stops_nobody() {
        let metagraph = metagraph(&[(1, None), (2, None)]);
        let receipts = [
            finished(1, 1, "20.500000"),
            finished(2, 1, "0.500000"),
            finished(3, 2, "7"),
            finished(4, 2, "seven"),
            finished(5, 9, "100.000000"),
            finished(6, 2, "0.000000"),
            finished(1, 1, "20.500000"),
        ];
        let scores = score(&receipts, &metagraph);
        let sums: Vec<_> = scores.scores.iter().map(|s| (s.uid, s.micros)).collect();
        assert_eq!(sums, [(1, 21_000_000), (2, 7_000_000)]);
        let reasons: Vec<_> = scores.dropped.iter().map(|(_, reason)| *reason).collect();
        assert_eq!(
            reasons,
            [
                Dropped::NoAmount,
                Dropped::NotRegistered,
                Dropped::Unpaid,
                Dropped::Repeated
            ]
        );
        let set: Vec<_> = weights(&scores.scores, &metagraph, 0)
            .iter()
            .map(|(uid, w)| (uid.0, *w))
            .collect();
        assert_eq!(set, [(1, 65_535), (2, 21_845)]);
    }

    #[test]
    fn a_weight_follows_its_miner_and_not_its_uid() {
        let metagraph = metagraph(&[(0, None), (1, None), (2, None)]);
        let scores = score(&[finished(1, 1, "1.0"), finished(2, 2, "2.0")], &metagraph).scores;
        assert_eq!(reseated(&scores, &metagraph), scores);
        // Miner 1 has miner 2's old place, whose own is gone.
        let mut later = metagraph;
        later.neurons[2].hotkey = later.neurons[1].hotkey;
        later.neurons[1].hotkey = crate::testing::hotkey(9);
        let moved = reseated(&scores, &later);
        assert_eq!(
            moved.iter().map(|s| (s.uid, s.micros)).collect::<Vec<_>>(),
            [(2, 1_000_000)]
        );
        assert_eq!(weights(&moved, &later, 0), [(Uid(2), 65_535)]);
    }

    #[test]
    fn the_list_is_filled_up_to_what_the_subnet_demands() {
        let metagraph = metagraph(&[(0, None), (1, None), (2, None), (3, None)]);
        let scores = score(&[finished(1, 2, "1.000000")], &metagraph);
        let set: Vec<_> = weights(&scores.scores, &metagraph, 3)
            .iter()
            .map(|(uid, w)| (uid.0, *w))
            .collect();
        assert_eq!(set, [(0, 0), (1, 0), (2, 65_535)]);
        assert!(weights(&[], &metagraph, 3).is_empty(), "no work sets no weights");
    }

    proptest! {
        #[test]
        fn every_receipt_is_counted_or_dropped_and_order_does_not_matter(
            rows in proptest::collection::vec((0u8..6, "[0-9]{1,6}(\\.[0-9]{1,8})?|x|-1|"), 0..40),
        ) {
            let metagraph = metagraph(&[(0, None), (1, None), (2, None), (3, None)]);
            let mut receipts: Vec<_> = rows.iter().enumerate()
                .map(|(at, (miner, text))| finished(u128::try_from(at).unwrap(), *miner, text)).collect();
            let one = score(&receipts, &metagraph);
            receipts.reverse();
            let two = score(&receipts, &metagraph);
            prop_assert_eq!(&one.scores, &two.scores);
            prop_assert_eq!(one.dropped.len(), two.dropped.len());
            let sum: u64 = one.scores.iter().map(|score| score.micros).sum();
            let good: u64 = receipts.iter().filter(|r| metagraph.neurons.iter().any(|n| n.hotkey == r.miner_hotkey.0))
                .filter_map(|r| r.score_micros()).sum();
            prop_assert_eq!(sum, good);
        }
    }
}
