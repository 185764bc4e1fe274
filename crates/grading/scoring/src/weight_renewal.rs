//! The weights that stand in a cycle in which nobody is paid, without the neurons that may not keep theirs.
//!
//! The chain keeps a validator's last weights until it sets others. In a cycle without points they would stay with a
//! miner that was convicted since, and with a uid that passed to another miner. Such a weight goes to the burn. The
//! others keep their shares: a conviction that raised them would pay the friends of its author.

use std::collections::BTreeMap;

use muster_protocol::{Hotkey, Uid};

use crate::normalize::to_u16;
use crate::scores::{Score, Scores};
use crate::snapshot::ScoringSnapshot;
use crate::snapshot_rows::{Neuron, OnchainWeight};
use crate::vesting::Convicted;

/// The decision about the weights that stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Every weight stands with the neuron that got it.
    Unchanged,
    /// These weights are to be set instead, sorted by uid.
    Renewed(Vec<OnchainWeight>),
    /// Weights would have to be burned, and the subnet has no neuron that burns: nothing is set. Holds the uids that
    /// have them.
    Unburnable(Vec<Uid>),
}

/// The keys whose weight is burned, the preferred one first.
#[derive(Clone, Copy, Debug, Default)]
pub struct BurnKeys {
    /// The burn hotkey of the scoring rules.
    pub burn_hotkey: Option<Hotkey>,
    /// The hotkey of the subnet's owner.
    pub owner: Option<Hotkey>,
}

/// Decides which of the weights that stand in a snapshot are to be set again.
pub(crate) fn renew(snapshot: &ScoringSnapshot, convicted: &Convicted) -> Renewal {
    let keys = BurnKeys {
        burn_hotkey: snapshot.rules.burn_hotkey,
        owner: snapshot.owner,
    };
    renew_without(&snapshot.standing, &snapshot.neurons, keys, convicted)
}

/// Takes the weights of neurons that left since the weights were decided on.
pub fn renew_after_departures(standing: &[OnchainWeight], neurons: &[Neuron], burn: BurnKeys) -> Renewal {
    renew_without(standing, neurons, burn, &Convicted::new(&[]))
}

fn renew_without(
    standing: &[OnchainWeight],
    neurons: &[Neuron],
    burn: BurnKeys,
    convicted: &Convicted,
) -> Renewal {
    // Of a uid that is listed twice the first neuron counts.
    let by_uid: BTreeMap<Uid, &Neuron> = neurons.iter().rev().map(|neuron| (neuron.uid, neuron)).collect();
    let keeps = |row: &OnchainWeight| {
        by_uid.get(&row.neuron.uid).is_some_and(|now| {
            is_same(&row.neuron, now) && !convicted.holds(&row.neuron) && !convicted.holds(now)
        })
    };
    let (kept, lost): (Vec<&OnchainWeight>, Vec<_>) = standing.iter().partition(|row| keeps(row));
    if lost.is_empty() {
        return Renewal::Unchanged;
    }
    let burner = [burn.burn_hotkey, burn.owner]
        .into_iter()
        .flatten()
        .find_map(|key| {
            let burns = |neuron: &&Neuron| neuron.hotkey == key && !convicted.holds(neuron);
            by_uid.values().copied().find(burns)
        });
    let Some(burner) = burner else {
        return Renewal::Unburnable(lost.iter().map(|row| row.neuron.uid).collect());
    };
    let mut shares: Vec<_> = kept
        .iter()
        .map(|row| (row.neuron.uid, u64::from(row.weight)))
        .collect();
    shares.extend(lost.iter().map(|row| (burner.uid, u64::from(row.weight))));
    let renewed = to_u16(&shares).into_iter().filter_map(|(uid, weight)| {
        let neuron = **by_uid.get(&uid)?;
        Some(OnchainWeight { neuron, weight })
    });
    Renewal::Renewed(renewed.collect())
}

/// Whether the neuron at a uid is still the one that got the weight there.
fn is_same(then: &Neuron, now: &Neuron) -> bool {
    // The chain may not state the block of a registration.
    let registered_again = then.registered != 0 && now.registered != 0 && then.registered != now.registered;
    then.hotkey == now.hotkey && !registered_again
}

