//! Thousands of schedules of one subnet in one thread: a facilitator, a validator, two miners and their executors, with
//! the cores that the real processes run (the miner's lease table and store, the attempt's machine with its steps and
//! its connection, admission, routing, the queue, the window of status updates and what follows an end, the
//! facilitator's connections and histories), struck by everything in `Fault`, and held
//! against every `Invariant`. In two of three schedules executors come back to their leases, and other processes take
//! their jobs over.
//!
//! A schedule is its seed. `MUSTER_SIMULATION_SEED=123 cargo nextest run -p muster-tests -E 'binary(simulation)'`
//! replays one and prints what happened; `MUSTER_SIMULATION_SEEDS=100000` runs more of them.

#![expect(
    clippy::print_stderr,
    reason = "a replayed schedule is told to whoever replays it"
)]

mod attempts;
mod choosing;
mod documents;
mod executor;
mod executor_link;
mod facilitator;
mod faults;
mod fencing;
mod invariants;
mod machine;
mod miner;
mod miner_effects;
mod network;
mod outbox;
mod queue_model;
mod validator;
mod waiting;
mod world;

use std::collections::BTreeSet;
use std::time::Duration;

use muster_job_queue::QueueAccount;
use muster_protocol::JobId;
use muster_protocol::job::Priority;
use uuid::Uuid;

use faults::{Fault, Mutation};
use invariants::{Milestone, Violation};
use waiting::WaitTerms;
use world::{Dice, Happening, World, WorldTraits, start};

/// How many schedules a test runs.
const SCHEDULES: u64 = 1200;
/// Within how many schedules each broken rule must be noticed.
const NOTICED_WITHIN: u64 = 600;
/// Faults strike for so long.
const STORM: Duration = Duration::from_secs(60);
/// After it everything that is waited for has happened or been given up.
const CALM: Duration = Duration::from_secs(3600);

/// The outcome of one schedule.
struct Outcome {
    struck: BTreeSet<Fault>,
    reached: BTreeSet<Milestone>,
    jobs: usize,
    violation: Option<Violation>,
}

fn job(number: u64) -> JobId {
    JobId::from_uuid(Uuid::from_u128(u128::from(number) + 1))
}

/// The terms of a job: one of three accounts, any priority, and now and then a user who waits for a short time only.
fn terms(dice: &mut Dice) -> WaitTerms {
    let account = dice.below(3);
    let priority = u8::try_from(1 + dice.below(10)).unwrap_or_default();
    let patience = if dice.one_in(6) {
        dice.millis(1_000, 60_000)
    } else {
        Duration::from_secs(7_200)
    };
    WaitTerms {
        account: QueueAccount::new(&format!("account {account}")),
        priority: Priority::try_from(priority).unwrap_or_default(),
        patience,
    }
}

