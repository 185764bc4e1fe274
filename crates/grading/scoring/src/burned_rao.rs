//! The rao that each validator has burned, from the transfers to the burn account.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{Hotkey, Uid, ValidatorKey};

use crate::snapshot_rows::Neuron;

/// Credits the rao that accounts have paid into the burn account to validators: the payments of a hotkey to its
/// validator, and those of a coldkey to the validator with the lowest uid that it owns. Other payments are credited to
/// nobody.
pub fn credit_burns(
    paid: &BTreeMap<Hotkey, u64>,
    neurons: &[Neuron],
    validators: &BTreeSet<ValidatorKey>,
) -> BTreeMap<ValidatorKey, u64> {
    let mut owned = BTreeMap::<Hotkey, (Uid, ValidatorKey)>::new();
    for neuron in neurons {
        let (validator, place) = (ValidatorKey(neuron.hotkey), neuron.uid);
        if validators.contains(&validator) {
            let first = owned.entry(neuron.coldkey).or_insert((place, validator));
            *first = (*first).min((place, validator));
        }
    }
    let mut burned = BTreeMap::<ValidatorKey, u64>::new();
    for (payer, rao) in paid {
        let own = validators.get(&ValidatorKey(*payer)).copied();
        let credited = own.or_else(|| owned.get(payer).map(|(_, validator)| *validator));
        if let Some(validator) = credited {
            let sum = burned.entry(validator).or_default();
            *sum = sum.saturating_add(*rao);
        }
    }
    burned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    #[test]
    fn a_validator_is_credited_what_its_hotkey_and_its_coldkey_paid_and_each_payment_once() {
        let neuron = |(uid, hotkey, coldkey): (u16, u8, u8)| Neuron {
            uid: Uid(uid),
            hotkey: key(hotkey),
            coldkey: key(coldkey),
            registered: 1,
        };
        // 1 and 2 are validators of one coldkey, 3 is its own coldkey, 4 is a miner.
        let neurons = [(7, 1, 100), (5, 2, 100), (6, 3, 3), (8, 4, 104)].map(neuron);
        let validators = [1, 2, 3].map(|seed| ValidatorKey(key(seed))).into();
        let paid = [(1, 10), (100, 20), (3, 30), (4, 40), (104, 50), (9, 60)];
        let paid = paid.map(|(payer, rao)| (key(payer), rao)).into();
        let burned = credit_burns(&paid, &neurons, &validators);
        let expected = [(1, 10), (2, 20), (3, 30)];
        assert_eq!(
            burned,
            expected.map(|(of, rao)| (ValidatorKey(key(of)), rao)).into()
        );
    }
}
