//! Months of use in a validator's store whose size is bounded: jobs with checkpoints, chats, audits, grading and cycles
//! every hour, and the janitor beside them. Rows go into every table that the janitor or grading deletes from.

mod hourly;

use std::time::Duration;

use futures_util::future::join_all;
use muster_chain::BlockNumber;
use muster_grading_runner::store::GradingStore;
use muster_process::{Clock as _, TestClock};
use muster_protocol::Digest;
use muster_protocol::job::KeptCheckpoint;
use muster_protocol::receipt::OfferedReceipt;
use muster_scoring::Scores;
use muster_store::retention::{PaceSettings, sweep};
use muster_store::testing::soak::StoreSoak;
use muster_store::testing::sqlite;
use muster_validator::store::retention::ValidatorRetentionConfig;
use muster_validator::store::{CycleState, StoredCycle};

use super::retention::bounds;
use super::*;

const HOUR: Duration = Duration::from_secs(3_600);
/// Blocks in an hour, of which each cycle has as many.
const HOUR_BLOCKS: u64 = 300;

/// The hours between two sweeps, each of which looks at every table. The bounds below have a day of room for them.
const SWEEP_HOURS: u32 = 6;
/// The least time for which receipts of others stay, whatever the settings state.
const GATHERED_DAYS: u32 = 3;
/// The days on whose pages of receipts others may still read.
const SERVED_DAYS: u64 = 2;
/// Turns of accounts without waiting jobs, which go by their number alone.
const TURNS: u64 = 100_000;
/// The tables that this test leaves empty. Jobs leave the queue when they begin, and the part that runs jobs again
/// deletes from the others.
const ELSEWHERE: [&str; 6] = [
    "check_news",
    "cross_checks",
    "machine_dependent_images",
    "own_checks",
    "queue",
    "refunded_attempts",
];

#[tokio::test]
async fn days_of_jobs_chats_and_audits_stay_within_their_bounds() {
    run(StoreSoak {
        days: 5,
        jobs_a_day: 24,
        kept_days: 1,
    })
    .await;
}

#[tokio::test]
#[ignore = "soak: a year at 1,000 jobs a day, half an hour to two hours"]
async fn a_year_of_jobs_chats_and_audits_stays_within_its_bounds() {
    run(StoreSoak {
        days: 365,
        jobs_a_day: 1_000,
        kept_days: 30,
    })
    .await;
}

/// One job from its admission to the acknowledged end, with a checkpoint, and with its receipts in this block.
async fn work(store: &Store, n: u128, block: BlockNumber, now: Timestamp) {
    let (one, frame) = request(job(n), now.micros() * 1_000 + i64::try_from(n).unwrap());
    let mut first = attempt(n, 1);
    first.started_at = now;
    let mut begins = beginning(first.clone());
    begins.block = Some(block);
    assert_eq!(
        store.admit(&one, &frame, now, Some(&begins)).await.unwrap(),
        JobAdmission::New
    );
    let (machine, _) = first.machine.clone().apply(Event::Connected, now).unwrap();
    let (machine, _) = machine.apply(Event::Accepted, now).unwrap();
    let lost = HordeFailureDetails {
        reported_by: ParticipantType::Miner,
        reason: HordeFailureReason::ExecutorDisconnected,
        message: String::new(),
        context: None,
    };
    let (machine, _) = machine.apply(Event::HordeFailed(lost), now).unwrap();
    let mut payload = finished(n, 2, "3.000000");
    payload.timestamp = now;
    let receipt = IssuedReceipt {
        offered: OfferedReceipt {
            payload: ReceiptPayload::Finished(payload),
            validator_signature: Signature::from_bytes([3; 64]),
        },
        miner_signature: None,
    };
    let change = AttemptChange {
        worked: None,
        job: one.uuid,
        attempt: first.id,
        machine,
        mark: Some(AttemptMark::Clean),
        receipts: vec![receipt],
        reports: vec![(JobStatus::Accepted, None)],
        block: Some(block),
        now,
    };
    store.save(&change).await.unwrap();
    let checkpoint = KeptCheckpoint {
        ordinal: 1,
        attempt: first.id,
        manifest: Digest::of(&n.to_be_bytes()),
        name: "step-1".to_owned(),
        bytes: 1,
        epoch: None,
        step: None,
        metric: None,
        at: now,
    };
    store.keep_checkpoint(one.uuid, &checkpoint, &[]).await.unwrap();
    let outcome = rejected();
    store
        .close_job(one.uuid, &outcome, &outcome.metadata(), now)
        .await
        .unwrap();
}

