//! Properties of scoring: nothing is lost, nothing is created, and a receipt changes another miner's pay only through
//! the share.

use muster_protocol::receipt::{FinishedReceipt, FinishedTag};
use muster_protocol::{AttemptId, ExecutorClass, Hotkey, MinerKey, Timestamp, Uid, ValidatorKey};
use muster_scoring::{
    DropReason, FaultySession, Neuron, POINTS, PaidReceipt, ProvenExecutors, ScoringSnapshot,
    StreamedSession, ZeroReason, explain_zeros, score,
};
use proptest::prelude::*;
use uuid::Uuid;

const TEST: ExecutorClass = ExecutorClass::AlwaysOnTest;
const CPU: ExecutorClass = ExecutorClass::AlwaysOnCpu8c16Gb;

fn hotkey(seed: u8) -> Hotkey {
    Hotkey::from_bytes([seed; 32])
}

fn miner(seed: u8) -> MinerKey {
    MinerKey(hotkey(seed))
}

fn paid(attempt: u128, of: u8, amount: &str) -> PaidReceipt {
    PaidReceipt {
        receipt: FinishedReceipt {
            job_uuid: AttemptId::from_uuid(Uuid::from_u128(attempt)),
            miner_hotkey: miner(of),
            validator_hotkey: ValidatorKey(hotkey(0)),
            timestamp: Timestamp::from_secs(1_769_000_000),
            receipt_type: FinishedTag,
            time_started: Timestamp::from_secs(1_769_000_000),
            time_took_us: 1,
            score_str: amount.to_owned(),
            block_numbers: vec![],
        },
        class: Some(TEST),
    }
}

/// A subnet of these miners, each with its coldkey; the scorer is 0.
fn snapshot(coldkeys: &[(u8, u8)], receipts: Vec<PaidReceipt>) -> ScoringSnapshot {
    let neuron = |(seed, cold): (u8, u8)| Neuron {
        uid: Uid(seed.into()),
        hotkey: hotkey(seed),
        coldkey: hotkey(cold),
    };
    ScoringSnapshot {
        me: ValidatorKey(hotkey(0)),
        neurons: [(0, 100)].iter().chain(coldkeys).copied().map(neuron).collect(),
        validators: [ValidatorKey(hotkey(50))].into(),
        class_weights: [(TEST, 1), (CPU, 3)].into(),
        receipts,
        streaming_weight: 2,
        streamed: vec![],
        proven: vec![],
        capacity_percent: 20,
    }
}

/// A session of one proven answer.
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

fn rows(snapshot: &ScoringSnapshot) -> Vec<(u16, u64, u64)> {
    score(snapshot)
        .scores
        .iter()
        .map(|s| (s.uid.0, s.micros, s.points))
        .collect()
}

#[test]
fn proven_executors_share_their_part_of_a_class_and_work_the_rest() {
    let proven = |of, executors| ProvenExecutors {
        miner: miner(of),
        class: TEST,
        executors,
    };
    let mut snapshot = snapshot(
        &[(1, 101), (2, 102), (3, 103)],
        vec![paid(1, 1, "30"), paid(2, 2, "10")],
    );
    let rows_of = |snapshot: &ScoringSnapshot| {
        rows(snapshot)
            .iter()
            .map(|row| (row.0, row.2))
            .collect::<Vec<_>>()
    };
    let whole = [(1, POINTS / 4 * 3), (2, POINTS / 4)];
    assert_eq!(rows_of(&snapshot), whole, "nobody has proven anything");
    // Miner 3 did no work and has as many executors as miner 2; executors of a miner outside the subnet do not count.
    snapshot.proven = vec![proven(2, 4), proven(3, 4), proven(9, 100), proven(1, 0)];
    let fifth = POINTS / 5;
    assert_eq!(
        rows_of(&snapshot),
        [
            (1, (POINTS - fifth) / 4 * 3),
            (2, (POINTS - fifth) / 4 + fifth / 2),
            (3, fifth / 2)
        ]
    );
    snapshot.receipts.clear();
    assert_eq!(rows_of(&snapshot), [(2, fifth / 2), (3, fifth / 2)]);
}

#[test]
fn one_bad_receipt_stops_nobody() {
    let mut stranger = paid(8, 1, "5");
    stranger.receipt.validator_hotkey = ValidatorKey(hotkey(51));
    let mut listed = paid(9, 1, "1");
    listed.receipt.validator_hotkey = ValidatorKey(hotkey(50));
    let unknown = PaidReceipt {
        class: None,
        ..paid(10, 1, "5")
    };
    let receipts = vec![
        paid(1, 1, "20.500000"),
        paid(2, 1, "0.500000"),
        paid(3, 2, "7"),
        paid(4, 2, "seven"),
        paid(5, 9, "100.000000"),
        paid(6, 2, "0.000000"),
        paid(1, 1, "20.500000"),
        paid(7, 2, "3000000"),
        stranger,
        unknown,
        listed,
    ];
    let snapshot = snapshot(&[(1, 101), (2, 102), (3, 103)], receipts);
    let scores = score(&snapshot);
    let sums: Vec<_> = scores.scores.iter().map(|s| (s.uid.0, s.micros)).collect();
    assert_eq!(sums, [(1, 22_000_000), (2, 7_000_000)]);
    let reasons: Vec<_> = scores.dropped.iter().map(|(_, reason)| *reason).collect();
    assert_eq!(
        reasons,
        [
            DropReason::NoAmount,
            DropReason::NotRegistered,
            DropReason::Unpaid,
            DropReason::Repeated,
            DropReason::TooMuch,
            DropReason::Stranger,
            DropReason::NoStart,
        ]
    );
}

