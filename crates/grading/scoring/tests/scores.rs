//! Scores of whole snapshots: nothing is lost, nothing is created, every receipt that does not count has its reason,
//! and bad input stops nobody.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;

use muster_protocol::receipt::{FinishedReceipt, FinishedTag};
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, Timestamp, Uid, ValidatorKey};
use muster_scoring::{
    AllowanceInputs, CAPACITY_PER_MILLE, CapacityInputs, CapacityRow, CapacityStatement, Conviction,
    DropReason, EpochFacts, Neuron, ObservationKind, POINTS, PaidReceipt, PastCycle, PastPoints,
    QualityFactor, SNAPSHOT_FORMAT, ScoredSpan, Scores, ScoringRules, ScoringSnapshot, SnapshotError,
    StreamedSession, VESTING_CYCLES, ZeroReason, explain, score_cycle,
};
use proptest::prelude::*;
use uuid::Uuid;

const TEST: ExecutorClass = ExecutorClass::AlwaysOnTest;
const CPU: ExecutorClass = ExecutorClass::AlwaysOnCpu8c16Gb;
const SPIN_UP: ExecutorClass = ExecutorClass::SpinUpGpu24Gb;
/// The time of every receipt, in seconds since 1970.
const NOW: i64 = 1_769_000_000;
const HOUR_US: u64 = 3_600_000_000;

fn hotkey(seed: u8) -> Hotkey {
    Hotkey::from_bytes([seed; 32])
}

fn miner(seed: u8) -> MinerKey {
    MinerKey(hotkey(seed))
}

fn validator(seed: u8) -> ValidatorKey {
    ValidatorKey(hotkey(seed))
}

/// A receipt of the scorer about an hour that a miner worked.
fn paid(attempt: u128, of: u8, amount: &str) -> PaidReceipt {
    PaidReceipt {
        receipt: FinishedReceipt {
            job_uuid: AttemptId::from_uuid(Uuid::from_u128(attempt)),
            miner_hotkey: miner(of),
            validator_hotkey: validator(0),
            timestamp: Timestamp::from_secs(NOW),
            receipt_type: FinishedTag,
            time_started: Timestamp::from_secs(NOW - 3_600),
            time_took_us: HOUR_US,
            score_str: amount.to_owned(),
            block_numbers: vec![],
        },
        class: Some(TEST),
    }
}

/// A subnet of these miners, each with its coldkey; the scorer is 0, and 50 is another validator.
fn snapshot(coldkeys: &[(u8, u8)], receipts: Vec<PaidReceipt>) -> ScoringSnapshot {
    let neuron = |(seed, cold): (u8, u8)| Neuron {
        uid: Uid(seed.into()),
        hotkey: hotkey(seed),
        coldkey: hotkey(cold),
        registered: u64::from(seed) + 1,
    };
    ScoringSnapshot {
        format: SNAPSHOT_FORMAT.to_owned(),
        genesis: "0x00".to_owned(),
        netuid: 1,
        span: ScoredSpan {
            cycle: 7,
            first_block: 100,
            last_block: 460,
            duration_ms: 4_320_000,
            earliest: Some(Timestamp::from_secs(NOW - 8_640)),
        },
        me: validator(0),
        neurons: [(0, 100)].iter().chain(coldkeys).copied().map(neuron).collect(),
        validators: [validator(50)].into(),
        rules: ScoringRules {
            class_weights: [(TEST, 1), (CPU, 3), (SPIN_UP, 1)].into(),
            streaming_weight: 2,
            capacity_per_mille: CAPACITY_PER_MILLE,
            burn_per_second: 0,
            burn_hotkey: None,
            bonus_per_mille: 0,
            min_entries: 0,
        },
        receipts,
        streamed: vec![],
        capacity: None,
        allowance: None,
        history: vec![],
        convictions: vec![],
        quality: vec![],
        main_hotkeys: vec![],
        deferred: vec![],
        burned: BTreeMap::new(),
    }
}

