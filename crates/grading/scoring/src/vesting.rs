//! Vesting: the points of a cycle are paid in equal parts over twenty cycles, so that a conviction can take something.
//!
//! The chain pays at once and takes nothing back, so the score itself is spread. Points belong to a neuron: a swapped
//! hotkey keeps them, and a neuron that was deregistered has lost them, under the same hotkey too.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{Hotkey, MinerKey, Uid};
use serde::{Deserialize, Serialize};

use crate::snapshot_rows::Neuron;

/// Cycles over which points are paid: a day of epochs of 72 minutes (`docs/adr/0064`).
pub const VESTING_CYCLES: usize = 20;

/// The points of one earlier cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastCycle {
    /// The number of the cycle.
    pub cycle: u64,
    /// The points of the neurons that had any.
    pub rows: Vec<PastPoints>,
}

/// The points of one neuron in an earlier cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastPoints {
    /// The neuron, as it was then.
    #[serde(flatten)]
    pub neuron: Neuron,
    /// Its points in that cycle alone.
    pub points: u64,
}

/// A miner that was convicted of cheating. All neurons of its coldkey lose what is not paid yet and earn nothing, new
/// hotkeys too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conviction {
    /// The coldkey of the miner.
    pub coldkey: Hotkey,
    /// The hotkey that cheated.
    pub hotkey: Hotkey,
}

/// The keys that were convicted.
pub(crate) struct Convicted {
    keys: BTreeSet<Hotkey>,
}

impl Convicted {
    pub(crate) fn new(convictions: &[Conviction]) -> Self {
        let keys = convictions
            .iter()
            .flat_map(|conviction| [conviction.coldkey, conviction.hotkey]);
        Self { keys: keys.collect() }
    }

    /// Whether the neuron belongs to a convicted coldkey, or has the hotkey that cheated.
    pub(crate) fn holds(&self, neuron: &Neuron) -> bool {
        self.keys.contains(&neuron.coldkey) || self.keys.contains(&neuron.hotkey)
    }
}

/// The points that each neuron is paid in this cycle: a twentieth of those of this cycle and of the nineteen before.
pub(crate) fn vest(
    neurons: &[Neuron],
    current: &BTreeMap<MinerKey, u64>,
    history: &[PastCycle],
    convicted: &Convicted,
) -> BTreeMap<MinerKey, u64> {
    let past = Past::index(history);
    let vested = |neuron: &Neuron| {
        let miner = MinerKey(neuron.hotkey);
        let own = u128::from(current.get(&miner).copied().unwrap_or(0));
        let sum = own.saturating_add(past.of(neuron));
        let part = sum / u128::try_from(VESTING_CYCLES).unwrap_or(1);
        (miner, u64::try_from(part).unwrap_or(u64::MAX))
    };
    neurons
        .iter()
        .filter(|neuron| !convicted.holds(neuron))
        .map(vested)
        .filter(|(_, points)| *points > 0)
        .collect()
}

/// The points of a neuron in the nineteen cycles before this one, of which this cycle pays a twentieth.
pub(crate) fn earlier_points(neuron: &Neuron, history: &[PastCycle]) -> u64 {
    u64::try_from(Past::index(history).of(neuron)).unwrap_or(u64::MAX)
}

/// The points of earlier cycles, by the identity of their neurons.
struct Past {
    /// By coldkey, uid and block of registration: a swapped hotkey changes none of them.
    by_registration: BTreeMap<(Hotkey, Uid, u64), u128>,
    /// By coldkey and hotkey, where the chain does not state the block of registration.
    by_hotkey: BTreeMap<(Hotkey, Hotkey), u128>,
}

impl Past {
    fn index(history: &[PastCycle]) -> Self {
        let mut cycles: BTreeMap<u64, &PastCycle> =
            history.iter().map(|cycle| (cycle.cycle, cycle)).collect();
        while cycles.len() >= VESTING_CYCLES {
            cycles.pop_first();
        }
        let (mut by_registration, mut by_hotkey) = (BTreeMap::new(), BTreeMap::new());
        for row in cycles.values().flat_map(|cycle| &cycle.rows) {
            let neuron = &row.neuron;
            let sum: &mut u128 = match neuron.registered {
                0 => by_hotkey.entry((neuron.coldkey, neuron.hotkey)).or_default(),
                block => by_registration
                    .entry((neuron.coldkey, neuron.uid, block))
                    .or_default(),
            };
            *sum = sum.saturating_add(row.points.into());
        }
        Self {
            by_registration,
            by_hotkey,
        }
    }