#[test]
fn a_coldkeys_work_is_split_over_its_hotkeys_that_worked() {
    let receipts = vec![paid(1, 1, "10"), paid(2, 2, "0.000001"), paid(3, 3, "10")];
    let snapshot = snapshot(&[(1, 101), (2, 101), (3, 103), (4, 101)], receipts);
    let all = 20_000_001_u128;
    let part = |micros: u128| u64::try_from(micros * u128::from(POINTS) / all).unwrap();
    assert_eq!(
        rows(&snapshot),
        [
            (1, 5_000_001, part(5_000_001)),
            (2, 5_000_000, part(5_000_000)),
            (3, 10_000_000, part(10_000_000)),
        ]
    );
}

#[test]
fn a_class_is_worth_its_weight_whatever_is_worked_in_others() {
    let mut cpu = paid(2, 2, "0.000001");
    cpu.class = Some(CPU);
    let snapshot = snapshot(&[(1, 101), (2, 102)], vec![paid(1, 1, "1000"), cpu]);
    assert_eq!(rows(&snapshot), [(1, 1_000_000_000, POINTS), (2, 1, 3 * POINTS)]);
}

#[test]
fn what_proven_answers_earned_is_worth_the_weight_of_streaming_beside_the_seconds() {
    let mut mixed = snapshot(&[(1, 101), (2, 102), (3, 102)], vec![paid(1, 1, "10")]);
    mixed.streamed = vec![
        session(1, 1, 1),
        session(2, 2, 2),
        session(3, 3, 0),
        session(4, 2, 6),
    ];
    mixed.streamed.push(session(4, 2, 6));
    let scores = score(&mixed);
    let of: Vec<_> = scores
        .scores
        .iter()
        .map(|s| (s.uid.0, s.micros, s.rao, s.points))
        .collect();
    // Miner 1 has all the seconds and a ninth of the rao; miner 2 has the rest, since its coldkey's other hotkey earned
    // none.
    assert_eq!(
        of,
        [
            (1, 10_000_000, 1, POINTS + POINTS / 9 * 2),
            (2, 0, 8, POINTS * 8 / 9 * 2),
        ]
    );
    let dropped: Vec<_> = scores.dropped.iter().map(|(_, reason)| *reason).collect();
    assert_eq!(dropped, [DropReason::Free, DropReason::Repeated]);
}

#[test]
fn what_is_not_proven_pays_nothing_and_a_session_with_a_gap_is_named() {
    let unproven = StreamedSession {
        proven: 0,
        unproven: 3,
        ..session(1, 1, 0)
    };
    let gap = StreamedSession {
        fault: Some("the proofs of 2 answers are missing".to_owned()),
        ..session(2, 2, 5)
    };
    let mut snapshot = snapshot(&[(1, 101), (2, 102)], vec![]);
    snapshot.streamed = vec![unproven.clone(), gap.clone(), session(3, 9, 5)];
    let scores = score(&snapshot);
    assert_eq!(
        rows(&snapshot),
        [(2, 0, 2 * POINTS)],
        "answers proven before the gap are paid"
    );
    let named = |session: &StreamedSession| FaultySession {
        attempt: session.attempt,
        miner: session.miner,
        unproven: session.unproven,
        fault: session.fault.clone(),
    };
    assert_eq!(scores.faults, [named(&unproven), named(&gap)]);
    let reasons: Vec<_> = scores.dropped.iter().map(|(_, reason)| *reason).collect();
    assert_eq!(reasons, [DropReason::Unproven, DropReason::NotRegistered]);
    let told = explain_zeros(&snapshot, &scores, &[(Uid(2), 65_535)]);
    assert_eq!(
        told[1].why,
        ZeroReason::NothingCounts([(DropReason::Unproven, 1)].into())
    );
}

