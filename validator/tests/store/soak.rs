//! Months of use in a validator's store whose size is bounded: jobs every hour, cycles, and the janitor beside them.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use muster_chain::BlockNumber;
use muster_process::{Clock as _, TestClock};
use muster_protocol::receipt::OfferedReceipt;
use muster_scoring::Scores;
use muster_store::retention::{Keep, Pace, PaceSettings, sweep};
use muster_store::size::measure_tables;
use muster_store::testing::sqlite;
use muster_validator::store::retention::ValidatorRetentionConfig;
use muster_validator::store::{CycleState, StoredCycle};

use super::retention::bounds;
use super::*;

const HOUR: Duration = Duration::from_secs(3_600);
/// Blocks in an hour, of which each cycle has as many.
const HOUR_BLOCKS: u64 = 300;

/// How much is done for how long, and how long jobs and receipts stay.
#[derive(Clone, Copy, Debug)]
struct Soak {
    days: u32,
    jobs_a_day: u32,
    kept_days: u32,
}

#[tokio::test]
async fn ten_days_of_jobs_stay_within_their_bounds() {
    run(Soak {
        days: 10,
        jobs_a_day: 48,
        kept_days: 3,
    })
    .await;
}

#[tokio::test]
#[ignore = "soak: a year at 1,000 jobs a day, half an hour to two hours"]
async fn a_year_of_jobs_stays_within_its_bounds() {
    run(Soak {
        days: 365,
        jobs_a_day: 1_000,
        kept_days: 30,
    })
    .await;
}

/// One job from its admission to the acknowledged end, with its receipts in this block.
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
    let outcome = rejected();
    store
        .close_job(one.uuid, &outcome, &outcome.metadata(), now)
        .await
        .unwrap();
}

/// Scores the hour before, as the weights loop would. Its cycle earns nothing.
async fn score(store: &Store, hour: u64, now: Timestamp) {
    let cycle = StoredCycle {
        number: hour,
        first_block: hour * HOUR_BLOCKS,
        last_block: (hour + 1) * HOUR_BLOCKS - 1,
        state: CycleState::Kept,
        scores: Scores::default(),
        snapshot: None,
        weights: vec![],
        reveal: None,
        error: None,
        at_block: (hour + 1) * HOUR_BLOCKS,
        changed_at: now,
    };
    assert!(store.begin_cycle(&cycle, "").await.unwrap());
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

async fn run(soak: Soak) {
    let test = sqlite(&MIGRATIONS).await.unwrap();
    let store = Store::with_pool(test.pool.clone()).await.unwrap();
    let clock = TestClock::default();
    store
        .note_chain("chain", BlockNumber(0), clock.now())
        .await
        .unwrap();
    let file = test.url.trim_start_matches("sqlite:").to_owned();
    let size = || std::fs::metadata(Path::new(&file)).unwrap().len();
    let keep = Keep {
        days: soak.kept_days,
        rows: 10_000_000,
        mib: 65_536,
    };
    let config = ValidatorRetentionConfig {
        jobs: keep,
        receipts: keep,
        routes: keep,
        cycles: keep,
        ..ValidatorRetentionConfig::default()
    };
    let pace = Pace {
        pause: Duration::ZERO,
        ..PaceSettings::default().pace()
    };
    let (mut made, mut full) = (0_u128, 0);
    for day in 0..soak.days {
        for hour in 0..24 {
            let hour = day * 24 + hour;
            let due = u128::from(soak.jobs_a_day) * u128::from(hour + 1) / 24;
            let (now, block) = (clock.now(), BlockNumber(u64::from(hour) * HOUR_BLOCKS));
            join_all((made..due).map(|n| work(&store, n + 1, block, now))).await;
            made = due;
            clock.advance(HOUR);
            acknowledge_all(&store, clock.now()).await;
            score(&store, u64::from(hour), clock.now()).await;
            let due = store
                .due_deletions(&config, bounds(), clock.now(), &[])
                .await
                .unwrap();
            sweep(&store.writer(), &due, pace, &clock).await.unwrap();
        }
        if day == soak.kept_days + 1 {
            full = size();
        }
    }
    let most = u64::from(soak.jobs_a_day) * u64::from(soak.kept_days + 1);
    for table in measure_tables(&test.url).await.unwrap() {
        let bound = match table.table.as_str() {
            "jobs" | "signatures" | "attempts" | "routes" => most,
            "receipts" => most * 2,
            "outbox" => most * 3,
            "cycles" => 24 * u64::from(soak.kept_days + 1),
            _ => 16,
        };
        assert!(
            table.rows <= bound,
            "{table:?}: more than {bound} rows after {soak:?}"
        );
    }
    let end = size();
    assert!(
        full > 0 && end <= full + full / 4,
        "the file grew from {full} to {end} bytes"
    );
    // The jobs of the last hour are all there.
    assert!(store.job(job(made)).await.unwrap().is_some());
}