impl Scores {
    /// The weights that stand after the cycle, if it names them: those that its scores gave, or those that it left or
    /// set again.
    pub fn onchain_after(&self) -> Option<Vec<OnchainWeight>> {
        if !self.standing.is_empty() {
            return Some(self.standing.clone());
        }
        let paid: Vec<_> = self
            .scores
            .iter()
            .map(|score| (score.uid, score.paid_points()))
            .collect();
        let weights: BTreeMap<_, _> = to_u16(&paid).into_iter().collect();
        let row = |score: &Score| {
            let weight = *weights.get(&score.uid)?;
            Some(OnchainWeight {
                neuron: Neuron {
                    uid: score.uid,
                    hotkey: score.miner.0,
                    // Scores of an earlier release name no coldkey.
                    coldkey: score.coldkey.unwrap_or(score.miner.0),
                    registered: score.registered,
                },
                weight,
            })
        };
        let rows: Vec<_> = self.scores.iter().filter_map(row).collect();
        (!rows.is_empty()).then_some(rows)
    }

    /// Whether the weights of the cycle are weights that stood, since it paid nobody.
    pub fn is_renewal(&self) -> bool {
        !self.standing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::vesting::Conviction;

    fn key(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    /// The neuron of a uid: its keys follow from the seed.
    fn neuron(uid: u8, seed: u8, registered: u64) -> Neuron {
        Neuron {
            uid: Uid(uid.into()),
            hotkey: key(seed),
            coldkey: key(seed.wrapping_add(100)),
            registered,
        }
    }

    fn row(uid: u8, weight: u16) -> OnchainWeight {
        let neuron = neuron(uid, uid, 7);
        OnchainWeight { neuron, weight }
    }

    fn subnet(uids: &[u8]) -> Vec<Neuron> {
        uids.iter().map(|uid| neuron(*uid, *uid, 7)).collect()
    }

    fn convicted(uids: &[u8]) -> Convicted {
        let of = |uid: &u8| Conviction {
            coldkey: key(uid.wrapping_add(100)),
            hotkey: key(*uid),
        };
        Convicted::new(&uids.iter().map(of).collect::<Vec<_>>())
    }

    const OWNED: BurnKeys = BurnKeys {
        burn_hotkey: None,
        owner: Some(Hotkey::from_bytes([9; 32])),
    };

    fn weights(renewal: Renewal) -> Vec<(u16, u16)> {
        match renewal {
            Renewal::Renewed(rows) => rows.iter().map(|row| (row.neuron.uid.0, row.weight)).collect(),
            Renewal::Unchanged | Renewal::Unburnable(_) => panic!("{renewal:?}"),
        }
    }

    #[test]
    fn a_convicts_weight_goes_to_the_burn_and_not_to_the_others() {
        let (standing, neurons) = ([row(1, 65_535), row(2, 30_000)], subnet(&[0, 1, 2, 9]));
        let renew = |guilty: &[u8]| renew_without(&standing, &neurons, OWNED, &convicted(guilty));
        assert_eq!(renew(&[]), Renewal::Unchanged);
        assert_eq!(weights(renew(&[1])), [(2, 30_000), (9, 65_535)]);
        assert_eq!(weights(renew(&[2])), [(1, 65_535), (9, 30_000)]);
        assert_eq!(weights(renew(&[1, 2])), [(9, 65_535)], "nobody is left");
        assert_eq!(renew(&[3]), Renewal::Unchanged, "it has no weight");
    }

    #[test]
    fn a_conviction_follows_the_keys_of_then_and_of_now() {
        let (standing, mut neurons) = ([row(1, 65_535)], subnet(&[1, 9]));
        neurons[0].coldkey = key(50);
        let judged = |coldkey: u8| {
            let conviction = Conviction {
                coldkey: key(coldkey),
                hotkey: key(77),
            };
            renew_without(&standing, &neurons, OWNED, &Convicted::new(&[conviction]))
        };
        assert_eq!(judged(50), judged(101), "a new owner, and the one of then");
        assert_eq!(weights(judged(50)), [(9, 65_535)]);
    }

    #[test]
    fn a_uid_that_passed_to_another_neuron_keeps_nothing() {
        let standing = [row(1, 65_535), row(2, 13)];
        let innocent = convicted(&[]);
        let renew = |neurons: &[Neuron]| renew_without(&standing, neurons, OWNED, &innocent);
        let burned = [(2, 13), (9, 65_535)];
        assert_eq!(weights(renew(&subnet(&[2, 9]))), burned, "deregistered");
        let mut neurons = subnet(&[1, 2, 9]);
        neurons[0].hotkey = key(44);
        assert_eq!(weights(renew(&neurons)), burned, "another hotkey");
        neurons[0] = neuron(1, 1, 8);
        assert_eq!(weights(renew(&neurons)), burned, "registered again");
        neurons[0].registered = 0;
        assert_eq!(
            renew(&neurons),
            Renewal::Unchanged,
            "the chain does not state when"
        );
        assert_eq!(
            renew_after_departures(&standing, &subnet(&[2, 9]), OWNED),
            renew(&subnet(&[2, 9]))
        );
    }

    #[test]
    fn the_burn_hotkey_is_preferred_to_the_owner_and_neither_burns_as_a_convict() {
        let (standing, neurons) = ([row(1, 65_535), row(8, 65_535)], subnet(&[1, 8, 9]));
        let keys = BurnKeys {
            burn_hotkey: Some(key(8)),
            ..OWNED
        };
        let renew = |guilty: &[u8]| renew_without(&standing, &neurons, keys, &convicted(guilty));
        assert_eq!(weights(renew(&[1])), [(8, 65_535)], "it had a weight of its own");
        assert_eq!(weights(renew(&[1, 8])), [(9, 65_535)]);
        assert_eq!(weights(renew(&[8])), [(1, 65_535), (9, 65_535)]);
        assert_eq!(renew(&[1, 8, 9]), Renewal::Unburnable(vec![Uid(1), Uid(8)]));
        let elsewhere = BurnKeys {
            burn_hotkey: Some(key(77)),
            ..OWNED
        };
        let renewed = renew_without(&standing, &neurons, elsewhere, &convicted(&[1]));
        assert_eq!(
            weights(renewed),
            [(8, 65_535), (9, 65_535)],
            "it is not registered"
        );
    }

    #[test]
    fn without_a_burn_nothing_is_set_whoever_is_left() {
        let (standing, neurons) = ([row(1, 65_535), row(2, 30_000)], subnet(&[1, 2]));
        for (guilty, unburned) in [(vec![1], vec![Uid(1)]), (vec![1, 2], vec![Uid(1), Uid(2)])] {
            let renewed = renew_without(&standing, &neurons, OWNED, &convicted(&guilty));
            assert_eq!(renewed, Renewal::Unburnable(unburned));
        }
    }

    proptest! {
        #[test]
        fn taken_weight_is_burned_and_pays_nobody(
            rows in btree_map(0_u8..20, 1_u16.., 0..12),
            present in vec(any::<bool>(), 20),
            guilty in vec(0_u8..20, 0..6),
            burner in 0_u8..20,
        ) {
            let shares: Vec<_> = rows.iter().map(|(uid, weight)| (Uid((*uid).into()), u64::from(*weight))).collect();
            // As the chain has them: the largest is 65,535.
            let standing: Vec<_> = to_u16(&shares)
                .into_iter()
                .map(|(uid, weight)| row(u8::try_from(uid.0).unwrap(), weight))
                .collect();
            let uids: Vec<_> = (0_u8..20).filter(|uid| present[usize::from(*uid)]).collect();
            let neurons = subnet(&uids);
            let keys = BurnKeys { burn_hotkey: Some(key(burner)), owner: None };
            let convicted = convicted(&guilty);
            let may_keep = |row: &OnchainWeight| {
                neurons.iter().any(|neuron| neuron.uid == row.neuron.uid) && !convicted.holds(&row.neuron)
            };
            let burns = uids.contains(&burner) && !guilty.contains(&burner);
            match renew_without(&standing, &neurons, keys, &convicted) {
                Renewal::Unchanged => prop_assert!(standing.iter().all(may_keep)),
                Renewal::Unburnable(uids) => {
                    prop_assert!(!burns);
                    let lost: Vec<_> = standing.iter().filter(|row| !may_keep(row)).map(|row| row.neuron.uid).collect();
                    prop_assert_eq!(uids, lost);
                }
                Renewal::Renewed(renewed) => {
                    prop_assert!(burns);
                    prop_assert!(renewed.iter().all(may_keep));
                    prop_assert!(renewed.iter().any(|row| row.weight == u16::MAX));
                    // The sum stays the same but for the scale and for halves that are rounded, so a share grows only
                    // if its neuron burns.
                    let before = |uid: Uid| standing.iter().find(|row| row.neuron.uid == uid).map_or(0, |row| row.weight);
                    for row in &renewed {
                        let burner = row.neuron.uid == Uid(burner.into());
                        prop_assert!(burner || row.weight <= before(row.neuron.uid));
                    }
                    let renewed_again = renew_without(&renewed, &neurons, keys, &convicted);
                    prop_assert_eq!(renewed_again, Renewal::Unchanged, "a cycle sets them once");
                }
            }
        }
    }
}
