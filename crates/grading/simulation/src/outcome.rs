//! The pay of a strategy in all worlds, beside its twin and its bound.

use muster_protocol::MinerKey;
use muster_scoring::WHOLE_EXECUTOR;
use serde::Serialize;

use crate::bound::Conditions;
use crate::settings::Settings;
use crate::strategy::Strategy;
use crate::subnet::{WARM_UP, miner_key};
use crate::world_epochs::{Cast, EpochCosts, World};

/// Epochs of one sample: longer than observations are remembered, so that samples are nearly independent.
const SAMPLE: u32 = 10;
/// One, in the unit of shares of a class's credit and of relative deviations.
const UNIT: u128 = 1_000_000_000;
/// The standard errors by which a measured mean may exceed a bound of the true one.
const ERRORS: u64 = 3;

/// The pay of one strategy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StrategyOutcome {
    /// The name of the strategy.
    pub strategy: String,
    /// The pay per unit of money, relative to that of its honest twin, in thousandths.
    pub pay: u64,
    /// The standard error of the pay, over samples of ten epochs, in thousandths, rounded up.
    pub error: u64,
    /// The most that the stated formula allows, in thousandths.
    pub bound: u64,
    /// The money that its hardware cost, relative to that of its twin, in thousandths.
    pub money: u64,
}

impl StrategyOutcome {
    /// Whether the pay is within the formula. The formula is about the mean, so three standard errors of the
    /// measurement are allowed.
    pub fn holds(&self) -> bool {
        self.pay <= self.bound.saturating_add(self.error.saturating_mul(ERRORS))
    }
}

/// The outcome of every strategy. There is none if the simulated class cannot be graded.
pub fn simulate(settings: &Settings, strategies: &[Strategy]) -> Vec<StrategyOutcome> {
    let outcome = |strategy: &Strategy| {
        let mut tally = Tally::default();
        for number in 0..settings.worlds {
            let mut world = World::new(settings, strategy, ONE_VALIDATOR, number)?;
            for epoch in 0..settings.epochs {
                let costs = world.run_epoch(epoch);
                if epoch >= WARM_UP {
                    tally.note(&world, epoch, &costs);
                }
            }
        }
        Some(tally.outcome(settings, strategy))
    };
    strategies.iter().filter_map(outcome).collect()
}

/// Strategies of miners are tried at one honest validator.
const ONE_VALIDATOR: Cast = Cast {
    validators: 1,
    unseen: 0,
    gathered: true,
    copier: 0,
};

/// Points and money of a strategy and its twin, over some epochs.
#[derive(Clone, Copy, Default)]
struct Sums {
    paid: u128,
    money: u128,
    twin_paid: u128,
    twin_money: u128,
}

#[derive(Default)]
struct Tally {
    samples: Vec<Sums>,
    /// The sum of the twin's shares of the class's credit, and that of a flawless miner's.
    kept: (u128, u128),
    /// The strategy's largest share, in millionths.
    share: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.paid = self.paid.saturating_add(other.paid);
        self.money = self.money.saturating_add(other.money);
        self.twin_paid = self.twin_paid.saturating_add(other.twin_paid);
        self.twin_money = self.twin_money.saturating_add(other.twin_money);
    }
}

impl Tally {
    fn note(&mut self, world: &World<'_>, epoch: u32, costs: &EpochCosts) {
        let scores = world.views.first().map(|view| view.scores.scores.as_slice());
        let scores = scores.unwrap_or_default();
        let of = |miner: MinerKey| {
            let score = scores.iter().find(|score| score.miner == miner);
            score.map_or((0, 0), |score| (score.points, score.credit))
        };
        let mut sums = Sums::default();
        let mut credit = 0_u64;
        for miner in world.miners.iter().filter(|miner| miner.cheats) {
            // The points of an epoch are paid in twenty cycles, so they and not the payments belong to its money.
            let (points, of_miner) = of(miner_key(&miner.neuron));
            let money = miner.cost(world.strategy, costs.planned, costs.there, costs.probes);
            sums.paid = sums.paid.saturating_add(points.into());
            sums.money = sums.money.saturating_add(money);
            credit = credit.saturating_add(of_miner);
        }
        let all = scores
            .iter()
            .fold(0_u64, |sum, score| sum.saturating_add(score.credit));
        if let Some(twin) = world.miners.first() {
            let (points, of_twin) = of(miner_key(&twin.neuron));
            sums.twin_paid = points.into();
            sums.twin_money = twin.cost(world.strategy, false, costs.there, costs.probes);
            let share = |credit: u64| {
                let share = u128::from(credit).saturating_mul(UNIT);
                share.checked_div(all.into()).unwrap_or(0)
            };
            let flawless = twin.all().saturating_mul(WHOLE_EXECUTOR);
            self.kept.0 = self.kept.0.saturating_add(share(of_twin));
            self.kept.1 = self.kept.1.saturating_add(share(flawless));
            let own = share(credit).div_ceil(UNIT / 1_000_000);
            self.share = self.share.max(u64::try_from(own).unwrap_or(u64::MAX));
        }
        if epoch.saturating_sub(WARM_UP).is_multiple_of(SAMPLE) {
            self.samples.push(Sums::default());
        }
        if let Some(sample) = self.samples.last_mut() {
            sample.add(&sums);
        }
    }

    fn outcome(&self, settings: &Settings, strategy: &Strategy) -> StrategyOutcome {
        let mut sum = Sums::default();
        for sample in &self.samples {
            sum.add(sample);
        }
        // Points of 10^12 over 10,000 epochs, times money in millionths: below 2^128.
        let honest = sum.twin_paid.saturating_mul(sum.money) / 1_000;
        let pay = sum
            .paid
            .saturating_mul(sum.twin_money)
            .checked_div(honest)
            .unwrap_or(0);
        let money = sum
            .money
            .saturating_mul(1_000)
            .checked_div(sum.twin_money)
            .unwrap_or(0);
        let kept = self
            .kept
            .0
            .saturating_mul(1_000_000)
            .checked_div(self.kept.1)
            .unwrap_or(0);
        let whole = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        let conditions = Conditions {
            kept: whole(kept),
            share: self.share,
        };
        StrategyOutcome {
            strategy: strategy.name.clone(),
            pay: whole(pay),
            error: whole(pay.saturating_mul(self.relative_error(&sum)).div_ceil(UNIT)),
            bound: strategy.bound(settings, conditions),
            money: whole(money),
        }
    }

    /// The standard error of the ratio, relative to it, by the deviations of the samples from the sums' ratio.
    fn relative_error(&self, sum: &Sums) -> u128 {
        let count = u128::try_from(self.samples.len()).unwrap_or(0);
        let share = |part: u128, whole: u128| {
            let share = part.saturating_mul(UNIT).checked_div(whole).unwrap_or(0);
            i128::try_from(share).unwrap_or(i128::MAX)
        };
        let squares = self.samples.iter().map(|sample| {
            let deviation = share(sample.paid, sum.paid)
                .saturating_sub(share(sample.twin_paid, sum.twin_paid))
                .saturating_sub(share(sample.money, sum.money))
                .saturating_add(share(sample.twin_money, sum.twin_money));
            deviation.unsigned_abs().saturating_mul(deviation.unsigned_abs())
        });
        let squares = squares.fold(0, u128::saturating_add).saturating_mul(count);
        squares.checked_div(count.saturating_sub(1)).unwrap_or(0).isqrt()
    }
}
