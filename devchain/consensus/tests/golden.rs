//! Epochs against the independent reference in `python/reference.py`, which computes in exact fractions. The arithmetic
//! here rounds down at 32 fractional bits in every step, so it may differ by the tolerances below.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy knows tests, not their helpers; these may fail by panicking too"
)]

use muster_devchain_consensus::{Epoch, Neuron, Row, Rules, Seat, pay, run};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Parts of 65535 by which a column or a bond may differ.
const PARTS: u16 = 2;
/// The share of the amount by which a payment may differ.
const PAY: f64 = 1e-6;

#[derive(Deserialize)]
struct Case {
    name: String,
    epoch: Before,
    outcome: After,
}

#[derive(Deserialize)]
struct Before {
    neurons: Vec<NeuronBefore>,
    weights: Vec<Row>,
    bonds: Vec<Row>,
    rules: RulesBefore,
}

#[derive(Deserialize)]
struct NeuronBefore {
    stake: u64,
    permit: bool,
    last_update: u64,
    registered: u64,
    committed: Option<u64>,
}

#[derive(Deserialize)]
struct RulesBefore {
    block: u64,
    bonds_since: u64,
    activity_cutoff: u64,
    kappa: u16,
    bonds_moving_average: u64,
    bonds_penalty: u16,
    max_validators: u16,
    stake_threshold: u64,
}

#[derive(Deserialize)]
struct After {
    active: Vec<bool>,
    permit: Vec<bool>,
    stake: Vec<u16>,
    consensus: Vec<u16>,
    incentive: Vec<u16>,
    trust: Vec<u16>,
    validator_trust: Vec<u16>,
    dividends: Vec<u16>,
    pruning_score: Vec<u16>,
    pay: Vec<f64>,
    bonds: Vec<Row>,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("vectors.json")).unwrap()
}

fn epoch(before: Before) -> Epoch {
    let rules = before.rules;
    let neuron = |n: NeuronBefore| Neuron {
        stake: n.stake,
        permit: n.permit,
        last_update: n.last_update,
        registered: n.registered,
        committed: n.committed,
    };
    Epoch {
        neurons: before.neurons.into_iter().map(neuron).collect(),
        weights: before.weights,
        bonds: before.bonds,
        rules: Rules {
            block: rules.block,
            bonds_since: rules.bonds_since,
            activity_cutoff: rules.activity_cutoff,
            kappa: rules.kappa,
            bonds_moving_average: rules.bonds_moving_average,
            bonds_penalty: rules.bonds_penalty,
            max_validators: rules.max_validators,
            stake_threshold: rules.stake_threshold,
        },
    }
}

#[track_caller]
fn near(name: &str, what: &str, ours: &[u16], theirs: &[u16]) {
    assert_eq!(ours.len(), theirs.len(), "{name}: {what}");
    for (uid, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert!(
            ours.abs_diff(*theirs) <= PARTS,
            "{name}: {what} of uid {uid} is {ours}, not {theirs}"
        );
    }
}

#[test]
fn epochs_are_what_the_reference_says() {
    for case in cases() {
        let (name, outcome, expected) = (case.name, run(&epoch(case.epoch)), case.outcome);
        let column = |value: fn(&Seat) -> u16| outcome.seats.iter().map(value).collect::<Vec<_>>();
        let flags = |value: fn(&Seat) -> bool| outcome.seats.iter().map(value).collect::<Vec<_>>();
        assert_eq!(flags(|s| s.active), expected.active, "{name}");
        assert_eq!(flags(|s| s.permit), expected.permit, "{name}");
        near(&name, "stake", &column(|s| s.stake), &expected.stake);
        near(&name, "consensus", &column(|s| s.consensus), &expected.consensus);
        near(&name, "incentive", &column(|s| s.incentive), &expected.incentive);
        near(&name, "trust", &column(|s| s.trust), &expected.trust);
        near(
            &name,
            "validator trust",
            &column(|s| s.validator_trust),
            &expected.validator_trust,
        );
        near(&name, "dividends", &column(|s| s.dividends), &expected.dividends);
        near(
            &name,
            "pruning score",
            &column(|s| s.pruning_score),
            &expected.pruning_score,
        );
    }
}

#[test]
fn bonds_are_what_the_reference_says() {
    for case in cases() {
        let outcome = run(&epoch(case.epoch));
        for (uid, (ours, theirs)) in outcome.bonds.iter().zip(&case.outcome.bonds).enumerate() {
            let ours: BTreeMap<u16, u16> = ours.iter().copied().collect();
            let theirs: BTreeMap<u16, u16> = theirs.iter().copied().collect();
            for target in ours.keys().chain(theirs.keys()) {
                let bond = |row: &BTreeMap<u16, u16>| row.get(target).copied().unwrap_or_default();
                let place = format!("bond {uid} -> {target}");
                near(&case.name, &place, &[bond(&ours)], &[bond(&theirs)]);
            }
        }
    }
}

#[test]
fn pay_is_what_the_reference_says() {
    const AMOUNT: u64 = 41_000_000_001;
    for case in cases() {
        let paid = pay(AMOUNT, &run(&epoch(case.epoch)));
        let expected = case.outcome.pay;
        let Some(paid) = paid else {
            assert!(expected.iter().all(|share| *share == 0.0), "{}", case.name);
            continue;
        };
        assert_eq!(paid.iter().map(|p| p.sum()).sum::<u64>(), AMOUNT, "{}", case.name);
        for (uid, (paid, expected)) in paid.iter().zip(expected).enumerate() {
            let share = paid.sum() as f64 / AMOUNT as f64;
            assert!(
                (share - expected).abs() < PAY,
                "{}: pay of uid {uid} is {share}, not {expected}",
                case.name
            );
        }
    }
}

#[test]
fn the_vectors_say_something() {
    let cases = cases();
    assert!(cases.len() >= 16);
    let paid = |case: &&Case| case.outcome.incentive.iter().any(|share| *share > 0);
    assert!(cases.iter().filter(paid).count() >= 12);
}
