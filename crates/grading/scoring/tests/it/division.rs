//! The division of a class's weight by work and capacity.

use muster_protocol::Uid;
use muster_scoring::{POINTS, QualityFactor, score_cycle};

use crate::support::*;

#[test]
fn where_nobody_grades_work_alone_divides_a_class() {
    let mut snapshot = snapshot(&[(1, 101), (2, 102)], vec![paid(1, 1, "30"), paid(2, 2, "10")]);
    assert_eq!(points(&snapshot), [(1, POINTS / 4 * 3), (2, POINTS / 4)]);
    let (scores, weights) = score_cycle(&snapshot);
    assert_eq!(scores.scores[0].vested, Some(POINTS / 4 * 3 / 20));
    assert_eq!(weights, [(Uid(1), 65_535), (Uid(2), 21_845)]);
    snapshot.receipts[1].class = Some(CPU);
    assert_eq!(
        points(&snapshot),
        [(1, POINTS), (2, 3 * POINTS)],
        "a class is worth its weight"
    );
}

#[test]
fn shown_capacity_is_paid_and_work_is_a_premium_on_it() {
    let mut snapshot = snapshot(&[(1, 101), (2, 102), (3, 103)], vec![paid(1, 1, "3600")]);
    snapshot.capacity = Some(capacity(TEST, &[(1, 1), (2, 1), (9, 50)]));
    // Executors of a miner outside the subnet do not count. Q = 2 executors, W = 3600 of 2 · 4320 seconds.
    let premium = POINTS / 5 * 3_600 / 8_640;
    let idle = (POINTS - premium) / 2;
    let got = points(&snapshot);
    assert_eq!(got.iter().map(|(_, points)| points).sum::<u64>(), POINTS);
    assert!(
        got[0].1.abs_diff(premium + idle) <= 1 && got[1].1.abs_diff(idle) <= 1,
        "{got:?}"
    );
    snapshot.receipts.clear();
    assert_eq!(points(&snapshot), [(1, POINTS / 2), (2, POINTS / 2)]);
    snapshot.quality = vec![QualityFactor {
        miner: miner(1),
        per_mille: 500,
    }];
    assert_eq!(points(&snapshot), [(1, POINTS / 3), (2, POINTS - POINTS / 3)]);
}

#[test]
fn a_class_that_cannot_be_proven_pays_work_and_burns_the_rest() {
    let mut receipt = paid(1, 1, "3600");
    receipt.class = Some(SPIN_UP);
    let mut snapshot = snapshot(&[(1, 101), (2, 102), (9, 109)], vec![receipt]);
    snapshot.capacity = Some(capacity(SPIN_UP, &[(1, 1), (2, 1)]));
    let worked = POINTS / 8_640 * 3_600;
    assert!(points(&snapshot)[0].1.abs_diff(worked) < 10_000);
    assert_eq!(
        points(&snapshot).iter().filter(|row| row.1 > 0).count(),
        1,
        "idle capacity earns nothing"
    );
    snapshot.rules.burn_hotkey = Some(hotkey(9));
    let got = points(&snapshot);
    assert_eq!(got.iter().map(|(_, points)| points).sum::<u64>(), POINTS);
    assert_eq!(got.last().map(|row| row.0), Some(9));
}

#[test]
fn all_zero_scores_burn_and_set_nothing_without_a_burn_hotkey() {
    let mut snapshot = snapshot(&[(1, 101), (2, 102)], vec![]);
    assert_eq!(score_cycle(&snapshot).1, []);
    snapshot.capacity = Some(capacity(TEST, &[]));
    assert_eq!(score_cycle(&snapshot).1, []);
    snapshot.rules.burn_hotkey = Some(hotkey(77));
    assert_eq!(score_cycle(&snapshot).1, [], "the burn hotkey is not registered");
    snapshot.rules.burn_hotkey = Some(hotkey(2));
    snapshot.rules.min_entries = 2;
    assert_eq!(score_cycle(&snapshot).1, [(Uid(0), 0), (Uid(2), 65_535)]);
    let mut empty = snapshot;
    empty.neurons.clear();
    assert_eq!(score_cycle(&empty).1, []);
}
