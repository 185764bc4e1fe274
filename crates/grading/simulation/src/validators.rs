//! Several validators with views of their own, and one that copies weights.
//!
//! Each honest validator has its own traffic, its own probes with their own bad luck, and sees a part of the others'
//! receipts. Two things are measured: how far their weights lie apart, beside the stated bound, and what copying the
//! last consensus earns.

use std::collections::{BTreeMap, VecDeque};

use muster_protocol::MinerKey;
use muster_scoring::{VESTING_CYCLES, WHOLE_EXECUTOR};
use serde::Serialize;

use crate::consensus::{Consensus, UNIT, agree, normalise};
use crate::honest_validator::View;
use crate::settings::Settings;
use crate::strategy::Strategy;
use crate::subnet::{EPOCH_MS, WARM_UP, miner_key};
use crate::world_epochs::{Cast, World};

/// The stake of the validator that copies weights, in thousandths.
const COPIER: u16 = 100;

/// The weights of several validators beside one another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValidatorOutcome {
    /// The name of the scenario.
    pub scenario: String,
    /// The mean part of the honest validators' weights that the consensus does not cut away, in thousandths.
    pub trust: u64,
    /// The largest distance (L1) between two honest validators' shares, in millionths.
    pub distance: u64,
    /// The largest bound of such a distance by the stated formula, in millionths.
    pub distance_bound: u64,
    /// Whether every distance was within its own bound.
    pub agree: bool,
    /// The copier's pay for a unit of stake, relative to the honest validators', in thousandths.
    pub copier: u64,
    /// The most that the stated formula allows it, `1 / trust`, in thousandths, rounded up.
    pub copier_bound: u64,
}

impl ValidatorOutcome {
    /// Whether everything stayed within its formula.
    pub fn holds(&self) -> bool {
        self.agree && self.copier <= self.copier_bound
    }
}

struct Scenario {
    name: &'static str,
    gathered: bool,
    unseen: u16,
    /// The share of epochs in which a quarter of the hardware is away; 0 for a whole subnet that stays.
    flapping: u16,
}

#[rustfmt::skip]
const SCENARIOS: [Scenario; 4] = [
    Scenario { name: "statements gathered, all receipts seen", gathered: true, unseen: 0, flapping: 0 },
    Scenario { name: "statements gathered, 2 % of receipts unseen", gathered: true, unseen: 20, flapping: 0 },
    Scenario { name: "own probes only, 2 % of receipts unseen", gathered: false, unseen: 20, flapping: 0 },
    Scenario { name: "a quarter of the hardware comes and goes", gathered: true, unseen: 20, flapping: 500 },
];

/// Every scenario with the settings' validators. There is none if the simulated class cannot be graded.
pub fn simulate_validators(settings: &Settings) -> Vec<ValidatorOutcome> {
    SCENARIOS
        .iter()
        .filter_map(|scenario| run(settings, scenario))
        .collect()
}

fn run(settings: &Settings, scenario: &Scenario) -> Option<ValidatorOutcome> {
    let mut settings = *settings;
    if scenario.flapping > 0 {
        settings.miners = 3;
    }
    let strategy = Strategy {
        planned: scenario.flapping,
        ..Strategy::default()
    };
    let cast = Cast {
        validators: settings.validators,
        unseen: scenario.unseen,
        gathered: scenario.gathered,
        copier: COPIER,
    };
    let mut world = World::new(&settings, &strategy, cast, 0)?;
    let mut watch = Watch::default();
    for epoch in 0..settings.epochs {
        let before = world.views.iter().map(deferred_ms).collect();
        world.run_epoch(epoch);
        watch.note(&world, epoch, before);
    }
    Some(watch.outcome(scenario.name))
}

/// Work that a validator deferred, by miner, in milliseconds.
fn deferred_ms(view: &View) -> BTreeMap<MinerKey, u64> {
    let deferred = view.scores.deferred.iter();
    deferred.map(|work| (work.miner, work.ms)).collect()
}

/// The counted work, credit and pay of an epoch, by one validator.
struct Found {
    /// The shares of pay, of [`UNIT`], in the order of the miners.
    shares: Vec<u64>,
    /// Counted work in milliseconds, and credit in thousandths of an executor, in the same order.
    counted: Vec<(u64, u64)>,
}

#[derive(Default)]
struct Watch {
    /// The bounds of the last epochs' distances, by pair of validators.
    bounds: BTreeMap<(usize, usize), VecDeque<u64>>,
    last: Option<Consensus>,
    distance: u64,
    distance_bound: u64,
    apart: bool,
    /// Sums over epochs: the honest validators' trust and its number, their mean pay, the copier's pay, and the most.
    trust: (u128, u128),
    honest_pay: u128,
    copier_pay: u128,
    most_pay: u128,
}

impl Watch {
    fn note(&mut self, world: &World<'_>, epoch: u32, before: Vec<BTreeMap<MinerKey, u64>>) {
        let found: Vec<_> = world
            .views
            .iter()
            .zip(before)
            .map(|(view, before)| find(world, view, &before))
            .collect();
        self.compare(&found, epoch >= WARM_UP);
        let stakes = world.stakes();
        let mut rows: Vec<_> = found
            .iter()
            .zip(&stakes)
            .map(|(found, stake)| (*stake, found.shares.clone()))
            .collect();
        let copied = self.last.as_ref().map(|last| normalise(&last.weights));
        if let (Some(copied), Some(stake)) = (copied, stakes.get(world.copier())) {
            rows.push((*stake, copied));
            let consensus = agree(&rows);
            if epoch >= WARM_UP {
                self.note_pay(&consensus, &stakes, found.len());
            }
            self.last = Some(consensus);
        } else {
            self.last = Some(agree(&rows));
        }
    }