/// One schedule, from its seed to its end.
fn schedule(seed: u64, mutation: Option<Mutation>) -> Outcome {
    let mut dice = Dice::new(seed ^ 0x006d_7573_7465_7200);
    // Everything fits on either miner, unless this is a schedule of scarcity, in which jobs wait. Then the validator
    // may also believe in an executor that is not there any more, so that miners decline.
    let scarce = dice.one_in(3);
    let jobs = if scarce {
        3 + dice.below(12)
    } else {
        1 + dice.below(4)
    };
    let capacity: u32 = if scarce { 1 } else { 8 };
    let believed = capacity + u32::from(dice.one_in(3));
    let reattaches = !dice.one_in(3);
    let traits = WorldTraits {
        capacity,
        believed,
        reattaches,
        remote: reattaches && dice.one_in(3),
    };
    let mut world = World::new(seed, traits, mutation);
    for number in 0..jobs {
        let when = start().plus(dice.millis(0, 20_000));
        world.terms.insert(job(number), terms(&mut dice));
        world.at(when, Happening::Submit(job(number)));
        if dice.one_in(4) {
            let when = when.plus(dice.millis(0, 12_000));
            world.at(when, Happening::CallOff(job(number)));
        }
    }
    let mut struck = BTreeSet::new();
    for _ in 0..dice.below(6) {
        let chosen = usize::try_from(dice.below(Fault::ALL.len() as u64)).unwrap_or_default();
        let when = start().plus(dice.millis(0, 40_000));
        if let Some(fault) = Fault::ALL.get(chosen) {
            struck.insert(*fault);
            world.at(when, Happening::Strike(*fault));
        }
    }
    world.run(start().plus(STORM));
    world.mend_everything();
    world.run(start().plus(STORM).plus(CALM));
    // A validator that comes by receives what it missed: one more job, on each miner.
    for number in 0..4 {
        let when = world.now.plus(Duration::from_secs(number * 120));
        world.at(when, Happening::Submit(job(1000 + number)));
    }
    let end = world.now.plus(CALM);
    world.run(end);
    if world.violation.is_none() {
        world.judge(&struck);
    }
    Outcome {
        struck,
        reached: world.ledger.reached,
        jobs: usize::try_from(jobs).unwrap_or_default(),
        violation: world.violation,
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// A quarter of all schedules, each quarter in a test of its own so that they run beside one another.
fn quarter(which: u64) {
    if let Some(seed) = number("MUSTER_SIMULATION_SEED") {
        let outcome = schedule(seed, None);
        eprintln!(
            "seed {seed}: {} jobs, struck by {:?}",
            outcome.jobs, outcome.struck
        );
        assert_eq!(outcome.violation, None);
        return;
    }
    let (mut struck, mut reached) = (BTreeSet::new(), BTreeSet::new());
    let all = number("MUSTER_SIMULATION_SEEDS").unwrap_or(SCHEDULES);
    for seed in (which..all).step_by(4) {
        let outcome = schedule(seed, None);
        assert_eq!(
            outcome.violation, None,
            "replay it with MUSTER_SIMULATION_SEED={seed}; struck by {:?}",
            outcome.struck
        );
        struck.extend(outcome.struck);
        reached.extend(outcome.reached);
    }
    assert_eq!(
        struck.len(),
        Fault::ALL.len(),
        "some fault never struck: {struck:?}"
    );
    assert_eq!(
        reached.len(),
        Milestone::ALL.len(),
        "some way of coming back was never taken: {reached:?}"
    );
}

#[test]
fn every_schedule_keeps_every_promise_1() {
    quarter(0);
}

#[test]
fn every_schedule_keeps_every_promise_2() {
    quarter(1);
}

#[test]
fn every_schedule_keeps_every_promise_3() {
    quarter(2);
}

#[test]
fn every_schedule_keeps_every_promise_4() {
    quarter(3);
}

#[test]
fn the_same_seed_is_the_same_schedule() {
    for mutation in [None, Some(Mutation::MinerForgetsLeases)] {
        for seed in 0..40 {
            let (first, second) = (schedule(seed, mutation), schedule(seed, mutation));
            assert_eq!(first.violation, second.violation, "seed {seed}");
            assert_eq!(first.struck, second.struck, "seed {seed}");
        }
    }
}

/// A simulation that cannot fail shows nothing: each rule is broken on purpose, and some promise must be seen to break.
#[test]
fn every_broken_rule_is_noticed() {
    let mut unnoticed = Vec::new();
    for mutation in Mutation::ALL {
        let noticed =
            (0..NOTICED_WITHIN).find_map(|seed| Some((seed, schedule(seed, Some(mutation)).violation?)));
        match noticed {
            Some((seed, violation)) => {
                eprintln!(
                    "{mutation:?}: noticed by seed {seed} as {:?}: {}",
                    violation.broken, violation.how
                );
            }
            None => unnoticed.push(mutation),
        }
    }
    assert!(unnoticed.is_empty(), "nobody noticed {unnoticed:?}");
}