/// The scorer's own rows: these executors of each miner, in one class.
fn capacity(class: ExecutorClass, rows: &[(u8, u32)]) -> CapacityInputs {
    let row = |(of, executors): &(u8, u32)| CapacityRow {
        miner: miner(*of),
        class,
        kind: ObservationKind::Announced,
        executors: *executors,
        credit: u64::from(*executors) * 1_000,
        offers: 0,
        refused: 0,
    };
    CapacityInputs {
        classes: [TEST, class].into(),
        kinds: [ObservationKind::Announced].into(),
        stakes: BTreeMap::new(),
        statements: vec![CapacityStatement {
            validator: validator(0),
            cycle: 7,
            rows: rows.iter().map(row).collect(),
        }],
    }
}

fn session(attempt: u128, of: u8, earned: u64) -> StreamedSession {
    StreamedSession {
        attempt: AttemptId::from_uuid(Uuid::from_u128(attempt)),
        miner: miner(of),
        proven: 1,
        unproven: 0,
        input_tokens: earned,
        output_tokens: 0,
        earned,
        fault: None,
    }
}

fn scores(snapshot: &ScoringSnapshot) -> Scores {
    score_cycle(snapshot).0
}

/// Uid and points of this cycle.
fn points(snapshot: &ScoringSnapshot) -> Vec<(u16, u64)> {
    scores(snapshot)
        .scores
        .iter()
        .map(|s| (s.uid.0, s.points))
        .collect()
}

fn reasons(snapshot: &ScoringSnapshot) -> Vec<DropReason> {
    scores(snapshot)
        .dropped
        .iter()
        .map(|(_, reason)| *reason)
        .collect()
}

fn micros(snapshot: &ScoringSnapshot) -> Vec<(u16, u64)> {
    scores(snapshot)
        .scores
        .iter()
        .map(|s| (s.uid.0, s.micros))
        .collect()
}

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

#[test]
fn one_bad_receipt_stops_nobody() {
    let mut stranger = paid(8, 1, "5");
    stranger.receipt.validator_hotkey = validator(51);
    let mut listed = paid(9, 1, "1");
    listed.receipt.validator_hotkey = validator(50);
    let unknown = PaidReceipt {
        class: None,
        ..paid(10, 1, "5")
    };
    let mut changed = paid(11, 1, "5");
    let contradicting = [paid(11, 1, "6"), {
        changed.receipt.time_took_us = 1;
        changed
    }];
    let mut receipts = vec![
        paid(1, 1, "20.500000"),
        paid(2, 1, "0.500000"),
        paid(3, 2, "7"),
        paid(4, 2, "seven"),
        paid(5, 9, "100.000000"),
        paid(6, 2, "0.000000"),
        paid(1, 1, "20.500000"),
        paid(7, 2, "3000000"),
        paid(12, 2, "99999999999999999999999999"),
        stranger,
        unknown,
        listed,
    ];
    receipts.extend(contradicting);
    let snapshot = snapshot(&[(1, 101), (2, 102), (3, 103)], receipts);
    assert_eq!(micros(&snapshot), [(1, 22_000_000), (2, 7_000_000)]);
    assert_eq!(
        reasons(&snapshot),
        [
            DropReason::NoAmount,
            DropReason::NotRegistered,
            DropReason::Unpaid,
            DropReason::Repeated,
            DropReason::TooMuch,
            DropReason::NoAmount,
            DropReason::Stranger,
            DropReason::NoStart,
            DropReason::Contradicting,
            DropReason::Contradicting,
        ]
    );
}

#[test]
fn receipts_from_the_past_the_future_and_of_one_owner_do_not_count() {
    let with = |change: &dyn Fn(&mut FinishedReceipt)| {
        let mut receipt = paid(1, 1, "5");
        change(&mut receipt.receipt);
        reasons(&snapshot(&[(1, 101), (2, 100)], vec![receipt]))
    };
    let at = |secs| Timestamp::from_secs(secs);
    assert_eq!(with(&|_| {}), []);
    assert_eq!(with(&|r| r.timestamp = at(NOW - 8_641)), [DropReason::Late]);
    assert_eq!(
        with(&|r| r.time_started = at(NOW + 1)),
        [DropReason::AheadOfItsTime]
    );
    assert_eq!(with(&|r| r.time_took_us = u64::MAX), [DropReason::AheadOfItsTime]);
    assert_eq!(with(&|r| r.time_started = at(0)), [DropReason::Ancient]);
    assert_eq!(
        with(&|r| r.time_started = at(NOW - 40 * 86_400)),
        [DropReason::Ancient]
    );
    assert_eq!(
        with(&|r| r.miner_hotkey = miner(2)),
        [DropReason::OwnColdkey],
        "of the scorer's own coldkey, too"
    );
}