    fn note_pay(&mut self, consensus: &Consensus, stakes: &[u64], honest: usize) {
        let (mut pay, mut stake_sum) = (0_u128, 0_u128);
        for ((trust, of), stake) in consensus
            .trust
            .iter()
            .zip(&consensus.pay)
            .zip(stakes)
            .take(honest)
        {
            self.trust.0 = self.trust.0.saturating_add((*trust).into());
            self.trust.1 = self.trust.1.saturating_add(1);
            pay = pay.saturating_add(u128::from(*of).saturating_mul((*stake).into()));
            stake_sum = stake_sum.saturating_add((*stake).into());
        }
        let mean = pay.checked_div(stake_sum).unwrap_or(0);
        self.honest_pay = self.honest_pay.saturating_add(mean);
        let copier = consensus.pay.last().copied().unwrap_or(0);
        self.copier_pay = self.copier_pay.saturating_add(copier.into());
        self.most_pay = self.most_pay.saturating_add(consensus.most.into());
    }

    /// Compares every two validators. Pay is spread over the cycles of vesting, so the mean of their bounds counts.
    fn compare(&mut self, found: &[Found], measured: bool) {
        for (place, one) in found.iter().enumerate() {
            for (number, other) in found.iter().enumerate().skip(place.saturating_add(1)) {
                let bounds = self.bounds.entry((place, number)).or_default();
                bounds.push_back(distance_bound(&one.counted, &other.counted));
                if bounds.len() > VESTING_CYCLES {
                    bounds.pop_front();
                }
                let count = u64::try_from(bounds.len()).unwrap_or(1).max(1);
                let sum = bounds.iter().fold(0_u64, |sum, bound| sum.saturating_add(*bound));
                // Every share is rounded once.
                let rounding = u64::try_from(one.shares.len()).unwrap_or(0).saturating_mul(count);
                let bound = sum.div_ceil(count).saturating_add(rounding);
                let distance = distance(&one.shares, &other.shares);
                if measured {
                    self.apart |= distance > bound;
                    self.distance = self.distance.max(distance);
                    self.distance_bound = self.distance_bound.max(bound);
                }
            }
        }
    }

    fn outcome(&self, scenario: &str) -> ValidatorOutcome {
        let per_mille = |part: u128, whole: u128| {
            let part = part.saturating_mul(1_000).checked_div(whole);
            u64::try_from(part.unwrap_or(0)).unwrap_or(u64::MAX)
        };
        let most = self
            .most_pay
            .saturating_mul(1_000)
            .div_ceil(self.honest_pay.max(1));
        let millionths = UNIT / 1_000_000;
        ValidatorOutcome {
            scenario: scenario.to_owned(),
            trust: per_mille(self.trust.0, self.trust.1.saturating_mul(UNIT.into())),
            distance: self.distance.div_ceil(millionths),
            distance_bound: self.distance_bound / millionths,
            agree: !self.apart,
            copier: per_mille(self.copier_pay, self.honest_pay),
            copier_bound: u64::try_from(most).unwrap_or(u64::MAX),
        }
    }
}

fn find(world: &World<'_>, view: &View, before: &BTreeMap<MinerKey, u64>) -> Found {
    let scores: BTreeMap<_, _> = view
        .scores
        .scores
        .iter()
        .map(|score| (score.miner, score))
        .collect();
    let (mut paid, mut counted) = (Vec::new(), Vec::new());
    for miner in &world.miners {
        let key = miner_key(&miner.neuron);
        let score = scores.get(&key);
        paid.push(score.map_or(0, |score| score.paid_points()));
        let credit = score.map_or(0, |score| score.credit);
        let worked = score.map_or(0, |score| score.micros / 1_000);
        let worked = worked.saturating_add(before.get(&key).copied().unwrap_or(0));
        let fits = credit.saturating_mul(EPOCH_MS) / WHOLE_EXECUTOR;
        counted.push((worked.min(fits), credit));
    }
    Found {
        shares: normalise(&paid),
        counted,
    }
}

fn distance(one: &[u64], other: &[u64]) -> u64 {
    let differences = one.iter().zip(other).map(|(one, other)| one.abs_diff(*other));
    differences.fold(0, u64::saturating_add)
}

/// `2·[(1 − a)·δ + ε]` of [`UNIT`], rounded up: δ is the counted work that differs, as a share of the capacity of the
/// class, and ε the credit that differs, as a share of it. Of two capacities the larger one counts.
fn distance_bound(one: &[(u64, u64)], other: &[(u64, u64)]) -> u64 {
    let credit = |rows: &[(u64, u64)]| rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.1));
    let capacity = u128::from(credit(one).max(credit(other)));
    let (mut work, mut shown) = (0_u128, 0_u128);
    for (one, other) in one.iter().zip(other) {
        work = work.saturating_add(one.0.abs_diff(other.0).into());
        shown = shown.saturating_add(one.1.abs_diff(other.1).into());
    }
    let part = |amount: u128, whole: u128| {
        let share = amount.saturating_mul(UNIT.into()).div_ceil(whole.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    };
    let work = part(
        work.saturating_mul(Settings::PREMIUM.into()),
        capacity.saturating_mul(EPOCH_MS.into()),
    );
    work.saturating_add(part(shown, capacity)).saturating_mul(2)
}