    fn of(&self, neuron: &Neuron) -> u128 {
        let key = (neuron.coldkey, neuron.uid, neuron.registered);
        let by_registration = self.by_registration.get(&key).copied().unwrap_or(0);
        let by_hotkey = self
            .by_hotkey
            .get(&(neuron.coldkey, neuron.hotkey))
            .copied()
            .unwrap_or(0);
        by_registration.saturating_add(by_hotkey)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    fn neuron(uid: u16, hotkey: u8, coldkey: u8, registered: u64) -> Neuron {
        Neuron {
            uid: Uid(uid),
            hotkey: key(hotkey),
            coldkey: key(coldkey),
            registered,
        }
    }

    fn past(cycle: u64, neuron: Neuron, points: u64) -> PastCycle {
        PastCycle {
            cycle,
            rows: vec![PastPoints { neuron, points }],
        }
    }

    fn vested(neuron: Neuron, current: u64, history: &[PastCycle], convictions: &[Conviction]) -> u64 {
        let miner = MinerKey(neuron.hotkey);
        let current = [(miner, current)].into();
        let vested = vest(&[neuron], &current, history, &Convicted::new(convictions));
        vested.get(&miner).copied().unwrap_or(0)
    }

    #[test]
    fn points_are_paid_over_twenty_cycles() {
        let miner = neuron(1, 1, 101, 7);
        assert_eq!(vested(miner, 2_000, &[], &[]), 100);
        let history: Vec<_> = (0..30).map(|cycle| past(cycle, miner, 2_000)).collect();
        assert_eq!(vested(miner, 2_000, &history, &[]), 2_000);
        assert_eq!(vested(miner, 0, &history, &[]), 1_900, "the last nineteen");
        assert_eq!(vested(miner, 0, &history[29..], &[]), 100);
        let repeated = [past(5, miner, 2_000), past(5, miner, 2_000)];
        assert_eq!(vested(miner, 0, &repeated, &[]), 100, "a cycle counts once");
    }

    #[test]
    fn a_swapped_hotkey_keeps_its_points_and_a_new_registration_has_none() {
        let history = [past(1, neuron(1, 1, 101, 7), 2_000)];
        assert_eq!(vested(neuron(1, 2, 101, 7), 0, &history, &[]), 100, "swapped");
        assert_eq!(
            vested(neuron(1, 1, 101, 9), 0, &history, &[]),
            0,
            "registered again"
        );
        assert_eq!(
            vested(neuron(1, 2, 102, 9), 0, &history, &[]),
            0,
            "the uid passed to another"
        );
        assert_eq!(vested(neuron(1, 1, 102, 7), 0, &history, &[]), 0, "another owner");
        let unstated = [past(1, neuron(1, 1, 101, 0), 2_000)];
        assert_eq!(vested(neuron(3, 1, 101, 0), 0, &unstated, &[]), 100);
        assert_eq!(vested(neuron(1, 2, 101, 0), 0, &unstated, &[]), 0);
    }

    #[test]
    fn a_conviction_takes_all_of_it_and_follows_the_coldkey() {
        let history = [past(1, neuron(1, 1, 101, 7), 2_000)];
        let conviction = [Conviction {
            coldkey: key(101),
            hotkey: key(1),
        }];
        assert_eq!(vested(neuron(1, 1, 101, 7), 2_000, &history, &conviction), 0);
        assert_eq!(
            vested(neuron(9, 5, 101, 99), 2_000, &history, &conviction),
            0,
            "a new hotkey"
        );
        assert_eq!(
            vested(neuron(9, 1, 103, 99), 2_000, &history, &conviction),
            0,
            "under another coldkey"
        );
        assert_eq!(vested(neuron(2, 2, 102, 7), 2_000, &history, &conviction), 100);
    }

    proptest! {
        #[test]
        fn nothing_is_paid_twice_and_nothing_is_lost(points in proptest::collection::vec(0_u64..1_000_000, 1..60)) {
            let miner = neuron(1, 1, 101, 7);
            let mut history = Vec::new();
            let mut paid = 0_u64;
            let silent = std::iter::repeat_n(0, VESTING_CYCLES);
            for (cycle, points) in points.iter().copied().chain(silent).enumerate() {
                paid += vested(miner, points * 20, &history, &[]);
                history.push(past(cycle.try_into().unwrap(), miner, points * 20));
            }
            prop_assert_eq!(paid, points.iter().sum::<u64>() * 20);
        }
    }
}
