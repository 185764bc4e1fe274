//! Receipts that count, and the reasons why others do not.

use muster_protocol::Timestamp;
use muster_protocol::receipt::FinishedReceipt;
use muster_scoring::{DropReason, POINTS, PaidReceipt, ZeroReason, score_cycle};

use crate::support::*;

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
