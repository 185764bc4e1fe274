//! The subnet in which strategies are tried, as its caller sets it.

use muster_scoring::CAPACITY_PER_MILLE;

use crate::subnet;

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
