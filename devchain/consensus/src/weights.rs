//! Which of the weights count: those of permitted validators, for others, for neurons that were there already.

use crate::input::{Epoch, Neuron, Row};
use crate::{Matrix, Share, at};

/// The weights that count, each row of one together.
pub(crate) fn counted(epoch: &Epoch) -> Matrix {
    let row = |(uid, validator): (u16, &Neuron)| {
        let set = epoch.weights.get(usize::from(uid)).filter(|_| validator.permit);
        set.map(|set| normalised(set, |target| counts(epoch, uid, validator, target)))
            .unwrap_or_default()
    };
    (0..).zip(&epoch.neurons).map(row).collect()
}

/// Whether a validator's weight for a target counts: not its own, and not one that it set before the target took its
/// uid.
fn counts(epoch: &Epoch, uid: u16, validator: &Neuron, target: u16) -> bool {
    let Some(registered) = epoch
        .neurons
        .get(usize::from(target))
        .map(|neuron| neuron.registered)
    else {
        return false;
    };
    let committed_before = validator.committed.is_some_and(|block| block < registered);
    target != uid && validator.last_update > registered && !committed_before
}

/// A row's entries that count, divided by their sum. Entries of nothing are left out.
fn normalised(row: &Row, counts: impl Fn(u16) -> bool) -> Vec<(u16, Share)> {
    let kept: Vec<(u16, u16)> = row
        .iter()
        .copied()
        .filter(|(target, value)| *value > 0 && counts(*target))
        .collect();
    let sum: u64 = kept.iter().map(|(_, value)| u64::from(*value)).sum();
    kept.into_iter()
        .map(|(target, value)| (target, Share::part(value.into(), sum.into())))
        .collect()
}

/// The weights, none above what consensus has in its column.
pub(crate) fn clipped(weights: &Matrix, consensus: &[Share]) -> Matrix {
    let clip = |(target, weight): &(u16, Share)| (*target, (*weight).min(at(consensus, *target)));
    weights.iter().map(|row| row.iter().map(clip).collect()).collect()
}

/// Each column's sum of weights times their validators' stake.
pub(crate) fn ranks(weights: &Matrix, stake: &[Share]) -> Vec<Share> {
    let mut ranks = vec![Share::ZERO; stake.len()];
    for (row, stake) in weights.iter().zip(stake) {
        for (target, weight) in row {
            if let Some(rank) = ranks.get_mut(usize::from(*target)) {
                *rank = rank.plus(weight.times(*stake));
            }
        }
    }
    ranks
}
