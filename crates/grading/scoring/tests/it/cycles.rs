//! Whole cycles: vesting, streaming, explanations, the text, and what holds for every snapshot.

use muster_protocol::{Timestamp, Uid, canonical};
use muster_scoring::{
    Conviction, DropReason, OnchainWeight, POINTS, PastCycle, PastPoints, SNAPSHOT_FORMAT, ScoringSnapshot,
    SnapshotError, VESTING_CYCLES, ZeroReason, explain, score_cycle,
};
use proptest::prelude::*;

use crate::support::*;

#[test]
fn points_are_spread_and_a_conviction_takes_them() {
    let mut snapshot = snapshot(&[(1, 101), (2, 102), (3, 101)], vec![paid(1, 2, "10")]);
    let neuron = snapshot.neurons[1];
    let past = |cycle| PastCycle {
        cycle,
        rows: vec![PastPoints {
            neuron,
            points: POINTS,
        }],
    };
    snapshot.history = (0..7).map(past).collect();
    let vesting = u64::try_from(VESTING_CYCLES).unwrap();
    let vested: Vec<_> = scores(&snapshot)
        .scores
        .iter()
        .map(|s| (s.uid.0, s.vested.unwrap()))
        .collect();
    assert_eq!(vested, [(1, POINTS * 7 / vesting), (2, POINTS / vesting)]);
    snapshot.convictions = vec![Conviction {
        coldkey: hotkey(101),
        hotkey: hotkey(1),
    }];
    snapshot.receipts.push(paid(2, 3, "1000"));
    assert_eq!(score_cycle(&snapshot).1, [(Uid(2), 65_535)]);
    let zeros: Vec<_> = scores(&snapshot)
        .zeros
        .into_iter()
        .map(|zero| (zero.uid.0, zero.why))
        .collect();
    assert_eq!(
        zeros,
        [
            (0, ZeroReason::Myself),
            (1, ZeroReason::Convicted),
            (3, ZeroReason::Convicted)
        ]
    );
}

#[test]
fn a_conviction_takes_its_weight_in_a_cycle_in_which_nobody_earned_anything() {
    let mut snapshot = snapshot(&[(1, 101), (2, 102)], vec![]);
    let rows = [snapshot.neurons[1], snapshot.neurons[2]].map(|neuron| PastPoints {
        neuron,
        points: POINTS,
    });
    snapshot.history = vec![PastCycle {
        cycle: 1,
        rows: rows.to_vec(),
    }];
    assert_eq!(score_cycle(&snapshot).1, [], "the weights stay as they are");
    snapshot.convictions = vec![Conviction {
        coldkey: hotkey(101),
        hotkey: hotkey(1),
    }];
    assert_eq!(score_cycle(&snapshot).1, [(Uid(2), 65_535)]);
}

