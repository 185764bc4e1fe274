//! The main hotkey of each coldkey, from what its miners answered.

use std::collections::BTreeMap;

use muster_protocol::{Hotkey, MinerKey};

use crate::coldkey_split::MainHotkey;
use crate::snapshot_rows::Neuron;

/// A miner's answer to the question for the main hotkey of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedMain {
    /// The miner that answered.
    pub miner: MinerKey,
    /// The hotkey that it named, which need not be registered.
    pub main: Hotkey,
}

/// The main hotkeys by the answers in a cycle and in the one before it. A coldkey whose miners name different ones has
/// none, and its points are split evenly.
pub fn agree_main_hotkeys(now: &[NamedMain], before: &[NamedMain], neurons: &[Neuron]) -> Vec<MainHotkey> {
    let owners: BTreeMap<MinerKey, Hotkey> = neurons
        .iter()
        .map(|neuron| (MinerKey(neuron.hotkey), neuron.coldkey))
        .collect();
    let before = unanimous(before, &owners);
    let main = |(coldkey, main)| MainHotkey {
        coldkey,
        main,
        before: before.get(&coldkey).copied(),
    };
    unanimous(now, &owners).into_iter().map(main).collect()
}

/// The hotkey that all answering miners of a coldkey name, by coldkey.
fn unanimous(answers: &[NamedMain], owners: &BTreeMap<MinerKey, Hotkey>) -> BTreeMap<Hotkey, Hotkey> {
    let mut named = BTreeMap::<Hotkey, Option<Hotkey>>::new();
    for answer in answers {
        let Some(coldkey) = owners.get(&answer.miner) else {
            continue;
        };
        let main = named.entry(*coldkey).or_insert(Some(answer.main));
        if *main != Some(answer.main) {
            *main = None;
        }
    }
    named
        .into_iter()
        .filter_map(|(coldkey, main)| Some((coldkey, main?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use muster_protocol::Uid;

    use super::*;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    /// Coldkey 100 owns the hotkeys 1 and 2, coldkey 101 owns 3.
    fn neurons() -> Vec<Neuron> {
        let neuron = |(hotkey, coldkey): (u8, u8)| Neuron {
            uid: Uid(hotkey.into()),
            hotkey: key(hotkey),
            coldkey: key(coldkey),
            registered: 1,
        };
        [(1, 100), (2, 100), (3, 101)].map(neuron).to_vec()
    }

    fn answers(of: &[(u8, u8)]) -> Vec<NamedMain> {
        let answer = |(miner, main): &(u8, u8)| NamedMain {
            miner: MinerKey(key(*miner)),
            main: key(*main),
        };
        of.iter().map(answer).collect()
    }

    fn agreed(now: &[(u8, u8)], before: &[(u8, u8)]) -> Vec<(Hotkey, Hotkey, Option<Hotkey>)> {
        let mains = agree_main_hotkeys(&answers(now), &answers(before), &neurons());
        mains
            .iter()
            .map(|main| (main.coldkey, main.main, main.before))
            .collect()
    }

    #[test]
    fn the_miners_of_a_coldkey_have_to_name_the_same_one() {
        assert_eq!(
            agreed(&[(1, 2), (2, 2)], &[(1, 1)]),
            [(key(100), key(2), Some(key(1)))]
        );
        assert_eq!(
            agreed(&[(1, 2)], &[]),
            [(key(100), key(2), None)],
            "the other is silent"
        );
        assert_eq!(agreed(&[(1, 1), (2, 2)], &[]), [], "each names itself");
        assert_eq!(
            agreed(&[(1, 2), (3, 9), (8, 8)], &[(1, 1), (2, 2), (3, 3)]),
            [(key(100), key(2), None), (key(101), key(9), Some(key(3)))],
            "a stranger's answer is nobody's, and the split asks whether 9 is registered"
        );
    }
}
