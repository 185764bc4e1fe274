//! The voting stake of each neuron, and the permits from now on.

use crate::input::{Epoch, Neuron};
use crate::{Share, normalise};

/// Every neuron's share of the stake that counts: at least the threshold.
pub(crate) fn shares(epoch: &Epoch) -> Vec<Share> {
    let counted = |neuron: &Neuron| {
        if neuron.stake < epoch.rules.stake_threshold {
            0
        } else {
            neuron.stake
        }
    };
    let sum: u128 = epoch
        .neurons
        .iter()
        .map(|neuron| u128::from(counted(neuron)))
        .sum();
    let share = |neuron: &Neuron| Share::part(counted(neuron), sum);
    epoch.neurons.iter().map(share).collect()
}

/// Whether each neuron set weights recently enough.
pub(crate) fn active(epoch: &Epoch) -> Vec<bool> {
    let until = |neuron: &Neuron| neuron.last_update.saturating_add(epoch.rules.activity_cutoff);
    epoch
        .neurons
        .iter()
        .map(|neuron| until(neuron) >= epoch.rules.block)
        .collect()
}

/// The shares of those who are active and held a permit before this epoch, of one together.
pub(crate) fn voting(epoch: &Epoch, stake: &[Share], active: &[bool]) -> Vec<Share> {
    let counts = |(neuron, active): (&Neuron, &bool)| neuron.permit && *active;
    let mut voting: Vec<Share> = epoch
        .neurons
        .iter()
        .zip(active)
        .map(counts)
        .zip(stake)
        .map(|(counts, share)| if counts { *share } else { Share::ZERO })
        .collect();
    normalise(&mut voting);
    voting
}

/// Permits for the largest stakes; nobody without stake has one. Of equal stakes the higher uid's goes first, as on the
/// public chain.
pub(crate) fn permits(stake: &[Share], most: u16) -> Vec<bool> {
    let mut order: Vec<usize> = (0..stake.len()).collect();
    order.sort_by_key(|uid| stake.get(*uid).copied().unwrap_or_default());
    let mut permits = vec![false; stake.len()];
    for uid in order.into_iter().rev().take(usize::from(most)) {
        if let (Some(permit), Some(stake)) = (permits.get_mut(uid), stake.get(uid)) {
            *permit = *stake > Share::ZERO;
        }
    }
    permits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_go_to_the_largest_stakes() {
        let stake = [3, 0, 5, 5, 1].map(Share::whole);
        assert_eq!(permits(&stake, 2), [false, false, true, true, false]);
        assert_eq!(permits(&stake, 1), [false, false, false, true, false]);
        assert_eq!(permits(&stake, 9), [true, false, true, true, true]);
        assert_eq!(permits(&stake, 0), [false; 5]);
        assert_eq!(permits(&[], 3), [] as [bool; 0]);
    }
}
