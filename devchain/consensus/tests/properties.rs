//! Properties of every epoch, whatever the subnet.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy knows tests, not their helpers; these may fail by panicking too"
)]

use muster_devchain_consensus::{Epoch, Neuron, Row, Rules, pay, run};
use proptest::prelude::*;

const BLOCK: u64 = 1_000;

fn rules() -> impl Strategy<Value = Rules> {
    (
        any::<u16>(),
        0u64..1_200_000,
        any::<u16>(),
        0u16..9,
        prop_oneof![Just(0), any::<u64>()],
        0u64..2_000,
    )
        .prop_map(
            |(kappa, memory, penalty, max_validators, stake_threshold, cutoff)| Rules {
                block: BLOCK,
                bonds_since: 900,
                activity_cutoff: cutoff,
                kappa,
                bonds_moving_average: memory,
                bonds_penalty: penalty,
                max_validators,
                stake_threshold,
            },
        )
}

fn neuron() -> impl Strategy<Value = Neuron> {
    let stake = prop_oneof![Just(0), 1u64..1_000_000_000_000, any::<u64>()];
    (
        stake,
        any::<bool>(),
        0..=BLOCK,
        0..=BLOCK,
        proptest::option::of(0..=BLOCK),
    )
        .prop_map(|(stake, permit, last_update, registered, committed)| Neuron {
            stake,
            permit,
            last_update,
            registered,
            committed,
        })
}

/// Rows as nobody checked them: uids that do not exist, repeated ones, more rows than neurons.
fn rows(most: u16) -> impl Strategy<Value = Vec<Row>> {
    let row = proptest::collection::vec((0..most.saturating_add(3), any::<u16>()), 0..12);
    proptest::collection::vec(row, 0..14)
}

prop_compose! {
    fn anything()(neurons in proptest::collection::vec(neuron(), 0..12), weights in rows(12), bonds in rows(12), rules in rules())
        -> Epoch
    {
        Epoch { neurons, weights, bonds, rules }
    }
}

/// A subnet of validators who agree on the weights of miners, all of them there for long.
fn agreed(stakes: &[u64], weights: &[u16]) -> Epoch {
    let neuron = |stake, permit| Neuron {
        stake,
        permit,
        last_update: BLOCK - 1,
        registered: 0,
        committed: None,
    };
    let validators = stakes.iter().map(|stake| neuron(*stake, true));
    let miners = weights.iter().map(|_| neuron(0, false));
    let first = u16::try_from(stakes.len()).unwrap();
    let row: Row = (first..).zip(weights.iter().copied()).collect();
    Epoch {
        neurons: validators.chain(miners).collect(),
        weights: vec![row; stakes.len()],
        bonds: vec![],
        rules: Rules {
            block: BLOCK,
            bonds_since: 900,
            activity_cutoff: 5_000,
            kappa: 32_767,
            bonds_moving_average: 900_000,
            bonds_penalty: u16::MAX,
            max_validators: 64,
            stake_threshold: 0,
        },
    }
}

/// The subnet with uid `i` renamed to `places[i]`.
fn renamed(epoch: &Epoch, places: &[u16]) -> Epoch {
    let row = |row: &Row| -> Row {
        let known = row.iter().filter(|(uid, _)| usize::from(*uid) < places.len());
        known
            .map(|(uid, value)| (places[usize::from(*uid)], *value))
            .collect()
    };
    let mut renamed = epoch.clone();
    renamed.weights = vec![Row::new(); places.len()];
    renamed.bonds = vec![Row::new(); places.len()];
    for (uid, place) in places.iter().enumerate() {
        let place = usize::from(*place);
        renamed.neurons[place] = epoch.neurons[uid];
        renamed.weights[place] = epoch.weights.get(uid).map(row).unwrap_or_default();
        renamed.bonds[place] = epoch.bonds.get(uid).map(row).unwrap_or_default();
    }
    renamed
}

