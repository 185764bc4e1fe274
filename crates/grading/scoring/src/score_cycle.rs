//! From a snapshot to scores, weights and the reasons of the neurons without one.

use std::collections::BTreeMap;

use muster_protocol::{MinerKey, Uid};

use crate::DropReason;
use crate::counted_work::CountedAttempts;
use crate::score_terms::{ClassTerms, Terms};
use crate::scores::{Score, Scores};
use crate::snapshot::ScoringSnapshot;
use crate::weight_list::{weights_of, weights_of_onchain};
use crate::weight_renewal::{Renewal, renew};
use crate::zero_reasons::{ZeroReason, ZeroWeight};

/// Scores a cycle: the scores, and the weights that follow from them, sorted by uid. Both are a function of the
/// snapshot alone.
///
/// If no miner earned anything, the burn hotkey has the whole weight. Without one there are no weights to set, unless a
/// neuron may not keep the weight that it has: see [`Renewal`].
pub fn score_cycle(snapshot: &ScoringSnapshot) -> (Scores, Vec<(Uid, u16)>) {
    score_terms(snapshot, &Terms::of(snapshot))
}

/// The same as [`score_cycle`], with the attempts that count: [`crate::settle_excuse`] asks for them.
pub fn score_with_attempts(snapshot: &ScoringSnapshot) -> (Scores, Vec<(Uid, u16)>, CountedAttempts) {
    let terms = Terms::of(snapshot);
    let attempts = terms.work.attempts();
    let (scores, weights) = score_terms(snapshot, &terms);
    (scores, weights, attempts)
}

fn score_terms(snapshot: &ScoringSnapshot, terms: &Terms<'_>) -> (Scores, Vec<(Uid, u16)>) {
    let mut scores = Scores {
        scores: terms.scores(snapshot),
        deferred: terms.deferred.clone(),
        spent: terms.work.spent.clone(),
        ..Scores::default()
    };
    for lost in &terms.work.dropped {
        scores.drop_one(lost.attempt, lost.reason);
    }
    let min_entries = snapshot.rules.min_entries;
    let mut weights = weights_of(&scores.scores, &snapshot.neurons, min_entries);
    if weights.is_empty() {
        scores.standing.clone_from(&snapshot.standing);
        match renew(snapshot, &terms.convicted) {
            Renewal::Unchanged => {}
            Renewal::Renewed(standing) => {
                weights = weights_of_onchain(&standing, &snapshot.neurons, min_entries);
                scores.standing = standing;
            }
            Renewal::Unburnable(uids) => scores.unburned = uids,
        }
    }
    scores.zeros = explain_zeros(snapshot, terms, &scores, &weights);
    (scores, weights)
}

/// Every neuron whose entry in `weighted` (uid, weight) is missing or zero, with the reason.
fn explain_zeros(
    snapshot: &ScoringSnapshot,
    terms: &Terms<'_>,
    scores: &Scores,
    weighted: &[(Uid, u16)],
) -> Vec<ZeroWeight> {
    let weights: BTreeMap<Uid, u16> = weighted.iter().copied().collect();
    let mut dropped = BTreeMap::<MinerKey, BTreeMap<DropReason, u64>>::new();
    let receipts = terms.work.dropped.iter().map(|lost| (lost.miner, lost.reason));
    // A repeated receipt accompanies one that counts, so it is never the only reason.
    for (miner, reason) in receipts.filter(|(_, why)| *why != DropReason::Repeated) {
        let count = dropped.entry(miner).or_default().entry(reason).or_default();
        *count = count.saturating_add(1);
    }
    let scored: BTreeMap<MinerKey, &Score> = scores.scores.iter().map(|score| (score.miner, score)).collect();
    let mut zeros: Vec<_> = snapshot
        .neurons
        .iter()
        .filter(|neuron| weights.get(&neuron.uid).copied().unwrap_or(0) == 0)
        .map(|neuron| {
            let miner = MinerKey(neuron.hotkey);
            let why = match (scored.get(&miner), dropped.remove(&miner)) {
                _ if neuron.hotkey == snapshot.me.0 => ZeroReason::Myself,
                _ if terms.convicted.holds(neuron) => ZeroReason::Convicted,
                (Some(score), _) if score.paid_points() > 0 => ZeroReason::TooSmall,
                (Some(_), _) => worthless(terms, miner),
                (None, Some(reasons)) => ZeroReason::NothingCounts(reasons),
                (None, None) => ZeroReason::NoReceipts,
            };
            ZeroWeight {
                uid: neuron.uid,
                miner,
                why,
            }
        })
        .collect();
    zeros.sort_by_key(|zero| zero.uid);
    zeros
}

/// The reason why counted work or credit is worth nothing.
fn worthless(terms: &Terms<'_>, miner: MinerKey) -> ZeroReason {
    let classes = terms.classes.values();
    let weighty = |class: &ClassTerms| class.weight > 0 && class.members.contains_key(&miner);
    if classes.into_iter().any(weighty) {
        ZeroReason::NothingProven
    } else {
        ZeroReason::WorthlessClass
    }
}