#[test]
fn an_attempt_is_paid_the_time_that_it_took_and_at_least_the_minimum() {
    let with = |amount: &str, took: u64| {
        let mut receipt = paid(1, 1, amount);
        receipt.receipt.time_took_us = took;
        micros(&snapshot(&[(1, 101)], vec![receipt]))[0].1
    };
    assert_eq!(
        with("604800", 1),
        10_000_000,
        "three limits of seven days for a second"
    );
    assert_eq!(with("9", 1), 9_000_000);
    assert_eq!(with("100", 60_000_000), 60_000_000);
    assert_eq!(with("30", 60_000_000), 30_000_000, "no more than was reserved");
}

/// Epochs of 360 blocks in which validator 50 has a tenth of the stake and the scorer the rest.
fn allowance() -> AllowanceInputs {
    let epoch = |number: u64| EpochFacts {
        first_block: number * 360,
        first_ms: u64::try_from(NOW).unwrap() * 1_000 - 3_600_000 + number * 360 * 12_000 - 4_320_000,
        block_ms: 12_000,
        permitted: [(validator(0), 900), (validator(50), 100)].into(),
        proven: vec![],
    };
    AllowanceInputs {
        epochs: (0..3).map(epoch).collect(),
        spent: vec![],
    }
}

#[test]
fn own_receipts_pass_the_same_checks_as_those_of_others() {
    let named = |attempt, by, blocks: std::ops::RangeInclusive<u64>| {
        let mut receipt = paid(attempt, 1, "3600");
        receipt.receipt.validator_hotkey = validator(by);
        receipt.receipt.block_numbers = blocks.collect();
        receipt
    };
    let mut graded = snapshot(&[(1, 101), (50, 150)], vec![named(1, 0, 361..=400)]);
    graded.span.last_block = 800;
    graded.allowance = Some(allowance());
    // Forty blocks of twelve seconds, four times nine tenths of them.
    assert_eq!(micros(&graded), [(1, 1_728_000_000)]);
    graded.receipts = vec![
        named(1, 0, 361..=400),
        named(2, 0, 400..=400),
        named(3, 50, 361..=400),
        named(4, 50, 1..=1),
    ];
    graded.receipts.push(paid(5, 1, "7"));
    assert_eq!(
        reasons(&graded),
        [
            DropReason::NamedTwice,
            DropReason::NoStake,
            DropReason::OverAllowance
        ],
        "each for its reason; a receipt without blocks is allowed nothing"
    );
    assert_eq!(micros(&graded), [(1, 1_684_800_000 + 192_000_000)]);
    let spent = &scores(&graded).spent;
    assert!(spent.iter().any(|spent| (spent.first, spent.last) == (361, 400)));
}

#[test]
fn two_forgers_cannot_pay_more_than_the_executors_that_are_proven() {
    // Thirty-day receipts without end, all for one executor.
    let mint = |attempt| {
        let mut receipt = paid(attempt, 1, "2592000");
        receipt.receipt.time_started = Timestamp::from_secs(NOW - 2_592_000);
        receipt.receipt.time_took_us = 2_592_000_000_000;
        receipt
    };
    let mut snapshot = snapshot(&[(1, 101), (2, 102)], (1..=100).map(mint).collect());
    snapshot.capacity = Some(capacity(TEST, &[(1, 1), (2, 1)]));
    assert_eq!(reasons(&snapshot), vec![DropReason::BeyondProven; 99]);
    let got = points(&snapshot);
    assert!(
        got[0].1 * 1_000 <= got[1].1 * 1_250,
        "at most the premium: {got:?}"
    );
    // Work that does not fit into the cycle is deferred, for twenty cycles at most.
    let scores = scores(&snapshot);
    assert_eq!(scores.deferred[0].ms, 20 * 4_320_000);
    snapshot.receipts.clear();
    snapshot.deferred = scores.deferred;
    assert_eq!(points(&snapshot), got, "the next cycle counts another part of it");
    assert_eq!(score_cycle(&snapshot).0.deferred[0].ms, 19 * 4_320_000);
}

