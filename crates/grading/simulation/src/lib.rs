//! A simulation of a subnet over many epochs: honest miners, and one that follows a strategy.
//!
//! Observations, statements, receipts and stakes are made up; everything after them is the real code of
//! `muster-scoring`. The pay of a strategy is measured by money: what its hardware cost in each epoch, owned or rented.
//! It is compared with its twin, an honest miner that has the same hardware and the same bad luck. [`Strategy::bound`]
//! states what a strategy may win at most, as a formula.

mod numbers;
mod picture;
mod strategy;
mod world;

use muster_scoring::CAPACITY_PER_MILLE;
use serde::Serialize;

pub use picture::draw;
pub use strategy::{Strategy, known_strategies};
pub use world::simulate;

/// The subnet in which strategies are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The number of epochs.
    pub epochs: u32,
    /// The number of honest miners; one of them is the twin of the miner that follows the strategy.
    pub miners: u16,
    /// The cards of each honest miner, each of which is an executor.
    pub executors: u16,
    /// The share of time in which users keep an executor busy, in thousandths.
    pub organic: u16,
    /// The seed of all chance.
    pub seed: u64,
}

/// The pay of one strategy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StrategyOutcome {
    /// The name of the strategy.
    pub strategy: String,
    /// The pay per unit of money, relative to that of its honest twin, in thousandths.
    pub pay: u64,
    /// The most that the stated formula allows, in thousandths.
    pub bound: u64,
    /// The money that its hardware cost, relative to that of its twin, in thousandths.
    pub money: u64,
}

impl StrategyOutcome {
    /// Whether the pay is within the formula.
    pub fn holds(&self) -> bool {
        self.pay <= self.bound
    }
}

impl Settings {
    /// The premium of a worked second, in thousandths.
    pub(crate) const PREMIUM: u64 = 1_000 - CAPACITY_PER_MILLE as u64;
}
