//! The split of a coldkey's points over its hotkeys.
//!
//! The points of a coldkey are divided evenly over its hotkeys that earned any, so that spreading work over one's own
//! hotkeys earns nothing. If its miners name a main hotkey, that one gets four fifths, as with ComputeHorde's
//! validators; it must be registered under the coldkey.

use std::collections::BTreeMap;

use muster_protocol::{Hotkey, MinerKey, Uid};
use serde::{Deserialize, Serialize};

use crate::snapshot_rows::Neuron;

/// The share of a coldkey's main hotkey, in thousandths: ComputeHorde's.
const MAIN_SHARE: u64 = 800;

/// The hotkey that a coldkey's miners named as their main one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MainHotkey {
    /// The coldkey of the miners that named it.
    pub coldkey: Hotkey,
    /// The main hotkey in this cycle.
    pub main: Hotkey,
    /// The main hotkey in the cycle before, if one was named.
    #[serde(default)]
    pub before: Option<Hotkey>,
}

/// Splits the points of each coldkey over its hotkeys. `bonus` in thousandths is added where the main hotkey changed
/// from one registered hotkey of the coldkey to another.
pub(crate) fn split(
    points: &BTreeMap<MinerKey, u64>,
    neurons: &BTreeMap<MinerKey, &Neuron>,
    mains: &[MainHotkey],
    bonus: u16,
) -> BTreeMap<MinerKey, u64> {
    let mut groups = BTreeMap::<Hotkey, (u64, Vec<(Uid, MinerKey)>)>::new();
    for (miner, earned) in points.iter().filter(|(_, earned)| **earned > 0) {
        let Some(neuron) = neurons.get(miner) else {
            continue;
        };
        let group = groups.entry(neuron.coldkey).or_default();
        group.0 = group.0.saturating_add(*earned);
        group.1.push((neuron.uid, *miner));
    }
    let named: BTreeMap<Hotkey, &MainHotkey> = mains.iter().map(|main| (main.coldkey, main)).collect();
    let mut shares = BTreeMap::new();
    for (coldkey, (mut sum, members)) in groups {
        let own = |hotkey: &Hotkey| {
            neurons
                .get(&MinerKey(*hotkey))
                .filter(|neuron| neuron.coldkey == coldkey)
        };
        let main = named.get(&coldkey).filter(|named| own(&named.main).is_some());
        if let Some(main) = main
            && main
                .before
                .is_some_and(|before| before != main.main && own(&before).is_some())
        {
            sum = sum.saturating_add(per_mille(sum, bonus.into()));
        }
        share_out(&mut shares, sum, members, main.map(|main| MinerKey(main.main)));
    }
    shares
}

fn share_out(
    shares: &mut BTreeMap<MinerKey, u64>,
    mut sum: u64,
    mut members: Vec<(Uid, MinerKey)>,
    main: Option<MinerKey>,
) {
    if let Some(main) = main {
        members.retain(|(_, miner)| *miner != main);
        let part = if members.is_empty() {
            sum
        } else {
            per_mille(sum, MAIN_SHARE)
        };
        shares.insert(main, part);
        sum = sum.saturating_sub(part);
    }
    members.sort_unstable();
    let count = u64::try_from(members.len()).unwrap_or(1).max(1);
    let (each, mut rest) = (sum / count, sum % count);
    for (_, miner) in members {
        let more = rest.min(1);
        rest = rest.saturating_sub(more);
        shares.insert(miner, each.saturating_add(more));
    }
}

fn per_mille(amount: u64, thousandths: u64) -> u64 {
    let part = u128::from(amount).saturating_mul(thousandths.into()) / 1_000;
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    fn neurons() -> Vec<Neuron> {
        let neuron = |(hotkey, coldkey): (u8, u8)| Neuron {
            uid: Uid(hotkey.into()),
            hotkey: key(hotkey),
            coldkey: key(coldkey),
            registered: 1,
        };
        [(1, 101), (2, 101), (3, 101), (4, 104)].map(neuron).into()
    }

    fn shares(points: &[(u8, u64)], main: Option<(u8, Option<u8>)>, bonus: u16) -> Vec<(u16, u64)> {
        let neurons = neurons();
        let places: BTreeMap<_, _> = neurons
            .iter()
            .map(|neuron| (MinerKey(neuron.hotkey), neuron))
            .collect();
        let points = points
            .iter()
            .map(|(of, points)| (MinerKey(key(*of)), *points))
            .collect();
        let mains: Vec<_> = main
            .map(|(main, before)| MainHotkey {
                coldkey: key(101),
                main: key(main),
                before: before.map(key),
            })
            .into_iter()
            .collect();
        let shares = split(&points, &places, &mains, bonus);
        shares
            .iter()
            .map(|(miner, points)| (places[miner].uid.0, *points))
            .collect()
    }

    #[test]
    fn the_hotkeys_of_a_coldkey_that_earned_share_evenly() {
        assert_eq!(
            shares(&[(1, 10), (2, 1), (4, 5)], None, 0),
            [(1, 6), (2, 5), (4, 5)]
        );
        assert_eq!(
            shares(&[(1, 10), (2, 0), (9, 7)], None, 0),
            [(1, 10)],
            "no neuron, no share"
        );
    }

    #[test]
    fn a_main_hotkey_must_be_registered_under_the_coldkey() {
        assert_eq!(
            shares(&[(1, 100), (2, 100)], Some((1, None)), 0),
            [(1, 160), (2, 40)]
        );
        assert_eq!(
            shares(&[(1, 100), (2, 100)], Some((3, None)), 0),
            [(1, 20), (2, 20), (3, 160)]
        );
        assert_eq!(shares(&[(1, 100)], Some((1, None)), 0), [(1, 100)]);
        let (points, even) = ([(1, 100), (2, 100)], [(1_u16, 100_u64), (2, 100)]);
        assert_eq!(
            shares(&points, Some((4, Some(1))), 100),
            even,
            "another coldkey's"
        );
        assert_eq!(shares(&points, Some((77, Some(1))), 100), even, "not registered");
    }

    #[test]
    fn two_hotkeys_win_nothing_unless_an_operator_asks_for_the_bonus() {
        let points = [(1, 100), (2, 100)];
        assert_eq!(shares(&points, Some((1, Some(2))), 0), [(1, 160), (2, 40)]);
        assert_eq!(shares(&points, Some((1, Some(2))), 100), [(1, 176), (2, 44)]);
        assert_eq!(
            shares(&points, Some((1, Some(77))), 100),
            [(1, 160), (2, 40)],
            "before it was nobody's"
        );
        assert_eq!(
            shares(&points, Some((1, Some(1))), 100),
            [(1, 160), (2, 40)],
            "it did not change"
        );
    }

    proptest! {
        #[test]
        fn no_point_is_lost_or_made(points in proptest::collection::vec(0_u64..u64::MAX / 8, 4), main in 0_u8..6) {
            let rows: Vec<_> = points.iter().zip(1_u8..).map(|(points, of)| (of, *points)).collect();
            let sum: u64 = points.iter().sum();
            let got = shares(&rows, Some((main, None)), 0);
            prop_assert_eq!(got.iter().map(|(_, points)| points).sum::<u64>(), sum);
        }
    }
}
