//! The janitor of a validator deletes no receipt that a cycle may be scored by or a user disputes, and no signature
//! that a replay would need.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_chain::BlockNumber;
use muster_process::TestClock;
use muster_protocol::receipt::OfferedReceipt;
use muster_protocol::{Digest, JobId};
use muster_scoring::Scores;
use muster_store::retention::{Deleted, Keep, Pace, PaceSettings, sweep};
use muster_validator::store::retention::{RetentionBounds, ValidatorRetentionConfig};
use muster_validator::store::{CycleState, StoredCycle};
use proptest::prelude::*;

use super::*;

const DAY: i64 = 86_400;
/// The time of the sweeps.
const TODAY: i64 = 100 * DAY;

pub(super) fn bounds() -> RetentionBounds {
    RetentionBounds {
        signature_age: Duration::from_secs(DAY.unsigned_abs()),
        catch_up: Duration::from_secs(18_000),
        batch_blocks: 0,
    }
}

pub(super) async fn sweep_with(store: &Store, config: &ValidatorRetentionConfig, secs: i64) -> Deleted {
    let due = store
        .due_deletions(config, bounds(), NOW(secs), &[])
        .await
        .unwrap();
    let pace = Pace {
        step_rows: 3,
        pause: Duration::ZERO,
        ..PaceSettings::default().pace()
    };
    sweep(&store.writer(), &due, pace, &TestClock::new(NOW(secs)))
        .await
        .unwrap()
}

/// A job, as far as its retention depends on it.
#[derive(Clone, Debug)]
struct Case {
    /// The day of its end; `None` while it is open.
    ended: Option<i64>,
    /// The block in which its receipts count.
    block: u64,
    disputed: bool,
    acknowledged: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let ended = prop_oneof![3 => (60i64..100).prop_map(Some), 1 => Just(None)];
    (
        ended,
        0u64..200,
        proptest::bool::weighted(0.2),
        proptest::bool::weighted(0.8),
    )
        .prop_map(|(ended, block, disputed, acknowledged)| Case {
            ended,
            block,
            disputed,
            acknowledged,
        })
}

/// Stores the job with one attempt and both receipts.
async fn put(store: &Store, n: u128, case: &Case) -> JobId {
    let began = case.ended.unwrap_or(60) * DAY;
    let (one, frame) = request(job(n), began * 1_000_000_000 + i64::try_from(n).unwrap());
    store.admit(&one, &frame, NOW(began), None).await.unwrap();
    let mut first = attempt(n, 1);
    first.started_at = NOW(began);
    let mut begins = beginning(first.clone());
    begins.block = Some(BlockNumber(case.block));
    store.begin_attempt(one.uuid, &begins).await.unwrap();
    let mut payload = finished(n, 2, "3.000000");
    payload.timestamp = NOW(began + 5);
    let receipt = IssuedReceipt {
        offered: OfferedReceipt {
            payload: ReceiptPayload::Finished(payload),
            validator_signature: Signature::from_bytes([3; 64]),
        },
        miner_signature: None,
    };
    let (machine, _) = first.machine.clone().apply(Event::Connected, NOW(began)).unwrap();
    let (machine, _) = machine.apply(Event::Accepted, NOW(began)).unwrap();
    let mut change = AttemptChange {
        worked: None,
        job: one.uuid,
        attempt: first.id,
        machine,
        mark: None,
        receipts: vec![receipt],
        reports: vec![],
        block: Some(BlockNumber(case.block)),
        now: NOW(began),
    };
    store.save(&change).await.unwrap();
    if case.ended.is_some() {
        let lost = HordeFailureDetails {
            reported_by: ParticipantType::Miner,
            reason: HordeFailureReason::ExecutorDisconnected,
            message: String::new(),
            context: None,
        };
        change.receipts.clear();
        (change.machine, _) = change
            .machine
            .apply(Event::HordeFailed(lost), NOW(began))
            .unwrap();
        change.mark = Some(AttemptMark::Clean);
        store.save(&change).await.unwrap();
        let outcome = rejected();
        store
            .close_job(one.uuid, &outcome, &outcome.metadata(), NOW(began + 10))
            .await
            .unwrap();
    }
    if case.disputed {
        let report = serde_json::from_value(json!({
            "signature": one.signature, "job_uuid": one.uuid, "trusted_job_uuid": "b", "details": {"why": "x"},
        }));
        store
            .keep_cheat_report(&report.unwrap(), NOW(TODAY))
            .await
            .unwrap();
    }
    if case.acknowledged {
        let waiting = store.next_updates(None, 100).await.unwrap();
        let of_job = waiting.into_iter().filter(|update| update.job == one.uuid);
        let answers: Vec<_> = of_job.map(|update| (update.sequence, None)).collect();
        store.acknowledge(&answers, NOW(began + 11)).await.unwrap();
    }
    one.uuid
}

