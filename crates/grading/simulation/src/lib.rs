//! A simulation of a subnet over many epochs: honest miners, one that follows a strategy, and validators.
//!
//! Hardware, its failures, users' jobs and stakes are made up. Everything after them is the real code: jobs are offered
//! in the order of `muster-routing`, probes are drawn, judged and counted by `muster-grading`, and allowance, capacity
//! and pay are those of `muster-scoring`.
//!
//! The pay of a strategy is measured by money: what its hardware cost in each epoch, owned or rented. It is compared
//! with its twin, an honest miner that has the same hardware and the same bad luck. [`Strategy`] states what a strategy
//! does, and `Strategy::bound` what it may win at most, as a formula. [`simulate_validators`] compares validators.

mod bound;
mod consensus;
mod hardware;
mod jobs;
mod numbers;
mod outcome;
mod picture;
mod probes;
mod strategy;
mod subnet;
mod validators;
mod view;
mod world;

use muster_scoring::CAPACITY_PER_MILLE;

pub use bound::Conditions;
pub use outcome::{StrategyOutcome, simulate};
pub use picture::draw;
pub use strategy::{Strategy, known_strategies};
pub use validators::{ValidatorOutcome, simulate_validators};

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
    /// The duration of a user's job, in seconds.
    pub job_secs: u32,
    /// The number of worlds of each strategy, which differ by chance alone.
    pub worlds: u32,
    /// The number of honest validators that are compared. Strategies of miners are tried at one.
    pub validators: u16,
    /// The seed of all chance.
    pub seed: u64,
}

impl Settings {
    /// The premium of a worked second, in thousandths.
    pub(crate) const PREMIUM: u64 = 1_000 - CAPACITY_PER_MILLE as u64;

    /// The duration of a job in milliseconds: at least a second, and less than an epoch.
    pub(crate) fn job_ms(&self) -> u64 {
        u64::from(self.job_secs)
            .saturating_mul(1_000)
            .clamp(1_000, subnet::EPOCH_MS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;

    /// The settings of tests.
    pub(crate) const SETTINGS: Settings = Settings {
        epochs: 60,
        miners: 9,
        executors: 8,
        organic: 10,
        job_secs: 600,
        worlds: 2,
        validators: 5,
        seed: 1,
    };
}
