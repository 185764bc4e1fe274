//! Two validators that see different receipts and state different credits: how far their scores lie apart.
//!
//! With δ the counted work that differs as a share of the class's capacity, and ε the credit that differs as a share of
//! it, `‖s − s′‖₁ ≤ 2·Σ_c weight_c·[(1 − a)·δ_c + ε_c]`. Of two capacities the larger one counts. Proof, for one class
//! with Q ≥ Q′, p = 1 − a, w = W_m/(Q·T), c = C_m/Q and u = Σw: a share is p·w + (1 − p·u)·c. The differences of work
//! give p·(‖w − w′‖ + |u − u′|) ≤ 2·p·(δ + u′·ε), those of credit at most (1 − p·max(u, u′))·2·ε.

use muster_protocol::{ExecutorClass, Timestamp};
use muster_scoring::{CAPACITY_PER_MILLE, POINTS, PaidReceipt, ScoringSnapshot, explain, score_cycle};
use proptest::prelude::*;

use crate::support::*;

const CLASSES: [ExecutorClass; 2] = [TEST, CPU];
const MINERS: std::ops::RangeInclusive<u8> = 1..=5;
const CYCLE_MS: u64 = 4_320_000;

/// One executor: its miner, its class by number, the credit that each validator states for it, and its attempts: their
/// seconds, and whether each validator sees the receipt.
type Executor = (u8, usize, (u32, u32), Vec<(u32, bool, bool)>);

/// The snapshots of both validators. The attempts of an executor follow one another within the cycle.
fn views(executors: &[Executor]) -> (ScoringSnapshot, ScoringSnapshot) {
    let coldkeys: Vec<_> = MINERS.map(|miner| (miner, 100 + miner)).collect();
    let (mut one, mut other) = (snapshot(&coldkeys, vec![]), snapshot(&coldkeys, vec![]));
    let (mut left, mut right) = (capacity(TEST, &[]), capacity(TEST, &[]));
    left.classes = CLASSES.into();
    right.classes = CLASSES.into();
    let rows = |inputs: &mut muster_scoring::CapacityInputs, of: u8, class: usize, credit: u32| {
        let rows = &mut inputs.statements[0].rows;
        let known = rows
            .iter_mut()
            .find(|row| row.miner == miner(of) && row.class == CLASSES[class]);
        match known {
            Some(row) => {
                row.executors += 1;
                row.credit += u64::from(credit);
            }
            None => {
                let mut row = capacity(CLASSES[class], &[(of, 1)]).statements[0].rows[0];
                row.credit = credit.into();
                rows.push(row);
            }
        }
    };
    let mut attempt = 0;
    for (of, class, credits, attempts) in executors {
        rows(&mut left, *of, *class, credits.0);
        rows(&mut right, *of, *class, credits.1);
        let mut began = NOW - 4_320;
        for (secs, first, second) in attempts {
            attempt += 1;
            let mut receipt: PaidReceipt = paid(attempt, *of, &secs.to_string());
            receipt.class = Some(CLASSES[*class]);
            receipt.receipt.time_started = Timestamp::from_secs(began);
            receipt.receipt.time_took_us = u64::from(*secs) * 1_000_000;
            began += i64::from(*secs);
            if *first {
                one.receipts.push(receipt.clone());
            }
            if *second {
                other.receipts.push(receipt);
            }
        }
    }
    one.capacity = Some(left);
    other.capacity = Some(right);
    (one, other)
}

/// Counted work and credit of a miner in a class.
fn terms(snapshot: &ScoringSnapshot, of: u8, class: ExecutorClass) -> (u64, u64) {
    let explained = explain(snapshot, miner(of)).unwrap();
    let terms = explained.classes.iter().find(|terms| terms.class == class);
    terms.map_or((0, 0), |terms| (terms.work_ms, terms.credit))
}

/// Points by miner, and their sum.
fn shares(snapshot: &ScoringSnapshot) -> (Vec<u64>, u64) {
    let scores = score_cycle(snapshot).0.scores;
    let of = |miner: u8| {
        scores
            .iter()
            .find(|score| score.uid.0 == u16::from(miner))
            .map_or(0, |score| score.points)
    };
    let points: Vec<_> = MINERS.map(of).collect();
    let sum = points.iter().sum();
    (points, sum)
}

fn executors(same_credit: bool) -> impl Strategy<Value = Vec<Executor>> {
    let credits =
        (1_u32..=1_000, 1_u32..=1_000).prop_map(
            move |(one, other)| {
                if same_credit { (1_000, 1_000) } else { (one, other) }
            },
        );
    let attempts = proptest::collection::vec((10_u32..=700, any::<bool>(), any::<bool>()), 0..6);
    // Every class has an executor, so both validators divide both classes.
    let executor = (MINERS, 0_usize..2, credits.clone(), attempts.clone());
    let first = (Just(1_u8), Just(0_usize), credits.clone(), attempts.clone());
    let second = (Just(2_u8), Just(1_usize), credits, attempts);
    (first, second, proptest::collection::vec(executor, 0..12)).prop_map(|(first, second, mut all)| {
        all.extend([first, second]);
        all
    })
}

proptest! {
    #[test]
    fn scores_of_two_validators_lie_within_the_stated_formula(executors in executors(false)) {
        let (one, other) = views(&executors);
        let ((left, sum), (right, same)) = (shares(&one), shares(&other));
        prop_assert_eq!((sum, same), (4 * POINTS, 4 * POINTS));
        let distance: u64 = left.iter().zip(&right).map(|(one, other)| one.abs_diff(*other)).sum();
        let mut bound = 0_u128;
        for class in CLASSES {
            let (mut work, mut credit, mut sums) = (0_u64, 0_u64, (0_u64, 0_u64));
            for of in MINERS {
                let (a, b) = (terms(&one, of, class), terms(&other, of, class));
                work += a.0.abs_diff(b.0);
                credit += a.1.abs_diff(b.1);
                sums = (sums.0 + a.1, sums.1 + b.1);
            }
            let weight = u128::from(one.rules.class_weights[&class]);
            let premium = u128::from(1_000 - CAPACITY_PER_MILLE) * u128::from(work);
            let whole = u128::from(sums.0.max(sums.1)) * u128::from(CYCLE_MS);
            let differing = premium + u128::from(credit) * u128::from(CYCLE_MS);
            bound += 2 * weight * u128::from(POINTS) * differing / whole;
        }
        // Each of two classes rounds every miner's points, with its weight.
        prop_assert!(u128::from(distance) <= bound + 40, "{distance} > {bound}");
    }

    #[test]
    fn an_honest_receipt_that_one_does_not_see_costs_exactly_itself(executors in executors(true)) {
        let (one, other) = views(&executors);
        for (number, class) in CLASSES.into_iter().enumerate() {
            for of in MINERS {
                let own = executors.iter().filter(|executor| executor.0 == of && executor.1 == number);
                let seen = |by: fn(&(u32, bool, bool)) -> bool| -> u64 {
                    let attempts = own.clone().flat_map(|executor| &executor.3);
                    attempts.filter(|attempt| by(attempt)).map(|attempt| u64::from(attempt.0) * 1_000).sum()
                };
                prop_assert_eq!(terms(&one, of, class).0, seen(|attempt| attempt.1));
                prop_assert_eq!(terms(&other, of, class).0, seen(|attempt| attempt.2));
            }
        }
    }
}
