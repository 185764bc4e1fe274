//! A simulation of a subnet over many epochs: honest miners, one that follows a strategy, and validators.
//!
//! Hardware, its failures, users' jobs and stakes are made up. Everything after them is the real code: jobs are offered
//! in the order of `muster-routing`, probes are drawn, judged and counted by `muster-grading`, and allowance, capacity
//! and pay are those of `muster-scoring`.
//!
//! The pay of a strategy is measured by money: what its hardware cost in each epoch, owned or rented. It is compared
//! with its twin, an honest miner that has the same hardware and the same bad luck. [`Strategy`] states what a strategy
//! does, and `Strategy::bound` what it may win at most, as a formula. [`simulate_validators`] compares validators.

mod attempt;
mod bound;
mod consensus;
mod hardware;
mod honest_validator;
mod jobs;
mod numbers;
mod outcome;
mod picture;
mod probes;
mod settings;
mod strategy;
mod subnet;
mod validators;
mod world_epochs;

pub use bound::Conditions;
pub use outcome::{StrategyOutcome, simulate};
pub use picture::draw;
pub use settings::Settings;
pub use strategy::{Strategy, known_strategies};
pub use validators::{ValidatorOutcome, simulate_validators};

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