fn cycle(first_block: u64, last_block: u64, state: CycleState) -> StoredCycle {
    StoredCycle {
        number: last_block,
        first_block,
        last_block,
        state,
        scores: Scores::default(),
        snapshot: None,
        weights: vec![],
        reveal: None,
        on_its_way: None,
        error: None,
        at_block: last_block,
        changed_at: NOW(TODAY),
    }
}

async fn names(store: &Store, statement: &'static str) -> BTreeSet<String> {
    let rows: Vec<(String,)> = sqlx::query_as(statement).fetch_all(&store.pool()).await.unwrap();
    rows.into_iter().map(|(name,)| name).collect()
}

/// Sweeps a store with these jobs, where block 150 is the first that a cycle may still be scored by, and compares what
/// stays with what must.
async fn check(cases: &[Case]) {
    for (test, store) in each().await {
        store
            .begin_cycle(&cycle(0, 149, CycleState::Set), None)
            .await
            .unwrap();
        store
            .begin_cycle(&cycle(150, 169, CycleState::Committed), None)
            .await
            .unwrap();
        store
            .begin_cycle(&cycle(170, 189, CycleState::Set), None)
            .await
            .unwrap();
        let config = ValidatorRetentionConfig::default();
        let (mut jobs, mut receipts) = (BTreeSet::new(), BTreeSet::new());
        for (n, case) in (1_u128..).zip(cases) {
            let job = put(&store, n, case).await;
            let old = case.ended.is_some_and(|day| day < 70);
            let scored = case.block < 150;
            if !old || !scored || case.disputed {
                receipts.insert(attempt(n, 1).id.to_string());
            }
            if !old || !scored || case.disputed || !case.acknowledged {
                jobs.insert(job.to_string());
            }
        }
        sweep_with(&store, &config, TODAY).await;
        let left = names(&store, "SELECT attempt_id FROM receipts").await;
        assert_eq!(left, receipts, "{}: {cases:?}", test.engine);
        let left = names(&store, "SELECT job_id FROM jobs").await;
        assert_eq!(left, jobs, "{}: {cases:?}", test.engine);
        // The attempt behind a receipt stays with it.
        assert!(
            names(&store, "SELECT attempt_id FROM attempts")
                .await
                .is_superset(&receipts)
        );
        let signed = names(&store, "SELECT job_id FROM signatures").await;
        assert_eq!(signed, jobs, "{}", test.engine);
        assert_eq!(sweep_with(&store, &config, TODAY).await, Deleted::new());
        test.pool.close().await;
    }
}