/// Scores the hour before, as the weights loop would. Its cycle earns nothing.
async fn score(store: &Store, hour: u64, now: Timestamp) {
    let snapshot = format!("snapshot {hour}");
    let cycle = StoredCycle {
        number: hour,
        first_block: hour * HOUR_BLOCKS,
        last_block: (hour + 1) * HOUR_BLOCKS - 1,
        state: CycleState::Kept,
        scores: Scores::default(),
        snapshot: Some(Digest::of(snapshot.as_bytes())),
        weights: vec![],
        reveal: None,
        on_its_way: None,
        error: None,
        at_block: (hour + 1) * HOUR_BLOCKS,
        changed_at: now,
    };
    assert!(
        store
            .begin_cycle(&cycle, [snapshot, "its end".to_owned()])
            .await
            .unwrap()
    );
}

async fn acknowledge_all(store: &Store, now: Timestamp) {
    loop {
        let waiting = store.next_updates(None, 500).await.unwrap();
        if waiting.is_empty() {
            return;
        }
        let answers: Vec<_> = waiting.iter().map(|update| (update.sequence, None)).collect();
        store.acknowledge(&answers, now).await.unwrap();
    }
}

async fn run(soak: StoreSoak) {
    let test = sqlite(&MIGRATIONS).await.unwrap();
    let store = Store::with_pool(test.pool.clone()).await.unwrap();
    let clock = TestClock::default();
    store
        .note_chain("chain", BlockNumber(0), clock.now())
        .await
        .unwrap();
    let keep = soak.keep();
    let config = ValidatorRetentionConfig {
        jobs: keep,
        routes: keep,
        receipts: keep,
        gathered: keep,
        cycles: keep,
        answers: keep,
        samples: keep,
        disputes: keep,
        batches: keep,
        refusals: keep,
        epochs: keep,
        pace: PaceSettings::default(),
    };
    let grading = GradingStore::new(test.pool.clone(), test.writer());
    let (mut made, mut full) = (0_u128, 0);
    for day in 0..soak.days {
        for hour in 0..24 {
            let hour = day * 24 + hour;
            let due = u128::from(soak.jobs_a_day) * u128::from(hour + 1) / 24;
            let (now, block) = (clock.now(), BlockNumber(u64::from(hour) * HOUR_BLOCKS));
            join_all((made..due).map(|n| work(&store, n + 1, block, now))).await;
            let answers = i64::try_from(due - made).unwrap();
            made = due;
            hourly::write(&test.pool, hour.into(), answers, now).await;
            clock.advance(HOUR);
            acknowledge_all(&store, clock.now()).await;
            score(&store, u64::from(hour), clock.now()).await;
            if hour % SWEEP_HOURS == 0 {
                grading
                    .forget_evidence_before(keep.oldest(clock.now()))
                    .await
                    .unwrap();
                let due = store
                    .due_deletions(&config, bounds(), clock.now(), &[])
                    .await
                    .unwrap();
                sweep(&store.writer(), &due, StoreSoak::pace(), &clock)
                    .await
                    .unwrap();
            }
        }
        if day == soak.kept_days + 1 {
            full = test.file_bytes();
        }
    }
    let most = u64::from(soak.jobs_a_day) * u64::from(soak.kept_days + 1);
    let hours = 24 * u64::from(soak.kept_days + 1);
    let bound = |table: &str| match table {
        "jobs" | "signatures" | "attempts" | "routes" | "checkpoints" => most,
        "receipts" => most * 2,
        "outbox" => most * 3,
        "responses" | "pairs" | "request_forms" | "answer_scores" | "answer_ids" => most,
        "gathered" | "gathered_amounts" => hours.max(24 * u64::from(GATHERED_DAYS + 1)),
        "receipt_lines" | "capacity_sightings" => 24 * (SERVED_DAYS + 1),
        "pages_read" => 24,
        "queue_turns" => TURNS,
        "chains" | "check_news_numbers" | "horizons" | "owner" => 1,
        table if ELSEWHERE.contains(&table) => 0,
        // They stay for ever, as balances and readings do.
        table if table.starts_with("collateral_") || table == "burn_readings" => 0,
        // One row an hour: cycles, and what came into the others above.
        _ => hours,
    };
    soak.assert_bounds(&test, |table| Some(bound(table)))
        .await
        .unwrap();
    test.assert_file_within(full);
    // The jobs of the last hour are all there.
    assert!(store.job(job(made)).await.unwrap().is_some());
}
