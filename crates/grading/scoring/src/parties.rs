//! The parties of a cycle's receipts by number, so that a million receipts are compared by numbers instead of keys.

use std::collections::BTreeMap;

use muster_protocol::{Hotkey, MinerKey};

use crate::key_map::KeyMap;
use crate::snapshot::ScoringSnapshot;
use crate::snapshot_rows::Neuron;

/// The number of a hotkey. Numbers are in the order of the keys.
pub(crate) type PartyNumber = u32;

/// A hotkey that receipts may name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party<'a> {
    pub(crate) number: PartyNumber,
    /// The neuron of the hotkey, if it has one.
    pub(crate) neuron: Option<&'a Neuron>,
    /// The number of the neuron's coldkey.
    pub(crate) owner: Option<u32>,
    /// Whether its receipts count as a validator's.
    pub(crate) may_pay: bool,
}

/// All neurons and validators of a snapshot.
pub(crate) struct Parties<'a> {
    by_key: KeyMap<Hotkey, Party<'a>>,
}

impl<'a> Parties<'a> {
    pub(crate) fn new(snapshot: &ScoringSnapshot, neurons: &BTreeMap<MinerKey, &'a Neuron>) -> Self {
        let paying = snapshot.validators.iter().chain([&snapshot.me]);
        let mut keys: Vec<Hotkey> = paying.map(|validator| validator.0).collect();
        keys.extend(neurons.keys().map(|miner| miner.0));
        keys.sort_unstable();
        keys.dedup();
        let mut owners: Vec<Hotkey> = neurons.values().map(|neuron| neuron.coldkey).collect();
        owners.sort_unstable();
        owners.dedup();
        let owner_of = |neuron: &Neuron| {
            let place = owners.binary_search(&neuron.coldkey).ok()?;
            u32::try_from(place).ok()
        };
        let party = |(number, key): (PartyNumber, Hotkey)| {
            let neuron = neurons.get(&MinerKey(key)).copied();
            let validator = muster_protocol::ValidatorKey(key);
            let party = Party {
                number,
                neuron,
                owner: neuron.and_then(owner_of),
                may_pay: validator == snapshot.me || snapshot.validators.contains(&validator),
            };
            (key, party)
        };
        Self {
            by_key: (0..).zip(keys).map(party).collect(),
        }
    }

    /// The party with this hotkey; none if it is neither a neuron nor a validator.
    pub(crate) fn get(&self, key: Hotkey) -> Option<&Party<'a>> {
        self.by_key.get(&key)
    }
}