#[test]
fn a_conviction_after_the_last_vesting_burns_the_weight_that_stands() {
    let mut snapshot = snapshot(&[(1, 101), (2, 102), (9, 109)], vec![]);
    let stands = |of: usize, weight| OnchainWeight {
        neuron: snapshot.neurons[of],
        weight,
    };
    snapshot.standing = vec![stands(1, 65_535), stands(2, 30_000)];
    let (kept, weights) = score_cycle(&snapshot);
    assert_eq!(weights, [], "nobody has to be taken out");
    assert_eq!(kept.standing, snapshot.standing);
    let explained = explain(&snapshot, miner(2)).unwrap();
    assert_eq!((explained.weight, explained.zero), (30_000, None));

    snapshot.convictions = vec![Conviction {
        coldkey: hotkey(101),
        hotkey: hotkey(1),
    }];
    let (unburned, weights) = score_cycle(&snapshot);
    assert_eq!(weights, [], "nobody burns, and the others shall not have it");
    assert_eq!(unburned.unburned, [Uid(1)]);
    assert_eq!(unburned.standing, snapshot.standing, "the next cycle tries again");
    let text = explain(&snapshot, miner(1)).unwrap().to_string();
    for part in [
        "of this uid was 65535",
        "no neuron of the subnet burns",
        "weight: 65535 of 65535",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }

    snapshot.owner = Some(hotkey(9));
    let (renewed, weights) = score_cycle(&snapshot);
    assert_eq!(weights, [(Uid(2), 30_000), (Uid(9), 65_535)]);
    assert_eq!((renewed.unburned.len(), renewed.scores.len()), (0, 0));
    let convicted = explain(&snapshot, miner(1)).unwrap();
    assert_eq!(
        (convicted.weight, convicted.zero),
        (0, Some(ZeroReason::Convicted))
    );
    let text = explain(&snapshot, miner(9)).unwrap().to_string();
    for part in [
        "of this uid was 0",
        "it burns the weights",
        "weight: 65535 of 65535",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The next quiet cycle leaves what this one set.
    snapshot.standing = renewed.onchain_after().unwrap();
    assert_eq!(score_cycle(&snapshot).1, []);
    // A cycle in which somebody is paid does not ask what stood.
    snapshot.receipts = vec![paid(1, 2, "10")];
    let (earned, weights) = score_cycle(&snapshot);
    assert_eq!((weights, earned.is_renewal()), (vec![(Uid(2), 65_535)], false));
    let after: Vec<_> = earned.onchain_after().unwrap();
    assert_eq!((after[0].neuron, after[0].weight), (snapshot.neurons[2], 65_535));
}

#[test]
fn a_snapshot_of_the_format_before_gives_the_same_weights() {
    let snapshot = snapshot(&[(1, 101), (2, 102)], vec![paid(1, 1, "10"), paid(2, 2, "20")]);
    let earlier = snapshot
        .to_text()
        .replace(SNAPSHOT_FORMAT, "muster/scoring-snapshot/2");
    let read = ScoringSnapshot::parse(&earlier).unwrap();
    assert_eq!(read.to_text(), earlier, "its digest stays");
    assert_eq!(score_cycle(&read), score_cycle(&snapshot));
}

#[test]
fn every_term_of_a_weight_is_named() {
    let mut half = paid(2, 1, "604800");
    half.receipt.time_took_us = 1_800_000_000;
    half.receipt.time_started = Timestamp::from_secs(NOW - 1_800);
    let mut snapshot = snapshot(
        &[(1, 101), (2, 102)],
        vec![half, paid(3, 1, "0"), paid(4, 1, "3600")],
    );
    snapshot.capacity = Some(capacity(TEST, &[(1, 1), (2, 3)]));
    let explained = explain(&snapshot, miner(1)).unwrap();
    let class = &explained.classes[0];
    assert_eq!(
        (class.credit, class.all_credit, class.work_ms),
        (1_000, 4_000, 3_600_000)
    );
    assert_eq!(explained.earned, class.points);
    assert_eq!(
        (explained.vested, explained.weight),
        (explained.points / 20, 25_644)
    );
    let lost: Vec<_> = explained
        .lost
        .iter()
        .map(|lost| (lost.reason, lost.receipts, lost.micros))
        .collect();
    assert_eq!(
        lost,
        [
            (DropReason::Unpaid, 1, 0),
            (DropReason::OverTime, 1, 603_000_000_000),
            (DropReason::BeyondProven, 1, 1_800_000_000)
        ]
    );
    let text = explained.to_string();
    for part in [
        "capacity: 1 executors, 1.000 shown, acceptance 1000 ‰: credit 1.000 of 4.000",
        "work: 3600.000 s of 3600.000 s",
        "not counted: 603000.000 s of 1 receipts, because the attempt took less time",
        "weight: 25644 of 65535",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let idle = explain(&snapshot, miner(0)).unwrap();
    assert!(
        idle.to_string()
            .ends_with("weight: 0, because it is this validator\n")
    );
    assert_eq!(explain(&snapshot, miner(77)), None);
}

#[test]
fn a_snapshot_is_read_back_as_it_was_and_other_formats_are_refused() {
    let mut snapshot = snapshot(&[(1, 101)], vec![paid(1, 1, "10")]);
    snapshot.capacity = Some(capacity(TEST, &[(1, 1)]));
    snapshot.allowance = Some(allowance());
    let text = snapshot.to_text();
    let again = ScoringSnapshot::parse(&text).unwrap();
    assert_eq!((&again, again.to_text()), (&snapshot, text.clone()));
    let other = text.replace(SNAPSHOT_FORMAT, "muster/scoring-snapshot/9");
    assert!(matches!(
        ScoringSnapshot::parse(&other),
        Err(SnapshotError::Format(_))
    ));
    assert!(matches!(
        ScoringSnapshot::parse("{}"),
        Err(SnapshotError::Format(_))
    ));
    assert!(matches!(
        ScoringSnapshot::parse("receipts"),
        Err(SnapshotError::Text(_))
    ));
}

#[test]
fn a_large_snapshot_is_written_in_pieces_with_the_digest_of_the_whole() {
    let receipts: Vec<_> = (0..3_000).map(|attempt| paid(attempt, 1, "10")).collect();
    let snapshot = snapshot(&[(1, 101)], receipts);
    let whole = canonical::sorted_compact_of(&snapshot).unwrap();
    let pieces: Vec<String> = snapshot.pieces().collect();
    assert!(
        pieces.len() > 2,
        "{} pieces of {} bytes",
        pieces.len(),
        whole.len()
    );
    assert!(pieces.iter().all(|piece| piece.len() < 600 * 1024));
    assert_eq!(snapshot.digest(), ScoringSnapshot::digest_of(&whole));
    assert!(pieces.concat() == whole, "other bytes than those of the whole");
}

proptest! {
    #[test]
    fn every_receipt_is_counted_or_dropped_once_and_order_does_not_matter(
        lines in proptest::collection::vec((0u8..6, any::<bool>(), "[0-9]{1,4}(\\.[0-9]{1,8})?|x|-1|", 0u64..4_000), 0..40),
        graded: bool,
    ) {
        let receipts: Vec<_> = lines.iter().enumerate().map(|(at, (of, cpu, amount, took))| {
            let mut paid = paid(u128::try_from(at).unwrap(), *of, amount);
            paid.class = Some(if *cpu { CPU } else { TEST });
            paid.receipt.time_took_us = took * 1_000_000;
            paid
        }).collect();
        let mut snapshot = snapshot(&[(1, 101), (2, 101), (3, 103)], receipts);
        snapshot.capacity = graded.then(|| capacity(TEST, &[(1, 2), (3, 1)]));
        let (one, weights) = score_cycle(&snapshot);
        snapshot.receipts.reverse();
        let (two, again) = score_cycle(&snapshot);
        prop_assert_eq!(&one.scores, &two.scores);
        prop_assert_eq!(weights, again);
        prop_assert_eq!(one.dropped.len(), two.dropped.len());
        let worth: u64 = one.scores.iter().map(|s| s.points).sum();
        prop_assert!(worth <= 4 * POINTS, "no class is worth more than its weight");
    }

    #[test]
    fn spreading_work_over_ones_own_hotkeys_earns_nothing(
        amounts in proptest::collection::vec(1u32..3_600, 1..20), other in 1u32..3_600, spread in proptest::collection::vec(1u8..4, 20),
    ) {
        let coldkeys = [(1, 101), (2, 101), (3, 101), (9, 109)];
        let work = |of: &dyn Fn(usize) -> u8| {
            let mut receipts: Vec<_> = amounts.iter().enumerate()
                .map(|(at, amount)| paid(u128::try_from(at).unwrap(), of(at), &amount.to_string())).collect();
            receipts.push(paid(1_000, 9, &other.to_string()));
            points(&snapshot(&coldkeys, receipts)).iter().filter(|row| row.0 < 9).map(|row| row.1).sum::<u64>()
        };
        prop_assert!(work(&|at| spread[at]) <= work(&|_| 1) + 2, "rounding aside, spreading changes nothing");
    }
}