#[test]
fn newcomers_work_one_job_at_a_time_for_each_coldkey() {
    let mut receipts = vec![
        paid(1, 1, "3600"),
        paid(2, 1, "3600"),
        paid(3, 2, "3600"),
        paid(4, 3, "3600"),
    ];
    receipts.push(paid(5, 3, "3600"));
    let mut snapshot = snapshot(&[(1, 101), (2, 101), (3, 103)], receipts);
    snapshot.capacity = Some(capacity(TEST, &[(3, 2)]));
    assert_eq!(reasons(&snapshot), [DropReason::BeyondProven; 2]);
    assert_eq!(micros(&snapshot), [(1, HOUR_US), (3, 2 * HOUR_US)]);
    assert_eq!(
        points(&snapshot),
        [(1, 0), (3, POINTS)],
        "work is paid once something is shown"
    );
    let deferred = scores(&snapshot).deferred;
    assert_eq!(
        deferred
            .iter()
            .map(|work| (work.miner, work.ms))
            .collect::<Vec<_>>(),
        [(miner(1), 3_600_000)]
    );
    // In a class of which nobody has proven anything, work earns nothing.
    snapshot.capacity = Some(capacity(CPU, &[(3, 2)]));
    assert_eq!(points(&snapshot).iter().find(|row| row.0 == 1), Some(&(1, 0)));
    let scores = scores(&snapshot);
    assert_eq!(scores.zeros[1].why, ZeroReason::NothingProven);
}

#[test]
fn work_counts_once_it_is_burned_for_if_a_second_has_a_price() {
    let receipts = vec![paid(1, 1, "10"), paid(2, 1, "10"), paid(3, 1, "0.000001")];
    let mut snapshot = snapshot(&[(1, 101)], receipts);
    snapshot.rules.burn_per_second = 1_000;
    assert_eq!(reasons(&snapshot), [DropReason::NotBurned; 3]);
    snapshot.burned = [(validator(0), 10_001)].into();
    assert_eq!(reasons(&snapshot), [DropReason::NotBurned]);
    assert_eq!(
        micros(&snapshot),
        [(1, 10_000_001)],
        "a part of a rao is a whole one"
    );
}

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
fn what_proven_answers_earned_is_worth_the_weight_of_streaming() {
    let mut mixed = snapshot(&[(1, 101), (2, 102), (3, 102)], vec![paid(1, 1, "10")]);
    mixed.streamed = vec![
        session(1, 1, 1),
        session(2, 2, 2),
        session(3, 3, 0),
        session(4, 2, 6),
        session(4, 2, 6),
    ];
    mixed.streamed.push(StreamedSession {
        proven: 0,
        unproven: 3,
        ..session(5, 3, 0)
    });
    let scores = scores(&mixed);
    let of: Vec<_> = scores
        .scores
        .iter()
        .map(|s| (s.uid.0, s.micros, s.rao, s.points))
        .collect();
    assert_eq!(
        of,
        [
            (1, 10_000_000, 1, POINTS + POINTS / 9 * 2),
            (2, 0, 8, POINTS * 8 / 9 * 2)
        ]
    );
    assert_eq!(
        reasons(&mixed),
        [DropReason::Free, DropReason::Repeated, DropReason::Unproven]
    );
    assert_eq!(scores.faults.len(), 1);
    assert_eq!(
        scores.zeros[1].why.to_string(),
        "none of its work counts: 1 because none of the session's answers was proven, 1 because the session's answers cost nothing"
    );
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
    snapshot.streamed = vec![session(1, 1, 3), session(2, 2, 1)];
    let explained = explain(&snapshot, miner(1)).unwrap();
    let class = &explained.classes[0];
    assert_eq!(
        (class.credit, class.all_credit, class.work_ms),
        (1_000, 4_000, 3_600_000)
    );
    assert_eq!(explained.streaming_points, 2 * POINTS / 4 * 3);
    assert_eq!(explained.earned, class.points + explained.streaming_points);
    assert_eq!(
        (explained.vested, explained.weight),
        (explained.points / 20, 65_535)
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
        "weight: 65535 of 65535",
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
