//! Changes of a subnet between two reads. The comparison is pure; [`crate::MetagraphWatch`] reads at every finalised
//! block.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use muster_protocol::{BlockNumber, Hotkey, Rao, Uid};

use crate::hyperparameters::Hyperparameters;
use crate::metagraph::{Metagraph, Neuron};

/// One change of a subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetagraphEvent {
    /// A hotkey got a uid that was free.
    Registered {
        /// The uid that the hotkey got.
        uid: Uid,
        /// The new hotkey.
        hotkey: Hotkey,
        /// The block of its registration.
        at: BlockNumber,
    },
    /// A uid passed from one neuron to another: weights meant for the old neuron must not reach the new one.
    UidReused {
        /// The uid that passed on.
        uid: Uid,
        /// The hotkey before.
        from: Hotkey,
        /// The hotkey now.
        to: Hotkey,
        /// The block of the newer registration.
        at: BlockNumber,
    },
    /// A neuron continues under another hotkey: uid, owner and registration are the same.
    HotkeySwapped {
        /// The neuron's uid, which stays the same.
        uid: Uid,
        /// The hotkey before.
        from: Hotkey,
        /// The hotkey now.
        to: Hotkey,
    },
    /// A hotkey has no uid any more.
    Deregistered {
        /// The uid that it had.
        uid: Uid,
        /// The hotkey that was deregistered.
        hotkey: Hotkey,
    },
    /// A neuron announced another address, or none.
    AxonChanged {
        /// The uid of the neuron.
        uid: Uid,
        /// The address before.
        from: Option<SocketAddr>,
        /// The address now.
        to: Option<SocketAddr>,
    },
    /// A neuron may set weights from now on.
    PermitGained(Uid),
    /// A neuron may no longer set weights.
    PermitLost(Uid),
    /// A neuron's stake changed by at least the threshold.
    StakeChanged {
        /// The uid of the neuron.
        uid: Uid,
        /// The stake before.
        from: Rao,
        /// The stake now.
        to: Rao,
    },
    /// The subnet's hyperparameters changed.
    RulesChanged {
        /// The hyperparameters before.
        from: Hyperparameters,
        /// The hyperparameters now.
        to: Hyperparameters,
    },
}

/// A subnet and its hyperparameters, read at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetSnapshot {
    /// The subnet's neurons.
    pub graph: Arc<Metagraph>,
    /// The hyperparameters, if they were read.
    pub rules: Option<Hyperparameters>,
}

/// The changes from `old` to `new`, uid by uid. A change of stake is reported only if it is at least `threshold`.
///
/// The two reads may lie far apart: a change in between that was undone is not seen.
pub fn diff(old: &SubnetSnapshot, new: &SubnetSnapshot, threshold: Rao) -> Vec<MetagraphEvent> {
    let mut events = Vec::new();
    let places = |graph: &Metagraph| graph.neurons.len();
    let now: BTreeMap<Hotkey, Uid> = new
        .graph
        .neurons
        .iter()
        .map(|neuron| (neuron.hotkey, neuron.uid))
        .collect();
    for at in 0..places(&old.graph).max(places(&new.graph)) {
        let (before, after) = (old.graph.neurons.get(at), new.graph.neurons.get(at));
        match (before, after) {
            (Some(before), Some(after)) => events.extend(compare_neuron(before, after, &now, threshold)),
            (Some(before), None) => {
                if !now.contains_key(&before.hotkey) {
                    events.push(MetagraphEvent::Deregistered {
                        uid: before.uid,
                        hotkey: before.hotkey,
                    });
                }
            }
            (None, Some(after)) => events.push(MetagraphEvent::Registered {
                uid: after.uid,
                hotkey: after.hotkey,
                at: after.registered,
            }),
            (None, None) => {}
        }
    }
    if let (Some(from), Some(to)) = (old.rules, new.rules)
        && from != to
    {
        events.push(MetagraphEvent::RulesChanged { from, to });
    }
    events
}

