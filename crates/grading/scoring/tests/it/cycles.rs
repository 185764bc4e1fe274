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
        "of this uid is 65535",
        "no neuron of the subnet burns",
        "weight: kept: the chain has 65535 of 65535",
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
        "of this uid is 0",
        "it burns the weights",
        "weight: 65535 of 65535, set anew; it was 0",
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

/// The whole numbers in a text, in their order.
fn numbers(text: &str) -> Vec<u128> {
    let words = text.split(|c: char| !c.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The numbers of the line that begins like this.
fn numbers_of(text: &str, begins: &str) -> Vec<u128> {
    let line = text.lines().find(|line| line.starts_with(begins));
    numbers(line.unwrap_or_default())
}

#[test]
fn the_printed_terms_of_the_vesting_and_of_the_weight_give_the_printed_results() {
    let mut snapshot = snapshot(&[(1, 101), (2, 102)], vec![paid(1, 1, "10"), paid(2, 2, "37")]);
    let past = |cycle, of: usize, points| PastCycle {
        cycle,
        rows: vec![PastPoints {
            neuron: snapshot.neurons[of],
            points,
        }],
    };
    // The oldest of the twenty-one cycles before is over.
    snapshot.history = (0..21).map(|cycle| past(cycle, 1, 1_000_003)).collect();
    for (of, earlier) in [(1, 19 * 1_000_003), (2, 0)] {
        let text = explain(&snapshot, miner(of)).unwrap().to_string();
        let earned: u128 = text
            .lines()
            .filter(|line| line.starts_with("  points: "))
            .map(|line| numbers(line)[0])
            .sum();
        let points = numbers_of(&text, "earned in this cycle")[0];
        assert_eq!(earned, points, "{text}");
        let due = numbers_of(&text, "due with this cycle");
        assert_eq!(due[..4], [points, earlier, 19, 20], "{text}");
        assert_eq!((due[0] + due[1]) / due[3], due[4], "{text}");
        let weight = numbers_of(&text, "weight: ");
        let [printed, all, full, vested, most] = weight[..] else {
            panic!("{weight:?}: {text}")
        };
        assert_eq!((all, full, vested), (65_535, 65_535, due[4]), "{text}");
        assert_eq!((full * vested * 2 + most) / (most * 2), printed, "{text}");
    }
    let (_, weights) = score_cycle(&snapshot);
    assert!(weights.iter().all(|(_, weight)| *weight > 0), "{weights:?}");
}

#[test]
fn a_cycle_that_pays_nobody_prints_what_is_due_and_that_it_is_not_paid() {
    let mut snapshot = snapshot(&[(1, 101)], vec![]);
    let neuron = snapshot.neurons[1];
    let rows = vec![PastPoints { neuron, points: 400 }];
    snapshot.history = vec![PastCycle { cycle: 1, rows }];
    snapshot.standing = vec![OnchainWeight {
        neuron,
        weight: 65_535,
    }];
    let text = explain(&snapshot, miner(1)).unwrap().to_string();
    for part in [
        "(0 of this cycle + 400 of the 19 before) / 20 = 20 points",
        "paid with this cycle: 0 points",
        "weight: kept: the chain has 65535 of 65535",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
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