#[test]
fn every_zero_has_its_reason() {
    let worthless = PaidReceipt {
        class: Some(ExecutorClass::AlwaysOnLlmA6000),
        ..paid(1, 1, "5")
    };
    let receipts = vec![
        worthless,
        paid(2, 2, "0.000000"),
        paid(3, 2, "0"),
        paid(4, 3, "0.000001"),
        paid(5, 4, "10"),
    ];
    let coldkeys = [(1, 101), (2, 102), (3, 103), (4, 104), (5, 105)];
    let snapshot = snapshot(&coldkeys, receipts);
    let scores = score(&snapshot);
    let zeros = explain_zeros(&snapshot, &scores, &[(Uid(4), 65_535), (Uid(5), 0)]);
    let told: Vec<_> = zeros.into_iter().map(|zero| (zero.uid.0, zero.why)).collect();
    assert_eq!(
        told,
        [
            (0, ZeroReason::Myself),
            (1, ZeroReason::WorthlessClass),
            (2, ZeroReason::NothingCounts([(DropReason::Unpaid, 2)].into())),
            (3, ZeroReason::TooSmall),
            (5, ZeroReason::NoReceipts),
        ]
    );
    assert_eq!(
        told[2].1.to_string(),
        "none of its work counts: 2 because it pays nothing"
    );
}

#[test]
fn a_snapshot_is_read_back_as_it_was() {
    let snapshot = snapshot(&[(1, 101)], vec![paid(1, 1, "10")]);
    let again: ScoringSnapshot = serde_json::from_str(&serde_json::to_string(&snapshot).unwrap()).unwrap();
    assert_eq!(score(&again), score(&snapshot));
}

proptest! {
    #[test]
    fn every_receipt_is_counted_or_dropped_once_and_order_does_not_matter(
        lines in proptest::collection::vec((0u8..6, any::<bool>(), "[0-9]{1,6}(\\.[0-9]{1,8})?|x|-1|"), 0..40),
    ) {
        let receipts: Vec<_> = lines.iter().enumerate().map(|(at, (of, cpu, amount))| {
            let mut paid = paid(u128::try_from(at).unwrap(), *of, amount);
            paid.class = Some(if *cpu { CPU } else { TEST });
            paid
        }).collect();
        let mut snapshot = snapshot(&[(1, 101), (2, 101), (3, 103)], receipts);
        let one = score(&snapshot);
        let good: u64 = snapshot.receipts.iter()
            .filter(|p| snapshot.neurons.iter().any(|n| n.hotkey == p.receipt.miner_hotkey.0))
            .filter_map(|p| p.receipt.score_micros()).filter(|micros| *micros <= 2_592_000_000_000).sum();
        prop_assert_eq!(one.scores.iter().map(|s| s.micros).sum::<u64>(), good, "work is neither lost nor made");
        snapshot.receipts.reverse();
        let two = score(&snapshot);
        prop_assert_eq!(&one.scores, &two.scores);
        prop_assert_eq!(one.dropped.len(), two.dropped.len());
        let worth: u64 = one.scores.iter().map(|s| s.points).sum();
        prop_assert!(worth <= 4 * POINTS, "no class is worth more than its weight");
    }

    #[test]
    fn no_rao_is_lost_or_made(sessions in proptest::collection::vec((1u8..5, 0u64..1 << 40), 0..30)) {
        let mut snapshot = snapshot(&[(1, 101), (2, 101), (3, 103)], vec![]);
        snapshot.streamed = sessions.iter().enumerate()
            .map(|(at, (of, earned))| session(u128::try_from(at).unwrap(), *of, *earned)).collect();
        let scores = score(&snapshot);
        let good: u64 = sessions.iter().filter(|(of, _)| *of < 4).map(|(_, earned)| earned).sum();
        prop_assert_eq!(scores.scores.iter().map(|s| s.rao).sum::<u64>(), good);
        prop_assert!(scores.scores.iter().map(|s| s.points).sum::<u64>() <= 2 * POINTS);
        snapshot.streamed.reverse();
        prop_assert_eq!(score(&snapshot).scores, scores.scores);
    }

    #[test]
    fn spreading_work_over_ones_own_hotkeys_earns_nothing(
        amounts in proptest::collection::vec(1u32..1_000_000, 1..20), other in 1u32..1_000_000, spread in proptest::collection::vec(1u8..4, 20),
    ) {
        let coldkeys = [(1, 101), (2, 101), (3, 101), (9, 109)];
        let work = |of: &dyn Fn(usize) -> u8| {
            let mut receipts: Vec<_> = amounts.iter().enumerate()
                .map(|(at, amount)| paid(u128::try_from(at).unwrap(), of(at), &amount.to_string())).collect();
            receipts.push(paid(1_000, 9, &other.to_string()));
            score(&snapshot(&coldkeys, receipts))
        };
        let sum = |scores: &muster_scoring::Scores| -> (u64, u64) {
            let own = scores.scores.iter().filter(|s| s.uid.0 < 9);
            own.fold((0, 0), |sum, s| (sum.0 + s.micros, sum.1 + s.points))
        };
        let (one, many) = (work(&|_| 1), work(&|at| spread[at]));
        prop_assert_eq!(sum(&one).0, sum(&many).0);
        prop_assert!(sum(&many).1 <= sum(&one).1, "rounding down never favours the spread");
    }
}