/// The changes at one uid that is taken in both snapshots.
fn compare_neuron(
    before: &Neuron,
    after: &Neuron,
    now: &BTreeMap<Hotkey, Uid>,
    threshold: Rao,
) -> Vec<MetagraphEvent> {
    let uid = after.uid;
    let mut events = Vec::new();
    if before.hotkey != after.hotkey {
        let (from, to) = (before.hotkey, after.hotkey);
        if before.coldkey == after.coldkey && before.registered == after.registered {
            events.push(MetagraphEvent::HotkeySwapped { uid, from, to });
        } else {
            events.push(MetagraphEvent::UidReused {
                uid,
                from,
                to,
                at: after.registered,
            });
            if !now.contains_key(&from) {
                events.push(MetagraphEvent::Deregistered { uid, hotkey: from });
            }
        }
    } else if before.registered != after.registered {
        // Deregistered and registered again under the same uid between two reads.
        events.push(MetagraphEvent::UidReused {
            uid,
            from: before.hotkey,
            to: after.hotkey,
            at: after.registered,
        });
    }
    if before.axon != after.axon {
        events.push(MetagraphEvent::AxonChanged {
            uid,
            from: before.axon,
            to: after.axon,
        });
    }
    match (before.permit, after.permit) {
        (false, true) => events.push(MetagraphEvent::PermitGained(uid)),
        (true, false) => events.push(MetagraphEvent::PermitLost(uid)),
        (true, true) | (false, false) => {}
    }
    if before.stake != after.stake && before.stake.abs_diff(after.stake) >= threshold.0 {
        events.push(MetagraphEvent::StakeChanged {
            uid,
            from: Rao(before.stake),
            to: Rao(after.stake),
        });
    }
    events
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use muster_protocol::Netuid;

    use super::*;

    fn neuron(uid: u16, key: u8) -> Neuron {
        Neuron {
            uid: Uid(uid),
            hotkey: Hotkey::from_bytes([key; 32]),
            coldkey: Hotkey::from_bytes([key | 128; 32]),
            axon: None,
            stake: 100,
            permit: false,
            active: true,
            registered: BlockNumber(1),
            last_update: BlockNumber(1),
            incentive: 0,
        }
    }

    fn look(neurons: Vec<Neuron>) -> SubnetSnapshot {
        let graph = Metagraph {
            block: BlockNumber(9),
            netuid: Netuid(1),
            tempo: 20,
            last_epoch: BlockNumber(0),
            certificates: std::collections::BTreeMap::new(),
            neurons,
        };
        SubnetSnapshot {
            graph: Arc::new(graph),
            rules: None,
        }
    }

    fn changes(old: impl Into<Vec<Neuron>>, new: impl Into<Vec<Neuron>>) -> Vec<MetagraphEvent> {
        diff(&look(old.into()), &look(new.into()), Rao(10))
    }

    const KEY: fn(u8) -> Hotkey = |key| Hotkey::from_bytes([key; 32]);

    #[test]
    fn a_place_is_taken_passed_on_renamed_and_given_up() {
        let (one, two) = (neuron(0, 1), neuron(1, 2));
        let registered = MetagraphEvent::Registered {
            uid: Uid(1),
            hotkey: KEY(2),
            at: BlockNumber(1),
        };
        assert_eq!(changes([one.clone()], [one.clone(), two.clone()]), [registered]);
        let gone = MetagraphEvent::Deregistered {
            uid: Uid(1),
            hotkey: KEY(2),
        };
        let alone = changes([one.clone(), two.clone()], [one.clone()]);
        assert_eq!(alone.first(), Some(&gone));
        assert_eq!(alone.len(), 1);

        let three = Neuron {
            registered: BlockNumber(7),
            ..neuron(1, 3)
        };
        let reused = MetagraphEvent::UidReused {
            uid: Uid(1),
            from: KEY(2),
            to: KEY(3),
            at: BlockNumber(7),
        };
        assert_eq!(
            changes([one.clone(), two.clone()], [one.clone(), three]),
            [reused, gone]
        );

        let renamed = Neuron {
            hotkey: KEY(9),
            ..two.clone()
        };
        let swapped = MetagraphEvent::HotkeySwapped {
            uid: Uid(1),
            from: KEY(2),
            to: KEY(9),
        };
        assert_eq!(
            changes([one.clone(), two.clone()], [one.clone(), renamed]),
            [swapped]
        );

        let again = Neuron {
            registered: BlockNumber(8),
            ..two.clone()
        };
        let reused = MetagraphEvent::UidReused {
            uid: Uid(1),
            from: KEY(2),
            to: KEY(2),
            at: BlockNumber(8),
        };
        assert_eq!(changes([one.clone(), two], [one, again]), [reused]);
    }

    #[test]
    fn two_who_changed_places_are_not_gone() {
        let old = [neuron(0, 1), neuron(1, 2)];
        let new = [
            Neuron {
                registered: BlockNumber(5),
                ..neuron(0, 2)
            },
            Neuron {
                registered: BlockNumber(6),
                ..neuron(1, 1)
            },
        ];
        let events = changes(old.clone(), new.clone());
        assert_eq!(events.len(), 2, "{events:?}");
        assert!(
            events
                .iter()
                .all(|event| matches!(event, MetagraphEvent::UidReused { .. }))
        );
    }

    #[test]
    fn axons_permits_stakes_and_rules_are_told() {
        let before = neuron(0, 1);
        let axon: SocketAddr = "1.2.3.4:5".parse().unwrap();
        let after = Neuron {
            axon: Some(axon),
            permit: true,
            stake: 110,
            ..before.clone()
        };
        let expected = [
            MetagraphEvent::AxonChanged {
                uid: Uid(0),
                from: None,
                to: Some(axon),
            },
            MetagraphEvent::PermitGained(Uid(0)),
            MetagraphEvent::StakeChanged {
                uid: Uid(0),
                from: Rao(100),
                to: Rao(110),
            },
        ];
        assert_eq!(changes([before.clone()], [after.clone()]), expected);
        assert_eq!(
            changes(
                [after.clone()],
                [Neuron {
                    permit: false,
                    ..after.clone()
                }]
            ),
            [MetagraphEvent::PermitLost(Uid(0))]
        );
        assert_eq!(
            changes([after.clone()], [Neuron { stake: 119, ..after }]),
            [],
            "below the threshold"
        );

        let rules = Hyperparameters {
            tempo: 20,
            commit_reveal: false,
            commit_reveal_version: None,
            reveal_period: 1,
            weights_rate_limit: 0,
            weights_version_key: 0,
            min_allowed_weights: 1,
        };
        let other = Hyperparameters {
            commit_reveal: true,
            ..rules
        };
        let with = |rules| SubnetSnapshot {
            rules,
            ..look(vec![])
        };
        let told = MetagraphEvent::RulesChanged {
            from: rules,
            to: other,
        };
        assert_eq!(diff(&with(Some(rules)), &with(Some(other)), Rao(0)), [told]);
        assert_eq!(diff(&with(None), &with(Some(other)), Rao(0)), []);
    }

    proptest! {
        #[test]
        fn nothing_changed_is_nothing_and_every_newcomer_is_told(
            old in proptest::collection::vec((0_u8..8, 1_u64..4), 0..10), new in proptest::collection::vec((0_u8..8, 1_u64..4), 0..10),
        ) {
            let neurons = |keys: &[(u8, u64)]| -> Vec<Neuron> {
                keys.iter().enumerate().map(|(uid, (key, at))| Neuron {
                    registered: BlockNumber(*at), ..neuron(u16::try_from(uid).unwrap(), *key)
                }).collect()
            };
            let (old, new) = (neurons(&old), neurons(&new));
            prop_assert_eq!(changes(old.clone(), old.clone()), vec![]);
            let events = changes(old.clone(), new.clone());
            for (uid, after) in new.iter().enumerate() {
                let same = old.get(uid).is_some_and(|before| before.hotkey == after.hotkey && before.registered == after.registered);
                let told = events.iter().any(|event| match event {
                    MetagraphEvent::Registered { uid, hotkey, .. } => (*uid, *hotkey) == (after.uid, after.hotkey),
                    MetagraphEvent::UidReused { uid, to, .. } | MetagraphEvent::HotkeySwapped { uid, to, .. } => (*uid, *to) == (after.uid, after.hotkey),
                    MetagraphEvent::Deregistered { .. } | MetagraphEvent::AxonChanged { .. } | MetagraphEvent::PermitGained(_)
                    | MetagraphEvent::PermitLost(_) | MetagraphEvent::StakeChanged { .. } | MetagraphEvent::RulesChanged { .. } => false,
                });
                prop_assert_eq!(told, !same);
            }
        }
    }
}