proptest! {
    #[test]
    fn every_unit_is_paid_or_waits(epoch in anything(), amount: u64) {
        let outcome = run(&epoch);
        let counted = |n: &Neuron| n.stake > 0 && n.stake >= epoch.rules.stake_threshold;
        match pay(amount, &outcome) {
            Some(paid) => {
                let sum: u128 = paid.iter().map(|p| u128::from(p.miner) + u128::from(p.validator)).sum();
                prop_assert_eq!(sum, u128::from(amount));
                prop_assert_eq!(paid.len(), epoch.neurons.len());
            }
            None => prop_assert!(!epoch.neurons.iter().any(counted), "somebody has stake and nobody was paid"),
        }
    }

    #[test]
    fn nothing_breaks_and_columns_have_their_length(epoch in anything()) {
        let outcome = run(&epoch);
        let n = epoch.neurons.len();
        prop_assert_eq!((outcome.seats.len(), outcome.bonds.len()), (n, n));
        prop_assert!(outcome.bonds.iter().flatten().all(|(uid, _)| usize::from(*uid) < n));
        let permits = outcome.seats.iter().filter(|seat| seat.permit).count();
        prop_assert!(permits <= usize::from(epoch.rules.max_validators));
    }

    #[test]
    fn weights_without_a_permit_count_nothing(epoch in anything(), rows in rows(12)) {
        let mut other = epoch.clone();
        other.weights.resize(epoch.neurons.len(), Row::new());
        for (uid, neuron) in epoch.neurons.iter().enumerate() {
            if !neuron.permit {
                other.weights[uid] = rows.get(uid).cloned().unwrap_or_default();
            }
        }
        prop_assert_eq!(run(&other), run(&epoch));
    }

    #[test]
    fn weights_for_oneself_count_nothing(epoch in anything(), value: u16) {
        let mut other = epoch.clone();
        for (uid, row) in (0u16..).zip(&mut other.weights) {
            row.retain(|(target, _)| *target != uid);
            row.push((uid, value));
        }
        let mut without = epoch;
        for (uid, row) in (0u16..).zip(&mut without.weights) {
            row.retain(|(target, _)| *target != uid);
        }
        prop_assert_eq!(run(&other), run(&without));
    }

    #[test]
    fn a_minority_outlier_is_clipped(
        weights in proptest::collection::vec(1u16.., 2..8),
        stakes in proptest::collection::vec(1_000u64..1_000_000, 3..7),
        favourite in 0usize..8,
    ) {
        let honest = agreed(&stakes, &weights);
        let expected = run(&honest);
        // One more validator, with less than a third of all stake, gives everything to one miner.
        let rest: u64 = stakes.iter().sum();
        let mut with: Vec<u64> = stakes.clone();
        with.push(rest / 3);
        let mut epoch = agreed(&with, &weights);
        let favourite = u16::try_from(with.len() + favourite % weights.len()).unwrap();
        epoch.weights[stakes.len()] = vec![(favourite, u16::MAX)];
        let outcome = run(&epoch);

        let first = (stakes.len(), with.len());
        for miner in 0..weights.len() {
            let (honest, now) = (expected.seats[first.0 + miner], outcome.seats[first.1 + miner]);
            prop_assert_eq!(honest.consensus, now.consensus, "the outlier moved what the others agree on");
        }
        let gained = outcome.seats[usize::from(favourite)].incentive;
        let honest = expected.seats[usize::from(favourite) - 1].incentive;
        // It may still give the others nothing: its own stake's part of theirs, a quarter at most.
        prop_assert!(f64::from(gained) <= f64::from(honest) * 4.0 / 3.0 + 2.0, "{honest} became {gained}");
        let outlier = outcome.seats[stakes.len()];
        prop_assert!(outlier.validator_trust <= outcome.seats[0].validator_trust);
    }

    #[test]
    fn names_do_not_matter(epoch in anything(), order in Just((0..12u16).collect::<Vec<_>>()).prop_shuffle()) {
        let n = u16::try_from(epoch.neurons.len()).unwrap();
        let places: Vec<u16> = order.into_iter().filter(|place| *place < n).collect();
        // Rows name a uid once on the chain, and of equal stakes the uid decides who has the permit.
        let mut epoch = epoch;
        epoch.rules.max_validators = n;
        for row in epoch.weights.iter_mut().chain(&mut epoch.bonds) {
            row.sort_unstable();
            row.dedup_by_key(|(uid, _)| *uid);
        }
        let (before, after) = (run(&epoch), run(&renamed(&epoch, &places)));
        for (uid, place) in places.iter().enumerate() {
            let place = usize::from(*place);
            prop_assert_eq!(before.seats[uid], after.seats[place]);
            prop_assert_eq!(before.miners[uid], after.miners[place]);
            prop_assert_eq!(before.validators[uid], after.validators[place]);
        }
    }

    #[test]
    fn a_perfect_agreement_pays_by_weight(weights in proptest::collection::vec(1u16.., 1..8), stakes in proptest::collection::vec(1u64..1_000_000, 1..6)) {
        let outcome = run(&agreed(&stakes, &weights));
        let sum: f64 = weights.iter().copied().map(f64::from).sum();
        for (seat, weight) in outcome.seats[stakes.len()..].iter().zip(&weights) {
            let expected = f64::from(*weight) / sum * 65535.0;
            prop_assert!((f64::from(seat.incentive) - expected).abs() <= 2.0);
            // A weight that does not round to nothing is trusted whole.
            prop_assert!(seat.trust >= 65_533 || seat.incentive <= 1);
        }
    }
}