#[test]
fn receipts_of_open_cycles_and_disputes_stay_and_so_does_what_is_behind_them() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(6));
    let strategy = proptest::collection::vec(case(), 1..16);
    runner
        .run(&strategy, |cases| {
            runtime.block_on(check(&cases));
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn before_a_chain_has_settled_anything_no_receipt_goes() {
    for (test, store) in each().await {
        let case = Case {
            ended: Some(1),
            block: 5,
            disputed: false,
            acknowledged: true,
        };
        put(&store, 1, &case).await;
        let config = ValidatorRetentionConfig::default();
        assert_eq!(
            sweep_with(&store, &config, TODAY)
                .await
                .keys()
                .copied()
                .collect::<Vec<_>>(),
            ["routes"],
            "{}",
            test.engine
        );
        store
            .begin_cycle(&cycle(0, 9, CycleState::Set), None)
            .await
            .unwrap();
        assert_eq!(
            sweep_with(&store, &config, TODAY).await,
            Deleted::new(),
            "the newest cycle may be opened again"
        );
        store
            .begin_cycle(&cycle(10, 19, CycleState::Set), None)
            .await
            .unwrap();
        let gone = Deleted::from([("receipts", 2), ("attempts", 1), ("jobs", 1)]);
        assert_eq!(sweep_with(&store, &config, TODAY).await, gone, "{}", test.engine);
    }
}

#[tokio::test]
async fn a_snapshot_goes_with_the_last_cycle_that_was_scored_by_it() {
    for (test, store) in each().await {
        let config = ValidatorRetentionConfig {
            cycles: Keep {
                days: 1,
                rows: 1_000,
                mib: 64,
            },
            ..ValidatorRetentionConfig::default()
        };
        let [once, twice] = ["once", "twice"].map(|text| (Digest::of(text.as_bytes()), text));
        for (number, (digest, text), day) in [(1, once, 50), (2, twice, 50), (3, twice, 100)] {
            let scored = StoredCycle {
                snapshot: Some(digest),
                changed_at: NOW(day * DAY),
                ..cycle(number * 10, number * 10 + 9, CycleState::Set)
            };
            let pieces = [text.to_owned(), " and its end".to_owned()];
            store.begin_cycle(&scored, pieces).await.unwrap();
        }
        let gone = Deleted::from([
            ("cycles", 2),
            ("scoring_snapshots", 1),
            ("scoring_snapshot_pieces", 1),
        ]);
        assert_eq!(sweep_with(&store, &config, TODAY).await, gone, "{}", test.engine);
        assert_eq!(snapshot_text(&store, once.0).await, None);
        let kept = snapshot_text(&store, twice.0).await;
        assert_eq!(kept.as_deref(), Some("twice and its end"), "{}", test.engine);
    }
}

#[tokio::test]
async fn a_forgotten_signature_is_refused_and_a_remembered_one_is_known() {
    const NANOS: i64 = 1_000_000_000;
    for (test, store) in each().await {
        let config = ValidatorRetentionConfig {
            jobs: Keep {
                days: 1,
                rows: 1_000,
                mib: 64,
            },
            ..ValidatorRetentionConfig::default()
        };
        let outcome = rejected();
        for (n, day) in [(1, 50), (2, 99)] {
            let (one, frame) = request(job(n), day * DAY * NANOS);
            store.admit(&one, &frame, NOW(day * DAY), None).await.unwrap();
            let end = NOW(day * DAY + 1);
            store
                .close_job(one.uuid, &outcome, &outcome.metadata(), end)
                .await
                .unwrap();
            let waiting = store.next_updates(None, 9).await.unwrap();
            let answers: Vec<_> = waiting.iter().map(|update| (update.sequence, None)).collect();
            store.acknowledge(&answers, end).await.unwrap();
        }
        // A day after the second job's end: it is old, but its signature could still be accepted.
        let swept = sweep_with(&store, &config, 100 * DAY + 1_800).await;
        assert_eq!(swept, Deleted::from([("jobs", 1)]), "{}", test.engine);
        let (replay, frame) = request(job(3), 50 * DAY * NANOS);
        assert_eq!(
            store.admit(&replay, &frame, NOW(100 * DAY), None).await.unwrap(),
            JobAdmission::Known(PriorRequest::Forgotten),
            "{}",
            test.engine
        );
        let (replay, frame) = request(job(4), 99 * DAY * NANOS);
        assert_eq!(
            store.admit(&replay, &frame, NOW(100 * DAY), None).await.unwrap(),
            JobAdmission::Known(PriorRequest::Signature)
        );
        let (new, frame) = request(job(5), 99 * DAY * NANOS + 1);
        assert_eq!(
            store.admit(&new, &frame, NOW(100 * DAY), None).await.unwrap(),
            JobAdmission::New
        );
        // The horizon never goes back, whatever the clock does.
        sweep_with(&store, &config, 60 * DAY).await;
        assert!(store.is_below_horizon(98 * DAY * NANOS).await.unwrap());
        store.refuse_signatures_before(200 * DAY * NANOS).await.unwrap();
        assert!(store.is_below_horizon(200 * DAY * NANOS - 1).await.unwrap());
        assert!(!store.is_below_horizon(200 * DAY * NANOS).await.unwrap());
    }
}
