//! From a row of logits to what is reported of it.

use std::collections::BTreeMap;

use super::{Margin, Score, Scored};
use crate::backend::exp;

/// A likely token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likely {
    /// The id of the token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f64,
}

/// A row of logits as a distribution.
pub(super) struct Row<'a> {
    logits: &'a [f32],
    /// log Σ exp.
    log_sum: f64,
    /// The entropy in nats.
    entropy: f64,
}

/// Sums side by side.
const LANES: usize = 8;

impl<'a> Row<'a> {
    pub(super) fn new(logits: &'a [f32]) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // How far a logit is below the largest, and its share; below e⁻⁸⁰ nothing is left.
        let share_of = |logit: &f32| {
            let below = (logit - largest).max(-80.0);
            let share = exp(below);
            (f64::from(share), f64::from(share * below))
        };
        let (chunks, rest) = logits.as_chunks::<LANES>();
        let (mut sums, mut products) = ([0.0_f64; LANES], [0.0_f64; LANES]);
        for chunk in chunks {
            for ((sum, product), logit) in sums.iter_mut().zip(&mut products).zip(chunk) {
                let (share, weighted) = share_of(logit);
                *sum += share;
                *product += weighted;
            }
        }
        let sum: f64 = sums
            .into_iter()
            .chain(rest.iter().map(|logit| share_of(logit).0))
            .sum();
        let product: f64 = products
            .into_iter()
            .chain(rest.iter().map(|logit| share_of(logit).1))
            .sum();
        Self {
            logits,
            log_sum: f64::from(largest) + sum.ln(),
            entropy: sum.ln() - product / sum,
        }
    }

    pub(super) fn logprob(&self, id: u32) -> f64 {
        let logit = self.logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        f64::from(logit) - self.log_sum
    }

    /// The `count` likeliest, the smaller token first where two are equal.
    pub(super) fn likely(&self, count: usize) -> Vec<Likely> {
        if count == 0 {
            return vec![];
        }
        let mut all: Vec<(f32, u32)> = self
            .logits
            .iter()
            .copied()
            .zip(0..)
            .filter(|(logit, _)| !logit.is_nan())
            .collect();
        let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if count < all.len() {
            all.select_nth_unstable_by(count, order);
            all.truncate(count);
        }
        all.sort_unstable_by(order);
        all.into_iter()
            .map(|(logit, id)| Likely {
                id,
                logprob: f64::from(logit) - self.log_sum,
            })
            .collect()
    }
}

/// The scores of `ids` at one position, which follows `counts` and is the `position`-th of the answer.
pub(super) fn score(
    logits: &[f32],
    ids: &[u32],
    request: &Score,
    counts: &BTreeMap<u32, u32>,
    position: u32,
) -> Vec<Scored> {
    let row = Row::new(logits);
    let replay = request
        .chooser
        .as_ref()
        .map(|chooser| chooser.at(logits, counts, &request.parameters, request.prompt, position));
    let (entropy, likely) = (row.entropy, row.likely(request.likely));
    let one = |id: &u32| Scored {
        id: *id,
        logprob: row.logprob(*id),
        entropy,
        margin: match &replay {
            None => Margin::Unknown,
            Some(replay) => replay
                .margin(*id, request.slack)
                .map_or(Margin::Impossible, Margin::Known),
        },
        likely: likely.clone(),
    };
    ids.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_and_the_likeliest_come_first() {
        let row = Row::new(&[1.0, 3.0, 3.0, -2.0]);
        let sum: f64 = (0..4).map(|id| row.logprob(id).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        let ids: Vec<u32> = row.likely(3).iter().map(|likely| likely.id).collect();
        assert_eq!(ids, [1, 2, 0]);
        assert!((Row::new(&[0.5; 8]).entropy - 8_f64.ln()).abs() < 1e-5);
    }
}
