//! Newcomers: miners that have proven no executor of a graded class yet (`docs/adr/0064`).
//!
//! A newcomer may show that it works before the first batch has seen it, and registrations are cheap. So the newcomers
//! of one owner get one job of a class at a time, and all newcomers together a twentieth of the attempts, unless nobody
//! else can take a job.

use std::collections::BTreeMap;

use muster_protocol::{ExecutorClass, Hotkey, MinerKey};

use crate::exclusion::Exclusion;
use crate::miner_stats::{MinerStats, RoutableNeuron};

/// The share of a validator's recent attempts that newcomers get together, in thousandths.
const SHARE_PER_MILLE: u64 = 50;

/// The newcomers of a class among the miners of a subnet.
pub(crate) struct Newcomers {
    class: ExecutorClass,
    /// Attempts under way at the newcomers of each owner.
    open: BTreeMap<Hotkey, u32>,
    /// Whether newcomers have had their share of the recent attempts.
    had_share: bool,
}

impl Newcomers {
    pub(crate) fn among(
        neurons: &[RoutableNeuron],
        stats_by_miner: &BTreeMap<MinerKey, MinerStats>,
        class: ExecutorClass,
    ) -> Self {
        let mut open = BTreeMap::<Hotkey, u32>::new();
        let (mut given, mut given_to_newcomers) = (0_u64, 0_u64);
        for neuron in neurons {
            let Some(stats) = stats_by_miner.get(&neuron.miner) else {
                continue;
            };
            given = given.saturating_add(stats.given.into());
            if is_newcomer(stats, class) {
                given_to_newcomers = given_to_newcomers.saturating_add(stats.given.into());
                let of_owner = open.entry(neuron.owner).or_default();
                *of_owner = of_owner.saturating_add(stats.open_of(class));
            }
        }
        // With the attempt that is being given.
        let share = given.saturating_add(1).saturating_mul(SHARE_PER_MILLE);
        Self {
            class,
            open,
            had_share: given_to_newcomers.saturating_mul(1_000) >= share,
        }
    }

    /// Checks that no other newcomer of the same owner is at work.
    pub(crate) fn check_owner(&self, neuron: &RoutableNeuron, stats: &MinerStats) -> Result<(), Exclusion> {
        let open = self.open.get(&neuron.owner).copied().unwrap_or(0);
        if is_newcomer(stats, self.class) && open > 0 {
            return Err(Exclusion::Busy { open, capacity: 1 });
        }
        Ok(())
    }

    /// The cost of being a newcomer: `price` once newcomers have had their share.
    pub(crate) fn cost(&self, stats: &MinerStats, price: u32) -> u32 {
        if self.had_share && is_newcomer(stats, self.class) {
            price
        } else {
            0
        }
    }
}

/// Whether a miner has proven nothing in a class that is graded.
fn is_newcomer(stats: &MinerStats, class: ExecutorClass) -> bool {
    stats.proven.get(&class) == Some(&0)
}
