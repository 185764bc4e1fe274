//! Bonds: a validator that weighed a neuron before the others did holds more of it, and earns more of its incentive.
//! They are a moving average, so that they cannot be bought in one epoch.

use crate::input::{Epoch, Row};
use crate::{Matrix, Share, Shares, at, normalise_columns, of_parts, parts};
use std::collections::BTreeMap;

/// Moving averages are given in millionths.
const MILLION: u128 = 1_000_000;

/// The bonds after this epoch, each column of one together.
pub(crate) fn next(epoch: &Epoch, weights: &Matrix, clipped: &Matrix, voting: &[Share]) -> Matrix {
    let columns = epoch.neurons.len();
    let mut last = stored(epoch);
    normalise_columns(&mut last, columns);
    let mut bought = bought(epoch, weights, clipped, voting);
    normalise_columns(&mut bought, columns);
    let mut next = average(epoch, last, bought);
    normalise_columns(&mut next, columns);
    next
}

/// The bonds as the last epoch left them, but for those on neurons that came since.
fn stored(epoch: &Epoch) -> Matrix {
    let lasts = |target: u16| {
        let neuron = epoch.neurons.get(usize::from(target));
        neuron.is_some_and(|neuron| neuron.registered < epoch.rules.bonds_since)
    };
    let row = |row: &Row| {
        let kept = row.iter().filter(|(target, value)| *value > 0 && lasts(*target));
        kept.map(|(target, value)| (*target, Share::whole((*value).into())))
            .collect()
    };
    let mut rows: Matrix = epoch.bonds.iter().take(epoch.neurons.len()).map(row).collect();
    rows.resize(epoch.neurons.len(), Vec::new());
    rows
}

/// The bonds that each validator's stake buys now: its weights, moved towards the clipped ones by the penalty, times
/// its stake.
fn bought(epoch: &Epoch, weights: &Matrix, clipped: &Matrix, voting: &[Share]) -> Matrix {
    let penalty = of_parts(epoch.rules.bonds_penalty);
    let cell = |((target, weight), (_, clipped)): (&(u16, Share), &(u16, Share)), stake: Share| {
        let cut = weight.minus(*clipped).times(penalty);
        (*target, weight.minus(cut).times(stake))
    };
    let rows = weights.iter().zip(clipped).zip(voting);
    rows.map(|((weights, clipped), stake)| {
        weights
            .iter()
            .zip(clipped)
            .map(|pair| cell(pair, *stake))
            .collect()
    })
    .collect()
}

/// The moving average of what was there and what was bought.
fn average(epoch: &Epoch, last: Matrix, bought: Matrix) -> Matrix {
    let memory = Share::part(epoch.rules.bonds_moving_average, MILLION).min(Share::ONE);
    let news = Share::ONE.minus(memory);
    let row = |(last, bought): (Shares, Shares)| {
        let mut sums: BTreeMap<u16, Share> = BTreeMap::new();
        let old = last
            .into_iter()
            .map(|(target, share)| (target, share.times(memory)));
        let new = bought
            .into_iter()
            .map(|(target, share)| (target, share.times(news)));
        for (target, share) in old.chain(new) {
            let sum = sums.entry(target).or_default();
            *sum = sum.plus(share);
        }
        sums.into_iter()
            .filter(|(_, share)| *share > Share::ZERO)
            .collect()
    };
    last.into_iter().zip(bought).map(row).collect()
}

/// Each validator's share of all incentive: what it holds of each neuron times what the neuron earned.
pub(crate) fn dividends(bonds: &Matrix, incentive: &[Share]) -> Vec<Share> {
    let earned = |row: &Vec<(u16, Share)>| {
        let parts = row
            .iter()
            .map(|(target, bond)| bond.times(at(incentive, *target)));
        parts.sum()
    };
    bonds.iter().map(earned).collect()
}

/// The bonds as they are stored: the largest of each column is 65535.
pub(crate) fn to_store(bonds: &Matrix, columns: usize) -> Vec<Row> {
    let mut largest = vec![Share::ZERO; columns];
    for (target, share) in bonds.iter().flatten() {
        if let Some(most) = largest.get_mut(usize::from(*target)) {
            *most = (*most).max(*share);
        }
    }
    let cell = |(target, share): &(u16, Share)| (*target, parts(share.over(at(&largest, *target))));
    let row = |row: &Vec<(u16, Share)>| row.iter().map(cell).filter(|(_, value)| *value > 0).collect();
    bonds.iter().map(row).collect()
}
