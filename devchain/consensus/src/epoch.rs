//! The whole epoch, step by step.

use crate::input::{Epoch, Row};
use crate::{Share, bonds, median, normalise, of_parts, parts, stake, weights};

/// One neuron after the epoch. Shares are of 65535, rounded down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seat {
    /// Whether it set weights recently enough.
    pub active: bool,
    /// Whether it may set weights for others from now on.
    pub permit: bool,
    /// Its share of the stake that counts.
    pub stake: u16,
    /// The weight on which validators agree for it.
    pub consensus: u16,
    /// Its share of the clipped weights, by stake.
    pub incentive: u16,
    /// How much of the weights on it consensus kept.
    pub trust: u16,
    /// How much of its own weights consensus kept.
    pub validator_trust: u16,
    /// Its share of what bonds earned.
    pub dividends: u16,
    /// Its share of all pay; the best has 65535. The neuron with the least is replaced first when the subnet is full.
    pub pruning_score: u16,
}

/// The result of an epoch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// The neurons' results, by uid.
    pub seats: Vec<Seat>,
    /// Bonds by uid of the validator, to be stored for the next epoch.
    pub bonds: Vec<Row>,
    /// Each neuron's share of the miners' half, by uid. All are zero where no weight counts.
    pub miners: Vec<Share>,
    /// Each neuron's share of the validators' half, by uid. Without weights that count these follow stake.
    pub validators: Vec<Share>,
}

/// Computes an epoch.
#[must_use]
pub fn run(epoch: &Epoch) -> Outcome {
    let stake = stake::shares(epoch);
    let active = stake::active(epoch);
    let voting = stake::voting(epoch, &stake, &active);
    let permits = stake::permits(&stake, epoch.rules.max_validators);

    let weights = weights::counted(epoch);
    let consensus = median::consensus(&weights, &voting, of_parts(epoch.rules.kappa));
    let clipped = weights::clipped(&weights, &consensus);
    let trust_of_validators: Vec<Share> = clipped.iter().map(|row| row_total(row)).collect();

    let before = weights::ranks(&weights, &voting);
    let mut incentive = weights::ranks(&clipped, &voting);
    let trust: Vec<Share> = incentive
        .iter()
        .zip(&before)
        .map(|(after, before)| after.over(*before))
        .collect();
    normalise(&mut incentive);

    let bonds = bonds::next(epoch, &weights, &clipped, &voting);
    let mut dividends = bonds::dividends(&bonds, &incentive);
    normalise(&mut dividends);

    let validators = paid_validators(&incentive, &dividends, &stake, &voting);
    let scores = pruning_scores(&incentive, &validators);
    let seat = |uid: usize| Seat {
        active: active.get(uid).copied().unwrap_or_default(),
        permit: permits.get(uid).copied().unwrap_or_default(),
        stake: parts_of(&stake, uid),
        consensus: parts_of(&consensus, uid),
        incentive: parts_of(&incentive, uid),
        trust: parts_of(&trust, uid),
        validator_trust: parts_of(&trust_of_validators, uid),
        dividends: parts_of(&dividends, uid),
        pruning_score: parts_of(&scores, uid),
    };
    Outcome {
        seats: (0..epoch.neurons.len()).map(seat).collect(),
        bonds: bonds::to_store(&bonds, epoch.neurons.len()),
        miners: incentive,
        validators,
    }
}

fn row_total(row: &[(u16, Share)]) -> Share {
    row.iter().map(|(_, share)| *share).sum()
}

fn parts_of(shares: &[Share], uid: usize) -> u16 {
    shares.get(uid).copied().map_or(0, parts)
}

/// The shares in the validators' pay. Where no weight counts there are neither incentive nor dividends, and stake is
/// paid: the voting stake, or all of it where no neuron votes.
fn paid_validators(
    incentive: &[Share],
    dividends: &[Share],
    stake: &[Share],
    voting: &[Share],
) -> Vec<Share> {
    let earned = some(incentive) || some(dividends);
    let votes = some(voting);
    match (earned, votes) {
        (true, _) => dividends.to_vec(),
        (false, true) => voting.to_vec(),
        (false, false) => stake.to_vec(),
    }
}

/// Whether anybody has a share.
pub(crate) fn some(shares: &[Share]) -> bool {
    shares.iter().any(|share| *share > Share::ZERO)
}

/// Shares of all pay, scaled so that the largest is one.
fn pruning_scores(miners: &[Share], validators: &[Share]) -> Vec<Share> {
    let both = |(miner, validator): (&Share, &Share)| miner.plus(*validator);
    let scores: Vec<Share> = miners.iter().zip(validators).map(both).collect();
    let best = scores.iter().copied().max().unwrap_or_default();
    scores.into_iter().map(|score| score.over(best)).collect()
}
